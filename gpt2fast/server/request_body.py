"""The body of a request, and its fields: each one is taken by its name and type, and what is left is not known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from gpt2fast._internal.arguments import real_number, whole_number
from gpt2fast.errors import Error
from gpt2fast.server.api_errors import ApiError, Gone
from gpt2fast.server.limits import Limits

__all__ = ["RequestBody", "checked_text", "read_body", "refused", "wrong_type"]


async def read_body(request: Request, limits: Limits) -> RequestBody:
    """The fields of the JSON object that is the request's body.

    Raises a ApiError: 413 where the body is too large, 408 where it does not come in time, 400 where it is no such
    object, Gone where the client leaves.
    """
    try:
        body = await asyncio.wait_for(_read(request, limits.body), limits.body_timeout)
    except asyncio.TimeoutError:
        raise ApiError(
            f"the request's body did not arrive within {limits.body_timeout:g} seconds", status=408, code="timeout"
        ) from None
    except ClientDisconnect:
        raise Gone from None
    try:
        # Bytes are UTF-8, 16 or 32, as RFC 4627 had it.
        value = json.loads(bytes(body), parse_constant=_no_constant)
    except RecursionError:
        raise ApiError("the body is not acceptable JSON: it is nested too deeply", code="invalid_json") from None
    except ValueError as error:  # of JSON, UTF-8, or an integer of thousands of digits
        raise ApiError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(f"the body is JSON of type {_kind(value)}; expected an object", code="invalid_json")
    return RequestBody(value)


async def _read(request: Request, limit: int) -> bytearray:
    too_large = ApiError(f"the body is larger than {limit:,} bytes", status=413, code="body_too_large")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large
    return body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class RequestBody:
    """The fields of a request, which are taken one after the other; null counts as absent.

    Whatever is wrong raises a ApiError, 400, that names the field.

    >>> fields = RequestBody({"n": 2, "stream": None})
    >>> fields.whole("n", 1, least=1), fields.flag("stream")
    (2, False)
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = dict(values)
        self._known: list[str] = []

    def take(self, name: str) -> Any:
        """The field's value, None where it is absent."""
        self._known.append(name)
        return self._values.pop(name, None)

    def whole(self, name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
        """A whole number."""
        number = self.whole_or_none(name, least=least, most=most)
        return default if number is None else number

    def whole_or_none(self, name: str, *, least: int = 0, most: int | None = None) -> int | None:
        """A whole number; None where it is absent."""
        value = self.take(name)
        if value is None:
            return None
        try:
            number = whole_number(name, value, least=least)
        except Error as error:
            raise ApiError(str(error), param=name) from None
        if most is not None and number > most:
            raise ApiError(f"{name} is {number}; expected {most} or less", param=name)
        return number

    def real(self, name: str, default: float, *, least: float, most: float) -> float:
        """A number."""
        value = self.take(name)
        try:
            return default if value is None else real_number(name, value, least=least, most=most)
        except Error as error:
            raise ApiError(str(error), param=name) from None

    def flag(self, name: str) -> bool:
        """true or false, which is the default."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(name, value, "true or false")
        return bool(value)

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
            raise ApiError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}", param=name)
        return str(value)

    def end(self, ignored: Sequence[str] = ()) -> None:
        """Refuse what is left but for the `ignored` fields, which change no answer."""
        for name in self._values:
            if name not in ignored:
                close = get_close_matches(name, self._known, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise ApiError(f"there is no field {name!r} here{hint}", param=name, code="unknown_field")


def checked_text(name: str, value: Any) -> str:
    """`value`, a text of whole characters.  Raises a ApiError that names it where it is none."""
    if not isinstance(value, str):
        raise wrong_type(name, value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise refused(name, f"has a lone surrogate at {error.start}, which is no character") from None
    return value


def wrong_type(name: str, value: Any, expected: str) -> ApiError:
    """The ApiError of a value of another type."""
    return refused(name, f"is of type {_kind(value)}; expected {expected}")


def refused(name: str, words: str) -> ApiError:
    """The ApiError of a field or of a part of one, such as prompt[3]."""
    return ApiError(f"{name} {words}", param=name.partition("[")[0])


def _kind(value: Any) -> str:
    kinds = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")
