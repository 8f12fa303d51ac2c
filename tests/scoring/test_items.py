"""Items of an experiment to tables in long format, in every format and by the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas
import pyarrow.feather
import pyarrow.parquet
import pytest

import gpt2fast
from gpt2fast.cli import main
from gpt2fast.corpus import score_items
from gpt2fast.errors import InputError, InputTypeError, MissingFileError
from gpt2fast.interpretability import lens
from gpt2fast.scoring import regions, word_rows

ITEMS = [
    {"item": "7", "condition": "reduced", "sentence": "The horse |raced past the barn| fell."},
    {"item": "7", "condition": "full, quoted", "sentence": 'The "horse" | that\tran |\nfell.'},
    {"item": "8", "condition": "", "sentence": ""},
]


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture
def items(tmp_path: Path) -> Path:
    pandas.DataFrame(ITEMS).to_csv(tmp_path / "items.csv", index=False)
    return tmp_path / "items.csv"


@pytest.mark.parametrize(
    ("text", "whole", "found"),
    [
        ("the |old man| slept", "the old man slept", ["the", "old man", "slept"]),
        ("the | old man | slept", "the old man slept", ["the", "old man", "slept"]),
        ("|the|old| man|", "theold man", ["the", "old", "man"]),
        ("  the  | old", "  the  old", ["the", "old"]),
        ("a||b", "ab", ["a", "", "b"]),
        ("a| |b", "a b", ["a", "", "b"]),
        ("no regions", "no regions", ["no regions"]),
        ("", "", []),
    ],
)
def test_regions(text: str, whole: str, found: list[str]) -> None:
    joined, spans = regions(text)
    assert joined == whole
    assert [joined[slice(*span)] for span in spans] == found


def test_a_row_for_each_layer(lm: gpt2fast.LanguageModel) -> None:
    n_layer = lm.model.config.n_layer
    plain = list(word_rows(lm, ITEMS, text="sentence", separator="|", frequencies={"horse": 20.0}))
    rows = list(word_rows(lm, ITEMS, text="sentence", separator="|", frequencies={"horse": 20.0}, layers=True))
    assert list(rows[0])[:4] == ["item", "condition", "region", "layer"]
    assert [row["layer"] for row in rows] == list(range(n_layer + 1)) * len(plain)
    whole = [{name: value for name, value in row.items() if name != "layer"} for row in rows]
    assert pandas.DataFrame(whole[n_layer :: n_layer + 1]).equals(pandas.DataFrame(plain))  # the last one is the score
    text = regions(ITEMS[0]["sentence"])[0]
    seen = lens(lm, text)
    of_text = [row for row in rows if row["condition"] == "reduced"]
    for layer in range(n_layer + 1):
        bits = sum(row["surprisal"] for row in of_text if row["layer"] == layer)
        assert bits == pytest.approx(seen.surprisal[layer].sum())
        first = next(row for row in of_text if row["layer"] == layer)
        assert (first["rank"], first["entropy"]) == (seen.ranks[layer, 0], seen.entropies[layer, 0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bow_correction": True}, "bow_correction does not go with layers"),
        ({"context": "The"}, "context does not go with layers"),
        ({"stride": 8}, "stride does not go with layers"),
        ({"bos": False}, "bos does not go with layers"),
    ],
)
def test_what_does_not_go_with_layers(lm: gpt2fast.LanguageModel, options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        list(word_rows(lm, ITEMS, text="sentence", layers=True, **options))
    with pytest.raises(InputError, match="the text would be"):
        list(word_rows(lm, [{"text": "a b " * 600}], layers=True))


@pytest.mark.parametrize("out", ["out.csv", "out.tsv", "out.jsonl", "out.parquet", "out.arrow"])
def test_a_file_with_layers(lm: gpt2fast.LanguageModel, items: Path, tmp_path: Path, out: str) -> None:
    command = ["score", "--by-word", str(items), "--text-column", "sentence", "--layers", "--quiet"]
    assert main([*command, "-o", str(tmp_path / out)]) == 0
    read: Any = {
        "out.csv": pandas.read_csv,
        "out.tsv": lambda path: pandas.read_csv(path, sep="\t"),
        "out.jsonl": lambda path: pandas.read_json(path, lines=True),
        "out.parquet": pandas.read_parquet,
        "out.arrow": pyarrow.feather.read_feather,
    }
    table = read[out](tmp_path / out)
    assert sorted(set(table["layer"])) == list(range(7))
    assert len(table) == 7 * len(list(word_rows(lm, ITEMS, text="sentence")))
    assert main(["score", "--by-word", str(items), "--layers"]) == 2


def test_a_row_for_each_word(lm: gpt2fast.LanguageModel) -> None:
    rows = list(word_rows(lm, ITEMS, text="sentence", frequencies={"horse": 20.0, "the": math.e}))
    expected = [(item, word) for item in ITEMS for word in lm.score(item["sentence"]).by_word()]
    assert len(rows) == len(expected)
    for row, (item, word) in zip(rows, expected, strict=True):
        assert (row["item"], row["condition"]) == (item["item"], item["condition"])
        assert row["word"] == word.text
        assert row["surprisal"] == word.surprisal
        assert (row["n_tokens"], row["entropy"], row["rank"]) == (word.num_tokens, word.entropy, word.rank)
        assert "sentence" not in row
    assert [row["region"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7]
    assert rows[0]["log_frequency"] == 1.0
    assert rows[8]["word"] == '"horse"'
    assert rows[8]["log_frequency"] == math.log(20)
    assert math.isnan(rows[2]["log_frequency"])


def test_a_row_for_each_region_and_numbers_for_items(lm: gpt2fast.LanguageModel) -> None:
    texts = [{"text": item["sentence"]} for item in ITEMS]
    rows = list(word_rows(lm, texts, separator="|", context="Once. ", bow_correction=True))
    assert [(row["item"], row["region"], row["word"]) for row in rows] == [
        (1, 1, "The horse"),
        (1, 2, "raced past the barn"),
        (1, 3, "fell."),
        (2, 1, 'The "horse"'),
        (2, 2, "that\tran"),
        (2, 3, "fell."),
    ]
    score = lm.score("The horse raced past the barn fell.", context="Once. ")
    part = score.by_spans([(1, 10)], bow_correction=True)[0]
    assert (part.text, part.surprisal) == ("The horse", rows[0]["surprisal"])


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_every_format_in_and_out(lm: gpt2fast.LanguageModel, tmp_path: Path, kind: str) -> None:
    frame = pandas.DataFrame([{**item, "subject": i, "log": i / 3} for i, item in enumerate(ITEMS)])
    source, out = tmp_path / f"items.{kind}", tmp_path / f"words.{kind}"
    if kind in ("csv", "tsv"):
        frame.to_csv(source, index=False, sep="," if kind == "csv" else "\t", encoding="utf-8-sig")
    elif kind == "jsonl":
        frame.to_json(source, orient="records", lines=True)
    elif kind == "parquet":
        frame.to_parquet(source)
    else:
        pyarrow.feather.write_feather(pyarrow.Table.from_pandas(frame), source, compression="uncompressed")
    count = score_items(source, out, lm, text="sentence")
    reader: dict[str, Any] = {
        "csv": lambda: pandas.read_csv(out, keep_default_na=False, dtype={"item": str}),
        "tsv": lambda: pandas.read_csv(out, sep="\t", keep_default_na=False, dtype={"item": str}),
        "jsonl": lambda: pandas.read_json(out, lines=True, dtype={"item": str}),
        "parquet": lambda: pandas.read_parquet(out),
        "arrow": lambda: pyarrow.feather.read_table(out).to_pandas(),
    }
    words = reader[kind]()
    expected = list(word_rows(lm, ITEMS, text="sentence"))
    assert len(words) == count == len(expected)
    assert list(words["word"]) == [row["word"] for row in expected]
    assert list(words["condition"]) == [row["condition"] for row in expected]
    assert words["surprisal"].tolist() == pytest.approx([row["surprisal"] for row in expected], rel=1e-8)
    assert words["subject"].tolist() == [0] * 7 + [1] * 7
    if kind in ("parquet", "arrow"):
        read = pyarrow.parquet.read_table if kind == "parquet" else pyarrow.feather.read_table
        assert read(out).schema.metadata[b"gpt2fast.numerics_version"] == str(gpt2fast.numerics_version).encode()
        assert words["subject"].dtype == "int64"
    else:
        assert list(words.columns)[-1] == "numerics_version"
        assert set(words["numerics_version"]) == {gpt2fast.numerics_version}


def test_the_command(items: Path, capfdbinary: pytest.CaptureFixture[bytes], lm: gpt2fast.LanguageModel) -> None:
    table = items.with_name("freq.tsv")
    table.write_text("word\tcount\nThe\t10\nthe\t5\n", "utf-8")
    common = ["score", "--by-word", str(items), "--text-column", "sentence"]
    assert main([*common, "--csv", "--regions", "|", "--frequencies", str(table), "--bow-correction"]) == 0
    told = capfdbinary.readouterr()
    assert told.err == b"[6 rows]\n"
    header, *rows = told.out.decode().splitlines()
    columns = "item,condition,region,word,n_tokens,surprisal,entropy,rank,log_frequency,numerics_version"
    assert header == columns
    expected = list(word_rows(lm, ITEMS, text="sentence", separator="|", bow_correction=True))
    assert rows[0].split(",")[5] == f"{expected[0]['surprisal']:.9g}"
    assert main([*common, "--json", "--quiet"]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line["word"] for line in lines] == [row["word"] for row in word_rows(lm, ITEMS, text="sentence")]
    out = items.with_name("words.parquet")
    assert main([*common, "-o", str(out), "--quiet"]) == 0
    assert len(pandas.read_parquet(out)) == 14
    before = out.read_bytes()
    assert main([*common, "-o", str(out)]) == 1
    assert b"is there already" in capfdbinary.readouterr().err
    assert out.read_bytes() == before
    assert main([*common, "-o", str(out), "--overwrite", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--text-column", "a", "x.csv"], "--by-word"),
        (["--by-word", "--text-column", "a", "--text", "b"], "one file"),
        (["--by-word", "--text-column", "a", "x.csv", "y.csv"], "one file"),
        (["--by-word", "--text-column", "a", "--tokens", "x.csv"], "--tokens is for documents"),
        (["--regions", "|", "x.txt"], "--regions is for items"),
        (["--bow-correction", "x.txt"], "it needs --by-word"),
    ],
)
def test_command_lines_that_make_no_sense(options: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["score", *options]) == 2
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"x,y\n1,2\n", "there is no column 'sentence', but 'x', 'y'"),
        ("a.csv", b"", "there is no column 'sentence'"),
        ("a.csv", b"sentence,y\n1\n", "row 1 has 1 fields, the header has 2"),
        ("a.csv", b"sentence,sentence\n1,2\n", "two columns have the same name"),
        ("a.csv", b'sentence\n"1\n', "a.csv: unexpected end of data"),
        ("a.csv", b"sentence\n\xff\n", "is not UTF-8"),
        ("a.tsv", b"sentence\tword\na\tb\n", "has a column 'word', which the table has, too"),
        ("a.jsonl", b'{"sentence": "a"}\n{\n', "a.jsonl:2: no JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: a list; expected an object"),
        ("a.jsonl", b'{"sentence": "a"}\n{"x": 1}\n', "item 2 has no column 'sentence', but 'x'"),
        ("a.parquet", b"PAR1", "a.parquet"),
        ("a.xlsx", b"", "expected .csv, .tsv, .jsonl, .parquet or .arrow"),
    ],
)
def test_files_that_are_refused(
    lm: gpt2fast.LanguageModel, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        score_items(tmp_path / name, tmp_path / "out.csv", lm, text="sentence")
    assert words in str(caught.value)
    assert not (tmp_path / "out.csv").exists()


def test_other_refusals(lm: gpt2fast.LanguageModel, items: Path) -> None:
    with pytest.raises(InputTypeError, match="'text' of item 1 is of type int; expected str"):
        list(word_rows(lm, [{"text": 1}]))
    with pytest.raises(InputError, match="separator is empty"):
        list(word_rows(lm, [{"text": "a"}], separator=""))
    with pytest.raises(MissingFileError, match="missing.csv"):
        score_items(items.with_name("missing.csv"), items.with_name("out.csv"), lm, text="sentence")
    frequencies = items.with_name("freq.csv")
    frequencies.write_text("the,10\nking,many\n", "utf-8")
    with pytest.raises(InputError, match=r"freq.csv: row 2 is \['king', 'many'\]; expected a word and a number"):
        score_items(items, items.with_name("out.csv"), lm, text="sentence", frequencies=frequencies)
