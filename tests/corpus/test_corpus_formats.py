"""`tokenize_files`: every input format to every output format, with the ids of tiktoken, split and sharded."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys

import corpora
import numpy as np
import pytest

import gpt2fast
from gpt2fast.corpus import tokenize_files
from gpt2fast.corpus.encoding import goes_to_val

OUTPUTS = {"nanogpt": "out.bin", "llmc": "out.bin", "npy": "out.npy", "parquet": "out.parquet"}
INPUTS = [kind + compression for kind in ("txt", "jsonl", "parquet") for compression in ("", ".gz", ".zst")]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("eot", ["none", "append", "prepend"])
def test_every_input(tmp_path, kind, eot):
    path = corpora.write(tmp_path / f"in.{kind}", corpora.DOCUMENTS)
    summary = tokenize_files(path, tmp_path / "out.npy", eot=eot, separator=corpora.SEPARATOR)
    expected = corpora.stream(corpora.DOCUMENTS, eot)
    assert corpora.read(tmp_path / "out.npy", "npy").tolist() == expected
    assert summary.documents == len(corpora.DOCUMENTS)
    assert summary.tokens == len(expected)
    assert summary.text_bytes == sum(len(text.encode()) for text in corpora.DOCUMENTS)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, "out.npy"])


@pytest.mark.parametrize("format", OUTPUTS)
def test_every_output(tmp_path, format):
    path = corpora.write(tmp_path / "in.jsonl", corpora.DOCUMENTS)
    out = tmp_path / OUTPUTS[format]
    summary = tokenize_files([path], out, format=format, eot="append")
    assert corpora.read(out, format).tolist() == corpora.stream(corpora.DOCUMENTS, "append")
    assert summary.files == [(str(out), summary.tokens)]
    if format == "parquet":
        assert corpora.rows(out) == [[*corpora.tokens(text), corpora.EOT] for text in corpora.DOCUMENTS]
    if format == "npy":
        saved = io.BytesIO()
        np.save(saved, np.load(out))
        assert out.read_bytes() == saved.getvalue()


def test_golden_bytes(tmp_path):
    (tmp_path / "in.txt").write_bytes(b"hello world")
    tokenize_files(tmp_path / "in.txt", tmp_path / "a.bin", eot="append")
    assert (tmp_path / "a.bin").read_bytes() == bytes.fromhex("8d7ae30350c4")
    tokenize_files(tmp_path / "in.txt", tmp_path / "b.bin", eot="prepend", format="llmc")
    content = (tmp_path / "b.bin").read_bytes()
    assert content[:1024] == bytes.fromhex("88d83401 01000000 03000000").ljust(1024, b"\0")
    assert content[1024:] == bytes.fromhex("50c48d7ae303")


@pytest.mark.parametrize("format", OUTPUTS)
@pytest.mark.parametrize("val_fraction", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("shard_tokens", [None, 1, 7, 10_000])
def test_splits_and_shards(tmp_path, format, val_fraction, shard_tokens):
    path = corpora.write(tmp_path / "in.parquet", corpora.DOCUMENTS)
    summary = tokenize_files(
        path,
        tmp_path / "out",
        format=format,
        eot="append",
        val_fraction=val_fraction,
        seed=5,
        shard_tokens=shard_tokens,
    )
    val = [goes_to_val(text.encode(), val_fraction, 5) for text in corpora.DOCUMENTS]
    assert val_fraction != 0.4 or 0 < sum(val) < len(val)
    suffix = "." + OUTPUTS[format].split(".")[1]
    written = {}
    for split, side in (("train", False), ("val", True))[: 1 + (val_fraction > 0)]:
        documents = [text for text, is_val in zip(corpora.DOCUMENTS, val, strict=True) if is_val == side]
        expected = corpora.stream(documents, "append")
        if shard_tokens is None:
            paths = [tmp_path / "out" / f"{split}{suffix}"]
        else:
            paths = sorted((tmp_path / "out").glob(f"{split}_*{suffix}"))
            assert [path.name for path in paths] == [f"{split}_{i:06d}{suffix}" for i in range(len(paths))]
        shards = [corpora.read(path, format).tolist() for path in paths]
        assert [i for shard in shards for i in shard] == expected
        if shard_tokens is not None and format != "parquet":
            assert all(len(shard) == shard_tokens for shard in shards[:-1])
            assert 0 <= len(shards[-1]) <= shard_tokens
        if shard_tokens is not None and format == "parquet":  # the last document is what fills a shard
            for path in paths[:-1]:
                assert sum(map(len, corpora.rows(path)[:-1])) < shard_tokens <= sum(map(len, corpora.rows(path)))
        assert all(shards) or not expected
        written |= {str(path): len(shard) for path, shard in zip(paths, shards, strict=True)}
    assert dict(summary.files) == written
    assert len(os.listdir(tmp_path / "out")) == len(written)


def test_the_split_is_the_documented_hash(tmp_path):
    documents = [f"document {i}" for i in range(300)]
    for seed in (0, 1):
        digests = [hashlib.blake2b(d.encode(), digest_size=8, key=b"%d" % seed).hexdigest() for d in documents]
        expected = [int(digest, 16) < 2**64 // 4 for digest in digests]
        assert [goes_to_val(d.encode(), 0.25, seed) for d in documents] == expected
        assert 45 < sum(expected) < 105
    long = b"x" * 70_000
    assert len({goes_to_val(long + bytes([i]), 0.5, 0) for i in range(64)}) == 1  # only the beginning counts
    assert not goes_to_val(b"", 0.0, 0)
    assert goes_to_val(b"", 1.0, 0)


def test_order_and_files_do_not_change_the_split(tmp_path):
    # In text files the end of the line before the separator is the document's.
    documents = [f"document {i}\n" for i in range(100)]
    corpora.write(tmp_path / "a.jsonl", documents[:50])
    corpora.write(tmp_path / "b.txt", documents[50:])
    corpora.write(tmp_path / "c.jsonl", documents[::-1])
    both = [tmp_path / "a.jsonl", tmp_path / "b.txt"]
    tokenize_files(both, tmp_path / "1.parquet", separator=corpora.SEPARATOR, val_fraction=0.3, on_note=print)
    tokenize_files(tmp_path / "c.jsonl", tmp_path / "2.parquet", val_fraction=0.3)
    for split in ("train", "val"):
        one, two = (corpora.rows(tmp_path / f"{n}_{split}.parquet") for n in (1, 2))
        assert one == two[::-1]
        assert len(one) > 10


def test_text_files(tmp_path):
    """What a document is: the file, or the lines between separators; a document of nothing is none."""
    cases = [
        (None, b"", []),
        (None, b"\n", [b"\n"]),
        (None, b"a\n\nb", [b"a\n\nb"]),
        (None, b"\xef\xbb\xbfa\r\n", [b"\xef\xbb\xbfa\r\n"]),
        ("--", b"a\n--\nb\n--\n", [b"a\n", b"b\n"]),
        ("--", b"--\na\n--\n--\nb\n--", [b"a\n", b"b\n"]),
        ("--", b"a\r\n--\r\nb\n--\r", [b"a\r\n", b"b\n"]),
        ("--", b"a--\n --\n-- \n---\n", [b"a--\n --\n-- \n---\n"]),
        ("--", b"--", []),
        ("", b"a\nb\n\nc\n\n\n\nd\n \ne", [b"a\nb\n", b"c\n", b"d\n \ne"]),
        ("", b"\n\n\r\n", []),
        ("é.*", "a\né.*\nb".encode(), [b"a\n", b"b"]),
    ]
    for i, (separator, content, documents) in enumerate(cases):
        (tmp_path / f"{i}.txt").write_bytes(content)
        tokenize_files(tmp_path / f"{i}.txt", tmp_path / f"{i}.parquet", separator=separator, on_note=print)
        expected = [corpora.tokens(text.decode()) for text in documents]
        assert corpora.rows(tmp_path / f"{i}.parquet") == expected, content


def test_directories_globs_and_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("in/deep/.hidden")
    os.makedirs("in/old.partial")
    for name in ("b.txt", "a.txt", "deep/c.jsonl.gz", "deep/.hidden/d.txt", "old.partial/e.txt", ".f.txt", "notes.md"):
        corpora.write(tmp_path / "in" / name, [name])
    corpora.write(tmp_path / "g[1].txt", ["g"])
    corpora.write(tmp_path / "h.json", ["h"])  # JSON lines by that name, as C4 has them
    (tmp_path / "h.json").write_bytes(b'{"text": "h"}\n')
    for i, (inputs, expected) in enumerate(
        [
            ("in", ["a.txt", "b.txt", "deep/c.jsonl.gz"]),
            ("in/*.txt", ["a.txt", "b.txt"]),
            ("in/**/*.gz", ["deep/c.jsonl.gz"]),
            (["in/b.txt", "in/a.txt"], ["b.txt", "a.txt"]),
            (["g[1].txt", "h.json"], ["g", "h"]),
        ]
    ):
        tokenize_files(inputs, f"{i}.parquet")
        assert corpora.rows(tmp_path / f"{i}.parquet") == [corpora.tokens(text) for text in expected]


def test_standard_input_and_pipes(tmp_path):
    command = [sys.executable, "-m", "gpt2fast", "tokenize", "-", "-o", str(tmp_path / "out.npy"), "--eot", "append"]
    for kind in ("txt", "jsonl.zst", "parquet", "txt.gz"):
        path = corpora.write(tmp_path / f"in.{kind}", corpora.DOCUMENTS)
        done = subprocess.run(
            [*command, "--input-format", kind, "--separator", corpora.SEPARATOR, "--overwrite"],
            input=path.read_bytes(),
            capture_output=True,
            check=True,
        )
        assert corpora.read(tmp_path / "out.npy", "npy").tolist() == corpora.stream(corpora.DOCUMENTS, "append")
        assert b"6 documents" in done.stderr
        assert not done.stdout
    os.mkfifo(tmp_path / "pipe.txt")
    with subprocess.Popen(["sh", "-c", f"printf 'hello world' > {tmp_path}/pipe.txt"]):
        tokenize_files(tmp_path / "pipe.txt", tmp_path / "pipe.npy")
    assert np.load(tmp_path / "pipe.npy").tolist() == [31373, 995]


def test_larger_vocabularies_take_32_bits_where_there_are_any(tmp_path):
    class Large(gpt2fast.Tokenizer):
        n_vocab = 70_000

    tokenizer = Large(gpt2fast.get_encoding("gpt2")._files, name="large")
    (tmp_path / "in.txt").write_text("hello world")
    for format, out in OUTPUTS.items():
        if format in ("nanogpt", "llmc"):
            with pytest.raises(gpt2fast.InputError, match="70,000 tokens; the format .* has 16 bits"):
                tokenize_files(tmp_path / "in.txt", tmp_path / out, tokenizer=tokenizer, format=format)
        else:
            tokenize_files(tmp_path / "in.txt", tmp_path / out, tokenizer=tokenizer)
    assert np.load(tmp_path / "out.npy").dtype == np.uint32
    assert corpora.rows(tmp_path / "out.parquet") == [[31373, 995]]


def test_threads_do_not_change_anything(tmp_path):
    documents = [f"document {i}, {'long ' * (i % 50)}" for i in range(20_000)]
    path = corpora.write(tmp_path / "in.jsonl", documents)
    for threads in (1, 2, 5):
        tokenize_files(path, tmp_path / f"{threads}.npy", num_threads=threads, eot="append", val_fraction=0.1)
    for split in ("train", "val"):
        assert len({(tmp_path / f"{threads}_{split}.npy").read_bytes() for threads in (1, 2, 5)}) == 1


def test_many_small_files(tmp_path):
    for i in range(300):
        (tmp_path / f"{i:03d}.txt").write_text(f"file {i}")
    summary = tokenize_files(tmp_path, tmp_path / "out" / "", format="parquet", eot="append")
    expected = [[*corpora.tokens(f"file {i}"), corpora.EOT] for i in range(300)]
    assert corpora.rows(tmp_path / "out" / "train.parquet") == expected
    assert summary.documents == 300
