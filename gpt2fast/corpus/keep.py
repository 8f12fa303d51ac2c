"""Records of files copied to one file of the same kind: what is kept of a corpus."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, BinaryIO

from gpt2fast.corpus import columns
from gpt2fast.corpus.batches import BATCH_BYTES, Cursor
from gpt2fast.corpus.dependencies import pyarrow_ipc, pyarrow_parquet, require, zstandard
from gpt2fast.corpus.documents import Reading, read_batches
from gpt2fast.corpus.inputs import Input, kind_of
from gpt2fast.corpus.lines import read_lines
from gpt2fast.errors import InputError
from gpt2fast.tokenizer.special import END_OF_TEXT

__all__ = ["Picks", "check_keeping", "write_kept"]

#: Bytes of rows that make a row group of Parquet or a batch of Arrow: enough that reading one is quick.
_GROUP_BYTES = 1 << 26


class Picks:
    """Which records are kept: pairs of an input's number and the record's number in it, in order, looked at once."""

    def __init__(self, pairs: Iterator[tuple[int, int]]) -> None:
        self._pairs = pairs
        self._next = next(pairs, None)

    def of(self, number: int) -> bool:
        """Whether there are any left of this input."""
        return self._next is not None and self._next[0] == number

    def within(self, number: int, first: int, count: int) -> list[int]:
        """Those of the `count` records from `first` on of this input, counted from `first`."""
        found = []
        while self._next is not None and self._next < (number, first + count):
            found.append(self._next[1] - first)
            self._next = next(self._pairs, None)
        return found


def check_keeping(out: str, sources: Sequence[Input], how: Reading) -> None:
    """Raises InputError where the inputs' records cannot be copied to a file of that name, or cannot be read twice;
    MissingDependencyError for a library that will be needed."""
    for source in sources:
        if not source.is_file:
            raise InputError(
                f"{source.name}: what is kept is read twice, to score it and to copy it, which only files can be"
            )
    kinds: dict[str, str] = {}
    for source in sources:
        kinds.setdefault(source.kind, source.name)
    if len(kinds) > 1:
        named = ", ".join(f"{name} ({kind})" for kind, name in kinds.items())
        raise InputError(f"what is kept has the inputs' format, which has to be the same for all: {named}")
    (kind,) = kinds
    found = kind_of(out)
    if found is None or found[0] != kind:
        raise InputError(
            f"{out}: what is kept has the inputs' format; expected a name that says {kind}, as kept.{kind}"
        )
    if kind == "txt" and how.options.separator is None and len(sources) > 1:
        raise InputError(
            f"{out}: in it {len(sources)} text files would be one document; say --separator, the line that goes between"
        )
    require(f"writing .{kind}", kind)
    require(f"writing .{found[1]}", found[1])


def write_kept(out: str, sources: Sequence[Input], how: Reading, picks: Picks, file: BinaryIO) -> None:
    """Copy the picked records of the inputs, in order, into the open `file`, compressed as the name `out` says.

    Lines, rows and elements are those of the inputs, with all that they hold, byte for byte where the format has bytes
    of its own.  Raises InputError where an input changed, or where tables of several inputs have not the same columns.
    """
    kind, compression = kind_of(out) or ("", "")
    how = replace(how, on_skip=lambda message: None, on_note=lambda message: None)
    with _COMPRESSORS[compression](file) as stream:
        _WRITERS[kind](stream, _checked(sources, picks), how, picks)


def _checked(sources: Sequence[Input], picks: Picks) -> Iterator[tuple[int, Input]]:
    """The inputs and their numbers, each checked to be what it was before and after it is read."""
    for number, source in enumerate(sources):
        source.check_unchanged()
        yield number, source
        source.check_unchanged()
        if picks.of(number):
            raise InputError(f"{source.name}: the file changed: it has fewer records than were scored")


Sources = Iterator[tuple[int, Input]]


def _txt(file: BinaryIO, sources: Sources, how: Reading, picks: Picks) -> None:
    separator = (how.options.separator or "").encode()
    last = b""  # the end of what was written
    for number, source in sources:
        document, is_open, kept = 0, False, False
        for batch in read_batches(source, Cursor(), how) if picks.of(number) else ():
            for i in range(len(batch.spans) - 1):
                part = bytes(batch.data[batch.spans[i] : batch.spans[i + 1]])
                if not is_open and (kept := bool(picks.within(number, document, 1))) and last:
                    file.write(_between(separator, last))
                if kept:
                    file.write(part)
                    last = part[-1:] or last
                is_open = batch.cursor.is_open and i == len(batch.spans) - 2
                document += not is_open


def _between(separator: bytes, last: bytes) -> bytes:
    """What separates documents, the first of which ends with `last`: end-of-text may stand within a line."""
    if last == b"\n":
        return separator + b"\n"
    return separator if separator == END_OF_TEXT.encode() else b"\n" + separator + b"\n"


def _jsonl(file: BinaryIO, sources: Sources, how: Reading, picks: Picks) -> None:
    is_array, before = None, b"[\n"
    for number, source in sources:
        for lines in read_lines(source, Cursor(), lambda message: None, None, BATCH_BYTES):
            is_array = lines.is_array if is_array is None else is_array
            texts = bytes(lines.text).removesuffix(b"\n").split(b"\n")
            for i in picks.within(number, lines.before.line, len(texts)):
                file.write(before + texts[i].strip() if is_array else texts[i] + b"\n")
                before = b",\n"
    if is_array:
        file.write(b"\n]\n" if before == b",\n" else b"[]\n")


def _csv(file: BinaryIO, sources: Sources, how: Reading, picks: Picks) -> None:
    header: list[str] | None = None
    for number, source in sources:
        for row, (fields, line) in enumerate(columns.read_csv_lines(source), -1):
            if header is None:
                header = fields
                file.write(line)
            elif row < 0 and fields != header:
                raise InputError(f"{source.name}: its columns are {fields}, those of the first input {header}")
            elif row >= 0 and picks.within(number, row, 1):
                file.write(line)


def _table(file: BinaryIO, sources: Sources, how: Reading, picks: Picks) -> None:
    schema: Any = None
    held: list[Any] = []

    def flush() -> None:
        if held:
            writer.write_table(pa.Table.from_batches(held, schema))
            held.clear()

    pa, _ = pyarrow_parquet("writing tables")
    with ExitStack() as stack:
        for number, source in sources:
            row = 0
            for record in columns.read_rows(source, BATCH_BYTES):
                if schema is None:
                    schema = record.schema
                    writer = stack.enter_context(_table_writer(source.kind, file, schema))
                elif not record.schema.equals(schema):
                    raise InputError(
                        f"{source.name}: its columns are {_described(record.schema)}, those of the first input "
                        f"{_described(schema)}"
                    )
                chosen = picks.within(number, row, len(record))
                row += len(record)
                if chosen:
                    record = record if len(chosen) == len(record) else record.take(pa.array(chosen))
                    held.append(record.replace_schema_metadata(schema.metadata))
                if sum(one.nbytes for one in held) >= _GROUP_BYTES:
                    flush()
        flush()


def _table_writer(kind: str, file: BinaryIO, schema: Any) -> Any:
    if kind == "parquet":
        _, parquet = pyarrow_parquet("writing .parquet")
        return parquet.ParquetWriter(file, schema, compression="zstd")
    _, ipc = pyarrow_ipc("writing .arrow")
    return ipc.new_file(file, schema)


def _described(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


_WRITERS: dict[str, Callable[[BinaryIO, Sources, Reading, Picks], None]] = {
    "txt": _txt,
    "jsonl": _jsonl,
    "csv": _csv,
    "parquet": _table,
    "arrow": _table,
}


@contextmanager
def _zst(file: BinaryIO) -> Iterator[Any]:
    with zstandard("writing .zst").ZstdCompressor().stream_writer(file, closefd=False) as stream:
        yield stream


#: The same bytes every time: gzip has no time and no name in its header.
_COMPRESSORS: dict[str, Callable[[BinaryIO], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "gz": lambda file: gzip.GzipFile("", "wb", 6, file, 0),
    "zst": _zst,
    "xz": lambda file: lzma.LZMAFile(file, "wb"),  # noqa: SIM115
    "bz2": lambda file: bz2.BZ2File(file, "wb"),
}
