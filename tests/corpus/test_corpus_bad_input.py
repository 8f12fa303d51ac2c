"""Bad lines, damaged and hostile files, wrong arguments, missing libraries: refused by file and line, or skipped."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys

import corpora
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

import gpt2fast
from gpt2fast.corpus import documents, lines, tokenize_files

LINES = {
    b'{"text": "good"}': None,
    b"{": "not JSON: EOF",
    b"nonsense": "not JSON: expected",
    b'{"text": "a"} x': "not JSON: trailing characters at byte 15",
    b'{"other": 1, "Text": "a"}': 'there is no field "text", but "Text", "other"',
    b'{"text": null}': 'the field "text": invalid type: null, expected a string',
    b'{"text": 5}': "invalid type: integer `5`",
    b'{"text": ["a"]}': "expected a string",
    b'["text"]': "expected a JSON object",
    b'"text"': "expected a JSON object",
    b'{"text": "\xff"}': "not UTF-8 at byte 10",
    b'{"text": "a\x01b"}': "not JSON: control character",
    b'{"text": "\\ud83d"}': None,
    b'{"text": "\\x"}': "not JSON: invalid escape",
    b"[" * 100_000: "expected a JSON object",
    b'{"a": ' + b"[" * 100_000: "not JSON: EOF",
    b'{"text": "a", "n": ' + b"9" * 100_000 + b"}": None,
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:24]))
@pytest.mark.parametrize("compression", ["", ".gz"])
def test_bad_lines(tmp_path, line, compression):
    path = tmp_path / f"in.jsonl{compression}"
    content = b'{"text": "one"}\n\n' + line + b'\r\n{"text": "two"}'
    path.write_bytes(gzip.compress(content) if compression else content)
    out = tmp_path / "out.npy"
    if LINES[line] is not None:
        with pytest.raises(gpt2fast.InputError) as caught:
            tokenize_files(path, out)
        assert f"{path}:3: " in str(caught.value)
        assert LINES[line] in str(caught.value)
        assert len(str(caught.value)) < 400
        assert not out.exists()
    told = []
    summary = tokenize_files(path, out, on_error="skip", on_skip=told.append)
    assert summary.skipped == len(told) == (LINES[line] is not None)
    assert summary.documents == 3 - summary.skipped
    assert sorted(os.listdir(tmp_path)) == [path.name, "out.npy"]


def test_the_byte_order_mark_of_json_lines(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "hello"}\n')
    tokenize_files(tmp_path / "in.jsonl", tmp_path / "out.npy")
    assert np.load(tmp_path / "out.npy").tolist() == [31373]


@pytest.mark.parametrize("separator", [None, "--"])
def test_text_that_is_not_utf8(tmp_path, separator):
    path = tmp_path / "in.txt"
    path.write_bytes(b"one\ntwo\n--\nthree\xe2\x82\nfour\xed\xa0\x80\n--\nfive\n")
    with pytest.raises(gpt2fast.InputError, match=r"in\.txt:4: not UTF-8: invalid continuation byte"):
        tokenize_files(path, tmp_path / "0.parquet", separator=separator)
    skipped = tokenize_files(path, tmp_path / "1.parquet", separator=separator, on_error="skip")
    assert (skipped.documents, skipped.skipped, skipped.mended) == ((0, 1, 0) if separator is None else (2, 1, 0))
    mended = tokenize_files(path, tmp_path / "2.parquet", separator=separator, on_error="replace")
    assert (mended.skipped, mended.mended) == (0, 1)
    texts = path.read_bytes().decode("utf-8", "replace").split("--\n" if separator else "\0")
    assert corpora.rows(tmp_path / "2.parquet") == [corpora.tokens(text) for text in texts]


def test_long_text_that_is_not_utf8(tmp_path, monkeypatch):
    """What is written while it is read cannot be skipped any more; that does not depend on where parts end."""
    monkeypatch.setattr(documents, "PART_BYTES", 100)
    monkeypatch.setattr(documents, "HASHED_BYTES", 0)
    path = tmp_path / "in.txt"
    for length in (99, 100, 150, 350):
        path.write_bytes(b"short\n--\n" + (b"long " * 100)[: length - 2] + b"\xff\n--\nshort")
        if length < 100:
            assert tokenize_files(path, tmp_path / "out.npy", separator="--", on_error="skip").skipped == 1
        else:
            with pytest.raises(gpt2fast.InputError, match=r"in\.txt:3: .*cannot be skipped.*--on-error replace"):
                tokenize_files(path, tmp_path / "out.npy", separator="--", on_error="skip", overwrite=True)
        summary = tokenize_files(
            path, tmp_path / "out.npy", separator="--", on_error="replace", overwrite=True, restart=True
        )
        assert (summary.documents, summary.mended) == (3, 1)
        expected = path.read_bytes().decode("utf-8", "replace").split("--\n")
        assert np.load(tmp_path / "out.npy").tolist() == corpora.stream(expected)


def test_lines_that_are_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MOST_BYTES_OF_A_LINE", 1000)
    monkeypatch.setattr(documents, "BATCH_BYTES", 300)
    path = tmp_path / "in.jsonl"
    texts = ['{"text": "a"}', json.dumps({"text": "b" * 5000}), '{"text": "c"}', json.dumps({"text": "d" * 5000})]
    path.write_text("\n".join(texts))
    with pytest.raises(gpt2fast.InputError, match=r"in\.jsonl:2: longer than"):
        tokenize_files(path, tmp_path / "out.npy")
    told = []
    summary = tokenize_files(path, tmp_path / "out.npy", on_error="skip", on_skip=told.append)
    assert np.load(tmp_path / "out.npy").tolist() == corpora.stream(["a", "c"])
    assert (summary.documents, summary.skipped) == (2, 2)
    assert [message.split(":")[1] for message in told] == ["2", "4"]


@pytest.mark.parametrize("compression", ["gz", "zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_damaged_compression(tmp_path, kind, compression):
    path = corpora.write(tmp_path / f"in.{kind}.{compression}", corpora.DOCUMENTS)
    whole = path.read_bytes()
    drawn = random.Random(1)
    named = refused = 0
    for content in (
        *(whole[:length] for length in (1, 7, len(whole) // 4, len(whole) - 9, len(whole) - 1)),
        whole + b"trailing",
        b"plain text",
        *(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in drawn.sample(range(4, len(whole)), 5)),
    ):
        path.write_bytes(content)
        try:
            tokenize_files(path, tmp_path / "out.npy", overwrite=True, separator=corpora.SEPARATOR, restart=True)
        except gpt2fast.InputError as error:
            named += str(path) in str(error)
            refused += 1
        else:  # a checksum is not everywhere: what came out must then be all there is
            assert content[:4] == whole[:4]
            assert len(content) >= len(whole)
    assert named == refused >= 7
    path.write_bytes(whole)
    tokenize_files(path, tmp_path / "out.npy", overwrite=True, separator=corpora.SEPARATOR, restart=True)


def test_a_frame_that_is_cut_off_never_counts_as_whole(tmp_path):
    """zstandard's own reader takes it for the end."""
    text = ("a line of text\n" * 20_000).encode()
    path = tmp_path / "in.txt.zst"
    for frame in (
        zstandard.ZstdCompressor().compress(text),
        zstandard.ZstdCompressor(write_content_size=False).compress(text),
    ):
        for length in range(1, len(frame), max(len(frame) // 40, 1)):
            path.write_bytes(frame[:length])
            with pytest.raises(gpt2fast.InputError, match="damaged zst"):
                tokenize_files(path, tmp_path / "out.npy", restart=True)
    path.write_bytes(b"")
    assert tokenize_files(path, tmp_path / "out.npy", restart=True).documents == 0


def test_parquet_columns(tmp_path):
    def write(column, **more):
        pyarrow.parquet.write_table(pa.table({"text": column, **more}), tmp_path / "in.parquet")
        return tmp_path / "in.parquet"

    out = tmp_path / "out.parquet"
    texts = ["a b", "", "é" * 50, "c"]
    expected = [corpora.tokens(text) for text in texts]
    for type in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        tokenize_files(write(pa.array(texts, pa.string()).cast(type)), out, overwrite=True)
        assert corpora.rows(out) == expected, type
    for column in (pa.array([1, 2]), pa.array([b"a"]), pa.array([["a"]]), pa.array([{"a": "b"}])):
        with pytest.raises(
            gpt2fast.InputError, match=r"in\.parquet: the column 'text' is of type .*; expected strings"
        ):
            tokenize_files(write(column), out, overwrite=True)
    with pytest.raises(gpt2fast.InputError, match="there is no column 'body', but 'text'"):
        tokenize_files(write(pa.array(["a"])), out, field="body", overwrite=True)
    path = write(pa.array(["a", None, "b", None]))
    with pytest.raises(gpt2fast.InputError, match=r"in\.parquet: row 2: the column 'text' is null"):
        tokenize_files(path, out, overwrite=True)
    told = []
    summary = tokenize_files(path, out, overwrite=True, on_error="skip", on_skip=told.append, restart=True)
    assert [message.split(": ")[1] for message in told] == ["row 2", "row 4"]
    assert (summary.documents, corpora.rows(out)) == (2, [corpora.tokens("a"), corpora.tokens("b")])


def test_parquet_that_is_not_utf8(tmp_path):
    offsets, data = np.array([0, 1, 3, 3, 6], np.int32), b"a\xff\xfe\xe2\x82x"
    valid = pa.py_buffer(bytes([0b1011]))
    column = pa.Array.from_buffers(pa.string(), 4, [valid, pa.py_buffer(offsets), pa.py_buffer(data)])
    pyarrow.parquet.write_table(pa.table({"text": column}), tmp_path / "in.parquet")
    with pytest.raises(gpt2fast.InputError, match="row 3: the column 'text' is null"):
        tokenize_files(tmp_path / "in.parquet", tmp_path / "out.npy")
    told = []
    tokenize_files(tmp_path / "in.parquet", tmp_path / "out.npy", on_error="skip", on_skip=told.append)
    assert [message.split(": ")[1] for message in told] == ["row 3", "row 2", "row 4"]
    assert np.load(tmp_path / "out.npy").tolist() == corpora.tokens("a")
    tokenize_files(tmp_path / "in.parquet", tmp_path / "out.npy", on_error="replace", overwrite=True)
    assert np.load(tmp_path / "out.npy").tolist() == corpora.stream(["a", "\ufffd\ufffd", "\ufffdx"])


def test_damaged_parquet(tmp_path):
    path = corpora.write(tmp_path / "in.parquet", corpora.DOCUMENTS * 50)
    whole = path.read_bytes()
    drawn = random.Random(2)
    named = refused = 0
    for content in (
        b"",
        b"PAR1",
        whole[:-1],
        whole[4:],
        *(whole[:at] + bytes(drawn.randbytes(3)) + whole[at + 3 :] for at in drawn.sample(range(len(whole) - 3), 40)),
    ):
        path.write_bytes(content)
        try:
            tokenize_files(path, tmp_path / "out.npy", overwrite=True, restart=True)
        except gpt2fast.InputError as error:
            named += str(path) in str(error)
            refused += 1
    assert named == refused > 10


def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch):
    path = corpora.write(tmp_path / "in.jsonl", corpora.DOCUMENTS)
    real = documents._read_jsonl

    def read(*arguments):
        yield from real(*arguments)
        with open(path, "a") as file:
            file.write('{"text": "more"}\n')

    monkeypatch.setitem(documents._READERS, "jsonl", read)
    with pytest.raises(gpt2fast.InputError, match=r"in\.jsonl: the file changed while it was read"):
        tokenize_files(path, tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"inputs": "nothing.txt"}, gpt2fast.MissingFileError, "nothing.txt: there is no such file or directory"),
        ({"inputs": "*.tsv"}, gpt2fast.MissingFileError, "no file has such a name"),
        ({"inputs": []}, gpt2fast.InputError, "there is no input"),
        ({"inputs": "empty"}, gpt2fast.InputError, "empty: there is no file of a known kind"),
        ({"inputs": "a.md"}, gpt2fast.InputError, "a.md: what is in it is not known by its name"),
        ({"inputs": ["a.txt", "*.txt"]}, gpt2fast.InputError, "a.txt: named twice"),
        ({"inputs": ["-", "a.txt"]}, gpt2fast.InputError, "standard input cannot be read together with files"),
        ({"input_format": "md"}, gpt2fast.InputError, "input_format is 'md'; expected txt, jsonl"),
        ({"out": "out.xyz"}, gpt2fast.InputError, "out.xyz: what to write is not known by its name"),
        ({"out": "out"}, gpt2fast.InputError, "out: a directory says no format; expected one of nanogpt, llmc"),
        ({"out": "missing/out.bin"}, gpt2fast.MissingFileError, "there is no directory missing"),
        ({"inputs": [3]}, gpt2fast.InputTypeError, "an input is of type int"),
        ({"out": 3}, gpt2fast.InputTypeError, "out is of type int"),
        ({"out": "out.npy", "format": "llmc"}, gpt2fast.InputError, "the format llmc has the suffix .bin"),
        ({"format": "webdataset"}, gpt2fast.InputError, "format is 'webdataset'; expected one of nanogpt"),
        ({"field": 3}, gpt2fast.InputTypeError, "field is of type int"),
        ({"separator": b"x"}, gpt2fast.InputTypeError, "separator is of type bytes"),
        ({"separator": "a\n"}, gpt2fast.InputError, "expected one line"),
        ({"eot": True}, gpt2fast.InputError, "eot is True; expected one of none, append, prepend"),
        ({"on_error": "ignore"}, gpt2fast.InputError, "on_error is 'ignore'"),
        ({"val_fraction": 1.5}, gpt2fast.InputError, "val_fraction is 1.5; expected a finite number from 0 to 1"),
        ({"val_fraction": "0.1"}, gpt2fast.InputTypeError, "val_fraction is '0.1'"),
        ({"seed": -1}, gpt2fast.InputError, "seed is -1"),
        ({"shard_tokens": 0}, gpt2fast.InputError, "shard_tokens is 0; expected 1 or more"),
        ({"num_threads": 0}, gpt2fast.InputError, "num_threads is 0"),
        ({"checkpoint_seconds": -1}, gpt2fast.InputError, "checkpoint_seconds is -1"),
    ],
    ids=str,
)
def test_bad_arguments(tmp_path, monkeypatch, arguments, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.md").write_text("a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=message):
        tokenize_files(**{"inputs": "a.txt", "out": "out.bin", **arguments})
    assert sorted(os.listdir(tmp_path)) == ["a.md", "a.txt", "empty"]


def test_a_tokenizer_without_end_of_text(tmp_path):
    (tmp_path / "in.txt").write_text("a b")
    symbols = gpt2fast.get_encoding("gpt2").byte_symbols()
    (tmp_path / "vocab.json").write_text(json.dumps({symbol: i for i, symbol in enumerate(symbols)}))
    (tmp_path / "merges.txt").write_text("")
    tokenizer = gpt2fast.Tokenizer.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    with pytest.raises(gpt2fast.InputError, match="eot is 'append', but the tokenizer .* has no <|endoftext|>"):
        tokenize_files(tmp_path / "in.txt", tmp_path / "out.npy", tokenizer=tokenizer, eot="append")
    tokenize_files(tmp_path / "in.txt", tmp_path / "out.npy", tokenizer=tokenizer)
    assert np.load(tmp_path / "out.npy").tolist() == list(b"a b")


@pytest.mark.parametrize(
    ("module", "inputs", "out"),
    [
        ("pyarrow", "in.parquet", "out.npy"),
        ("pyarrow", "in.txt", "out.parquet"),
        ("zstandard", "in.txt.zst", "out.npy"),
    ],
)
def test_missing_libraries_are_asked_for_by_name(tmp_path, monkeypatch, module, inputs, out):
    path = corpora.write(tmp_path / inputs, corpora.DOCUMENTS)
    for name in (module, *(name for name in sys.modules if name.startswith(f"{module}."))):
        monkeypatch.setitem(sys.modules, name, None)
    message = rf"needs the package {module}: pip install 'gpt2fast\[corpus\]'"
    with pytest.raises(gpt2fast.MissingDependencyError, match=message):
        tokenize_files(path, tmp_path / out)
    assert not (tmp_path / out).exists()
    monkeypatch.undo()
    tokenize_files(path, tmp_path / out)
