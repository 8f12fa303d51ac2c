"""What all routes share: the model, its engine, the limits, and the way from a request's bytes to what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from gpt2fast.language_model import LanguageModel
from gpt2fast.model.pairing import shared_vocabulary
from gpt2fast.server.api_errors import Closing
from gpt2fast.server.budget import Budget
from gpt2fast.server.engine import Engine
from gpt2fast.server.helpers import Helpers, client_of
from gpt2fast.server.limits import Limits
from gpt2fast.server.metrics import Metrics
from gpt2fast.server.request_body import LARGE, RequestBody, parse_body, read_body
from gpt2fast.server.sse import attended
from gpt2fast.server.turns import Turns, next_turn

if TYPE_CHECKING:
    from gpt2fast.server.chat import ChatTemplate

__all__ = ["Service"]

# Large requests that are parsed or prepared at the same time.
_HELPERS = 2

T = TypeVar("T")


class Service:
    """A model with a name, and how it is served."""

    def __init__(
        self,
        lm: LanguageModel,
        name: str,
        limits: Limits,
        *,
        speculate: str | None,
        template: ChatTemplate | None,
        allow_special: bool,
    ) -> None:
        self.lm = lm
        self.name = name
        self.limits = limits
        self.template = template
        #: Whether special tokens in texts are tokens where a request does not say.
        self.allow_special = allow_special
        drafter = partial(lm.drafter, speculate=speculate, size=limits.rows)
        n_vocab = shared_vocabulary(lm.model, lm.tokenizer)
        self.engine = Engine(lm.model, n_vocab=n_vocab, rows=limits.rows, places=limits.places, drafter=drafter)
        self.budget = Budget(limits.memory)
        self.metrics = Metrics(
            inside=lambda: self.engine.inside, running=lambda: self.engine.running, held=lambda: self.budget.taken
        )
        self.turns = Turns()
        self._helpers = Helpers(_HELPERS)

    async def parsed(self, request: Request, parse: Callable[[RequestBody], T]) -> T:
        """What `parse` makes of the request's body; a large one is dealt with on another thread, as all of its parsing
        is in Python, which lets the event loop pass on everybody's tokens meanwhile.

        Raises an ApiError: what `read_body`, `parse_body` and `parse` raise, Closing, and Expired.
        """
        if self.engine.draining:
            raise Closing
        body = await read_body(request, self.limits, request.scope["charge"])
        if len(body) <= LARGE:
            await next_turn(request.scope)
            return parse(parse_body(body))
        return await self.attended(request, self.apart(request, lambda: parse(parse_body(body))))

    async def apart(self, request: Request, work: Callable[[], T]) -> T:
        """The result of work in Python that takes a while, on one of a few threads for that, of which no client has
        more than one."""
        return await self._helpers.run(client_of(request.scope), work)

    async def attended(self, request: Request, work: Coroutine[Any, Any, T], spent: float = 0) -> T:
        """The result of work that ends when the client leaves, and when the request's time, of which seconds are
        `spent`, is up."""
        return await attended(request.receive, work, self.limits.timeout - spent)

    async def stop(self) -> None:
        """End all threads."""
        await self.engine.stop()
        self._helpers.stop()
