"""The column of a table that holds the texts: of Parquet and Arrow IPC as Arrow arrays, of CSV as bytes."""

from __future__ import annotations

import contextlib
import csv
import io
import tempfile
from collections.abc import Iterator
from typing import Any

from gpt2fast.corpus.dependencies import pyarrow_ipc, pyarrow_parquet
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.streams import ByteStream
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.tokenizer.arrow import plain_strings, texts_of

__all__ = ["MOST_BYTES_OF_A_FIELD", "read_arrow", "read_csv", "read_csv_lines", "read_parquet", "read_rows"]

#: A field of CSV that is longer is an error: a quotation mark that is never closed would take the rest of the file.
MOST_BYTES_OF_A_FIELD = 1 << 26
#: Rows that are looked at together, at most.
_ROWS = 1 << 16


def read_parquet(source: Input, field: str, first: int, end: int | None, batch_bytes: int) -> Iterator[tuple[Any, int]]:
    """The column from the row `first` on, as arrays of strings of about `batch_bytes` at most, each with how many bytes
    of the file bring us there.  Only the row groups that begin before the row `end` are read, where it is given.

    Raises InputError where the file is damaged, or has no such column of strings.
    """
    pa, parquet = pyarrow_parquet("reading .parquet")
    with contextlib.ExitStack() as stack:
        file = _seekable(source, stack)
        with _named(source, "Parquet", pa):
            reader = stack.enter_context(parquet.ParquetFile(file))
            path = _path(source, reader.schema_arrow, field, pa)
            for record, row in _parquet_records(reader, [field], first, end, batch_bytes):
                column = _at(record, path)[max(first - row, 0) :]
                raw = source.size * (row + len(record)) // reader.metadata.num_rows
                for part in _parts(column, field, batch_bytes):
                    yield part, raw


def _parquet_records(
    reader: Any, fields: list[str] | None, first: int, end: int | None, batch_bytes: int
) -> Iterator[tuple[Any, int]]:
    """These columns, or all, of the row groups that have rows from `first` on and begin before `end`: batches of about
    `batch_bytes`, each with the number of its first row."""
    start = 0  # of the group
    for number in range(reader.metadata.num_row_groups):
        group = reader.metadata.row_group(number)
        if start + group.num_rows > first and (end is None or start < end):
            row = start
            for record in reader.iter_batches(
                batch_size=_rows_of(group.total_byte_size, group.num_rows, batch_bytes),
                row_groups=[number],
                columns=fields,
                use_threads=False,
            ):
                yield record, row
                row += len(record)
        start += group.num_rows


def read_arrow(source: Input, field: str, first: int, end: int | None, batch_bytes: int) -> Iterator[tuple[Any, int]]:
    """The same of Arrow IPC, also called Feather: the file format, or the stream format, in which `datasets` keeps what
    it has read.  `end` is not looked at.
    """
    pa, _ = pyarrow_ipc("reading .arrow")
    with contextlib.ExitStack() as stack:
        file = _seekable(source, stack)
        with _named(source, "Arrow", pa):
            schema, records = _arrow_records(source, file, stack)
            path = _path(source, schema, field, pa)
            row = 0
            for record, raw in records:
                column = _at(record, path)[max(first - row, 0) :]
                row += len(record)
                for part in _parts(column, field, batch_bytes):
                    yield part, raw


def _arrow_records(source: Input, file: Any, stack: contextlib.ExitStack) -> tuple[Any, Iterator[tuple[Any, int]]]:
    """The schema, and the batches, each with how many bytes of the file bring us there."""
    pa, ipc = pyarrow_ipc("reading .arrow")
    mapped = stack.enter_context(pa.memory_map(file) if isinstance(file, str) else pa.PythonFile(file))
    try:
        reader = ipc.open_file(mapped)
    except pa.ArrowInvalid:
        mapped.seek(0)
        reader = ipc.open_stream(mapped)
        return reader.schema, ((record, mapped.tell()) for record in reader)
    count = reader.num_record_batches
    return reader.schema, ((reader.get_batch(i), source.size * (i + 1) // count) for i in range(count))


def read_rows(source: Input, batch_bytes: int) -> Iterator[Any]:
    """All columns of Parquet or Arrow IPC, a record batch at a time, of Parquet of about `batch_bytes`; before them an
    empty table, which has the schema.  Raises InputError where the file is damaged."""
    pa, parquet = pyarrow_parquet(f"reading .{source.kind}")
    with contextlib.ExitStack() as stack:
        file = _seekable(source, stack)
        with _named(source, source.kind.capitalize(), pa):
            if source.kind == "parquet":
                reader = stack.enter_context(parquet.ParquetFile(file))
                schema, records = reader.schema_arrow, _parquet_records(reader, None, 0, None, batch_bytes)
            else:
                schema, records = _arrow_records(source, file, stack)
            yield schema.empty_table()
            for record, _ in records:
                yield record


def _seekable(source: Input, stack: contextlib.ExitStack) -> Any:
    """The path of the file, or an unnamed one with its content, where it is compressed or comes through a pipe: these
    formats have to be files."""
    if not source.compression and source.is_file:
        return source.path
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    with contextlib.closing(ByteStream(source)) as stream:
        while block := stream.read(1 << 22):
            file.write(block)
    file.seek(0)
    return file


@contextlib.contextmanager
def _named(source: Input, what: str, pa: Any) -> Iterator[None]:
    """What the library raises within is of this file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{source.name}: the name of a column is not UTF-8: {error.object!r}") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"{source.name}: damaged {what}: {' '.join(str(error).split())}") from None


def _path(source: Input, schema: Any, field: str, pa: Any) -> list[str]:
    """The names that lead to the field: its own, or where it has dots that of a struct, and those within."""
    path: list[str] = []
    fields, rest = list(schema), field
    while True:
        names = [one.name for one in fields]
        name = rest
        while name not in names and "." in name:
            name = name.rpartition(".")[0]
        if name not in names:
            found = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
            within = f" within {'.'.join(path)!r}" if path else ""
            raise InputError(f"{source.name}: there is no column {field!r}, but{within} {found or 'none'}")
        if names.count(name) > 1:
            raise InputError(f"{source.name}: {names.count(name)} columns have the name {name!r}; expected one")
        path.append(name)
        kind = fields[names.index(name)].type
        if name == rest:
            break
        rest = rest[len(name) + 1 :]
        if not pa.types.is_struct(kind):
            raise InputError(f"{source.name}: the column {'.'.join(path)!r} is of type {kind}; it holds no {rest!r}")
        fields = [kind.field(i) for i in range(kind.num_fields)]
    try:
        plain_strings(pa.nulls(0, kind), field)
    except InputTypeError as error:
        raise InputError(f"{source.name}: {error}") from None
    return path


def _at(record: Any, path: list[str]) -> Any:
    column = record.column(record.schema.get_field_index(path[0]))
    if len(path) > 1:
        import pyarrow.compute

        column = pyarrow.compute.struct_field(column, path[1:])
    return column


def _rows_of(size: int, rows: int, batch_bytes: int) -> int:
    return min(max(batch_bytes // 2 // max(size // max(rows, 1), 1), 1), _ROWS)


def _parts(column: Any, field: str, batch_bytes: int) -> Iterator[Any]:
    """The array in slices of plain strings, each of about `batch_bytes` at most, at least a row."""
    size = _rows_of(column.nbytes, len(column), batch_bytes)
    for start in range(0, len(column), size):
        part = plain_strings(column[start : start + size], field)
        _, spans = texts_of(part)
        row = 0
        while row < len(part):
            count = max(int(spans.searchsorted(spans[row] + batch_bytes, "right")) - 1 - row, 1)
            yield part[row : row + count]
            row += count


def read_csv(source: Input, field: str, first: int, batch_bytes: int) -> Iterator[tuple[list[bytes | str], int]]:
    """The column from the row `first` on, lists of about `batch_bytes` at most, each with how many bytes of the file
    were read.

    A row is the bytes of its field, or a str that says what is wrong with it.  The first row of the file has the
    names.  Raises InputError where there is no such column, or quotation marks are not as RFC 4180 has them.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MOST_BYTES_OF_A_FIELD))  # of the process: never less than it was
    stream = ByteStream(source)
    rows = csv.reader(_text_lines(stream), strict=True)
    with contextlib.closing(stream):
        try:
            names = next(rows, [])
            if names.count(field) != 1:
                found = ", ".join(map(repr, names))
                raise InputError(
                    f"{source.name}: {names.count(field) or 'no'} columns have the name {field!r}; expected one of "
                    f"{found or 'a first line with names'}"
                )
            place = names.index(field)
            held: list[bytes | str] = []
            size = number = 0
            for row in rows:
                if not row and len(names) > 1:
                    continue  # a blank line, which is no row of several columns
                number += 1
                if number <= first:
                    continue
                if len(row) != len(names) and (row or len(names) > 1):
                    held.append(f"{source.name}:{rows.line_num}: {len(row)} fields, expected {len(names)}")
                else:
                    held.append((row[place] if row else "").encode("utf-8", "surrogateescape"))
                size += len(held[-1])
                if size >= batch_bytes or len(held) == _ROWS:
                    yield held, stream.raw_position
                    held, size = [], 0
            if held:
                yield held, stream.raw_position
        except csv.Error as error:
            raise InputError(f"{source.name}:{rows.line_num}: damaged CSV: {error}") from None


def read_csv_lines(source: Input) -> Iterator[tuple[list[str], bytes]]:
    """The header and then the rows, numbered as by `read_csv`: their fields, and the bytes that they are in the file,
    which end with a newline.  Raises InputError where quotation marks are not as RFC 4180 has them."""
    csv.field_size_limit(max(csv.field_size_limit(), MOST_BYTES_OF_A_FIELD))
    stream = ByteStream(source)
    taken: list[str] = []

    def noted(lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line

    rows = csv.reader(noted(_text_lines(stream)), strict=True)
    with contextlib.closing(stream):
        try:
            names: list[str] | None = None
            for row in rows:
                line = "".join(taken)
                taken.clear()
                if not row and names is not None and len(names) > 1:
                    continue  # a blank line, as there
                names = row if names is None else names
                if not line.endswith(("\n", "\r")):
                    line += "\n"
                yield row, line.encode("utf-8", "surrogateescape")
        except csv.Error as error:
            raise InputError(f"{source.name}:{rows.line_num}: damaged CSV: {error}") from None


def _text_lines(stream: ByteStream) -> Any:
    # What is no UTF-8 comes out as it went in, and is looked at with the texts of all other kinds of files.
    return io.TextIOWrapper(io.BufferedReader(stream.raw(), 1 << 16), "utf-8-sig", "surrogateescape", newline="")
