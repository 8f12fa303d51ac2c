"""What a network and a tokenizer have in common: the ids that both know, and where a text begins and ends."""

from __future__ import annotations

from typing import Protocol

from gpt2fast.checkpoint.config import Config
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["Configured", "end_of_text", "shared_vocabulary"]


class Configured(Protocol):
    """What has a configuration: `gpt2fast.GPT2`."""

    @property
    def config(self) -> Config: ...


def shared_vocabulary(model: Configured, tokenizer: Tokenizer) -> int:
    """How many ids both know, counted from 0.  A checkpoint's table may be padded beyond the tokenizer's ids: those
    have no text."""
    return min(model.config.vocab_size, tokenizer.n_vocab)


def end_of_text(model: Configured, tokenizer: Tokenizer) -> int | None:
    """The id that ends a text and comes before one: the configuration's, else the tokenizer's `<|endoftext|>`; None
    where neither knows one that the other has, too."""
    eos = model.config.eos_token_id
    if eos is None and "<|endoftext|>" in tokenizer.special_tokens_set:
        eos = tokenizer.eot_token
    return eos if eos is not None and eos < shared_vocabulary(model, tokenizer) else None
