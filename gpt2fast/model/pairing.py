"""What a network and a tokenizer have in common: the ids that both know, and where a text begins and ends."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Protocol

from gpt2fast.checkpoint.config import Config
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["Configured", "beginning", "ending", "ends", "shared_vocabulary", "warn_of_ends"]

#: GPT-2's end-of-text, which is in many configurations of models that have other tokens: it is their default.
_GPT2_END = 50256


class Configured(Protocol):
    """What has a configuration: `gpt2fast.GPT2`."""

    @property
    def config(self) -> Config: ...


def shared_vocabulary(model: Configured, tokenizer: Tokenizer) -> int:
    """How many ids both know, counted from 0.  A checkpoint's table may be padded beyond the tokenizer's ids: those
    have no text."""
    return min(model.config.vocab_size, tokenizer.n_vocab)


def beginning(model: Configured, tokenizer: Tokenizer) -> int | None:
    """The id that a text comes after: the configuration's bos, else the tokenizer's, where it is not its end as well,
    else the first that ends a text; None where there is none that both know."""
    candidates = list(_known(model, tokenizer, model.config.bos_token_id))
    if tokenizer.bos_token_id != tokenizer.eos_token_id:
        candidates += _known(model, tokenizer, tokenizer.bos_token_id)
    candidates += _ends(model, tokenizer)
    return candidates[0] if candidates else None


def ending(model: Configured, tokenizer: Tokenizer) -> int | None:
    """The id that ends a text, the first of several: the configuration's eos, else the tokenizer's; None where there is
    none that both know."""
    return next(iter(_ends(model, tokenizer)), None)


def ends(model: Configured, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text: the configuration's eos, of which there may be several, else the tokenizer's."""
    return frozenset(_ends(model, tokenizer))


def warn_of_ends(model: Configured, tokenizer: Tokenizer) -> None:
    """Warn where the configuration names GPT-2's end-of-text, and the tokenizer has an ordinary token of that id."""
    config = model.config
    if _GPT2_END in (config.bos_token_id, *_several(config.eos_token_id)) and _is_word(tokenizer, _GPT2_END):
        warnings.warn(
            f"config.json names {_GPT2_END}, GPT-2's end-of-text, which is {tokenizer.decode([_GPT2_END])!r} in this "
            f"tokenizer, an ordinary token; texts begin with {beginning(model, tokenizer)} and end with "
            f"{sorted(ends(model, tokenizer)) or None} instead",
            stacklevel=3,
        )


def _ends(model: Configured, tokenizer: Tokenizer) -> list[int]:
    found = list(_known(model, tokenizer, model.config.eos_token_id))
    return found or list(_known(model, tokenizer, tokenizer.eos_token_id))


def _known(model: Configured, tokenizer: Tokenizer, ids: int | tuple[int, ...] | None) -> Iterator[int]:
    """Those of the ids that both know, and that are meant."""
    for id in _several(ids):
        if id < shared_vocabulary(model, tokenizer) and not (id == _GPT2_END and _is_word(tokenizer, id)):
            yield id


def _several(ids: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return () if ids is None else (ids,) if isinstance(ids, int) else ids


def _is_word(tokenizer: Tokenizer, id: int) -> bool:
    return id < tokenizer.n_vocab and not tokenizer.is_added_token(id)
