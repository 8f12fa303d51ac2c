"""The records of JSON inputs as lines: of JSON lines as they stand in the file, of an array one for each element."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from gpt2fast import _bpe
from gpt2fast.corpus.batches import Cursor
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.streams import ByteStream
from gpt2fast.errors import InputError

__all__ = ["MOST_BYTES_OF_A_LINE", "Lines", "begins_array", "read_lines"]

#: A line of JSON that is longer, or an element of an array, is an error: it has to be in memory as a whole.
MOST_BYTES_OF_A_LINE = 1 << 28


class Lines(NamedTuple):
    """Whole lines, of which the first has the number `before.line` in the file, counted from 0; valid until the next
    are asked for."""

    text: memoryview
    before: Cursor
    #: The cursor behind them.
    after: Cursor
    #: How many bytes of the file were read so far.
    raw: int
    #: Whether they are the elements of an array.
    is_array: bool
    #: How many lines before them were too long.
    skipped: int = 0


def begins_array(beginning: bytes) -> bool:
    """Whether a file that begins so holds a JSON array."""
    return re.match(rb"(?:\xef\xbb\xbf)?\s*\[", beginning) is not None


def read_lines(
    source: Input, start: Cursor, bad: Callable[[str], None], end: int | None, batch_bytes: int
) -> Iterator[Lines]:
    """The lines of `source` from the cursor `start` on, those before the position `end` where it is given, of about
    `batch_bytes` at a time.

    `bad` is called with a message where a line is too long, and where it returns the line is left out.  Raises
    InputError for a damaged array.
    """
    stream = ByteStream(source, end)
    with closing(stream):
        is_array = begins_array(stream.peek(1 << 12))
        stream.skip(start.position)
        if is_array:
            yield from _elements(source, stream, start, batch_bytes)
        else:
            yield from _lines(source, stream, start, bad, batch_bytes)


def _lines(
    source: Input, stream: ByteStream, cursor: Cursor, bad: Callable[[str], None], batch_bytes: int
) -> Iterator[Lines]:
    text, dropped, final = bytearray(), 0, False
    while not final:
        block = stream.read(batch_bytes)
        final = len(block) < batch_bytes
        text += block
        skipped = 0
        if dropped or (len(text) > MOST_BYTES_OF_A_LINE and _first_line(text) > MOST_BYTES_OF_A_LINE):
            if not dropped:
                bad(f"{source.name}:{cursor.line + 1}: longer than {MOST_BYTES_OF_A_LINE >> 20} MiB")
            first = _first_line(text)
            dropped += first
            if not final and not text.endswith(b"\n", 0, first):
                text.clear()
                continue
            cursor = replace(cursor, position=cursor.position + dropped, line=cursor.line + 1)
            del text[:first]
            dropped, skipped = 0, 1
        whole = len(text) if final else text.rfind(b"\n") + 1
        if whole or skipped:
            mark = len(codecs.BOM_UTF8) if not cursor.position and text.startswith(codecs.BOM_UTF8) else 0
            after = replace(cursor, position=cursor.position + whole, line=cursor.line + text.count(b"\n", 0, whole))
            with memoryview(text)[mark:whole] as lines:
                yield Lines(lines, cursor, after, stream.raw_position, False, skipped)
            del text[:whole]
            cursor = after


def _first_line(text: bytearray) -> int:
    """The length of the first line, its newline included."""
    return text.find(b"\n") + 1 or len(text)


def _elements(source: Input, stream: ByteStream, cursor: Cursor, batch_bytes: int) -> Iterator[Lines]:
    """The elements of an array; a cursor's position is behind a comma or the opening bracket, and it counts elements
    instead of lines."""
    text, final, ended = bytearray(), False, False
    if not cursor.position:
        while b"[" not in text:
            text += stream.read(1 << 12)
        cursor = replace(cursor, position=text.index(b"[") + 1)
        del text[: cursor.position]
    while not ended:
        wanted = max(batch_bytes, len(text))
        block = stream.read(wanted)
        final = len(block) < wanted
        text += block
        with memoryview(text) as view:
            elements, taken, ended = _bpe.array_elements(view)
        lines = memoryview(elements)
        if not ended and final:
            raise InputError(f"{source.name}: damaged JSON: the file ends within an array")
        if not taken and len(text) > MOST_BYTES_OF_A_LINE:
            raise InputError(
                f"{source.name}: element {cursor.line + 1} is longer than {MOST_BYTES_OF_A_LINE >> 20} MiB"
            )
        count = bytes(lines).count(b"\n")
        after = replace(cursor, position=cursor.position + taken, line=cursor.line + count)
        del text[:taken]
        yield Lines(lines, cursor, after, stream.raw_position, True)
        cursor = after
    del text[:1]  # the bracket
    while text or not final:
        if text.strip():
            raise InputError(f"{source.name}: damaged JSON: there is text behind the end of the array")
        text = bytearray(stream.read(batch_bytes))
        final = not text
