"""The engine between the event loop and its thread."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
from tiny_model import tiny_model

from gpt2fast.scheduler import STATES, Need, Sequence
from gpt2fast.server.engine import Engine


class TwoSteps(Sequence):
    """A sequence that is complete a while before the last of what comes of it is there."""

    def __init__(self) -> None:
        super().__init__([1])
        self.steps: list[str] = []
        self.ending = threading.Event()
        self.may_end = threading.Event()

    @property
    def next_output(self) -> int:
        return len(self.ids) - 1

    @property
    def complete(self) -> bool:
        return self.ending.is_set()

    def need(self, start: int, stop: int) -> Need:
        return STATES

    def take(self, values: np.ndarray) -> None:
        if self.steps:
            self.ending.set()
            assert self.may_end.wait(60)
        self.ids.append(2)
        self.steps.append("last" if self.complete else "first")


def test_the_last_step_is_told_however_late_the_one_before_it_is() -> None:
    lm = tiny_model()

    async def work() -> None:
        engine = Engine(lm.model, n_vocab=lm.tokenizer.n_vocab, rows=2, places=4)
        engine.start()
        sequence = TwoSteps()
        with engine.enter(1) as request:
            request.add([sequence])
            # The loop is busy until the thread is in the middle of the last step; only then it hears of the first.
            while not sequence.ending.is_set():
                time.sleep(0.001)
            await request.progress()
            assert sequence.steps == ["first"]
            sequence.may_end.set()
            await asyncio.wait_for(request.progress(), 30)
            assert sequence.steps == ["first", "last"]
            assert not request.open
        await engine.stop()

    asyncio.run(work())
