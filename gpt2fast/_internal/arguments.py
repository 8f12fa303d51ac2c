"""Checks of arguments: the value back, in one plain type, or an error that names the argument."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from gpt2fast.errors import InputError, InputTypeError

__all__ = ["flag", "one_of", "real_number", "utf8", "whole_number"]


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


def utf8(name: str, value: Any) -> bytes:
    """The bytes of a str.  Raises InputTypeError where it is none, InputError for a lone surrogate, which has none."""
    if not isinstance(value, str):
        raise InputTypeError(f"{name} is of type {type(value).__name__}; expected str")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} is {value!a}, which holds a lone surrogate; expected text that UTF-8 has") from None


def whole_number(name: str, value: Any, *, least: int = 0, most: int | None = None) -> int:
    """`value` as an int.  Raises InputTypeError where it is no whole number, InputError where it is under `least` or over
    `most`.

    >>> whole_number("top_k", 40)
    40
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InputTypeError(f"{name} is {value!r}; expected a whole number") from None
    if number < least:
        raise InputError(f"{name} is {number}; expected {least} or more")
    if most is not None and number > most:
        raise InputError(f"{name} is {number}; expected {most} or less")
    return number


def real_number(name: str, value: Any, *, least: float = -math.inf, most: float = math.inf) -> float:
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
        number = math.inf
    if not math.isfinite(number) or not least <= number <= most:
        span = (
            f"from {least:g} to {most:g}" if most < math.inf else f"of {least:g} or more" if least > -math.inf else ""
        )
        raise InputError(f"{name} is {number:g}; expected a finite number {span}".rstrip())
    return number
