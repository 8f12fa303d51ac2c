"""Checks of arguments: the value back, in one plain type, or an error that names the argument."""

from __future__ import annotations

import math
import operator
from typing import Any

from gpt2fast.errors import InputError, InputTypeError

__all__ = ["real_number", "whole_number"]


def whole_number(name: str, value: Any, *, least: int = 0) -> int:
    """`value` as an int.  Raises InputTypeError where it is no whole number, InputError where it is under `least`.

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
