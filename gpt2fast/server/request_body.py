"""The body of a request, and its fields: each one is taken by its name and type, and what is left is not known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from starlette.requests import ClientDisconnect, Request

from gpt2fast._internal.arguments import real_number, whole_number
from gpt2fast.errors import Error
from gpt2fast.server.api_errors import ApiError, Gone
from gpt2fast.server.budget import Charge
from gpt2fast.server.json_decoder import decode, no_constant
from gpt2fast.server.limits import Limits

__all__ = [
    "LARGE",
    "RequestBody",
    "checked_real",
    "checked_text",
    "checked_whole",
    "parse_body",
    "read_body",
    "refused",
    "shown",
    "wrong_type",
]

#: A body of more bytes is large: it is parsed on a thread of its own, and counted against the budget.
LARGE = 1 << 14
# Whole numbers are of 64 bits, unless a field has a narrower range.
_MOST = 2**63 - 1
# Characters of a value, or of an unknown name, that a message quotes.
_QUOTED = 60


async def read_body(request: Request, limits: Limits, charge: Charge) -> bytes:
    """The body of the request, of which what is above `LARGE` is charged as it arrives.

    Raises an ApiError: 413 where the body is too large, 408 where it does not come in time, 429 where the budget is
    spent, Gone where the client leaves.
    """
    try:
        return await asyncio.wait_for(_read(request, limits.body, charge), limits.body_timeout)
    except asyncio.TimeoutError:
        raise ApiError(
            f"the request's body did not arrive within {limits.body_timeout:g} seconds", status=408, code="timeout"
        ) from None
    except ClientDisconnect:
        raise Gone from None


async def _read(request: Request, limit: int, charge: Charge) -> bytes:
    too_large = ApiError(f"the body is larger than {limit:,} bytes", status=413, code="body_too_large")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        charge.take(max(len(body) + len(chunk) - LARGE, 0) - max(len(body) - LARGE, 0))
        body += chunk
        if len(body) > limit:
            raise too_large
    return bytes(body)


def parse_body(body: bytes) -> RequestBody:
    """The fields of the JSON object that is the request's body, in UTF-8, 16 or 32, as RFC 4627 had it.

    A large body takes a while, but no other thread has to wait for it.  Raises an ApiError, 400, where the body is no
    such object, or has more than 10,000 arrays, objects and strings.
    """
    try:
        if len(body) <= LARGE:
            value = json.loads(body, parse_constant=no_constant)
        else:
            value = decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except RecursionError:
        raise ApiError("the body is not acceptable JSON: it is nested too deeply", code="invalid_json") from None
    except ValueError as error:  # of JSON, UTF-8, or an integer of thousands of digits
        raise ApiError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(f"the body is JSON of type {_kind(value)}; expected an object", code="invalid_json")
    return RequestBody(value)


class RequestBody:
    """The fields of a request, which are taken one after the other; null counts as absent.

    Whatever is wrong raises an ApiError, 400, that names the field.

    >>> fields = RequestBody({"n": 2, "stream": None})
    >>> fields.whole("n", 1, least=1), fields.flag("stream")
    (2, False)
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = dict(values)
        #: The names that were asked for.
        self.known: list[str] = []

    def take(self, name: str) -> Any:
        """The field's value, None where it is absent."""
        self.known.append(name)
        return self._values.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether the field is there, and not null."""
        return self._values.get(name) is not None

    def left(self) -> list[str]:
        """The names of the fields that were not taken."""
        return list(self._values)

    def whole(self, name: str, default: int, *, least: int = 0, most: int = _MOST) -> int:
        """A whole number."""
        number = self.whole_or_none(name, least=least, most=most)
        return default if number is None else number

    def whole_or_none(self, name: str, *, least: int = 0, most: int = _MOST) -> int | None:
        """A whole number; None where it is absent."""
        value = self.take(name)
        return None if value is None else checked_whole(name, value, least=least, most=most)

    def real(self, name: str, default: float, *, least: float, most: float) -> float:
        """A number."""
        value = self.take(name)
        return default if value is None else checked_real(name, value, least=least, most=most)

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(name, value, "true or false")
        return default if value is None else value

    def text(self, name: str, default: str | None = None) -> str:
        """A text; needed where there is no default."""
        value = self.take(name)
        if value is None:
            if default is None:
                raise ApiError(f"{name} is missing", param=name)
            return default
        return checked_text(name, value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of the texts; the first is the default."""
        value = self.take(name)
        if value is None:
            return choices[0]
        if value not in choices:
            raise ApiError(f"{name} is {shown(value)}; expected one of {', '.join(map(repr, choices))}", param=name)
        return str(value)

    def end(self) -> None:
        """Refuse what is left."""
        for name in self._values:
            close = get_close_matches(name, self.known, 1) if len(name) <= _QUOTED else ()
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ApiError(f"there is no field {shown(name)} here{hint}", param=name[:_QUOTED], code="unknown_field")


def checked_whole(name: str, value: Any, *, least: int = 0, most: int = _MOST) -> int:
    """`value`, a whole number in that range.  Raises an ApiError that names it where it is none."""
    if isinstance(value, (list, dict)):
        raise wrong_type(name, value, "a whole number")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > max(most, _MOST):
        bound = f"{least} or more" if value < 0 else f"{most} or less"
        raise refused(name, f"is a number of {len(str(abs(value)))} digits; expected {bound}")
    try:
        number = whole_number(name, value if not isinstance(value, str) else value[:_QUOTED], least=least)
    except Error as error:
        raise ApiError(str(error), param=name.partition("[")[0]) from None
    if number > most:
        raise refused(name, f"is {number}; expected {most} or less")
    return number


def checked_real(name: str, value: Any, *, least: float, most: float) -> float:
    """`value`, a number in that range.  Raises an ApiError that names it where it is none."""
    if isinstance(value, (list, dict)):
        raise wrong_type(name, value, "a number")
    try:
        return real_number(name, value if not isinstance(value, str) else value[:_QUOTED], least=least, most=most)
    except Error as error:
        raise ApiError(str(error), param=name.partition("[")[0]) from None


def checked_text(name: str, value: Any) -> str:
    """`value`, a text of whole characters.  Raises an ApiError that names it where it is none."""
    if not isinstance(value, str):
        raise wrong_type(name, value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise refused(name, f"has a lone surrogate at {error.start}, which is no character") from None
    return value


def shown(value: Any) -> str:
    """The value as a message quotes it: at most 60 characters of a string, of what is not plain its type.

    >>> shown("short"), shown([1, 2]), shown(True)
    ("'short'", 'of type array', 'True')
    """
    if isinstance(value, str):
        return repr(value if len(value) <= _QUOTED else value[:_QUOTED] + "…")
    if isinstance(value, (list, dict)) or (isinstance(value, int) and abs(value) > _MOST):
        return f"of type {_kind(value)}"
    return repr(value)


def wrong_type(name: str, value: Any, expected: str) -> ApiError:
    """The ApiError of a value of another type."""
    return refused(name, f"is of type {_kind(value)}; expected {expected}")


def refused(name: str, words: str) -> ApiError:
    """The ApiError of a field or of a part of one, such as prompt[3]."""
    return ApiError(f"{name} {words}", param=name.partition("[")[0])


def _kind(value: Any) -> str:
    kinds = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")
