"""The scheduler: sequences of every kind are read together, a pass of the network a step.

From the top down:

- `scheduler`  who is read in a step, and what comes of it
- `slots`      rows of the cache, and beginnings that several sequences share
- `sequence`   what a sequence states: its ids, and what it needs after which of them
"""

from __future__ import annotations

from gpt2fast.scheduler.scheduler import Drafter, Scheduler
from gpt2fast.scheduler.sequence import (
    LOGITS,
    STATES,
    Choices,
    Logits,
    Measures,
    Model,
    Need,
    Sequence,
    States,
)

__all__ = [
    "LOGITS",
    "STATES",
    "Choices",
    "Drafter",
    "Logits",
    "Measures",
    "Model",
    "Need",
    "Scheduler",
    "Sequence",
    "States",
]
