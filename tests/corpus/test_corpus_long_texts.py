"""Texts and pieces far longer than what is encoded at once: cut where no id changes, and memory stays bounded."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from unittest import mock

import corpora
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from paths import ROOT

import gpt2fast
from gpt2fast.corpus import documents, encoding, tokenize_files
from gpt2fast.corpus.batches import Cursor, batch_of
from gpt2fast.tokenizer.cuts import cut_inside

DRAWN = random.Random(50256)
PIECES = {
    "spaces": b" " * 6000,
    "newlines": b"\n" * 6001,
    "one letter": b"a" * 6000,
    "letters": b"abcde" * 1300,
    "random letters": bytes(DRAWN.choices(b"abcdefghijklmnopqrstuvwxyz", k=6000)),
    "ruler": b"=" * 6003,
    "apostrophes": b"'" * 6000,
    "digits": b"0123456789" * 600,
    "Chinese": "一二三四五六".encode() * 400,
    "mixed": "aéz一Ω".encode() * 700,
    "control characters": b"\x00\x01" * 3000,
}
ENDINGS = [b"", b"x", b" x", b"\n", b"'s", b"'ll go", b"9", "é".encode(), b" " * 50 + b"y", b"=" * 77, b"a" * 300]


@pytest.mark.parametrize("name", PIECES)
def test_a_cut_within_a_piece_changes_no_id(name: str) -> None:
    enc = gpt2fast.get_encoding()
    piece = PIECES[name]
    cut = cut_inside(b"Before it. " + piece, enc)
    assert cut > len(piece) // 2
    for ending in [*ENDINGS, piece[:777]]:
        whole = b"Before it. " + piece + ending
        assert enc.encode_ordinary(whole[:cut]) + enc.encode_ordinary(whole[cut:]) == enc.encode_ordinary(whole)


@given(
    some.text("ab=' \n一", min_size=1, max_size=9),
    some.text("ab=' \n一\U0001f98a", max_size=12),
    some.integers(4200, 4300),
)
def test_a_cut_within_any_run_changes_no_id(unit: str, ending: str, length: int) -> None:
    enc = gpt2fast.get_encoding()
    text = (unit * length)[:length].encode()
    cut = cut_inside(text, enc)
    whole = text + ending.encode()
    assert enc.encode_ordinary(whole[:cut]) + enc.encode_ordinary(whole[cut:]) == enc.encode_ordinary(whole)


def test_no_cut_where_a_special_token_may_lie_across_it() -> None:
    enc = gpt2fast.get_encoding()
    text = b"=" * 5000 + b"<|"
    cut = cut_inside(text, enc)
    assert 0 < cut <= 5000 - 10


@pytest.mark.parametrize("unit", ["a", " ", "=", "word "])
def test_long_texts_are_the_same_in_parts(tmp_path: Path, unit: str) -> None:
    """Of text files, which are read in parts, and of lines, which are encoded in parts; empty ones are kept."""
    texts = ["", unit * 30_000, "", "", "short", unit * 9000, ""]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "a.txt").write_text(texts[1])
    for out in ("whole", "parts"):
        with (
            mock.patch.object(documents, "PART_BYTES", 5000 if out == "parts" else 1 << 23),
            mock.patch.object(documents, "HASHED_BYTES", 0),
            mock.patch.object(encoding, "BATCH_BYTES", 5000 if out == "parts" else 1 << 23),
            mock.patch.object(encoding, "_AT_ONCE", 10_000 if out == "parts" else 1 << 24),
        ):
            inputs = [tmp_path / "a.jsonl", tmp_path / "a.txt"]
            tokenize_files(inputs, tmp_path / f"{out}.parquet", eot="append", checkpoint_seconds=0)
    expected = [[*corpora.tokens(text), corpora.EOT] for text in [*texts, texts[1]]]
    assert corpora.rows(tmp_path / "parts.parquet") == expected
    assert (tmp_path / "parts.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@given(some.lists(some.integers(0, 90), max_size=7), some.booleans(), some.booleans())
def test_parts_of_a_batch_are_the_batch(lengths: list[int], continues: bool, is_open: bool) -> None:
    texts = [b"word " * length for length in lengths]
    batch = batch_of(texts, continues and bool(texts), Cursor(is_open=is_open and bool(texts)))
    with mock.patch.object(encoding, "BATCH_BYTES", 50), mock.patch.object(encoding, "_AT_ONCE", 100):
        parts = list(encoding.in_parts(batch, gpt2fast.get_encoding()))
    found: list[bytes] = []
    open_before = batch.continues
    for part in parts:
        assert part.continues == open_before
        new = [bytes(part.data[part.spans[i] : part.spans[i + 1]]) for i in range(len(part.spans) - 1)]
        if part.continues and found:
            found[-1] += new.pop(0)
        found += new
        open_before = part.cursor.is_open
    assert found == texts
    assert [part.is_place for part in parts] == [False] * (len(parts) - 1) + [True]
    assert sum(part.documents for part in parts) == batch.documents
    assert parts[-1].cursor == batch.cursor


def test_what_can_be_cut_nowhere_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff" * 9000)
    with (
        mock.patch.object(documents, "PART_BYTES", 1000),
        mock.patch.object(documents, "HASHED_BYTES", 0),
        mock.patch.object(documents, "MOST_BYTES_UNCUT", 4000),
        pytest.raises(gpt2fast.InputError, match=r"a\.txt: 0 MiB without a place where the text can be cut"),
    ):
        tokenize_files(tmp_path / "a.txt", tmp_path / "a.npy", on_error="replace")


def test_many_short_documents(tmp_path: Path) -> None:
    with mock.patch.object(documents, "_MOST_DOCUMENTS", 3):
        (tmp_path / "a.txt").write_bytes(b"\n\n" + b"a\n\n" * 100 + b"\n" * 50 + b"b")
        summary = tokenize_files(tmp_path / "a.txt", tmp_path / "a.npy", separator="", checkpoint_seconds=0)
    assert summary.documents == 101
    assert np.load(tmp_path / "a.npy").tolist() == [64, 198] * 100 + [65]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read from Linux")
@pytest.mark.parametrize(
    ("name", "content", "most"),
    [
        ("blank.txt", [b"\n" * (1 << 20)] * 15, 150e6),
        ("tiny.txt", [b"a\n\n" * 350_000] * 15, 200e6),
        ("spaces.txt", [b" " * (1 << 20)] * 100, 320e6),
        ("ruler.txt", [b"=" * (1 << 20)] * 100, 200e6),
        ("line.jsonl", [b'{"text": "', *[b"The quick brown fox. " * 50_000] * 95, b'"}'], 350e6),
        ("spaces.jsonl", [b'{"text": "', *[b" " * (1 << 20)] * 95, b'"}'], 350e6),
        ("empty.jsonl", [b'{"text": ""}\n' * 90_000] * 50, 200e6),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_memory_is_bounded(tmp_path: Path, name: str, content: list[bytes], most: float) -> None:
    with open(tmp_path / name, "wb") as file:
        file.writelines(content)
    # Its own peak: what wait4 tells of a child begins with what its parent had at the fork.
    code = (
        "import sys; from gpt2fast.cli import main; status = main(sys.argv[1:]);"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0]);"
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", code, "tokenize", str(tmp_path / name), "-o", str(tmp_path / "out.npy")]
    command += ["--separator", "", "--quiet", "--threads", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) * 1024 < most
