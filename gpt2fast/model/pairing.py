"""What a network and a tokenizer have in common: the ids that both know, and where a text begins and ends."""

from __future__ import annotations

from typing import Any

__all__ = ["end_of_text", "shared_vocabulary"]


def shared_vocabulary(model: Any, tokenizer: Any) -> int:
    """How many ids both know, counted from 0.  A checkpoint's table may be padded beyond the tokenizer's ids: those
    have no text."""
    return min(int(model.config.vocab_size), int(tokenizer.n_vocab))


def end_of_text(model: Any, tokenizer: Any) -> int | None:
    """The id that ends a text and comes before one: the configuration's, else the tokenizer's `<|endoftext|>`; None
    where neither knows one that the other has, too."""
    eos: int | None = model.config.eos_token_id
    if eos is None and "<|endoftext|>" in tokenizer.special_tokens_set:
        eos = tokenizer.eot_token
    return eos if eos is not None and eos < shared_vocabulary(model, tokenizer) else None
