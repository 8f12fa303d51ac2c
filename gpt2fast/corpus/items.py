"""Files of items to files of words: what an experiment's table of sentences becomes, with surprisals."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gpt2fast._internal.arguments import flag, open_file
from gpt2fast._internal.atomic import atomic_write
from gpt2fast._internal.numerics import numerics_version
from gpt2fast.corpus.dependencies import pyarrow_ipc, pyarrow_parquet
from gpt2fast.corpus.inputs import path_of
from gpt2fast.corpus.tables import VERSION, Column, has_metadata, table_of
from gpt2fast.errors import InputError, InputTypeError, MissingFileError

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel

__all__ = ["read_frequencies", "read_items", "score_items"]

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}


def score_items(
    items: str | os.PathLike[str],
    out: str | os.PathLike[str] | BinaryIO,
    lm: LanguageModel,
    *,
    text: str = "text",
    frequencies: str | os.PathLike[str] | None = None,
    layers: bool = False,
    out_format: str = "tsv",
    overwrite: bool = False,
    **options: Any,
) -> int:
    """Write the table of `gpt2fast.scoring.word_rows` for the items in a file, and return how many rows it has.

    items
        A .csv, .tsv, .jsonl, .parquet or .arrow file, whose column `text` holds the texts; its other columns are kept.
    out
        A .csv, .tsv, .jsonl, .parquet or .arrow file, which appears whole or not at all, or an open binary file, which
        gets the format that `out_format` names.  Which definition of the arithmetic made the numbers is told as by
        `score_files`.
    frequencies
        A .csv, .tsv or .txt file (tabs) whose first two columns are words and how often each occurs.
    layers
        Add the column `layer`, and a row for each layer of the model, as `word_rows` explains.
    overwrite
        Replace a file that is there.
    options
        Those of `word_rows`: separator, punctuation, bow_correction; and those of `LanguageModel.score`.

    Raises MissingFileError, InputError (damaged files, no such column, a table that is there), MissingDependencyError
    where pyarrow is needed and not there, and what `word_rows` raises.
    """
    from gpt2fast.scoring.items import item_columns, word_rows  # where corpora are tokenized, no engine is loaded

    if not isinstance(text, str):
        raise InputTypeError(f"text is of type {type(text).__name__}; expected the name of a column")
    names, rows = read_items(items)
    if text not in names:
        raise InputError(f"{os.fspath(items)}: there is no column {text!r}, but {', '.join(map(repr, names))}")
    known = None if frequencies is None else read_frequencies(frequencies)
    kept = [name for name in names if name != text]
    columns = [Column("item", int)] * ("item" not in kept)
    columns += [Column(name, _type_of(row.get(name) for row in rows)) for name in kept]
    columns += [Column(name, type) for name, type in item_columns(layers=flag("layers", layers)).items()]
    columns += [Column("log_frequency", float)] * (known is not None)
    stream = cast("BinaryIO", open_file("out", out, "write")) if hasattr(out, "write") else None
    name = path_of("out", out) if stream is None else "table." + out_format
    own = lm.model.same_bits and not has_metadata(name)
    columns += [Column(VERSION, int)] * own
    metadata = {f"gpt2fast.{VERSION}": str(numerics_version)} if lm.model.same_bits else None
    table = table_of(name, columns, metadata)
    if stream is None and os.path.lexists(name) and not overwrite:
        raise InputError(f"{name}: is there already; to replace it, say --overwrite")
    made = []
    for row in word_rows(lm, rows, text=text, frequencies=known, layers=layers, **options):
        row[VERSION] = numerics_version
        made.append([_value(row.get(column.name), column.type) for column in columns])
    if stream is not None:
        with table(stream) as write:
            write(made)
    else:
        with atomic_write(name) as file, table(file) as write:
            write(made)
    return len(made)


def read_items(path: str | os.PathLike[str]) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of a table's columns, and its rows.  Raises MissingFileError, and InputError where it is no table."""
    name = path_of("items", path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix in _DELIMITERS:
        header, *rows = _delimited(name, _DELIMITERS[suffix]) or [[]]
        for i, row in enumerate(rows, 1):
            if len(row) != len(header):
                raise InputError(f"{name}: row {i} has {len(row)} fields, the header has {len(header)}")
        if len(set(header)) != len(header):
            raise InputError(f"{name}: two columns have the same name")
        return header, [dict(zip(header, row, strict=True)) for row in rows]
    if suffix == ".jsonl":
        return _json_rows(name)
    if suffix in (".parquet", ".arrow", ".feather"):
        return _arrow_rows(name, suffix)
    raise InputError(f"{name}: what to read is not known by its name; expected .csv, .tsv, .jsonl, .parquet or .arrow")


def read_frequencies(path: str | os.PathLike[str]) -> dict[str, float]:
    """The frequencies of words, as they are looked up, from the first two columns of a table; a first row whose second
    field is no number is a header.  Those of words that differ in case only are added."""
    from gpt2fast.scoring.items import frequency_key

    name = path_of("frequencies", path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _DELIMITERS:
        raise InputError(f"{name}: what to read is not known by its name; expected {', '.join(_DELIMITERS)}")
    found: dict[str, float] = {}
    for i, row in enumerate(_delimited(name, _DELIMITERS[suffix])):
        try:
            word, number = row[0], float(row[1])
        except (IndexError, ValueError):
            if i == 0:
                continue
            raise InputError(f"{name}: row {i + 1} is {row!r}; expected a word and a number") from None
        key = frequency_key(word)
        found[key] = found.get(key, 0.0) + number
    return found


def _delimited(name: str, delimiter: str) -> list[list[str]]:
    text = _text(name)
    try:
        return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if row]
    except csv.Error as error:
        raise InputError(f"{name}: {error}") from None


def _text(name: str) -> str:
    if name == "-":
        data = sys.stdin.buffer.read()
    else:
        with _opened(name) as file:
            data = file.read()
    try:
        return data.decode("utf-8-sig")  # spreadsheets put a byte order mark there
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: is not UTF-8: {error.reason} at byte {error.start}") from None


def _opened(name: str) -> BinaryIO:
    try:
        return open(name, "rb")
    except FileNotFoundError:
        raise MissingFileError(f"{name}: there is no such file") from None


def _json_rows(name: str) -> tuple[list[str], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for i, line in enumerate(_text(name).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{name}:{i}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{name}:{i}: a {type(row).__name__}; expected an object")
        rows.append(row)
    return list(dict.fromkeys(key for row in rows for key in row)), rows


def _arrow_rows(name: str, suffix: str) -> tuple[list[str], list[dict[str, Any]]]:
    pa, parquet = pyarrow_parquet(f"reading {suffix}")
    _, ipc = pyarrow_ipc(f"reading {suffix}")
    with _opened(name) as file:
        try:
            table = parquet.read_table(file) if suffix == ".parquet" else ipc.open_file(file).read_all()
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{name}: {error}") from None
    return table.column_names, table.to_pylist()


def _type_of(values: Iterable[Any]) -> type:
    """The type that holds all values of a column: int, float or str."""
    kinds = {type(value) for value in values if value is not None}
    return int if kinds == {int} else float if kinds and kinds <= {int, float} else str


def _value(value: Any, kind: type) -> Any:
    """A value as one of the column's type."""
    if value is None or isinstance(value, kind):
        return value
    return kind(value) if kind is not str else json.dumps(value, ensure_ascii=False, default=str)
