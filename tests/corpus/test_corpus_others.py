"""Files as other programs write them: arrays, tables, nested fields, NaN, compressions, separators within lines."""

from __future__ import annotations

import bz2
import csv
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import corpora
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard

import gpt2fast
from gpt2fast.corpus import columns, documents, tokenize_files
from gpt2fast.errors import InputError

TEXTS = [*corpora.DOCUMENTS, "", 'a "quoted", text\r\nof two lines', "NA", "null"]


def rows(tmp_path: Path, name: str, **options: Any) -> list[list[int]]:
    """The documents that are found in a file."""
    tokenize_files(tmp_path / name, tmp_path / "out.parquet", overwrite=True, **options)
    return corpora.rows(tmp_path / "out.parquet")


def expected(texts: list[str]) -> list[list[int]]:
    return [corpora.tokens(text) for text in texts]


# JSON arrays


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b"\n \t"])
@pytest.mark.parametrize("size", [1, 40, 1 << 20])
def test_a_json_array(tmp_path: Path, indent: int | None, mark: bytes, size: int) -> None:
    content = json.dumps([{"id": i, "text": text, "more": [[]]} for i, text in enumerate(TEXTS)], indent=indent)
    (tmp_path / "a.json").write_bytes(mark + content.encode() + b"\n")
    with mock.patch.object(documents, "BATCH_BYTES", size):
        assert rows(tmp_path, "a.json") == expected(TEXTS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"}, {"text": 5}]', 'a.json: element 2: the field "text": invalid type: integer `5`'),
        ('[{"text": "a"}, "b"]', "a.json: element 2: .*expected a JSON object"),
        ('[{"text": "a\nb"}]', "a.json: element 1: not JSON: control character"),
        ('[{"text": "a"}', "a.json: damaged JSON: the file ends within an array"),
        ('[{"text": "a"}] x', "a.json: damaged JSON: there is text behind the end"),
        ('[{"text": "a" "b"}]', "a.json: element 1: not JSON"),
        ("[", "the file ends within an array"),
    ],
)
def test_a_bad_json_array(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=message):
        tokenize_files(tmp_path / "a.json", tmp_path / "a.npy")
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_empty_array_and_one_with_bad_elements(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    assert rows(tmp_path, "a.json") == []
    (tmp_path / "b.json").write_text('[{"text": "a"}, {"test": "b"}, {"text": "c"}]')
    told: list[str] = []
    assert rows(tmp_path, "b.json", on_error="skip", on_skip=told.append) == expected(["a", "c"])
    assert told == [f'{tmp_path / "b.json"}: element 2: there is no field "text", but "test"']


# Fields


def test_nested_fields_and_nan(tmp_path: Path) -> None:
    lines = [
        {"meta": {"text": "within"}, "score": float("nan")},
        {"meta.text": "by name", "score": [float("inf"), -float("inf")]},
        {"meta": {"text": "NaN, \\"}, "meta.text": "the name wins"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows(tmp_path, "a.jsonl", field="meta.text") == expected(["within", "by name", "the name wins"])


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_columns_within_structs(tmp_path: Path, suffix: str) -> None:
    meta = [{"text": text, "n": 1} for text in TEXTS]
    table = pa.table({"meta": pa.array(meta), "a.b": pa.array(TEXTS[::-1])})
    write(table, tmp_path / f"a.{suffix}")
    assert rows(tmp_path, f"a.{suffix}", field="meta.text") == expected(TEXTS)
    assert rows(tmp_path, f"a.{suffix}", field="a.b") == expected(TEXTS[::-1])
    for field, message in (
        ("meta.body", "there is no column 'meta.body', but within 'meta' 'text', 'n'"),
        ("meta", "the column 'meta' is of type struct"),
        ("a.b.c", "the column 'a.b' is of type string; it holds no 'c'"),
        ("text", "there is no column 'text', but 'meta', 'a.b'"),
    ):
        with pytest.raises(InputError, match=message):
            tokenize_files(tmp_path / f"a.{suffix}", tmp_path / "b.npy", field=field)


def test_names_of_columns(tmp_path: Path, data: Path) -> None:
    with pytest.raises(InputError, match=r"twice\.parquet: 2 columns have the name 'text'; expected one"):
        tokenize_files(data / "corpus" / "twice.parquet", tmp_path / "a.npy")
    with pytest.raises(InputError, match=r"not-utf8\.parquet: the name of a column is not UTF-8: b'\\xe9"):
        tokenize_files(data / "corpus" / "not-utf8.parquet", tmp_path / "a.npy")
    write(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]), tmp_path / "a.arrow")
    with pytest.raises(InputError, match=r"a\.arrow: 2 columns have the name 'text'"):
        tokenize_files(tmp_path / "a.arrow", tmp_path / "a.npy")


# Tables


def write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)


@pytest.mark.parametrize("name", ["a.arrow", "a.feather", "a.arrow.gz", "a.ipc.xz", "a.parquet.bz2"])
@pytest.mark.parametrize("size", [1, 30, 1 << 20])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_arrow(tmp_path: Path, name: str, size: int, kind: pa.DataType) -> None:
    stem, _, compression = name.partition(".")[2].partition(".")
    table = pa.table({"n": range(len(TEXTS)), "text": pa.array(TEXTS).cast(kind)})
    write(table, tmp_path / f"b.{stem}")
    content = (tmp_path / f"b.{stem}").read_bytes()
    packed = {"gz": __import__("gzip").compress, "xz": lzma.compress, "bz2": bz2.compress}
    (tmp_path / name).write_bytes(packed[compression](content) if compression else content)
    with mock.patch.object(documents, "BATCH_BYTES", size):
        assert rows(tmp_path, name) == expected(TEXTS)


def test_what_datasets_keeps(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved")
    (found,) = (tmp_path / "saved").glob("*.arrow")
    assert rows(tmp_path, str(found.relative_to(tmp_path))) == expected(TEXTS)


@pytest.mark.parametrize("content", [b"", b"no arrow", b"ARROW1\0\0" + b"x" * 90])
def test_damaged_arrow(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.arrow: "):
        tokenize_files(tmp_path / "a.arrow", tmp_path / "a.npy")


@pytest.mark.parametrize("size", [1, 30, 1 << 20])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_csv_of_pandas_and_of_python(tmp_path: Path, size: int, ends: str) -> None:
    pandas.DataFrame({"n": range(len(TEXTS)), "text": TEXTS}).to_csv(tmp_path / "a.csv", index=False)
    with open(tmp_path / "b.csv", "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, lineterminator=ends)
        writer.writerow(["text"])
        writer.writerows([text] for text in TEXTS)
    with mock.patch.object(documents, "BATCH_BYTES", size):
        assert rows(tmp_path, "a.csv") == expected(TEXTS)
        assert rows(tmp_path, "b.csv") == expected(TEXTS)


def test_bad_csv(tmp_path: Path) -> None:
    def found(content: bytes, **options: Any) -> list[list[int]]:
        (tmp_path / "a.csv").write_bytes(content)
        return rows(tmp_path, "a.csv", **options)

    content = b"id,text\n1,a\n2,b,c\n3,caf\xe9\n\n4,d\n"
    with pytest.raises(InputError, match=r"a\.csv:3: 3 fields, expected 2"):
        found(content)
    told: list[str] = []
    assert found(content, on_error="skip", on_skip=told.append, restart=True) == expected(["a", "d"])
    assert [message.partition("a.csv")[2] for message in told] == [
        ":3: 3 fields, expected 2",
        ": row 3: not UTF-8: unexpected end of data",
    ]
    assert found(content, on_error="replace", restart=True) == expected(["a", "caf\ufffd", "d"])
    for content, message in (
        (b'id,text\n1,"a\n2,b\n', r"a\.csv:3: damaged CSV: unexpected end of data"),
        (b'id,text\n1,"a"b\n', r"a\.csv:2: damaged CSV: "),
        (b"id;text\n1;a\n", r"a\.csv: no columns have the name 'text'; expected one of 'id;text'"),
        (b"text,text\n1,a\n", r"a\.csv: 2 columns have the name 'text'"),
        (b"", r"a\.csv: no columns have the name 'text'; expected one of a first line with names"),
    ):
        with pytest.raises(InputError, match=message):
            found(content, restart=True)
    with mock.patch.object(columns, "MOST_BYTES_OF_A_FIELD", 1 << 18):
        limit = csv.field_size_limit(1 << 17)
        try:
            with pytest.raises(InputError, match=r"a\.csv:\d+: damaged CSV: field larger than field limit \(262144\)"):
                found(b'text\n"' + b"swallowed\n" * 40_000, restart=True)
        finally:
            csv.field_size_limit(limit)


# Compressions


@pytest.mark.parametrize("kind", ["xz", "bz2"])
def test_xz_and_bz2(tmp_path: Path, kind: str) -> None:
    pack = lzma.compress if kind == "xz" else bz2.compress
    content = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 50).encode()
    whole = pack(content[:1000]) + pack(content[1000:])
    (tmp_path / f"a.jsonl.{kind}").write_bytes(whole)
    assert rows(tmp_path, f"a.jsonl.{kind}") == expected(TEXTS * 50)
    for damaged in (whole[:-30], whole[:40] + b"\0\0\0\0" + whole[44:], b"nothing packed"):
        (tmp_path / f"a.jsonl.{kind}").write_bytes(damaged)
        with pytest.raises(InputError, match=rf"a\.jsonl\.{kind}: damaged {kind}: "):
            tokenize_files(tmp_path / f"a.jsonl.{kind}", tmp_path / "b.npy")


def test_a_large_window_of_zstd(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=28, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with open(tmp_path / "a.txt.zst", "wb") as file, compressor.stream_writer(file) as writer:  # of unknown size
        writer.write(b"hello world")
    assert rows(tmp_path, "a.txt.zst") == [[31373, 995]]


# Separators


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_end_of_text_separates_within_lines(tmp_path: Path, size: int) -> None:
    cases = {
        "story one<|endoftext|>story two<|endoftext|>story three": ["story one", "story two", "story three"],
        "a\n<|endoftext|>\nb\n<|endoftext|>\n": ["a\n", "b\n"],
        "a\r\n<|endoftext|>\r\nb<|endoftext|>\nc": ["a\r\n", "b", "\nc"],
        "<|endoftext|><|endoftext|>a\n<|endoftext|>b<|endoftext|>": ["a\n", "b"],
        "<|endoftext|": ["<|endoftext|"],
        "a<|endoftext|>\r": ["a", "\r"],
    }
    for text, found in cases.items():
        (tmp_path / "a.txt").write_bytes(text.encode())
        with (
            mock.patch.object(documents, "PART_BYTES", size),
            mock.patch.object(documents, "HASHED_BYTES", 0),
        ):
            assert rows(tmp_path, "a.txt", separator="<|endoftext|>") == expected(found), text


def test_a_separator_that_never_stands_alone_is_worth_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one ### two ### three\n")
    notes: list[str] = []
    assert rows(tmp_path, "a.txt", separator="###", on_note=notes.append) == expected(["one ### two ### three\n"])
    assert notes == [
        f"{tmp_path / 'a.txt'}: the separator '###' stands within lines and on no line of its own; the file is one "
        "document"
    ]
    with pytest.warns(UserWarning, match="stands within lines"):
        tokenize_files(tmp_path / "a.txt", tmp_path / "a.npy", separator="###")
    (tmp_path / "a.txt").write_text("one ### two\n###\nthree\n")
    rows(tmp_path, "a.txt", separator="###")


# Where files are


def test_pipes_and_links_in_directories(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    (tmp_path / "elsewhere" / "b.txt").write_text("b")
    os.mkfifo(tmp_path / "in" / "pipe.txt")
    os.link(tmp_path / "in" / "a.txt", tmp_path / "in" / "deep" / "a.txt")
    (tmp_path / "in" / "link.txt").symlink_to("a.txt")
    (tmp_path / "in" / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "deep" / "round").symlink_to(tmp_path / "in")
    notes: list[str] = []
    tokenize_files(tmp_path / "in", tmp_path / "out.parquet", on_note=notes.append)
    assert corpora.rows(tmp_path / "out.parquet") == expected(["a", "b"])
    first = tmp_path / "in" / "a.txt"
    assert [note.removeprefix(str(tmp_path / "in")) for note in notes] == [
        f"/deep/a.txt: is the same file as {first}, and read once",
        f"/link.txt: is the same file as {first}, and read once",
        "/pipe.txt: a named pipe, is left out; to read it, name it",
    ]
    tokenize_files(str(tmp_path / "in" / "*.txt"), tmp_path / "out.npy", on_note=notes.append)
    assert np.load(tmp_path / "out.npy").tolist() == [64]
    assert len(notes) == 5


def test_standard_input_that_does_not_block(tmp_path: Path) -> None:
    """Nothing to read yet is no end."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    command = [sys.executable, "-m", "gpt2fast", "tokenize", "-", "-o", str(tmp_path / "a.npy"), "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(Path(gpt2fast.__file__).parents[1])}
    with subprocess.Popen(command, stdin=read, env=environment) as process:
        os.close(read)
        os.write(write, b"hello")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        os.write(write, b" world")
        os.close(write)
    assert process.returncode == 0
    assert np.load(tmp_path / "a.npy").tolist() == [31373, 995]
