"""Who may work on the event loop, and for how long: texts that are streamed pass through it, whatever others have sent.

What a request costs in one go, a few milliseconds at most, does no harm.  What a thousand requests cost that have all
arrived since the loop last looked does: so requests, and the parts of long answers, take turns, one each time the loop
goes round, and the bytes of all connections together have a share of its time.  New tokens go by these queues.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["InTurn", "Share", "Turns", "next_turn"]

# Seconds of the event loop's time that parsing may have each time it goes round.
_SHARE = 0.002


class Turns:
    """One turn each time that the event loop goes round, to those who wait in the order in which they came."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait for a turn, which lasts until the caller waits for something."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._taken = True
            loop.call_soon(self._pass)

    def _pass(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # as it is where the client has left
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._pass)
                return
        self._taken = False


class InTurn:
    """An app whose requests begin one after the other; the turns are `scope["turns"]`."""

    def __init__(self, app: ASGIApp, turns: Turns) -> None:
        self._app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, when it is its turn."""
        if scope["type"] == "http":
            scope["turns"] = self._turns
            await next_turn(scope)
        await self._app(scope, receive, send)


async def next_turn(scope: Scope) -> None:
    """Wait for the next turn of a request."""
    turns: Turns = scope["turns"]
    await turns.next()


class Share:
    """A share of the event loop's time, each time it goes round, for everybody together.

    Who finds none `left` goes on by `later`, in the order in which they came: who has much to do comes after all others
    each time that it has had the share.
    """

    def __init__(self, seconds: float = _SHARE) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._waiting: deque[Callable[[], None]] = deque()

    def left(self) -> bool:
        """Whether there is time left this time; it begins to pass when this is first asked."""
        now = time.thread_time()
        if self._since is None:
            self._since = now
            asyncio.get_running_loop().call_soon(self._next_round)
        return now - self._since < self._seconds

    def later(self, go_on: Callable[[], None]) -> None:
        """Have this called when there is time for it."""
        self._waiting.append(go_on)

    def _next_round(self) -> None:
        self._since = None
        for _ in range(len(self._waiting)):
            if not self.left():
                break
            self._waiting.popleft()()
