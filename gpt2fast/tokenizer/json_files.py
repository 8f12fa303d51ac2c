"""JSON files of tokenizers, and the values in them, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpt2fast.errors import InputError, MissingFileError

__all__ = ["integer", "json_object", "read", "text_of"]

_MOST_ID = 2**31


def read(path: Path) -> bytes:
    """The bytes of a file.  Raises MissingFileError, and InputError for a directory."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, expected a file") from None


def json_object(path: Path, *, required: bool = False) -> dict[str, Any]:
    """The JSON object in a file, an empty one where there is no such file and none is `required`.

    Raises InputError that names the file where it holds anything else.
    """
    if not required and not path.is_file():
        return {}
    try:
        content = json.loads(read(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def text_of(value: Any, where: str) -> str:
    """The text of a token.  Raises InputError, beginning with `where`, for anything else: no text, an empty one, half a
    surrogate pair, which has no UTF-8."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} is {value!r:.60}; expected the token's text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where} is {value!r:.60}, which holds a lone surrogate at {error.start}") from None
    return value


def integer(value: Any, where: str) -> int:
    """A token id.  Raises InputError, beginning with `where`, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_ID:
        raise InputError(f"{where} is {value!r:.60}; expected a token id")
    return value
