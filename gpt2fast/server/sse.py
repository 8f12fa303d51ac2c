"""Answers that take a while: watched over, so that they end when the client leaves or time is up, and in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from gpt2fast.server.api_errors import ApiError, Expired, Gone, to_json

__all__ = ["EventStream", "Tell", "attended"]

# Seconds that the last words may take where a client does not read what it was sent.
_PATIENCE = 1

T = TypeVar("T")
Tell = Callable[[Any], Awaitable[None]]


async def attended(receive: Receive, work: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """The result of `work`, which is cancelled where the client leaves, raising Gone, or after `seconds`: Expired."""
    timeout = None if seconds is None else max(seconds, 0)
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        done, _ = await asyncio.wait({task, watch}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        raise Gone if watch in done else Expired("the request took too long and was ended")
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.wait({task, watch})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """An answer of server-sent events: `work` is called with a function that sends one, and `[DONE]` is the last.

    Status and headers wait for the first event, so that what fails before it has its proper status; what fails later
    is an event with the error, after which no `[DONE]` comes.
    """

    def __init__(self, work: Callable[[Tell], Coroutine[Any, Any, None]], seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            await attended(receive, self._answer(send), self._seconds)
        except Gone:
            pass
        except ApiError as error:
            if not self._started:
                await error.response()(scope, receive, send)
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._end(send, to_json(error.body)), _PATIENCE)

    async def _answer(self, send: Send) -> None:
        async def tell(content: Any) -> None:
            await self._send(send, to_json(content))

        await self._work(tell)
        await self._end(send, b"[DONE]")

    async def _end(self, send: Send, data: bytes) -> None:
        await self._send(send, data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        if not self._started:
            self._started = True
            headers = {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-store",
                "x-accel-buffering": "no",  # nginx: pass it on as it comes
            }
            encoded = [(key.encode(), value.encode()) for key, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": encoded})
        await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})
