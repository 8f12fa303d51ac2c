"""The engine: one thread that runs the network, and the event loop's view of it.

The thread owns the scheduler, in which the sequences of all requests, texts that grow, scores and embeddings, are read
together.  The event loop counts the places: whoever leaves, finished or not, gives up his at once, and his sequences
are taken out before the next step.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from gpt2fast.errors import GrammarError
from gpt2fast.scheduler import Drafter, Model, Scheduler, Sequence
from gpt2fast.server.api_errors import ApiError, Closing, Failed, Full

__all__ = ["Engine", "Request"]

# Sequences that are read at the same time beside the texts that grow: short ones fill a step of 256 tokens.
_BACKGROUND = 32

Order = Callable[[], None]


class Request:
    """A request's places, its sequences, and which of them something has come of.  Made by `Engine.enter`."""

    def __init__(self, places: int, add: Callable[[Request, List[Sequence]], None]) -> None:
        #: The places that it takes.
        self.places = places
        #: The sequences that have not finished.
        self.open: set[Sequence] = set()
        #: Whether a sequence that finishes gives up a place.
        self.by_sequence = False
        self._add = add
        self._changed: dict[Sequence, None] = {}
        self._error: ApiError | None = None
        self._news = asyncio.Event()

    def add(self, sequences: List[Sequence], *, by_sequence: bool = False) -> None:
        """Have the sequences read; with `by_sequence` each one that finishes gives up a place."""
        self.by_sequence = by_sequence
        self.open.update(sequence for sequence in sequences if not sequence.finished)
        self._add(self, sequences)

    async def progress(self) -> list[Sequence]:
        """The sequences that something has come of since the last call, at least one.

        Raises the ApiError that ends the request.
        """
        await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise self._error
        changed, self._changed = list(self._changed), {}
        return changed

    async def read(self, sequences: List[Sequence]) -> None:
        """Have the sequences read to their end.  Raises the ApiError that ends the request."""
        self.add(sequences)
        while self.open:
            await self.progress()

    def tell(self, sequence: Sequence) -> None:
        """Something has come of the sequence."""
        self._changed[sequence] = None
        self._news.set()

    def fail(self, error: ApiError) -> None:
        """None of the sequences goes on."""
        self._error = error
        self._news.set()


class Engine:
    """Requests for one model: `places` at a time, of which `rows` texts grow together.

    `drafter` makes what proposes tokens to them; it is called for every new scheduler.

    `start`, `drain` and `stop` frame its life; all methods belong to the event loop.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_vocab: int,
        rows: int,
        places: int,
        drafter: Callable[[], Drafter[Any] | None] = lambda: None,
    ) -> None:
        self._new_scheduler: Callable[[], Scheduler[Sequence]] = lambda: Scheduler(
            model, n_vocab=n_vocab, slots=rows, background=_BACKGROUND, drafter=drafter()
        )
        self._places = places
        # The event loop's side.
        self._inside = 0
        self._requests: set[Request] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        #: Whether new work is refused.
        self.draining = False
        # The way to the thread.
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="gpt2fast-engine", daemon=True)
        # The thread's side.
        self._scheduler: Scheduler[Sequence] | None = self._new_scheduler()
        self._owners: dict[Sequence, Request] = {}
        self._alive = True

    def start(self) -> None:
        """Start the thread; to be called in the event loop that will use it."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def inside(self) -> int:
        """How many places are taken."""
        return self._inside

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def running(self) -> int:
        """How many sequences have a slot."""
        scheduler = self._scheduler
        return 0 if scheduler is None else scheduler.running

    @contextmanager
    def enter(self, places: int) -> Iterator[Request]:
        """A request that takes so many places; when the context is left these are free, and what has not finished is
        taken out.

        Raises Full or Closing.
        """
        if self.draining:
            raise Closing
        if self._inside + places > self._places:
            raise Full(f"the queue is full: {self._inside} of {self._places} places are taken; try again in a moment")
        self._inside += places
        self._empty.clear()
        request = Request(places, self._add)
        self._requests.add(request)
        try:
            yield request
        finally:
            self._requests.discard(request)
            if request.open:
                self._orders.put(partial(self._let_go, list(request.open)))
                request.open.clear()
            self._give_up(request, request.places)

    async def drain(self, grace: float) -> None:
        """Refuse what comes, wait up to `grace` seconds until all that is inside has ended, and break off the rest."""
        self.draining = True
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._empty.wait(), grace)
        self._break_off()

    async def stop(self) -> None:
        """Break off what is inside and end the thread."""
        self.draining = True
        self._break_off()
        await self._loop.run_in_executor(None, self._end)

    # The event loop's side

    def _add(self, request: Request, sequences: List[Sequence]) -> None:
        self._orders.put(partial(self._take_on, request, list(sequences)))

    def _give_up(self, request: Request, places: int) -> None:
        request.places -= places
        self._inside -= places
        if not self._inside:
            self._empty.set()

    def _break_off(self) -> None:
        for request in list(self._requests):
            request.fail(Closing())

    def _deliver(self, changed: List[tuple[Request, Sequence, bool]]) -> None:
        for request, sequence, finished in changed:
            if sequence not in request.open:
                continue  # taken out meanwhile
            # As it was after the step: by now the thread may be at the next one, with the sequence half at its end, and
            # what comes of that is told afterwards.
            if finished:
                request.open.discard(sequence)
                if request.by_sequence:
                    self._give_up(request, 1)
            if isinstance(sequence.error, GrammarError):
                request.fail(ApiError(str(sequence.error), code="invalid_grammar"))
            elif sequence.error is not None:
                request.fail(Failed(str(sequence.error)))
            else:
                request.tell(sequence)

    def _end(self) -> None:
        self._orders.put(self._die)
        self._thread.join()

    # Orders, which the thread obeys between two steps

    def _take_on(self, request: Request, sequences: List[Sequence]) -> None:
        self._owners.update((sequence, request) for sequence in sequences if not sequence.finished)
        if self._scheduler is None:
            self._scheduler = self._new_scheduler()
        self._scheduler.add(*sequences)

    def _let_go(self, sequences: List[Sequence]) -> None:
        for sequence in sequences:
            self._owners.pop(sequence, None)
        if self._scheduler is not None:
            self._scheduler.remove(*sequences)

    def _die(self) -> None:
        self._alive = False

    # The thread

    def _work(self) -> None:
        while self._alive:
            try:
                self._obey(wait=not self._owners)
                if self._owners and self._scheduler is not None:
                    self._step(self._scheduler)
            except Exception as error:
                # Out of memory, most likely, of which there may be too little even to say so.
                with suppress(Exception):
                    self._fail(f"the network failed: {type(error).__name__}: {error}")

    def _obey(self, wait: bool) -> None:
        if wait:
            self._orders.get()()
        with suppress(queue.Empty):
            while True:
                self._orders.get_nowait()()

    def _step(self, scheduler: Scheduler[Sequence]) -> None:
        changed = [(self._owners[sequence], sequence, sequence.finished) for sequence in scheduler.step()]
        for _, sequence, finished in changed:
            if finished:
                self._owners.pop(sequence, None)
        if changed:
            self._tell(partial(self._deliver, changed))

    def _fail(self, words: str) -> None:
        """All that is inside ends.  What the cache holds is uncertain: the next request gets a new one, when the memory
        of this one is free."""
        self._scheduler = None
        owners, self._owners = self._owners, {}
        failure = Failed(words)
        for request in set(owners.values()):
            self._tell(partial(request.fail, failure))

    def _tell(self, message: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(message)
