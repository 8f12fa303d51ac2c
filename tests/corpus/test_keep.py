"""What is kept of a corpus: the documents that meet a condition, as they were, in the format of the inputs."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard

import gpt2fast
from gpt2fast.cli import main
from gpt2fast.corpus import documents, groups, keep, scores
from gpt2fast.corpus.scores import score_files
from gpt2fast.errors import InputError, InputTypeError

TEXTS = [
    "Once upon a time there was a fox.\n",
    "",
    'She said:\t"It\'s\r\nlate" \\ …',
    "Ein Bär 🦊",
    "The old man went home. " * 40,
    "x",
    "There was once a king who had three daughters.",
]
#: Some are more probable than that, some less, and one is neither.
CONDITION = "perplexity < 100 or bytes == 1"

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda content: zstandard.ZstdCompressor().compress(content),
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.decompress,
    ".zst": lambda content: zstandard.ZstdDecompressor().decompressobj().decompress(content),
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
}


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def kept(lm: gpt2fast.LanguageModel) -> list[int]:
    """Which of TEXTS meet CONDITION."""
    found = [i for i, one in enumerate(lm.score_batch(TEXTS)) if one.perplexity < 100 or one.num_bytes == 1]
    assert 1 < len(found) < len(TEXTS) - 1
    return found


def lines(numbers: list[int]) -> bytes:
    # Spaces, escapes and other fields are as they were.
    return b"".join(b'{"id":  %d, "text": %b, "s": "\\u00e9"}\n' % (i, json.dumps(TEXTS[i]).encode()) for i in numbers)


def array(numbers: list[int]) -> bytes:
    return json.dumps([{"id": i, "text": TEXTS[i]} for i in numbers], indent=1).encode()


def comma_separated(numbers: list[int]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerows([["id", "text"], *([i, TEXTS[i]] for i in numbers)])
    return out.getvalue().encode()


def table(numbers: list[int]) -> pa.Table:
    rows = [{"id": i, "text": TEXTS[i], "more": {"a": [i, None]}} for i in numbers]
    more = pa.struct([("a", pa.list_(pa.int64()))])
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("more", more)], {"who": "me"})
    return pa.Table.from_pylist(rows, schema)


def parquet(numbers: list[int]) -> bytes:
    out = io.BytesIO()
    pa.parquet.write_table(table(numbers), out, row_group_size=2)
    return out.getvalue()


def arrow(numbers: list[int], new: Any = pyarrow.ipc.new_file) -> bytes:
    out = io.BytesIO()
    found = table(numbers)
    with new(out, found.schema) as writer:
        writer.write_table(found, max_chunksize=2)
    return out.getvalue()


ALL = list(range(len(TEXTS)))


@pytest.mark.parametrize("compression", PACK)
def test_json_lines_are_copied_byte_for_byte(
    lm: gpt2fast.LanguageModel, tmp_path: Path, kept: list[int], compression: str
) -> None:
    content = lines(ALL[:2]) + b"\n  \n" + lines(ALL[2:]).rstrip(b"\n")
    (tmp_path / f"a.jsonl{compression}").write_bytes(PACK[compression](content))
    out = tmp_path / f"b.jsonl{compression}"
    summary = score_files(tmp_path / f"a.jsonl{compression}", out, lm, keep=CONDITION)
    assert UNPACK[compression](out.read_bytes()) == lines(kept)
    assert (summary.documents, summary.kept) == (len(TEXTS), len(kept))
    assert sorted(os.listdir(tmp_path)) == [f"a.jsonl{compression}", out.name]
    again = tmp_path / f"c.jsonl{compression}"
    score_files(tmp_path / f"a.jsonl{compression}", again, lm, keep=CONDITION)
    assert again.read_bytes() == out.read_bytes()


def test_an_array_stays_one(lm: gpt2fast.LanguageModel, tmp_path: Path, kept: list[int]) -> None:
    (tmp_path / "a.json").write_bytes(array(ALL))
    score_files(tmp_path / "a.json", tmp_path / "b.json.gz", lm, keep=CONDITION)
    assert json.loads(gzip.decompress((tmp_path / "b.json.gz").read_bytes())) == json.loads(array(kept))
    score_files(tmp_path / "a.json", tmp_path / "c.json", lm, keep="bytes > 1000000")
    assert json.loads((tmp_path / "c.json").read_bytes()) == []


def test_comma_separated_values_are_copied_byte_for_byte(
    lm: gpt2fast.LanguageModel, tmp_path: Path, kept: list[int]
) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + comma_separated(ALL))
    score_files(tmp_path / "a.csv", tmp_path / "b.csv", lm, keep=CONDITION)
    assert (tmp_path / "b.csv").read_bytes() == comma_separated(kept)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.parquet.gz", "stream.arrow"])
def test_tables_keep_all_columns(lm: gpt2fast.LanguageModel, tmp_path: Path, kept: list[int], name: str) -> None:
    made = parquet(ALL) if "parquet" in name else arrow(ALL, *[pyarrow.ipc.new_stream] * ("stream" in name))
    (tmp_path / name).write_bytes(PACK[".gz" if name.endswith(".gz") else ""](made))
    out = tmp_path / ("b.parquet" if "parquet" in name else "b.arrow")
    score_files(tmp_path / name, out, lm, keep=CONDITION)
    found = pa.parquet.read_table(out) if out.suffix == ".parquet" else pyarrow.ipc.open_file(out).read_all()
    assert found.equals(table(kept))
    assert found.schema.metadata[b"who"] == b"me"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow", "txt"])
@pytest.mark.parametrize("numbers", [ALL, []])
def test_nothing_is_kept_or_there(lm: gpt2fast.LanguageModel, tmp_path: Path, kind: str, numbers: list[int]) -> None:
    made = {"jsonl": lines, "csv": comma_separated, "parquet": parquet, "arrow": arrow, "txt": lines}[kind]
    (tmp_path / f"a.{kind}").write_bytes(made(numbers))
    summary = score_files(tmp_path / f"a.{kind}", tmp_path / f"b.{kind}", lm, keep="bytes > 1e9")
    assert summary.kept == 0
    found = (tmp_path / f"b.{kind}").read_bytes()
    if kind == "parquet":
        assert pa.parquet.read_table(tmp_path / "b.parquet").equals(table(ALL)[:0])
    elif kind == "arrow":
        assert pyarrow.ipc.open_file(found).read_all().equals(table(ALL)[:0])
    else:
        assert found == (comma_separated([]) if kind == "csv" else b"")


@pytest.mark.parametrize("separator", ["---", "<|endoftext|>"])
def test_documents_of_text_files(
    lm: gpt2fast.LanguageModel, tmp_path: Path, separator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"The king had {number} sons. " * 6 for number in range(12)] + ["q%$ 8z ~\n" * 8] * 3
    between = f"\n{separator}\n"
    (tmp_path / "a.txt").write_text(between.join(texts[:10]))
    (tmp_path / "b.txt").write_text(between.join(texts[10:]) + between)
    (tmp_path / "c.txt").write_text("~~%%")
    monkeypatch.setattr(documents, "PART_BYTES", 64)  # so that documents are read in parts
    monkeypatch.setattr(documents, "HASHED_BYTES", 0)
    inputs = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    options: Any = {"separator": separator, "text": True}
    score_files(inputs, tmp_path / "all.jsonl", lm, **options)
    found = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    middle = sorted(row["perplexity"] for row in found)[len(found) // 2]
    expected = [row["text"] for row in found if row["perplexity"] < middle]
    assert 2 < len(expected) < len(texts)
    summary = score_files(inputs, tmp_path / "kept.txt", lm, separator=separator, keep=f"perplexity < {middle!r}")
    assert summary.kept == len(expected)
    score_files(tmp_path / "kept.txt", tmp_path / "again.jsonl", lm, **options)
    again = [json.loads(line)["text"] for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert [text.rstrip("\n") for text in again] == [text.rstrip("\n") for text in expected]


def test_a_text_file_without_separator_is_one_document(lm: gpt2fast.LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Once upon a time")
    for condition, expected in (("perplexity < 200", "Once upon a time"), ("perplexity > 200", "")):
        score_files(tmp_path / "a.txt", tmp_path / "b.txt", lm, keep=condition, overwrite=True)
        assert (tmp_path / "b.txt").read_text() == expected


def test_documents_that_were_skipped_are_not_kept(lm: gpt2fast.LanguageModel, tmp_path: Path) -> None:
    good = b'{"text": "Once upon a time", "n": %d}\n'
    bad = [b"no json\n", b'{"text": 5}\n', b'{"text": "caf\xe9"}\n', b"\n"]
    content = b"".join(line + good % i for i, line in enumerate(bad)) + b'{"text": "%$# 8z"}\n'
    (tmp_path / "a.jsonl").write_bytes(content)
    told: list[str] = []
    options: Any = {"keep": "perplexity < 100", "on_error": "skip", "on_skip": told.append}
    with mock.patch.object(documents, "BATCH_BYTES", 50):
        summary = score_files(tmp_path / "a.jsonl", tmp_path / "b.jsonl", lm, **options)
    assert (tmp_path / "b.jsonl").read_bytes() == b"".join(good % i for i in range(4))
    assert (summary.documents, summary.skipped, summary.kept, len(told)) == (5, 3, 4, 3)
    rows = {"text": ["Once upon a time", None, "%$# 8z", "Once upon a time"], "n": [1, 2, 3, 4]}
    pa.parquet.write_table(pa.table(rows), tmp_path / "a.parquet")
    score_files(tmp_path / "a.parquet", tmp_path / "b.parquet", lm, **options)
    assert pa.parquet.read_table(tmp_path / "b.parquet")["n"].to_pylist() == [1, 4]
    (tmp_path / "a.csv").write_bytes(b"text,n\nOnce upon a time,1\n\xe9,2\nx,3,4\n\nOnce upon a time,5")
    score_files(tmp_path / "a.csv", tmp_path / "b.csv", lm, **options)
    assert (tmp_path / "b.csv").read_bytes() == b"text,n\nOnce upon a time,1\nOnce upon a time,5\n"


@pytest.mark.parametrize("kind", ["jsonl", "array", "csv", "parquet", "arrow"])
def test_several_files_in_small_blocks(
    lm: gpt2fast.LanguageModel, tmp_path: Path, kept: list[int], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = {"jsonl": lines, "array": array, "csv": comma_separated, "parquet": parquet, "arrow": arrow}[kind]
    suffix = {"array": "json"}.get(kind, kind)
    (tmp_path / "in").mkdir()
    for number, part in enumerate((ALL[:3], ALL[3:4], ALL[4:])):
        (tmp_path / "in" / f"{number}.{suffix}").write_bytes(make(part))
    for module in (documents, keep):
        monkeypatch.setattr(module, "BATCH_BYTES", 40)
    monkeypatch.setattr(keep, "_GROUP_BYTES", 1)
    out = tmp_path / f"b.{suffix}"
    score_files(tmp_path / "in", out, lm, keep=CONDITION)
    if kind in ("parquet", "arrow"):
        found = pa.parquet.read_table(out) if kind == "parquet" else pyarrow.ipc.open_file(out).read_all()
        assert found.equals(table(kept))
    elif kind == "array":
        assert json.loads(out.read_bytes()) == json.loads(array(kept))
    else:
        assert out.read_bytes() == make(kept)


@pytest.mark.parametrize("kind", ["jsonl", "txt", "parquet"])
def test_a_job_that_was_stopped_goes_on(
    lm: gpt2fast.LanguageModel, tmp_path: Path, kept: list[int], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUP_BYTES", 1)
    options: Any = {"keep": CONDITION, "checkpoint_seconds": 0, "separator": "---" if kind == "txt" else None}
    source, out = tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"
    source.write_bytes(
        {"jsonl": lines, "parquet": parquet}[kind](ALL) if kind != "txt" else "\n---\n".join(TEXTS).encode()
    )
    score_files(source, tmp_path / f"whole.{kind}", lm, **options)
    left = 3
    real = type(lm).score_batch

    def failing(self: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(self, *arguments, **more)

    with mock.patch.object(type(lm), "score_batch", failing), pytest.raises(KeyboardInterrupt):
        score_files(source, out, lm, **options)
    assert not out.exists()
    with pytest.raises(InputError, match="was begun here with keep 'perplexity < 100 or bytes == 1', not 'bytes > 3'"):
        score_files(source, out, lm, **{**options, "keep": "bytes > 3"})
    with mock.patch.object(scores, "write_kept", side_effect=OSError(5, "broken")), pytest.raises(OSError, match="bro"):
        score_files(source, out, lm, **options)  # scored, but not yet written
    with mock.patch.object(type(lm), "score_batch", side_effect=AssertionError):
        summary = score_files(source, out, lm, **options)  # nothing is scored again
    assert summary.resumed
    assert summary.kept >= len(kept) - 1
    assert out.read_bytes() == (tmp_path / f"whole.{kind}").read_bytes()
    assert not (tmp_path / f"b.{kind}.partial").exists()


def test_a_file_that_changed_after_it_was_scored(lm: gpt2fast.LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(ALL))
    real = keep.write_kept

    def changing(*arguments: Any) -> None:
        (tmp_path / "a.jsonl").write_bytes(lines(ALL[:3]))
        real(*arguments)

    with mock.patch.object(scores, "write_kept", changing), pytest.raises(InputError, match="changed while it was"):
        score_files(tmp_path / "a.jsonl", tmp_path / "b.jsonl", lm, keep=CONDITION)
    assert not (tmp_path / "b.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"keep": "perplexty < 3"}, InputError, "there is no 'perplexty'; expected bytes, tokens, log_likelihood"),
        ({"keep": 5}, InputTypeError, "the condition is of type int"),
        ({"keep": "bytes > 3", "tokens": True}, InputError, "tokens and text are columns of a table"),
        ({"keep": "bytes > 3", "out": "b.parquet"}, InputError, "b.parquet: what is kept has the inputs' format"),
        ({"keep": "bytes > 3", "out": "b"}, InputError, "expected a name that says jsonl, as kept.jsonl"),
        ({"keep": "bytes > 3", "inputs": ["a.jsonl", "a.csv"]}, InputError, "a.jsonl (jsonl), a.csv (csv)"),
        (
            {"keep": "bytes > 3", "inputs": ["a.txt", "b.txt"], "out": "c.txt"},
            InputError,
            "2 text files would be one document; say --separator",
        ),
        ({"keep": "bytes > 3", "out": "a.jsonl"}, InputError, "both an input and the output"),
        (
            {"keep": "bytes > 3", "inputs": ["a.csv", "c.csv"], "out": "b.csv"},
            InputError,
            "c.csv: its columns are ['text', 'more'], those of the first input ['text']",
        ),
        (
            {"keep": "bytes > 3", "inputs": "-", "input_format": "jsonl"},
            InputError,
            "standard input: what is kept is read twice",
        ),
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
    files = {"a.jsonl": '{"text": "a"}', "a.csv": "text\na", "c.csv": "text,more\na,b", "a.txt": "a", "b.txt": "b"}
    for name, content in files.items():
        Path(name).write_text(content)
    with pytest.raises(error) as caught:
        score_files(**{"inputs": "a.jsonl", "out": "b.jsonl", "lm": lm, **options})
    assert words in str(caught.value)
    assert {name for name in os.listdir() if not name.endswith(".partial")} == set(files)


def test_tables_of_different_columns(lm: gpt2fast.LanguageModel, tmp_path: Path) -> None:
    for i, type in enumerate((pa.int32(), pa.int64())):
        pa.parquet.write_table(pa.table({"text": ["a"], "n": pa.array([1], type)}), tmp_path / f"{i}.parquet")
    with pytest.raises(InputError, match=r"1\.parquet: its columns are text: string, n: int64, those of the first"):
        score_files([tmp_path / "0.parquet", tmp_path / "1.parquet"], tmp_path / "b.parquet", lm, keep="bytes > 0")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(lines(ALL))
    assert main(["score", "a.jsonl", "-o", "b.jsonl.gz", "--keep", "bytes > 100"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "[7 documents, 1 kept, " in told.err
    assert gzip.decompress(Path("b.jsonl.gz").read_bytes()) == lines([4])
    assert main(["score", "a.jsonl", "--keep", "bytes > 100"]) == 2
    assert "--keep is for documents, which -o OUT scores" in capsys.readouterr().err
    assert main(["score", "a.jsonl", "-o", "c.jsonl", "--keep", "bytes > 100", "--with-text"]) == 2
    assert "--tokens and --with-text are columns of a table" in capsys.readouterr().err
    assert main(["score", "a.jsonl", "-o", "c.jsonl", "--keep", "bytes >"]) == 1
    assert "cannot be read" in capsys.readouterr().err
