"""A sequence: token ids that the model reads, and what is wanted of what it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as List
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from gpt2fast.checkpoint.config import Config
from gpt2fast.model.backend import Cache, Outputs
from gpt2fast.model.draw import Draw
from gpt2fast.model.hooks.functions import Hook
from gpt2fast.model.hooks.steering import Steering

__all__ = ["LOGITS", "STATES", "Choices", "Logits", "Measures", "Model", "Need", "Sequence", "States"]


class Model(Protocol):
    """`gpt2fast.GPT2`, as far as a scheduler knows it."""

    @property
    def config(self) -> Config: ...
    def new_cache(self, batch: int = 1, capacity: int | None = None) -> Cache: ...
    def forward(
        self,
        cache: Cache,
        rows: List[int],
        ids: List[npt.ArrayLike],
        outputs: List[int] | None = None,
        *,
        fwd_hooks: List[Hook] = (),
    ) -> Outputs: ...
    def residual(self, ids: npt.ArrayLike, stage: int) -> npt.NDArray[Any]: ...


# What a sequence can need of its outputs.  Sequences with the same kind of need share what is computed for them.


class Choices(NamedTuple):
    """The ids that these draws choose, one for each output; -1 where the logits are not finite."""

    draws: List[Draw]


class Measures(NamedTuple):
    """The `gpt2fast.model.outputs.measures` of these ids, one for each output: float64 (n, 4), NaN where the logits are
    not finite."""

    targets: List[int]


class Logits(NamedTuple):
    """The logits: float32 (n, n_vocab).  They come in parts where they are many."""


class States(NamedTuple):
    """The final hidden states: float32 (n, n_embd)."""


LOGITS = Logits()
STATES = States()
Need = Choices | Measures | Logits | States


class Sequence(ABC):
    """Ids that a `Scheduler` has the model read, in order, each once, and who takes what comes of it.

    All that is known of the ids is in `ids`, and nobody but the sequence changes it: at the end, by adding.  The places
    of ids are counted from 0, and those of outputs are the places of the ids that they come after.
    """

    #: Whether nobody waits for it token by token.  Such sequences share what the others leave, and half of the time.
    background = False

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        #: What is added to its activations.  Sequences share what was read where these are the same objects.
        self.steer: tuple[Steering, ...] = ()
        #: How many of the first ids the model no longer sees.
        self.dropped = 0
        #: Ids proposed to follow `ids`, which this step reads behind them.
        self.drafts: list[int] = []
        #: Why it ended early, where it did.
        self.error: Exception | None = None

    @property
    @abstractmethod
    def next_output(self) -> int:
        """The place of the next output that is needed; what is before it need not be looked at."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether all that was wanted is there."""

    @property
    def finished(self) -> bool:
        """Whether it is complete or has failed: then it leaves its slot."""
        return self.complete or self.error is not None

    @property
    def draft_length(self) -> int:
        """How many ids may be proposed to it in the next step."""
        return 0

    @abstractmethod
    def need(self, start: int, stop: int) -> Need:
        """What is needed of the outputs at the places `start` to `stop`."""

    @abstractmethod
    def take(self, values: Any) -> None:
        """What was needed of the next outputs, in order, all or some of them, is here.

        Where it raises, the sequence has failed; the others go on.  For what is not finite it raises NonFiniteError,
        whose message the scheduler completes.
        """

    def slide(self, n_ctx: int) -> None:
        """The model's context of `n_ctx` tokens is full, and there are ids that it has not read: drop some of the
        first."""
        raise NotImplementedError("a sequence that outgrows the context must say what it drops")
