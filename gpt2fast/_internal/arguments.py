"""Checks of arguments: the value back, in one plain type, or an error that names the argument."""

from __future__ import annotations

import os

from gpt2fast.errors import InputError, InputTypeError

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

__all__ = [
    "each",
    "flag",
    "ids_of",
    "index",
    "listed",
    "one_of",
    "open_file",
    "path_name",
    "real_number",
    "utf8",
    "whole_number",
]


_INFINITY = float("inf")  # math takes longer to load


def index(value: Any) -> int:
    """`operator.index`, whose module takes longer to load than all of these functions.  Raises TypeError."""
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError from None
    if not isinstance(number, int):
        raise TypeError
    return number


def flag(name: str, value: Any) -> bool:
    """`value` as a bool.  Raises InputTypeError where it is neither true nor false, as an array of two.

    >>> flag("overwrite", 1)
    True
    """
    try:
        return bool(value)
    except Exception:
        raise InputTypeError(f"{name} is {value!r}; expected True or False") from None


def one_of(name: str, value: Any, expected: Iterable[str]) -> str:
    """`value`, which is one of a few words.  Raises InputError where it is not.

    >>> one_of("eot", "append", ("none", "append"))
    'append'
    """
    if not isinstance(value, str) or value not in expected:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(expected)}")
    return value


def listed(name: str, values: Any, expected: str) -> list[Any]:
    """What can be gone through as a list.  Raises InputTypeError where it cannot, InputError where that fails with a
    ValueError, as of a closed file.

    >>> listed("prompts", ("a", "b"), "a list of prompts")
    ['a', 'b']
    """
    try:
        return list(values)
    except TypeError:
        raise InputTypeError(f"{name} is of type {type(values).__name__}; expected {expected}") from None
    except ValueError as error:
        raise InputError(f"{name}: {error}; expected {expected}") from error


def each(name: str, values: Any, expected: str) -> Iterator[Any]:
    """What can be gone through, one by one.  Raises as `listed` does, once the first is asked for or where it fails.

    >>> next(each("items", [{"text": "a"}], "mappings"))
    {'text': 'a'}
    """
    try:
        yield from values
    except TypeError:
        raise InputTypeError(f"{name} is of type {type(values).__name__}; expected {expected}") from None
    except ValueError as error:
        raise InputError(f"{name}: {error}; expected {expected}") from error


def ids_of(name: str, values: Any, limit: int = 2**63) -> Any:
    """Token ids as an array of int64.  Raises InputTypeError where they are no whole numbers, InputError where they are
    in no row, or not from 0 to under `limit`.

    >>> ids_of("seen", [1, 2]).tolist()
    [1, 2]
    """
    import numpy as np  # which whoever only checks paths and numbers does without

    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):  # rows of different lengths
        raise InputError(f"{name} is no row of token ids") from None
    if array.ndim != 1:
        raise InputError(f"{name} has {array.ndim} dimensions; expected one")
    if array.dtype.kind not in "iu" and array.size:
        raise InputTypeError(f"{name} is of type {array.dtype}; expected token ids")
    if array.size and not (array.min() >= 0 and array.max() < limit):
        raise InputError(f"{name} has a number that is not from 0 to {limit - 1}")
    return array.astype(np.int64)


def open_file(name: str, file: Any, method: str) -> Any:
    """A file object with that method.  Raises InputTypeError where it has none, InputError where it is closed or not
    made for it."""
    if not callable(getattr(file, method, None)):
        raise InputTypeError(f"{name} is of type {type(file).__name__}; expected a path or a binary file")
    if getattr(file, "closed", False):
        raise InputError(f"{name} is a closed file")
    able = getattr(file, {"read": "readable", "write": "writable"}[method], None)
    if able is not None and not able():
        raise InputError(f"{name} is a file that was not opened to {method}")
    return file


def path_name(path: object) -> str:
    """The path as text, for messages.

    Raises InputTypeError where it is of another type, InputError where no file can have such a name.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise InputTypeError(f"path is of type {type(path).__name__}, expected str or os.PathLike")
    name = os.fsdecode(path)
    try:
        if "\0" in name:
            raise ValueError("it has a NUL character")
        os.fsencode(name)
    except ValueError as error:
        raise InputError(f"{name!a}: not a path: {error}") from None
    return name


def utf8(name: str, value: Any) -> bytes:
    """The bytes of a str.  Raises InputTypeError where it is none, InputError for a lone surrogate, which has none."""
    if not isinstance(value, str):
        raise InputTypeError(f"{name} is of type {type(value).__name__}; expected str")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} is {value!a}, which holds a lone surrogate; expected text that UTF-8 has") from None


def whole_number(name: str, value: Any, *, least: int = 0, most: int | None = None) -> int:
    """`value` as an int.  Raises InputTypeError where it is no whole number, InputError where it is not from `least` to
    `most`.

    >>> whole_number("top_k", 40)
    40
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        raise InputTypeError(f"{name} is {value!r}; expected a whole number") from None
    if number < least:
        raise InputError(f"{name} is {number}; expected {least} or more")
    if most is not None and number > most:
        raise InputError(f"{name} is {number}; expected {most} or less")
    return number


def real_number(name: str, value: Any, *, least: float = -_INFINITY, most: float = _INFINITY) -> float:
    """`value` as a float.  Raises InputTypeError where it is no number, InputError where it is NaN, infinite or
    outside `least` to `most`.

    >>> real_number("top_p", 0.95, least=0, most=1)
    0.95
    """
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise InputTypeError(f"{name} is {value!r}; expected a number") from None
    except OverflowError:  # an int beyond every float
        number = _INFINITY
    if not -_INFINITY < number < _INFINITY or not least <= number <= most:
        span = (
            f"from {least:g} to {most:g}" if most < _INFINITY else f"of {least:g} or more" if least > -_INFINITY else ""
        )
        raise InputError(f"{name} is {number:g}; expected a finite number {span}".rstrip())
    return number
