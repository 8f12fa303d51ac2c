"""The engine: one thread that runs the network, and the event loop's view of it.

The thread owns the batch.  Whatever else needs the network, scoring or embeddings, works in threads of its own, and
hands each pass of the network to the engine's thread, which runs them between the steps of the batch, so that both have
the same share of the time.  No two passes ever run at once, and none is long.

The event loop counts the places: whoever leaves, finished or not, gives up his at once.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast.generation.batch import Batch, Drafter
from gpt2fast.generation.sequence import Continuation, Step
from gpt2fast.server.api_errors import ApiError, Closing, Failed, Full

__all__ = ["Engine", "Network", "Texts"]

# Tokens of a long text that are read in a pass.
_SLICE = 128
# Scorings and embeddings that are worked on at the same time: each holds some logits.
_WORKERS = 4

T = TypeVar("T")
Floats = npt.NDArray[np.floating[Any]]
Order = Callable[[], None]


class Texts:
    """The texts of one request, and the steps that they have made."""

    def __init__(self, texts: Sequence[Continuation]) -> None:
        #: The texts that have not ended.
        self.open = set(texts)
        self._steps: list[tuple[Continuation, Step]] = []
        self._error: ApiError | None = None
        self._news = asyncio.Event()

    async def steps(self) -> list[tuple[Continuation, Step]]:
        """The steps since the last call, at least one.  Raises the ApiError that ends the request."""
        await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise self._error
        steps, self._steps = self._steps, []
        return steps

    def take(self, text: Continuation, step: Step) -> None:
        """A step arrives."""
        self._steps.append((text, step))
        self._news.set()

    def fail(self, error: ApiError) -> None:
        """None of the texts goes on."""
        self._error = error
        self._news.set()


class Network:
    """The network as other work sees it: every pass waits for its turn on the engine's thread."""

    def __init__(self, model: Any, order: Callable[[Callable[[], Any]], Future[Any]]) -> None:
        self.config = model.config
        self.new_cache = model.new_cache
        self._model = model
        self._order = order
        self._closed = False
        if hasattr(model, "residual"):  # which tells where numbers cease to be finite
            self.residual = lambda ids, stage: self._turn(partial(model.residual, ids, stage))

    def __call__(self, ids: npt.ArrayLike, cache: Any = None, last_only: bool = False) -> Floats:
        """As the model's."""
        return self._turn(partial(self._model, ids, cache, last_only))

    def extend(
        self, cache: Any, rows: Sequence[int], ids: Sequence[npt.ArrayLike], wanted: Sequence[int] | None = None
    ) -> Floats:
        """As the model's, in several passes where a single row is to read much."""
        if len(rows) == 1 and wanted is None:
            array = np.asarray(ids[0])
            last = max(len(array) - 1, 0) // _SLICE * _SLICE
            for start in range(0, last, _SLICE):
                self._turn(partial(self._model.extend, cache, rows, [array[start : start + _SLICE]], [0]))
            ids = [array[last:]]
        return self._turn(partial(self._model.extend, cache, rows, ids, wanted))

    def hidden_states(self, ids: npt.ArrayLike, cache: Any = None) -> Floats:
        """As the model's."""
        return self._turn(partial(self._model.hidden_states, ids, cache))

    def close(self) -> None:
        """Nobody waits for the work any more: its next pass raises."""
        self._closed = True

    def _turn(self, run: Callable[[], Floats]) -> Floats:
        if self._closed:
            raise Failed("nobody waits for this any more")
        result: Floats = self._order(run).result()
        return result


class Engine:
    """Texts and other work for one network, at most `places` at a time, of which `rows` texts grow together.

    `drafter` makes what proposes tokens to a batch; it is called for every new batch.

    `start`, `drain` and `stop` frame its life; all methods belong to the event loop.
    """

    def __init__(
        self, model: Any, *, rows: int, places: int, drafter: Callable[[], Drafter | None] = lambda: None
    ) -> None:
        self._model = model
        self._new_batch: Callable[[], Batch] = lambda: Batch(model, rows, drafter=drafter())
        self._places = places
        # The event loop's side.
        self._inside = 0
        self._requests: set[Texts] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        #: Whether new work is refused.
        self.draining = False
        # The way to the thread.
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="gpt2fast-engine", daemon=True)
        self._helpers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="gpt2fast-work")
        # The thread's side.
        self._batch = self._new_batch()
        self._owners: dict[Continuation, Texts] = {}
        self._passes: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._alive = True
        self._stopping = False

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
        """How many texts grow."""
        return self._batch.running

    @contextmanager
    def texts(self, texts: Sequence[Continuation]) -> Iterator[Texts]:
        """Let the texts grow; what has not ended when the context is left is taken out, and its places are free.

        Raises Full or Closing.
        """
        self._enter(len(texts))
        request = Texts(texts)
        self._requests.add(request)
        self._orders.put(partial(self._add, request, list(texts)))
        try:
            yield request
        finally:
            self._requests.discard(request)
            if request.open:
                self._orders.put(partial(self._remove, list(request.open)))
                self._leave(len(request.open))
                request.open.clear()

    async def compute(self, work: Callable[[Network], T]) -> T:
        """The result of `work`, which runs in a thread of its own with a network that takes turns with the texts.

        Whoever cancels this frees the place at once; the work ends at its next pass.  Raises Full, Closing, also
        where the engine stops meanwhile, and what `work` raises.
        """
        self._enter(1)
        network = Network(self._model, self._order_pass)
        try:
            return await self._loop.run_in_executor(self._helpers, work, network)
        finally:
            network.close()
            self._leave(1)

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

    def _enter(self, count: int) -> None:
        if self.draining:
            raise Closing
        if self._inside + count > self._places:
            raise Full(f"the queue is full: {self._inside} of {self._places} places are taken; try again in a moment")
        self._inside += count
        self._empty.clear()

    def _leave(self, count: int) -> None:
        self._inside -= count
        if not self._inside:
            self._empty.set()

    def _break_off(self) -> None:
        self._stopping = True
        for request in list(self._requests):
            request.fail(Closing())

    def _deliver(self, steps: list[tuple[Texts, Continuation, Step | None]]) -> None:
        for request, text, step in steps:
            if text not in request.open:
                continue  # taken out meanwhile
            if step is None or step.finish_reason is not None:
                request.open.discard(text)
                self._leave(1)
            if step is None:
                request.fail(Failed(str(text.error)))
            else:
                request.take(text, step)

    def _end(self) -> None:
        # Passes are refused by now, so that helpers come to their end while the thread still answers them.
        self._helpers.shutdown(wait=True, cancel_futures=True)
        self._orders.put(self._die)
        self._thread.join()

    # Orders, which the thread obeys between two passes

    def _order_pass(self, run: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._orders.put(partial(self._passes.append, (run, future)))
        return future

    def _add(self, request: Texts, texts: Sequence[Continuation]) -> None:
        for text in texts:
            self._owners[text] = request
            self._batch.add(text)

    def _remove(self, texts: Sequence[Continuation]) -> None:
        for text in texts:
            self._owners.pop(text, None)
            self._batch.remove(text)

    def _die(self) -> None:
        self._alive = False

    # The thread

    def _work(self) -> None:
        owed = 0.0  # seconds of steps
        while self._alive:
            self._obey(wait=not (self._passes or self._owners))
            if self._owners:
                owed -= _timed(self._step)
            # A pass may take many times as long as a step: the texts get as much time as all else, before the next one.
            if self._passes and (owed <= 0 or not self._owners):
                owed = _timed(partial(self._pass, *self._passes.popleft()))

    def _obey(self, wait: bool) -> None:
        if wait:
            self._orders.get()()
        with suppress(queue.Empty):
            while True:
                self._orders.get_nowait()()

    def _step(self) -> None:
        try:
            steps = [(self._owners[text], text, step) for text, step in self._batch.step()]
        except Exception as error:
            # Out of memory, most likely.  What the cache holds now is uncertain: all texts end, and a new one begins.
            owners, self._owners = self._owners, {}
            self._batch = self._new_batch()
            failure = Failed(f"the network failed: {type(error).__name__}: {error}")
            for request in set(owners.values()):
                self._tell(request.fail, failure)
            return
        for _, text, step in steps:
            if step is None or step.finish_reason is not None:
                self._owners.pop(text, None)
        if steps:
            self._tell(self._deliver, steps)

    def _pass(self, run: Callable[[], Any], future: Future[Any]) -> None:
        if self._stopping:
            future.set_exception(Closing())
            return
        try:
            future.set_result(run())
        except Exception as error:
            future.set_exception(error)

    def _tell(self, function: Callable[..., object], argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, argument)


def _timed(function: Callable[[], object]) -> float:
    """Call the function; the seconds that it took."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
