"""The documents of an input: text files, JSON lines and Parquet, read in batches from any cursor on."""

from __future__ import annotations

import codecs
import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast import _bpe
from gpt2fast.corpus.batches import BATCH_BYTES, HASHED_BYTES, Cursor, DocumentBatch, batch_of
from gpt2fast.corpus.dependencies import pyarrow_parquet
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.options import CorpusOptions
from gpt2fast.corpus.streams import ByteStream
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.tokenizer.arrow import plain_strings, texts_of
from gpt2fast.tokenizer.encoding import Tokenizer, get_encoding

__all__ = ["PART_BYTES", "read_batches"]

#: A document of a text file that is longer is read and encoded in parts; one that is shorter never is.
PART_BYTES = 1 << 23
#: A line of JSON that is longer is an error: it has to be in memory as a whole.
MOST_BYTES_OF_A_LINE = 1 << 28


@dataclass(frozen=True)
class Reading:
    """How to read: the options, the threads, whom to tell of a bad line that is skipped, and for which tokenizer
    (GPT-2's where none is named)."""

    options: CorpusOptions
    num_threads: int
    on_skip: Callable[[str], None] = lambda message: None
    tokenizer: Tokenizer | None = None

    def last_cut(self, text: memoryview) -> int:
        """The last place where a text that goes on can be cut without changing an id; 0 where there is none."""
        tokenizer = self.tokenizer or get_encoding()
        return tokenizer.last_cut(text, allowed_special=self.options.allowed_special)

    def bad(self, message: str) -> None:
        """Refuse or skip a document."""
        if self.options.on_error == "error":
            raise InputError(message)
        self.on_skip(message)


def read_batches(source: Input, start: Cursor, how: Reading, end: int | None = None) -> Iterator[DocumentBatch]:
    """The documents of `source` from the cursor `start` on, those before the position `end` where it is given.

    Raises InputError that names file and line where a line is bad and to be refused, where the file is damaged, and
    where it changed while it was read.
    """
    source.check_unchanged()
    yield from _READERS[source.kind](source, start, how, end)
    source.check_unchanged()


# Text files


def _read_txt(source: Input, start: Cursor, how: Reading, end: int | None) -> Iterator[DocumentBatch]:
    """A document a file, or one between any two lines that are the separator; long ones in parts."""
    stream = ByteStream(source, end)
    separator = None if how.options.separator is None else how.options.separator.encode()
    try:
        # One byte that was taken stays before the text, to tell whether a line begins there.
        text = b"\n"
        if start.position:
            stream.skip(start.position - 1)
            text = stream.read(1)
        cursor, searched, final = start, 0, False
        while not final:
            # At least as much as there is: what cannot be cut doubles, and is looked through a few times only.
            wanted = max(PART_BYTES, len(text))
            block = stream.read(wanted)
            final = len(block) < wanted
            text += block
            spans, searched = _ended_documents(text, separator, searched)
            taken = spans.pop()[0]  # the last one is what is left
            is_open = cursor.is_open and not spans
            if final:
                spans.append((taken, _end_of_last(text, separator, searched)))
                taken, is_open = len(text), False
            elif len(text) - taken >= PART_BYTES:
                known = searched if _may_be(separator, text, searched) else len(text)
                cut = how.last_cut(memoryview(text)[taken:known])
                if cut > (0 if is_open else HASHED_BYTES):
                    spans.append((taken, taken + cut))
                    taken, is_open = taken + cut, True
            batch = _texts(source, cursor, how, text, spans, taken, is_open)
            batch.raw = stream.raw_position
            cursor = batch.cursor
            text, searched = text[taken - 1 :], max(searched - taken + 1, 0)
            yield batch
    finally:
        stream.close()


def _ended_documents(text: bytes, separator: bytes | None, searched: int) -> tuple[list[tuple[int, int]], int]:
    """The spans of the documents that a separator ends, and of what is left; where to search on, the last line."""
    if separator is None:
        return [(1, len(text))], len(text)
    spans, begin = [], 1
    for match in re.compile(rb"(?<=\n)" + re.escape(separator) + rb"\r?\n").finditer(text, searched):
        spans.append((begin, match.start()))
        begin = match.end()
    return [*spans, (begin, len(text))], text.rfind(b"\n") + 1


def _may_be(separator: bytes | None, text: bytes, line: int) -> bool:
    """Whether the unfinished last line, which starts at `line`, may become a separator."""
    return separator is not None and (separator + b"\r").startswith(text[line : line + len(separator) + 2])


def _end_of_last(text: bytes, separator: bytes | None, line: int) -> int:
    """Where the last document ends: before a last line that is a separator, though no newline ends it."""
    last = separator is not None and line > 0 and text[line : line + len(separator) + 2]
    return line if last in (separator, (separator or b"") + b"\r") and separator is not None else len(text)


def _texts(
    source: Input, cursor: Cursor, how: Reading, text: bytes, spans: list[tuple[int, int]], taken: int, is_open: bool
) -> DocumentBatch:
    """The batch of the texts at `spans`, checked to be UTF-8."""
    good: list[bytes] = []
    skipped = mended = 0
    for i, (begin, end) in enumerate(spans):
        continues = i == 0 and cursor.is_open
        if begin == end and not continues:
            continue  # a document of nothing is none, but one that was begun has to end
        part = text[begin:end]
        try:
            codecs.utf_8_decode(part, "strict", True)
        except UnicodeDecodeError as error:
            line = cursor.line + text.count(b"\n", 1, begin + error.start) + 1
            message = f"{source.name}:{line}: not UTF-8: {error.reason}"
            if how.options.on_error == "replace":
                part = part.decode("utf-8", "replace").encode()
                mended += 1
            elif how.options.on_error == "skip" and (continues or len(part) >= PART_BYTES):
                raise InputError(
                    f"{message}; a document of {PART_BYTES >> 20} MiB or more cannot be skipped, as it is written "
                    "while it is read: separate the documents, or use --on-error replace"
                ) from None
            else:
                how.bad(message)
                skipped += 1
                continue
        good.append(part)
    after = replace(
        cursor, position=cursor.position + taken - 1, line=cursor.line + text.count(b"\n", 1, taken), is_open=is_open
    )
    return replace(batch_of(good, cursor.is_open, after), skipped=skipped, mended=mended)


# JSON lines


def _read_jsonl(source: Input, start: Cursor, how: Reading, end: int | None) -> Iterator[DocumentBatch]:
    """A document a line: what the field holds in its object."""
    stream = ByteStream(source, end)
    try:
        stream.skip(start.position)
        cursor, pending, dropped, final = start, b"", 0, False
        while not final:
            block = stream.read(BATCH_BYTES)
            final = len(block) < BATCH_BYTES
            text = pending + block
            skipped = 0
            if dropped or (len(text) > MOST_BYTES_OF_A_LINE and _first_line(text) > MOST_BYTES_OF_A_LINE):
                if not dropped:
                    how.bad(f"{source.name}:{cursor.line + 1}: longer than {MOST_BYTES_OF_A_LINE >> 20} MiB")
                first = _first_line(text)
                dropped += first
                if not final and not text.endswith(b"\n", 0, first):
                    pending = b""
                    continue
                cursor = replace(cursor, position=cursor.position + dropped, line=cursor.line + 1)
                text, dropped, skipped = text[first:], 0, 1
            whole = len(text) if final else text.rfind(b"\n") + 1
            lines, pending = text[:whole], text[whole:]
            if lines or skipped:
                batch = _lines(source, cursor, how, lines)
                batch.raw, batch.skipped = stream.raw_position, batch.skipped + skipped
                cursor = batch.cursor
                yield batch
    finally:
        stream.close()


def _first_line(text: bytes) -> int:
    """The length of the first line, its newline included."""
    return text.find(b"\n") + 1 or len(text)


def _lines(source: Input, cursor: Cursor, how: Reading, lines: bytes) -> DocumentBatch:
    """The batch of whole lines."""
    mark = len(codecs.BOM_UTF8) if not cursor.position and lines.startswith(codecs.BOM_UTF8) else 0
    data, spans, bad, mended = _bpe.read_jsonl(
        memoryview(lines)[mark:], how.options.field, how.options.on_error == "replace", how.num_threads
    )
    for line, message in bad:
        how.bad(f"{source.name}:{cursor.line + line + 1}: {message}")
    after = replace(cursor, position=cursor.position + len(lines), line=cursor.line + lines.count(b"\n"))
    spans = np.frombuffer(spans, np.int64)
    return DocumentBatch(memoryview(data), spans, False, after, skipped=len(bad), mended=mended)


# Parquet


def _read_parquet(source: Input, start: Cursor, how: Reading, end: int | None) -> Iterator[DocumentBatch]:
    """A document a row: what the column holds."""
    pa, parquet = pyarrow_parquet("reading .parquet")
    with contextlib.ExitStack() as stack:
        stream = ByteStream(source)
        stack.callback(stream.close)
        file: Any = source.path
        if source.compression or not source.is_file:
            # Parquet is read from its end, so it has to be a file.
            file = stack.enter_context(tempfile.TemporaryFile())
            while block := stream.read(1 << 22):
                file.write(block)
        try:
            reader = stack.enter_context(parquet.ParquetFile(file))
            name, schema = how.options.field, reader.schema_arrow
            if name not in schema.names:
                found = ", ".join(map(repr, schema.names))
                raise InputError(f"{source.name}: there is no column {name!r}, but {found}")
            try:
                plain_strings(pa.nulls(0, schema.field(name).type), name)
            except InputTypeError as error:
                raise InputError(f"{source.name}: {error}") from None
            yield from _rows(source, start, how, reader, pa, end)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise InputError(f"{source.name}: damaged Parquet: {error}") from None


def _rows(source: Input, start: Cursor, how: Reading, reader: Any, pa: Any, end: int | None) -> Iterator[DocumentBatch]:
    """The documents of the row groups that begin before the row `end`."""
    cursor = start
    first = 0  # row of the group
    for group in range(reader.metadata.num_row_groups):
        metadata = reader.metadata.row_group(group)
        if first + metadata.num_rows > cursor.position and (end is None or first < end):
            size = max(metadata.total_byte_size // max(metadata.num_rows, 1), 1)
            row = first
            for record in reader.iter_batches(
                batch_size=min(max(BATCH_BYTES // 2 // size, 1), 1 << 16),
                row_groups=[group],
                columns=[how.options.field],
                use_threads=False,
            ):
                column = record.column(0)[max(cursor.position - row, 0) :]
                row += len(record)
                if len(column):
                    batch = _column(source, cursor, how, column, pa)
                    batch.raw = source.size * row // reader.metadata.num_rows
                    cursor = batch.cursor
                    yield batch
        first += metadata.num_rows


def _column(source: Input, cursor: Cursor, how: Reading, column: Any, pa: Any) -> DocumentBatch:
    """The batch of an array of strings, whose bytes stay where they are."""
    column = plain_strings(column, how.options.field)
    after = replace(cursor, position=cursor.position + len(column))
    rows = np.arange(cursor.position + 1, after.position + 1)
    skipped = 0
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        for row in rows[null]:
            how.bad(f"{source.name}: row {row}: the column {how.options.field!r} is null")
        skipped = int(null.sum())
        column, rows = column.drop_null(), rows[~null]
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        texts, bad, mended = _check_rows(source, rows, how, texts_of(column))
        return replace(batch_of(texts, False, after), skipped=skipped + bad, mended=mended)
    return DocumentBatch(*texts_of(column), False, after, skipped=skipped)


def _check_rows(
    source: Input, rows: npt.NDArray[np.int64], how: Reading, column: tuple[Any, npt.NDArray[np.int64]]
) -> tuple[list[bytes], int, int]:
    """The texts that are UTF-8 or can be mended, how many are not, how many were mended."""
    data, spans = column
    texts, bad, mended = [], 0, 0
    for i, row in enumerate(rows):
        text = bytes(data[spans[i] : spans[i + 1]])
        try:
            text.decode()
        except UnicodeDecodeError as error:
            if how.options.on_error != "replace":
                how.bad(f"{source.name}: row {row}: not UTF-8: {error.reason}")
                bad += 1
                continue
            text = text.decode("utf-8", "replace").encode()
            mended += 1
        texts.append(text)
    return texts, bad, mended


_READERS: dict[str, Callable[[Input, Cursor, Reading, int | None], Iterator[DocumentBatch]]] = {
    "txt": _read_txt,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
}
