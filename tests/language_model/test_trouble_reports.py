"""Troubles that people had with other software for GPT-2, as small inputs with right values; tests/data/cases has them.

The values are those of transformers 5.24 and tokenizers 0.23 on the same files, or said beside the test.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import DATA, ROOT

import gpt2fast
from gpt2fast.cli import main

CASES = DATA / "cases"
DIRECTORIES = [
    "tok-added-in-vocabulary/pad-is-a-byte",
    "tok-added-in-vocabulary/word-is-there-already",
    "tok-added-not-special",
    "tok-save-roundtrip",
    "tok-split-pretokenizer",
]


def expected(name: str) -> dict[str, list[int]]:
    """The ids of each text of a case."""
    values = json.loads((CASES / name / "expected.json").read_text())
    found: dict[str, list[int]] = values.get("ids") or values["ids after loading, saving and loading again"]
    return found


def check(tokenizer: gpt2fast.Tokenizer, ids: dict[str, list[int]]) -> None:
    for text, wanted in ids.items():
        assert tokenizer.encode(text, allowed_special="all") == wanted
        assert tokenizer.encode_to_numpy(text, allowed_special="all").tolist() == wanted
        if not tokenizer.special_tokens_set.intersection(text.split()):
            assert tokenizer.encode_ordinary(text) == wanted
            assert tokenizer.count(text) == len(wanted)
        assert tokenizer.decode(wanted) == text


@pytest.mark.parametrize("name", DIRECTORIES)
def test_ids_of_a_directory_and_of_what_is_saved_of_it(name: str, tmp_path: Path) -> None:
    tokenizer = gpt2fast.Tokenizer.from_pretrained(CASES / name)
    check(tokenizer, expected(name))
    tokenizer.save_pretrained(tmp_path)
    again = gpt2fast.Tokenizer.from_pretrained(tmp_path)
    check(again, expected(name))
    assert again.special_tokens_set == tokenizer.special_tokens_set


@pytest.mark.parametrize("packed", [False, True])
def test_a_saved_model_has_the_tokens_of_the_one_it_was(packed: bool, tmp_path: Path) -> None:
    lm = gpt2fast.load(CASES / "tok-save-roundtrip", dtype="int8" if packed else "float32")
    lm.save_pretrained(tmp_path, packed=packed)
    again = gpt2fast.load(tmp_path)
    assert again.tokenizer.special_tokens_set == lm.tokenizer.special_tokens_set
    check(again.tokenizer, expected("tok-save-roundtrip"))


def test_added_words_are_found_by_all_that_reads_texts(tmp_path: Path) -> None:
    directory = CASES / "tok-added-not-special"
    text = "my value in dignums dollars"
    ids = expected("tok-added-not-special")[text]
    lm = gpt2fast.load(directory)
    assert lm.score(text).ids.tolist() == ids
    assert lm.generate(text, max_new_tokens=1, temperature=0).prompt_ids == ids
    (tmp_path / "in.txt").write_text(text)
    command = ["tokenize", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.npy"), "--quiet"]
    assert main([*command, "--tokenizer", str(directory)]) == 0
    assert np.load(tmp_path / "out.npy").tolist() == ids


@pytest.mark.parametrize("where", ["config", "generation-config"])
def test_each_of_several_ends_ends_a_text(where: str) -> None:
    directory = CASES / "g-eos-list" / where
    wanted = json.loads((directory / "expected.json").read_text())
    made = gpt2fast.load(directory).generate("The king", temperature=0, max_new_tokens=12)
    assert made.prompt_ids == wanted["prompt"]
    assert (made.ids, made.finish_reason) == (wanted["new ids, greedy, at most 12"], "eos")


def test_white_space_at_the_end_of_a_context() -> None:
    context, text = ((CASES / "s-context-space" / f"{name}.txt").read_text() for name in ("context", "text"))
    lm = gpt2fast.load("demo")
    score = lm.score(text, context=context)
    assert score.log_likelihood == lm.score_choices(context, [text])[0].log_likelihood
    assert score.log_likelihood == pytest.approx(-10.976, abs=1e-3)


def test_names_that_scripts_take_from_tiktoken() -> None:
    enc = gpt2fast.get_encoding("gpt2")
    assert [enc._special_tokens["<|endoftext|>"], *enc.encode_ordinary("hello world")] == [50256, 31373, 995]


def test_a_separator_within_lines(tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    line = ["tokenize", str(CASES / "c-inline-separator" / "joined.txt"), "-o", str(out), "--quiet"]
    assert main([*line, "--separator", "<|endoftext|>", "--eot", "append"]) == 0
    assert np.load(out).tolist().count(50256) == 3


def test_an_array_of_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = CASES / "c-json-array" / "array.json"
    assert main(["tokenize", str(source), "-o", str(tmp_path / "out.npy")]) == 0
    assert "[2 documents" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "words"), [("twice", "text"), ("not-utf8", "UTF-8")])
def test_odd_names_of_columns(name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = CASES / "c-parquet-names" / f"{name}.parquet"
    assert main(["tokenize", str(source), "-o", str(tmp_path / "out.npy")]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert source.name in told
    assert words in told


@pytest.mark.parametrize(("name", "rows"), [("dialogue", 12), ("odd", 19)])
def test_tables_with_quotation_marks(name: str, rows: int) -> None:
    source = CASES / "cli-tsv-quotes" / f"{name}.txt"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "gpt2fast", "score", str(source), "--quiet"]
    table = subprocess.run(line, capture_output=True, check=True, env=environment).stdout.decode()
    found = list(csv.DictReader(table.splitlines(keepends=True), dialect="excel-tab"))
    tokens = gpt2fast.load("demo").score(source.read_bytes().decode()).tokens
    assert len(found) == rows
    assert [row["token"] for row in found] == [token.text for token in tokens]
