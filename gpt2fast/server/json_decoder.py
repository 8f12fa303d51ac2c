"""JSON of a megabyte, decoded in parts, between which other threads of Python have their turn.

The standard library's decoder in C keeps the interpreter's lock to the end, 60 ms for a megabyte of brackets and
numbers, in which no event of any client is passed on.  Its twin in Python lets others run, at 10 to 30 times the price;
so arrays of numbers, of which there may be half a million, are given to the one in C some thousands at a time, and what
else there is of values has a limit.
"""

from __future__ import annotations

import json
import json.decoder
import json.scanner
import re
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["decode", "no_constant"]

# Arrays, objects and strings of one body, names of fields aside; no request needs more than its 2,048 inputs.
_MOST_VALUES = 10_000
# Numbers with their commas, before another number: bounded in all ways, so that looking for them takes no time.
_NUMBERS = re.compile(r"(?:[-+.0-9eE]{1,32}[ \t\n\r]{0,16},[ \t\n\r]{0,16}){1,2048}(?=[-0-9])")


def decode(text: str) -> Any:
    """The value of JSON as `json.loads` finds it.

    Raises ValueError where it is none, has NaN or an infinity, or more than 10,000 arrays, objects and strings, and
    RecursionError where these are nested too deeply.

    >>> decode('{"ids": [1, 2.5, -3]}')
    {'ids': [1, 2.5, -3]}
    """
    decoder: Any = json.JSONDecoder(parse_constant=no_constant)
    count = 0

    def counted(parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_counted(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count > _MOST_VALUES:
                raise ValueError(f"it has more than {_MOST_VALUES:,} arrays, objects and strings")
            return parse(*arguments)

        return parse_counted

    decoder.parse_object = counted(json.decoder.JSONObject)  # type: ignore[attr-defined]
    decoder.parse_array = counted(_array)
    decoder.parse_string = counted(json.decoder.scanstring)  # type: ignore[attr-defined]
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder.decode(text)


def _array(place: tuple[str, int], scan_once: Callable[..., Any]) -> tuple[list[Any], int]:
    """An array whose first character is at the place, and where it ends."""
    text, at = place
    values: list[Any] = []
    while found := _NUMBERS.match(text, at):
        try:
            values += json.loads(f"[{found[0].rpartition(',')[0]}]")
        except ValueError:  # which the rest tells better: it knows the place
            break
        at = found.end()
    # There is a number left at least, as "[1,]" is no array.
    rest, end = json.decoder.JSONArray((text, at), scan_once)  # type: ignore[attr-defined]
    values += rest
    return values, end


def no_constant(name: str) -> NoReturn:
    """Refuse what Python's decoders take, though it is no JSON: NaN and infinities."""
    raise ValueError(f"{name} is no JSON number")
