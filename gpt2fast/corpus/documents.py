"""The documents of an input: text files, JSON lines and arrays, and tables, read in batches from any cursor on."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast import _bpe
from gpt2fast.corpus import columns
from gpt2fast.corpus.batches import BATCH_BYTES, HASHED_BYTES, Cursor, DocumentBatch, batch_of
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.lines import Lines, read_lines
from gpt2fast.corpus.options import CorpusOptions
from gpt2fast.corpus.streams import ByteStream
from gpt2fast.errors import InputError
from gpt2fast.tokenizer.arrow import texts_of
from gpt2fast.tokenizer.cuts import cut_inside
from gpt2fast.tokenizer.encoding import Tokenizer, get_encoding
from gpt2fast.tokenizer.special import END_OF_TEXT

__all__ = ["PART_BYTES", "read_batches", "separator_pattern"]

#: A document of a text file that is longer is read and encoded in parts; one that is shorter never is.
PART_BYTES = 1 << 23
#: A text that is longer and can be cut nowhere is an error for the same reason.
MOST_BYTES_UNCUT = 1 << 26
#: Documents of a batch of text, at most: short ones take more memory than their bytes.
_MOST_DOCUMENTS = 1 << 17


@dataclass(frozen=True)
class Reading:
    """How to read: the options, the threads, whom to tell of a bad line that is skipped, for which tokenizer (GPT-2's
    where none is named), and whom to tell of what is only worth a word."""

    options: CorpusOptions
    num_threads: int
    on_skip: Callable[[str], None] = lambda message: None
    tokenizer: Tokenizer | None = None
    on_note: Callable[[str], None] = lambda message: None
    #: Whether batches are to tell their documents' `records`.
    numbered: bool = False

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
    """A document a file, or one between any two separators; long ones in parts."""
    stream = ByteStream(source, end)
    separators = _Separators(how.options)
    with closing(stream):
        # One byte that was taken stays before the text, to tell whether a line begins there.
        text = b"\n"
        if start.position:
            stream.skip(start.position - 1)
            text = stream.read(1)
        cursor, searched, final, more = start, 1, False, False
        while more or not final:
            if not more:
                # At least as much as there is: what cannot be cut doubles, and is looked through a few times only.
                wanted = max(PART_BYTES, len(text))
                block = stream.read(wanted)
                final = len(block) < wanted
                text += block
            spans, left, searched, more = separators.find(text, searched, final, cursor.is_open)
            taken, is_open = left, cursor.is_open and left == 1
            if final and not more:
                spans.append((left, len(text)))
                taken, is_open = len(text), False
            elif not more and len(text) - left >= PART_BYTES:
                cut = _last_cut(source, memoryview(text)[left:searched], how, 0 if is_open else HASHED_BYTES)
                if cut:
                    spans.append((left, left + cut))
                    taken, is_open = left + cut, True
            batch = _texts(source, cursor, how, text, spans, taken, is_open)
            batch.raw = stream.raw_position
            cursor = batch.cursor
            text, searched = text[taken - 1 :], max(searched - taken + 1, 1)
            yield batch
        if not start.position and end is None and separators.never_alone:
            how.on_note(
                f"{source.name}: the separator {how.options.separator!r} stands within lines and on no line of its "
                "own; the file is one document"
            )


def _last_cut(source: Input, text: memoryview, how: Reading, least: int) -> int:
    """The last place behind `least` where the text can be cut without changing an id; 0 where there is none yet."""
    cut = how.last_cut(text)
    if cut <= least:
        cut = cut_inside(text, how.tokenizer or get_encoding())
    if cut <= least and len(text) >= MOST_BYTES_UNCUT:
        raise InputError(
            f"{source.name}: {len(text) >> 20} MiB without a place where the text can be cut: it has to be encoded as "
            f"a whole, which is done up to {MOST_BYTES_UNCUT >> 20} MiB"
        )
    return cut if cut > least else 0


def separator_pattern(separator: str, *, final: bool = True) -> re.Pattern[bytes]:
    """What separates documents: a line that is the separator, with its end; end-of-text also within a line.

    A last line needs no end where the text is `final`.
    """
    text = re.escape(separator.encode())
    end = rb"\r?(?:\n|\Z)" if final else rb"\r?\n"
    within = b"|" + text if separator == END_OF_TEXT else b""
    return re.compile(rb"(?<=\n)" + text + end + within)


class _Separators:
    """Finds the documents between separators in a text that comes in parts."""

    def __init__(self, options: CorpusOptions) -> None:
        self._is_none = options.separator is None
        self._separator = (options.separator or "").encode()
        self._is_within = options.separator == END_OF_TEXT
        self._patterns = [separator_pattern(options.separator or "", final=final) for final in (False, True)]
        self._found = self._seen = False

    @property
    def never_alone(self) -> bool:
        """Whether the separator was seen, but separated nothing."""
        return self._seen and not self._found

    def find(
        self, text: bytes, searched: int, final: bool, is_open: bool
    ) -> tuple[list[tuple[int, int]], int, int, bool]:
        """The spans of the documents that end in `text`, which begins at 1; where what is left begins; from where on it
        may hold what becomes a separator; and whether there are more documents in it.

        What is before `searched` holds no separator.  A document of nothing is none, but one that is open has to end.
        """
        if self._is_none:
            return [], 1, len(text), False
        spans: list[tuple[int, int]] = []
        begin = 1
        # A match that ends here may be a longer one when there is more text.
        certain = len(text) if final else len(text) - 2
        for match in self._patterns[final].finditer(text, searched):
            if match.end() > certain and self._is_within:
                break
            self._found = True
            if match.start() > begin or (is_open and begin == 1):
                spans.append((begin, match.start()))
            begin = match.end()
            if len(spans) == _MOST_DOCUMENTS:
                return spans, begin, begin, True
        if self._separator and not self._found:
            self._seen = self._seen or text.find(self._separator, searched) >= 0
        return spans, begin, max(begin, self._possible(text)), False

    def _possible(self, text: bytes) -> int:
        """From where on the end of the text may be the beginning of a separator."""
        if self._is_within:
            return max(len(text) - len(self._separator) - 2, 1)
        line = text.rfind(b"\n") + 1
        last = text[line : line + len(self._separator) + 2]
        return line if (self._separator + b"\r").startswith(last) else len(text)


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


# JSON lines and arrays


def _read_jsonl(source: Input, start: Cursor, how: Reading, end: int | None) -> Iterator[DocumentBatch]:
    """A document a line: what the field holds in its object; or an element, where the file is an array."""
    for lines in read_lines(source, start, how.bad, end, BATCH_BYTES):
        place = f"{source.name}: element " if lines.is_array else f"{source.name}:"
        data, spans, bad, mended = _bpe.read_jsonl(
            lines.text, how.options.field, how.options.on_error == "replace", how.num_threads
        )
        for line, message in bad:
            how.bad(f"{place}{lines.before.line + line + 1}: {message}")
        yield DocumentBatch(
            memoryview(data),
            np.frombuffer(spans, np.int64),
            False,
            lines.after,
            raw=lines.raw,
            skipped=len(bad) + lines.skipped,
            mended=mended,
            records=_records(lines, {line for line, _ in bad}) if how.numbered else None,
        )


def _records(lines: Lines, bad: set[int]) -> npt.NDArray[np.int64]:
    """The numbers in the file of the lines that are documents: those of white space are none."""
    first = lines.before.line
    found = [
        first + i for i, line in enumerate(bytes(lines.text).split(b"\n")) if i not in bad and line.strip(b" \t\r\f")
    ]
    return np.array(found, np.int64)


# Tables


def _read_table(source: Input, start: Cursor, how: Reading, end: int | None) -> Iterator[DocumentBatch]:
    """A document a row: what the column holds."""
    read = columns.read_parquet if source.kind == "parquet" else columns.read_arrow
    cursor = start
    for column, raw in read(source, how.options.field, start.position, end, BATCH_BYTES):
        batch = replace(_column(source, cursor, how, column), raw=raw)
        cursor = batch.cursor
        yield batch


def _read_csv(source: Input, start: Cursor, how: Reading, end: int | None) -> Iterator[DocumentBatch]:
    """A document a row: what the column holds; `end` is not looked at."""
    cursor = start
    for rows, raw in columns.read_csv(source, how.options.field, start.position, BATCH_BYTES):
        good: list[bytes] = []
        numbers = []
        for number, row in enumerate(rows, cursor.position + 1):
            if isinstance(row, str):
                how.bad(row)
            else:
                good.append(row)
                numbers.append(number)
        whole = batch_of(good, False, cursor)
        column = memoryview(whole.data), whole.spans
        texts, kept, mended = _check_rows(source, np.array(numbers, np.int64), how, column)
        cursor = replace(cursor, position=cursor.position + len(rows))
        yield replace(
            batch_of(texts, False, cursor), raw=raw, skipped=len(rows) - len(texts), mended=mended, records=kept - 1
        )


def _column(source: Input, cursor: Cursor, how: Reading, column: Any) -> DocumentBatch:
    """The batch of an array of strings, whose bytes stay where they are."""
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
    except ValueError:  # pyarrow's error is one
        texts, kept, mended = _check_rows(source, rows, how, texts_of(column))
        skipped += len(rows) - len(kept)
        return replace(batch_of(texts, False, after), skipped=skipped, mended=mended, records=kept - 1)
    return DocumentBatch(*texts_of(column), False, after, skipped=skipped, records=rows - 1)


def _check_rows(
    source: Input, rows: npt.NDArray[np.int64], how: Reading, column: tuple[Any, npt.NDArray[np.int64]]
) -> tuple[list[bytes], npt.NDArray[np.int64], int]:
    """The texts that are UTF-8 or can be mended, the rows that they are of, and how many were mended."""
    data, spans = column
    texts, kept, mended = [], [], 0
    for i, row in enumerate(rows.tolist()):
        text = bytes(data[spans[i] : spans[i + 1]])
        try:
            text.decode()
        except UnicodeDecodeError as error:
            if how.options.on_error != "replace":
                how.bad(f"{source.name}: row {row}: not UTF-8: {error.reason}")
                continue
            text = text.decode("utf-8", "replace").encode()
            mended += 1
        texts.append(text)
        kept.append(row)
    return texts, np.array(kept, np.int64), mended


_READERS: dict[str, Callable[[Input, Cursor, Reading, int | None], Iterator[DocumentBatch]]] = {
    "txt": _read_txt,
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "parquet": _read_table,
    "arrow": _read_table,
}
