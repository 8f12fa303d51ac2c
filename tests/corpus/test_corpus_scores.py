"""Corpora to scores: a row for each document, the numbers of `score`, in every format, whole or not at all."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

import gpt2fast
from gpt2fast.cli import main
from gpt2fast.corpus import documents, groups
from gpt2fast.corpus.scores import score_files
from gpt2fast.errors import InputError, InputTypeError, MissingFileError
from gpt2fast.scoring import binoculars

TEXTS = [
    "Once upon a time there was a fox.\n",
    "",
    'She said:\t"It\'s\r\nlate" \\ …',
    "Ein Bär 🦊",
    "The old man went home. " * 40,
    "x",
]


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


def jsonl(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"id": i, "text": text}).encode() + b"\n" for i, text in enumerate(texts))


def parquet(texts: list[str]) -> bytes:
    out = io.BytesIO()
    pa.parquet.write_table(pa.table({"text": texts, "n": range(len(texts))}), out)
    return out.getvalue()


def rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = pa.parquet.read_table(path).to_pylist()
        return found
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    names, *lines = [line.split("\t") for line in path.read_text("utf-8").removesuffix("\n").split("\n")]
    return [
        {name: json.loads(value) if value else None for name, value in zip(names[1:], line[1:], strict=True)}
        for line in lines
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("out", ["b.parquet", "b.jsonl", "b.tsv"])
def test_the_numbers_are_those_of_score(lm: gpt2fast.LanguageModel, tmp_path: Path, name: str, out: str) -> None:
    content = parquet(TEXTS) if "parquet" in name else jsonl(TEXTS)
    packed = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
    (tmp_path / name).write_bytes(packed.get(Path(name).suffix, lambda content: content)(content))
    summary = score_files(tmp_path / name, tmp_path / out, lm)
    expected = [lm.score(text) for text in TEXTS]
    if out == "b.parquet":
        metadata = pa.parquet.read_schema(tmp_path / out).metadata
        assert metadata[b"gpt2fast.numerics_version"] == str(gpt2fast.numerics_version).encode()
    found = rows(tmp_path / out)
    assert len(found) == len(TEXTS) == summary.documents
    for number, (row, score) in enumerate(zip(found, expected, strict=True)):
        assert (row["document"], row["bytes"], row["tokens"]) == (number, score.num_bytes, len(score))
        assert row.get("file", str(tmp_path / name)) == str(tmp_path / name)
        assert row["log_likelihood"] == pytest.approx(score.log_likelihood, rel=1e-8)
        for column in ("perplexity", "bits_per_byte"):
            value = getattr(score, column)
            assert row[column] == (None if math.isnan(value) else pytest.approx(value, rel=1e-8))
    total = sum(score.log_likelihood for score in expected)
    assert summary.tokens == sum(map(len, expected))
    assert summary.text_bytes == sum(score.num_bytes for score in expected)
    assert summary.log_likelihood == pytest.approx(total)
    assert summary.perplexity == pytest.approx(math.exp(-total / summary.tokens))
    assert summary.bits_per_byte == pytest.approx(-total / math.log(2) / summary.text_bytes)


@pytest.mark.parametrize("out", ["b.parquet", "b.jsonl"])
def test_values_of_tokens_and_the_texts(lm: gpt2fast.LanguageModel, tmp_path: Path, out: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    score_files(tmp_path / "a.jsonl", tmp_path / out, lm, tokens=True, text=True, context="The king", stride=64)
    for row, text in zip(rows(tmp_path / out), TEXTS, strict=True):
        score = lm.score(text, context="The king", stride=64)
        assert row["text"] == text
        for column in ("ids", "log_probabilities", "ranks", "entropies"):
            assert row[column] == getattr(score, column).tolist()


@pytest.mark.parametrize(("out", "delimiter"), [("b.tsv", "\t"), ("b.csv", ",")])
def test_texts_in_tables_are_as_they_were(lm: gpt2fast.LanguageModel, tmp_path: Path, out: str, delimiter: str) -> None:
    texts = [*TEXTS, '"Yes," she said.', '"', "a\rb", "\\n", "comma, tab\t", "'"]
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts))
    score_files(tmp_path / "a.jsonl", tmp_path / out, lm, text=True)
    with open(tmp_path / out, encoding="utf-8", newline="") as file:
        assert [row["text"] for row in csv.DictReader(file, delimiter=delimiter)] == texts
    table = pandas.read_csv(tmp_path / out, sep=delimiter, keep_default_na=False)
    assert table["text"].tolist() == texts
    assert table["tokens"].tolist() == [len(lm.score(text)) for text in texts]


@pytest.mark.parametrize("out", ["b.parquet", "b.jsonl", "b.tsv"])
def test_what_tells_of_an_author(lm: gpt2fast.LanguageModel, tmp_path: Path, out: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    observer = gpt2fast.load("demo", dtype="int8")
    score_files(tmp_path / "a.jsonl", tmp_path / out, lm, detect=True, observer=observer, stride=64)
    seen = binoculars(lm, observer, TEXTS, stride=64)
    for row, text, pair in zip(rows(tmp_path / out), TEXTS, seen, strict=True):
        score = lm.score(text, stride=64)
        expected = {f"top_{rank}": score.share_within(rank) for rank in (10, 100, 1000)}
        expected["variance"] = float(score.variances.mean()) if len(score) else math.nan
        expected |= {"curvature": score.curvature, "binoculars": pair.ratio, "perplexity": score.perplexity}
        for name, value in expected.items():
            assert row[name] == (None if math.isnan(value) else pytest.approx(value, rel=1e-8)), name


def test_variances_of_tokens(lm: gpt2fast.LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    score_files(tmp_path / "a.jsonl", tmp_path / "b.parquet", lm, tokens=True, detect=True)
    for row, text in zip(rows(tmp_path / "b.parquet"), TEXTS, strict=True):
        assert row["variances"] == lm.score(text).variances.tolist()


def test_documents_are_kept_by_what_tells_of_an_author(lm: gpt2fast.LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    observer = gpt2fast.load("demo", dtype="int8")
    keep = "top_10 < 1 and (curvature > 0 or binoculars < 1)"
    found = zip(lm.score_batch(TEXTS), binoculars(lm, observer, TEXTS), strict=True)
    expected = [
        i
        for i, (score, pair) in enumerate(found)
        if score.share_within(10) < 1 and (score.curvature > 0 or pair.ratio < 1)
    ]
    assert 0 < len(expected) < len(TEXTS)
    summary = score_files(tmp_path / "a.jsonl", tmp_path / "b.jsonl", lm, keep=keep, observer=observer)
    assert [row["id"] for row in rows(tmp_path / "b.jsonl")] == expected
    assert summary.kept == len(expected)
    with pytest.raises(InputError, match="asks for binoculars, which two models look through; say the observer"):
        score_files(tmp_path / "a.jsonl", tmp_path / "c.jsonl", lm, keep=keep)


def test_an_observer_of_another_vocabulary(
    lm: gpt2fast.LanguageModel, toy: gpt2fast.LanguageModel, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    with pytest.raises(InputError, match="the observer's tokenizer has 270 tokens"):
        score_files(tmp_path / "a.jsonl", tmp_path / "b.jsonl", lm, observer=toy)


def test_several_files_and_text_files(lm: gpt2fast.LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n---\ntwo\n---\nthree\n")
    (tmp_path / "in" / "b.jsonl").write_bytes(jsonl(["four"]))
    score_files(tmp_path / "in", tmp_path / "b.jsonl", lm, separator="---", text=True)
    found = [(os.path.basename(row["file"]), row["document"], row["text"]) for row in rows(tmp_path / "b.jsonl")]
    assert found == [
        ("a.txt", 0, "one\n"),
        ("a.txt", 1, "two\n"),
        ("a.txt", 2, "three\n"),
        ("b.jsonl", 0, "four"),
    ]


def test_long_documents_and_many(lm: gpt2fast.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PART_BYTES", 64)
    monkeypatch.setattr(groups, "GROUP_BYTES", 50)
    texts = [f"{i} " * (i % 50) for i in range(60)]
    (tmp_path / "a.txt").write_text("\n---\n".join(texts))
    summary = score_files(tmp_path / "a.txt", tmp_path / "b.jsonl", lm, separator="---", text=True)
    found = rows(tmp_path / "b.jsonl")
    assert [row["text"].strip() for row in found] == [text.strip() for text in texts]
    assert [row["document"] for row in found] == list(range(summary.documents))
    assert found[49]["log_likelihood"] == lm.score(found[49]["text"]).log_likelihood


def test_bad_lines(lm: gpt2fast.LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": 5}\nno json\n{"text": "caf\xe9"}\n{"text": "b"}\n')
    (tmp_path / "b.jsonl").write_text("what was there\n")
    with pytest.raises(InputError, match=r"a\.jsonl:2: "):
        score_files(tmp_path / "a.jsonl", tmp_path / "b.jsonl", lm, overwrite=True)
    assert (tmp_path / "b.jsonl").read_text() == "what was there\n"
    assert sorted(set(os.listdir(tmp_path)) - {"b.jsonl.partial"}) == ["a.jsonl", "b.jsonl"]
    told: list[str] = []
    summary = score_files(
        tmp_path / "a.jsonl", tmp_path / "b.jsonl", lm, text=True, on_error="skip", on_skip=told.append, overwrite=True
    )
    assert (summary.documents, summary.skipped, len(told)) == (2, 3, 3)
    assert [row["text"] for row in rows(tmp_path / "b.jsonl")] == ["a", "b"]
    score_files(
        tmp_path / "a.jsonl",
        tmp_path / "b.jsonl",
        lm,
        text=True,
        on_error="replace",
        on_skip=told.append,
        overwrite=True,
    )
    assert [row["text"] for row in rows(tmp_path / "b.jsonl")] == ["a", "caf\ufffd", "b"]


@pytest.mark.parametrize("out", ["b.parquet", "b.jsonl", "b.tsv"])
def test_nothing_to_score(lm: gpt2fast.LanguageModel, tmp_path: Path, out: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    summary = score_files(tmp_path / "a.jsonl", tmp_path / out, lm)
    assert rows(tmp_path / out) == []
    assert (summary.documents, summary.tokens) == (0, 0)
    assert math.isnan(summary.perplexity)
    assert math.isnan(summary.bits_per_byte)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"inputs": "no.jsonl"}, MissingFileError, "no.jsonl: there is no such file"),
        ({"out": "b.xls"}, InputError, "b.xls: what to write is not known by its name; expected .parquet"),
        ({"out": "b.tsv", "tokens": True}, InputError, "TSV has no lists"),
        ({"out": "a.jsonl"}, InputError, "a.jsonl: both an input and the output"),
        ({"out": 5}, InputTypeError, "out is of type int"),
        ({"context": 5}, InputTypeError, "context is of type int"),
        ({"stride": 513}, InputError, "stride is 513; the model's context is 512"),
        ({"on_error": "ignore"}, InputError, "on_error is 'ignore'"),
        ({"field": "body"}, InputError, "a.jsonl:1: "),
    ],
)
def test_refusals(
    lm: gpt2fast.LanguageModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: Any,
    error: type[Exception],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(jsonl(["a"]))
    with pytest.raises(error) as caught:
        score_files(**{"inputs": "a.jsonl", "out": "b.jsonl", "lm": lm, **options})
    assert words in str(caught.value)
    assert os.listdir() == ["a.jsonl"]


# The command


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(b'{"body": "a b c"}\n{"text": 5}\n')
    assert main(["score", "a.jsonl", "-o", "b.parquet", "--field", "body"]) == 1
    assert "a.jsonl:2:" in capsys.readouterr().err
    assert main(["score", "a.jsonl", "-o", "b.parquet", "--field", "body", "--on-error", "skip", "--with-text"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "skipped: a.jsonl:2:" in told.err
    assert "[1 documents, 3 tokens in" in told.err
    assert "1 bad lines or documents skipped" in told.err
    assert "%|" not in told.err  # no bar where there is no terminal
    assert [row["text"] for row in rows(Path("b.parquet"))] == ["a b c"]
    assert main(["score", "a.jsonl", "-o", "b.jsonl", "--field", "body", "--on-error", "skip", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_command_with_an_observer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(jsonl(TEXTS[:1]))
    assert main(["score", "a.jsonl", "-o", "b.jsonl", "--quiet", "--detect", "--observer", "demo"]) == 0
    (row,) = rows(Path("b.jsonl"))
    assert list(row)[7:-2] == ["variance", "curvature", "top_10", "top_100", "top_1000"]
    assert list(row)[-2:] == ["binoculars", "numerics_version"]
    assert main(["score", "--text", "a", "--detect"]) == 2


def test_a_progress_bar_where_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(jsonl(TEXTS))
    assert main(["score", "a.jsonl", "-o", "b.tsv", "--progress"]) == 0
    assert "100%|" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a", "b"], "there are 2 files"),
        (["--field", "body"], "--field is for documents"),
        (["--with-text"], "--with-text is for documents"),
        (["--text", "a", "-o", "b.tsv"], "--text is one text"),
    ],
)
def test_options_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["score", *arguments]) == 2
    assert words in capsys.readouterr().err
