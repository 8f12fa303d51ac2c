"""Answers of any size, in parts: none is made before the client has room for it, and each takes the event loop a
millisecond or two."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from gpt2fast.server.api_errors import Gone, to_json
from gpt2fast.server.sse import attended
from gpt2fast.server.turns import next_turn

__all__ = ["Items", "JsonInParts", "Pauses", "Pieces", "json_parts", "slices"]

# Bytes that are sent at once; what is smaller waits for what comes next.
_PART = 1 << 14
# Seconds of the thread's time without a pause.
_WORK = 0.001


@dataclass(frozen=True)
class Items:
    """A JSON array, as lists of a few of its items each."""

    lists: Iterable[list[Any]]


@dataclass(frozen=True)
class Pieces:
    """A JSON string, as the strings that it is made of."""

    strings: Iterable[str]


def json_parts(content: Any) -> Iterator[bytes]:
    """The bytes of JSON on one line, part by part; objects may hold `Items` and `Pieces`.

    >>> b"".join(json_parts({"text": Pieces(["a", "b"]), "ids": Items([[1, 2], [], [3]]), "count": 3}))
    b'{"text":"ab","ids":[1,2,3],"count":3}'
    """
    if isinstance(content, Pieces):
        yield b'"'
        yield from (to_json(string)[1:-1] for string in content.strings)
        yield b'"'
    elif isinstance(content, Items):
        yield b"["
        separator = b""
        for items in content.lists:
            if any(isinstance(item, Mapping) for item in items):
                for item in items:
                    yield separator
                    yield from json_parts(item)
                    separator = b","
            elif items:
                yield separator + to_json(items)[1:-1]
                separator = b","
        yield b"]"
    elif isinstance(content, Mapping) and any(isinstance(v, (Items, Pieces, Mapping)) for v in content.values()):
        separator = b"{"
        for name, value in content.items():
            yield separator + to_json(name) + b":"
            yield from json_parts(value)
            separator = b","
        yield b"}"
    else:
        yield to_json(content)


def slices(items: Any, size: int = 512) -> Iterator[Any]:
    """The sequence, `size` items at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


class Pauses:
    """Lets the event loop do everything else when work has taken a millisecond.

    `pause` is what to wait for then.
    """

    def __init__(self, pause: Callable[[], Awaitable[None]]) -> None:
        self._pause = pause
        self._since = time.thread_time()

    async def pause(self) -> None:
        """Pause, if it is time."""
        if time.thread_time() - self._since > _WORK:
            await self._pause()
            self._since = time.thread_time()


class JsonInParts:
    """The answer 200 with JSON as `json_parts` takes it."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client leaves."""
        with suppress(Gone):
            await attended(receive, self._send(scope, send), None)

    async def _send(self, scope: Scope, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        turn = partial(next_turn, scope)
        await turn()
        pauses = Pauses(turn)
        part = bytearray()
        for piece in json_parts(self._content):
            part += piece
            for start in range(0, len(part) - _PART + 1, _PART):
                await send(
                    {"type": "http.response.body", "body": bytes(part[start : start + _PART]), "more_body": True}
                )
            del part[: len(part) // _PART * _PART]
            await pauses.pause()
        await send({"type": "http.response.body", "body": bytes(part), "more_body": False})
