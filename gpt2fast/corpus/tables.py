"""Tables of values, written row by row: Parquet, Arrow, JSON lines, CSV or TSV, as the file's name says."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, TypeAlias

from gpt2fast._internal.delimited import delimited_line
from gpt2fast.corpus.dependencies import pyarrow_ipc, pyarrow_parquet
from gpt2fast.corpus.inputs import path_of
from gpt2fast.errors import InputError

__all__ = ["VERSION", "Column", "Write", "has_metadata", "table_of"]

#: Values of a group of rows in Parquet: enough that reading one column is quick, few enough to be held in memory.
_GROUP_VALUES = 1 << 20

#: Which definition of the arithmetic made the numbers; of formats whose schema has no metadata, in a column of its own.
VERSION = "numerics_version"

Write = Callable[[Sequence[Sequence[Any]]], None]
Metadata: TypeAlias = "Mapping[str, str] | None"


@dataclass(frozen=True)
class Column:
    """A column: its name, and the type of its values, str, int or float, or of lists of them."""

    name: str
    type: type
    is_list: bool = False


def has_metadata(path: str | os.PathLike[str]) -> bool:
    """Whether files of that name have a schema with metadata."""
    return os.path.splitext(path_of("out", path))[1].lower() in _ARROW


def table_of(
    path: str | os.PathLike[str], columns: Sequence[Column], metadata: Mapping[str, str] | None = None
) -> Callable[[BinaryIO], AbstractContextManager[Write]]:
    """How a table is written to the file of that name: called with the open file, it gives, in a `with` block, a
    function that writes rows.  `metadata` goes into the schema of Parquet and Arrow; the others have no place for it.

    Floats that are no numbers are null, or empty in CSV and TSV.  Raises InputError where the name tells no format or
    the format has no lists, MissingDependencyError where the format's library is missing.
    """
    name = path_of("out", path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _TABLES:
        raise InputError(f"{name}: what to write is not known by its name; expected {', '.join(_TABLES)}")
    if suffix in (".csv", ".tsv") and any(column.is_list for column in columns):
        raise InputError(f"{name}: {suffix[1:].upper()} has no lists, which tokens need; write .parquet or .jsonl")
    if suffix in _ARROW:
        pyarrow_parquet(f"writing {suffix}")
    return lambda file: _TABLES[suffix](file, columns, metadata)


@contextmanager
def _jsonl(file: BinaryIO, columns: Sequence[Column], metadata: Metadata) -> Iterator[Write]:
    names = [column.name for column in columns]

    def write(rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            line = json.dumps(dict(zip(names, map(_finite, row), strict=True)), ensure_ascii=False)
            file.write(line.encode() + b"\n")

    yield write


@contextmanager
def _delimited(file: BinaryIO, columns: Sequence[Column], metadata: Metadata, *, delimiter: str) -> Iterator[Write]:
    def write(rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            file.write(delimited_line(map(_field, row), delimiter).encode())

    write([[column.name for column in columns]])
    yield write


@contextmanager
def _parquet(file: BinaryIO, columns: Sequence[Column], metadata: Metadata) -> Iterator[Write]:
    pa, parquet = pyarrow_parquet("writing .parquet")
    schema = _schema(pa, columns, metadata)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer, _grouped(pa, schema, writer) as write:
        yield write


@contextmanager
def _arrow(file: BinaryIO, columns: Sequence[Column], metadata: Metadata) -> Iterator[Write]:
    pa, ipc = pyarrow_ipc("writing .arrow")
    schema = _schema(pa, columns, metadata)
    with ipc.new_file(file, schema) as writer, _grouped(pa, schema, writer) as write:
        yield write


def _schema(pa: Any, columns: Sequence[Column], metadata: Metadata) -> Any:
    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    return pa.schema(
        [(column.name, pa.list_(types[column.type]) if column.is_list else types[column.type]) for column in columns],
        metadata,
    )


@contextmanager
def _grouped(pa: Any, schema: Any, writer: Any) -> Iterator[Write]:
    """Rows for a writer of tables, many at a time."""
    held: list[list[Any]] = []
    size = 0

    def flush() -> None:
        nonlocal size
        values = zip(*held, strict=True) if held else ([] for _ in schema)
        arrays = [pa.array(list(column), field.type) for column, field in zip(values, schema, strict=True)]
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        held.clear()
        size = 0

    def write(rows: Sequence[Sequence[Any]]) -> None:
        nonlocal size
        for row in rows:
            held.append([_finite(value) for value in row])
            size += sum(len(value) if isinstance(value, (list, str)) else 1 for value in row)
            if size >= _GROUP_VALUES:
                flush()

    yield write
    if held:
        flush()


def _finite(value: Any) -> Any:
    """The value, with null for what is no finite number."""
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _field(value: Any) -> str:
    """A value as a field of CSV or TSV."""
    if isinstance(value, float):
        return f"{value:.9g}" if math.isfinite(value) else ""
    return "" if value is None else str(value)


#: The formats that pyarrow writes.
_ARROW = (".parquet", ".arrow")
_TABLES: dict[str, Callable[[BinaryIO, Sequence[Column], Metadata], AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".jsonl": _jsonl,
    ".csv": partial(_delimited, delimiter=","),
    ".tsv": partial(_delimited, delimiter="\t"),
}
