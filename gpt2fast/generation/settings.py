"""The settings of a generation: how tokens are chosen, and when a text ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpt2fast._internal.arguments import flag, whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.generation.sampling import Sampling
from gpt2fast.generation.stop_strings import check_stop

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings(Sampling):
    """How texts are generated: how tokens are chosen (see `Sampling`), and when a text ends.

    Raises InputError or InputTypeError, naming the field, where a value makes no sense.
    """

    #: A text ends after this many tokens at the latest; None: at the end of the model's context.
    max_new_tokens: int | None = 60
    #: End-of-text, or another id that ends a text, is not chosen before this many tokens.
    min_new_tokens: int = 0
    #: Whether end-of-text is a token like any other, after which a text goes on.
    ignore_eos: bool = False
    #: Further ids that end a text, as end-of-text does.
    stop_token_ids: Sequence[int] = ()
    #: A text ends before the first of these strings, wherever tokens begin and end.
    stop: str | Sequence[str] | None = None
    #: A whole number from 0, however large.  The same seed gives the same text, whatever the batch around it, and also
    #: where a text that was begun is the prompt.  None draws one; `Generation.seed` tells it.  A sequence has one for
    #: each prompt.
    seed: int | Sequence[int] | None = None
    #: Report the log-probability of every new token and of the `logprobs` likeliest ones; None reports nothing.
    logprobs: int | None = None
    #: At the end of the model's context: "stop" ends the text there; "error" refuses, before any work, what might not
    #: fit; "slide" forgets the older half of the context and goes on, and takes the end of a prompt that is too long.
    overflow: Literal["stop", "error", "slide"] = "stop"
    #: Rows of the cache, and so texts that grow at the same time, at most.
    batch_size: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_new_tokens is not None:
            self._set("max_new_tokens", whole_number("max_new_tokens", self.max_new_tokens, least=1))
        self._set("min_new_tokens", whole_number("min_new_tokens", self.min_new_tokens))
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise InputError(f"min_new_tokens is {self.min_new_tokens}, max_new_tokens only {self.max_new_tokens}")
        self._set("ignore_eos", flag("ignore_eos", self.ignore_eos))
        self._set("stop", check_stop(self.stop))
        if isinstance(self.stop_token_ids, (str, bytes)) or not isinstance(self.stop_token_ids, (Sequence, np.ndarray)):
            raise InputTypeError(f"stop_token_ids is {self.stop_token_ids!r}; expected a sequence of ids")
        self._set("stop_token_ids", tuple(whole_number("an id of stop_token_ids", i) for i in self.stop_token_ids))
        if isinstance(self.seed, (Sequence, np.ndarray)) and not isinstance(self.seed, (str, bytes)):
            self._set("seed", tuple(whole_number("a seed", seed) for seed in self.seed))
        elif self.seed is not None:
            self._set("seed", whole_number("seed", self.seed))
        if self.logprobs is not None:
            self._set("logprobs", whole_number("logprobs", self.logprobs))
        if not isinstance(self.overflow, str) or self.overflow not in ("stop", "error", "slide"):
            raise InputError(f"overflow is {self.overflow!r}; expected 'stop', 'error' or 'slide'")
        if self.overflow == "slide" and self.max_new_tokens is None:
            raise InputError("max_new_tokens is None and overflow 'slide': such a text might never end")
        self._set("batch_size", whole_number("batch_size", self.batch_size, least=1))

    def _named_ids(self) -> dict[str, Iterable[int]]:
        return {**super()._named_ids(), "stop_token_ids": self.stop_token_ids}
