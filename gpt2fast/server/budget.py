"""How much memory requests and their answers may hold at the same time."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gpt2fast.server.api_errors import Full

__all__ = ["Budget", "Charge", "Charged"]


class Budget:
    """So many bytes for everybody.

    >>> budget = Budget(100)
    >>> with budget.charge() as one, budget.charge() as other:
    ...     one.take(60)
    ...     other.take(50)
    Traceback (most recent call last):
    ...
    gpt2fast.server.api_errors.Full: requests and answers hold 60 of 100 bytes, and 50 more are needed; ...
    >>> budget.taken
    0
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0

    def charge(self) -> Charge:
        """What one request holds; a context manager, which gives it back."""
        return Charge(self)


class Charge:
    """What one request holds of the budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken = 0

    def take(self, count: int) -> None:
        """Hold so many bytes more, until the end.  Raises Full where others hold too much for that; who is alone may
        hold any number."""
        others = self._budget.taken - self._taken
        if others and self._budget.taken + count > self._budget.size:
            raise Full(
                f"requests and answers hold {self._budget.taken:,} of {self._budget.size:,} bytes, and {count:,} more "
                "are needed; try again in a moment"
            )
        self._budget.taken += count
        self._taken += count

    def __enter__(self) -> Charge:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.taken -= self._taken
        self._taken = 0


class Charged:
    """An app whose requests have a `Charge` each, `scope["charge"]`, until the whole answer is with the client."""

    def __init__(self, app: ASGIApp, budget: Budget) -> None:
        self._app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._budget.charge() as charge:
            scope["charge"] = charge
            await self._app(scope, receive, send)
