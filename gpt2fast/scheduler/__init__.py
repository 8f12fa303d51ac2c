"""The scheduler, which has the model read sequences of every kind together."""

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
