"""A draw: all that a choice takes besides the logits, so that a device can make it where the logits are."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Draw"]


class Draw(NamedTuple):
    """One choice, as `gpt2fast.sampling.Sampling.choose` makes it where neither penalties nor bans change the logits.

    >>> Draw(n_vocab=50257, key=0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0).temperature  # greedy
    0.0
    """

    #: Only the first so many logits are tokens; `top_k` is no more.
    n_vocab: int
    #: 64 random bits.
    key: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
