"""How inputs are read: huge documents in parts with the ids of the whole, and on from any cursor with the same rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import corpora
import pytest
from hypothesis import given
from hypothesis import strategies as some

import gpt2fast
from gpt2fast.corpus import batches, documents, encoding, tokenize_files
from gpt2fast.corpus.batches import Cursor, DocumentBatch, merge_small
from gpt2fast.corpus.documents import Reading, read_batches
from gpt2fast.corpus.inputs import find_inputs
from gpt2fast.corpus.options import CorpusOptions

# Characters that decide where pieces end, more often than others.
TEXT = some.lists(
    some.sampled_from([*"aZ1' ’\n\r\t.!-é一，　 ²", "ll", "'s", "'re", "  ", "🦊", "\x85"])
    | some.characters(exclude_categories=["Cs"])
).map("".join)


@contextlib.contextmanager
def small(size: int) -> Iterator[None]:
    """Parts and batches of a few bytes instead of some millions."""
    with (
        mock.patch.object(documents, "PART_BYTES", size),
        mock.patch.object(documents, "BATCH_BYTES", size),
        mock.patch.object(documents, "HASHED_BYTES", 0),
        mock.patch.object(batches, "BATCH_BYTES", 2 * size),
    ):
        yield


def read(path: Path, start: Cursor | None = None, **options: object) -> list[DocumentBatch]:
    (source,) = find_inputs([path])
    return list(read_batches(source, start or Cursor(), Reading(CorpusOptions(**options), 1)))  # type: ignore[arg-type]


def texts(found: list[DocumentBatch]) -> tuple[list[list[bytes]], bool]:
    """The parts of each document, and whether the last document is open."""
    read: list[list[bytes]] = []
    is_open = False
    for batch in found:
        assert batch.continues == is_open or not read
        for i in range(len(batch.spans) - 1):
            part = bytes(batch.data[batch.spans[i] : batch.spans[i + 1]])
            if i == 0 and batch.continues and read:
                read[-1].append(part)
            else:
                read.append([part])
        is_open = batch.cursor.is_open
    return read, is_open


@given(text=TEXT, after=TEXT)
def test_a_cut_is_safe_whatever_follows(text, after):
    encode = gpt2fast.get_encoding("gpt2").encode_ordinary
    whole = (text + after).encode()
    for end in range(len(text.encode()) + 1):
        cut = gpt2fast.get_encoding().last_cut(whole[:end])
        assert 0 <= cut <= end
        assert encode(whole[:cut]) + encode(whole[cut:]) == encode(whole)


@given(before=some.binary(max_size=12), text=TEXT, after=some.binary(max_size=12))
def test_a_cut_of_any_bytes_is_safe(before, text, after):
    encode = gpt2fast.get_encoding("gpt2").encode_ordinary
    text = before + text.encode()
    cut = gpt2fast.get_encoding().last_cut(text)
    assert encode(text[:cut]) + encode(text[cut:] + after) == encode(text + after)


@given(
    parts=some.lists(TEXT, max_size=6), size=some.integers(1, 40), separator=some.sampled_from([None, "", "-", "ab"])
)
def test_parts_are_the_whole(tmp_path_factory, parts, size, separator):
    """Documents read in tiny parts are those read at once, and their ids, too; also from each cursor on."""
    path = tmp_path_factory.mktemp("corpus") / "in.txt"
    path.write_bytes(f"\n{separator or ''}\n".join(parts).encode())
    (whole, _) = texts(read(path, separator=separator))
    encode = gpt2fast.get_encoding("gpt2").encode_ordinary
    with small(size):
        found = read(path, separator=separator)
        cut, is_open = texts(found)
        assert not is_open
        assert [b"".join(document) for document in cut] == [document for (document,) in whole]
        for document in cut:
            assert [i for part in document for i in encode(part)] == encode(b"".join(document))
        for number, batch in enumerate(found):
            rest, expected = read(path, batch.cursor, separator=separator), found[number + 1 :]
            assert [b"".join(document) for document in texts(rest)[0]] == [
                b"".join(document) for document in texts(expected)[0]
            ]
        merged, _ = texts(list(merge_small(iter_of(found))))
        assert [b"".join(document) for document in merged] == [document for (document,) in whole]


def iter_of(found: list[DocumentBatch]) -> Iterator[DocumentBatch]:
    yield from found


@pytest.mark.parametrize(
    "kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "parquet.gz", "txt", "txt.gz", "txt.zst"]
)
@pytest.mark.parametrize("size", [1, 30, 100])
def test_on_from_every_cursor(tmp_path, kind, size):
    path = corpora.write(tmp_path / f"in.{kind}", corpora.DOCUMENTS * 3)
    with small(size):
        found = read(path, separator=corpora.SEPARATOR)
        assert len(found) > 2 or size == 100
        for number, batch in enumerate(found):
            rest = texts(read(path, batch.cursor, separator=corpora.SEPARATOR))[0]
            assert [b"".join(d) for d in rest] == [b"".join(d) for d in texts(found[number + 1 :])[0]]


@pytest.mark.parametrize("eot", ["none", "append", "prepend"])
@pytest.mark.parametrize("val_fraction", [0, 0.5])
@pytest.mark.parametrize("size", [1, 3, 50])
def test_outputs_do_not_depend_on_batches(tmp_path, eot, val_fraction, size, monkeypatch):
    monkeypatch.setattr(encoding, "HASHED_BYTES", 1)
    for kind in ("txt", "jsonl"):
        corpora.write(tmp_path / f"in.{kind}", corpora.DOCUMENTS * 2)
    inputs = [tmp_path / "in.txt", tmp_path / "in.jsonl"]
    for name in ("whole", "parts"):
        with small(size) if name == "parts" else contextlib.nullcontext():
            for format in ("llmc", "parquet"):
                tokenize_files(
                    inputs,
                    tmp_path / name,
                    format=format,
                    eot=eot,
                    val_fraction=val_fraction,
                    separator=corpora.SEPARATOR,
                    shard_tokens=40,
                )
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert len(files) > 8
    assert files == sorted(path.name for path in (tmp_path / "parts").iterdir())
    for file in files:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes(), file


def test_what_cannot_be_cut_is_read_as_a_whole(tmp_path):
    (tmp_path / "in.txt").write_bytes(b"a" * 1000 + b"\xe4\xb8\x80" * 500 + b" " * 700)
    with small(16):
        (document,), _ = texts(read(tmp_path / "in.txt"))
    assert max(map(len, document)) > 2000
    assert b"".join(document) == (tmp_path / "in.txt").read_bytes()
