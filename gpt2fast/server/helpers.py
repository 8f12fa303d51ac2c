"""Threads for work in Python that takes a while, such as parsing a large request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_network
from typing import TypeVar
from weakref import WeakValueDictionary

from starlette.types import Scope

__all__ = ["Helpers", "client_of"]

T = TypeVar("T")


class Helpers:
    """A few threads, of which no client has more than one: what else a client asks for waits until that has ended.

    Work of several clients begins in the order in which they came.  Nothing breaks off what has begun: a client whose
    request is given up gets its next thread when that has ended.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="gpt2fast-help")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """The result of the work, on one of the threads; where this is cancelled before the work begins, it never
        does."""
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(client, asyncio.Lock())
        await turn.acquire()

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(turn.release)

        try:
            job = self._threads.submit(work)
        except BaseException:
            turn.release()
            raise
        job.add_done_callback(ended)
        return await asyncio.wrap_future(job)

    def stop(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def client_of(scope: Scope) -> str:
    """Who asks: the name of the key, and the address, of IPv6 the half that tells networks apart."""
    host = (scope.get("client") or ("",))[0]
    if ":" in host:
        with suppress(ValueError):
            host = str(ip_network((host.partition("%")[0], 64), strict=False))
    return f"{scope.get('key')} {host}"
