"""Which files a corpus is made of, what is in them, and whether they are still the same."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpt2fast.errors import InputError, InputTypeError, MissingFileError

__all__ = ["STDIN", "Input", "find_inputs"]

#: The path that stands for standard input.
STDIN = "-"

_KINDS = {
    ".txt": "txt",
    ".text": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",  # as C4 and Dolma name their JSON lines
    ".parquet": "parquet",
}
_COMPRESSIONS = {".gz": "gz", ".zst": "zst"}
_KNOWN = "txt, jsonl (also ndjson, json) and parquet, each also with .gz or .zst"

#: What the job keeps beside its outputs while it runs; never an input.
WORK_SUFFIX = ".partial"


class Input(NamedTuple):
    """A file to read: its path, kind (txt, jsonl or parquet), compression ("", gz or zst) and identity.

    `size` is -1 for standard input and pipes, which can be read once and from the start only.
    """

    path: str
    kind: str
    compression: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """What messages call it."""
        return "standard input" if self.path == STDIN else self.path

    @property
    def is_file(self) -> bool:
        return self.size >= 0

    def check_unchanged(self) -> None:
        """Raises InputError where the file is no longer the one that was found."""
        if not self.is_file:
            return
        found = _stat(self.path)
        if (found.st_size, found.st_mtime_ns) != (self.size, self.mtime_ns):
            raise InputError(
                f"{self.path}: the file changed while it was read: it had {self.size:,} bytes, now {found.st_size:,}"
            )


def find_inputs(patterns: Sequence[str | os.PathLike[str]], input_format: str | None = None) -> list[Input]:
    """The files that `patterns` name: files, directories (all files of a known kind below them), globs, and "-".

    In the order of the patterns, those of one pattern by path.  The kind is known by the suffix unless `input_format`
    names it, such as "jsonl" or "txt.gz"; standard input is text where nothing else is said.  Raises MissingFileError
    where there is nothing of that name, and InputError where a file is of no known kind or is named twice.
    """
    forced = None if input_format is None else _kind_of("." + input_format)
    if input_format is not None and forced is None:
        raise InputError(f"input_format is {input_format!r}; expected {_KNOWN}")
    found: dict[str, Input] = {}
    for pattern in patterns:
        if not isinstance(pattern, (str, os.PathLike)):
            raise InputTypeError(f"an input is of type {type(pattern).__name__}; expected str or os.PathLike")
        for path in _expand(os.fspath(pattern)):
            if path in found:
                raise InputError(f"{path}: named twice; each document would be there twice")
            found[path] = _describe(path, forced)
    if not found:
        raise InputError("there is no input")
    if STDIN in found and len(found) > 1:
        raise InputError("standard input cannot be read together with files")
    return list(found.values())


def _expand(pattern: str) -> Iterator[str]:
    if pattern == STDIN:
        yield pattern
    elif os.path.isdir(pattern):
        paths = sorted(_below(pattern))
        if not paths:
            raise InputError(f"{pattern}: there is no file of a known kind in this directory; known are {_KNOWN}")
        yield from paths
    elif os.path.exists(pattern):  # also where there are brackets in its name
        yield pattern
    elif glob.has_magic(pattern):
        paths = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
        if not paths:
            raise MissingFileError(f"{pattern}: no file has such a name")
        yield from paths
    else:
        raise MissingFileError(f"{pattern}: there is no such file or directory")


def _below(directory: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    for parent, directories, files in os.walk(directory, onerror=refuse):
        directories[:] = [name for name in directories if not name.startswith(".") and not name.endswith(WORK_SUFFIX)]
        for name in files:
            if not name.startswith(".") and _kind_of(name) is not None:
                yield os.path.join(parent, name)


def _kind_of(name: str) -> tuple[str, str] | None:
    """The kind and compression that a file's name tells, None where it tells none."""
    stem, suffix = os.path.splitext(name.lower())
    compression = _COMPRESSIONS.get(suffix, "")
    if compression:
        suffix = os.path.splitext(stem)[1] or stem  # the stem itself where there is nothing before the dot
    kind = _KINDS.get(suffix or stem)
    return None if kind is None else (kind, compression)


def _describe(path: str, forced: tuple[str, str] | None) -> Input:
    kind = forced or (("txt", "") if path == STDIN else _kind_of(path))
    if kind is None:
        raise InputError(f"{path}: what is in it is not known by its name; rename it or say the input format: {_KNOWN}")
    if path == STDIN:
        return Input(path, *kind, -1, -1)
    found = _stat(path)
    if not stat.S_ISREG(found.st_mode):
        return Input(path, *kind, -1, -1)
    return Input(path, *kind, found.st_size, found.st_mtime_ns)


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: there is no such file") from None
