"""Which files a corpus is made of, what is in them, and whether they are still the same."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from gpt2fast._internal.arguments import listed
from gpt2fast.errors import InputError, InputTypeError, MissingFileError

__all__ = ["STDIN", "WORK_SUFFIX", "Input", "find_inputs", "kind_of", "path_of"]

#: The path that stands for standard input.
STDIN = "-"

_KINDS = {
    ".txt": "txt",
    ".text": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",  # as C4 and Dolma name their JSON lines
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}
_COMPRESSIONS = {".gz": "gz", ".zst": "zst", ".xz": "xz", ".bz2": "bz2"}
_KNOWN = "txt, jsonl (also ndjson, json), csv, parquet and arrow, each also with .gz, .zst, .xz or .bz2"

#: What the job keeps beside its outputs while it runs; never an input.
WORK_SUFFIX = ".partial"


class Input(NamedTuple):
    """A file to read: its path, kind (txt, jsonl, csv, parquet or arrow), compression ("", gz, zst, xz or bz2) and
    identity.

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


def find_inputs(
    patterns: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    input_format: str | None = None,
    on_note: Callable[[str], None] = lambda message: None,
    otherwise: str | None = None,
) -> list[Input]:
    """The files that `patterns` name: files, directories (all files of a known kind below them), globs, and "-".

    In the order of the patterns, those of one pattern by path.  The kind is known by the suffix unless `input_format`
    names it, such as "jsonl" or "txt.gz"; standard input is text where nothing else is said, and `otherwise`, where it
    is given, is what a file that is named is if its suffix says nothing.  A file that is reached
    more than once, by links, is there once; what a directory or a glob has that is no file, such as a pipe, is left
    out; `on_note` is called with a sentence about either.  Raises MissingFileError where there is nothing of that name,
    and InputError where a file is of no known kind or is named twice.
    """
    if isinstance(patterns, (str, os.PathLike)):
        patterns = [patterns]
    patterns = listed("inputs", patterns, "paths")
    if not isinstance(input_format, (str, type(None))):
        raise InputTypeError(f"input_format is of type {type(input_format).__name__}; expected str")
    forced = None if input_format is None else kind_of("." + input_format)
    if input_format is not None and forced is None:
        raise InputError(f"input_format is {input_format!r}; expected {_KNOWN}")
    found: dict[str, Input] = {}
    reached: dict[tuple[int, int], str] = {}
    for pattern in patterns:
        for path, is_named in _expand(path_of("an input", pattern)):
            if path in found:
                raise InputError(f"{path}: named twice; each document would be there twice")
            if path == STDIN:
                found[path] = _describe(path, None, forced or ("txt", ""))
                continue
            status = _stat(path)
            if not stat.S_ISREG(status.st_mode) and not is_named:
                on_note(f"{path}: {_no_file(status.st_mode)}, is left out; to read it, name it")
                continue
            same = reached.setdefault((status.st_dev, status.st_ino), path)
            if same != path:
                on_note(f"{path}: is the same file as {same}, and read once")
                continue
            found[path] = _describe(path, status, forced or kind_of(path) or (otherwise and (otherwise, "")) or None)
    if not found:
        raise InputError("there is no input")
    if STDIN in found and len(found) > 1:
        raise InputError("standard input cannot be read together with files")
    return list(found.values())


def path_of(name: str, path: Any) -> str:
    """The path as a str that may be a file's name.  Raises InputTypeError, or InputError where no file is called so."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise InputTypeError(f"{name} is of type {type(path).__name__}; expected str or os.PathLike")
    try:
        if b"\0" in os.fsencode(text):
            raise InputError(f"{text!r}: no file has such a name: there is a NUL in it")
    except UnicodeEncodeError:
        raise InputError(f"{text!a}: no file has such a name: there is half a surrogate pair in it") from None
    return text


def _no_file(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _expand(pattern: str) -> Iterator[tuple[str, bool]]:
    """The paths, each with whether it is what was named itself."""
    if pattern == STDIN:
        yield pattern, True
    elif os.path.isdir(pattern):
        paths = sorted(_below(pattern))
        if not paths:
            raise InputError(f"{pattern}: there is no file of a known kind in this directory; known are {_KNOWN}")
        yield from ((path, False) for path in paths)
    elif os.path.exists(pattern):  # also where there are brackets in its name
        yield pattern, True
    elif glob.has_magic(pattern):
        paths = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
        if not paths:
            raise MissingFileError(f"{pattern}: no file has such a name")
        yield from ((path, False) for path in paths)
    else:
        raise MissingFileError(f"{pattern}: there is no such file or directory")


def _below(directory: str) -> Iterator[str]:
    """The files below a directory, also those that links to directories lead to; each directory once."""

    def refuse(error: OSError) -> None:
        raise error

    def is_new(path: str) -> bool:
        status = os.stat(path)
        count = len(seen)
        seen.add((status.st_dev, status.st_ino))
        return len(seen) > count

    seen: set[tuple[int, int]] = set()
    is_new(directory)
    for parent, directories, files in os.walk(directory, onerror=refuse, followlinks=True):
        directories[:] = [
            name
            for name in sorted(directories)
            if not name.startswith(".") and not name.endswith(WORK_SUFFIX) and is_new(os.path.join(parent, name))
        ]
        for name in files:
            if not name.startswith(".") and kind_of(name) is not None:
                yield os.path.join(parent, name)


def kind_of(name: str) -> tuple[str, str] | None:
    """The kind and compression that a file's name tells, None where it tells none."""
    stem, suffix = os.path.splitext(name.lower())
    compression = _COMPRESSIONS.get(suffix, "")
    if compression:
        suffix = os.path.splitext(stem)[1] or stem  # the stem itself where there is nothing before the dot
    kind = _KINDS.get(suffix or stem)
    return None if kind is None else (kind, compression)


def _describe(path: str, found: os.stat_result | None, kind: tuple[str, str] | None) -> Input:
    if kind is None:
        raise InputError(f"{path}: what is in it is not known by its name; rename it or say the input format: {_KNOWN}")
    if found is None or not stat.S_ISREG(found.st_mode):
        return Input(path, *kind, -1, -1)
    return Input(path, *kind, found.st_size, found.st_mtime_ns)


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: there is no such file") from None
