"""One text that grows: its ids so far, its random numbers, the characters that are certain, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import Error, InputError
from gpt2fast.generation.sampling import highest, log_probabilities, sample_key
from gpt2fast.generation.settings import Settings
from gpt2fast.generation.stop_strings import StopStrings, check_stop
from gpt2fast.model.draw import Draw

__all__ = ["Continuation", "FinishReason", "Generation", "Step"]

FinishReason = Literal["stop", "eos", "length"]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True, repr=False)
class Generation:
    """A generated text."""

    #: The new text, without the prompt, end-of-text or a stop string.
    text: str
    #: All new token ids, those of end-of-text or a stop string included.
    ids: list[int]
    #: Why the text ended: "stop" (a stop string), "eos" (end-of-text) or "length" (max_new_tokens or the context).
    finish_reason: FinishReason
    #: The ids of the prompt.
    prompt_ids: list[int]
    #: The seed, given or drawn; with it the same call gives the same text.
    seed: int
    #: The natural logarithm of each new token's probability before any filter and temperature; None where not asked.
    logprobs: list[float] | None = None
    #: For each new token the likeliest ids and their log-probabilities, best first; None where not asked for.
    top_logprobs: list[list[tuple[int, float]]] | None = None
    #: How many tokens speculative decoding proposed, and how many of these the network chose, too.
    drafted: int = field(default=0, compare=False)
    accepted: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 60 else f"{self.text[:59]}…"
        return f"<Generation of {len(self.ids)} tokens ({self.finish_reason}): {shown!r}>"


@dataclass(frozen=True)
class Step:
    """One new token of one text."""

    #: Which prompt, and which of its samples, counted from 0.
    prompt: int
    sample: int
    id: int
    #: The text that has become certain with this token: whole characters, never a part of a stop string, often "".
    text: str
    #: Why the text ended with this token, or None where it goes on.
    finish_reason: FinishReason | None


class Continuation:
    """A text under way: `advance` takes the network's logits and adds a token, until there is a `finish_reason`.

    `ids` is the prompt, at least one id; `limit` the most new tokens that there may be; ids from `n_vocab` on are never
    chosen; `eos` ends the text.  A choice is a function of the logits, the ids before it, the seed and `sample`.
    """

    def __init__(
        self,
        tokenizer: Any,
        ids: Sequence[int],
        settings: Settings,
        *,
        seed: int,
        limit: int,
        n_vocab: int,
        eos: int | None,
        prompt: int = 0,
        sample: int = 0,
    ) -> None:
        self.prompt = prompt
        self.sample = sample
        self.settings = settings
        self.seed = seed
        #: The prompt and all new tokens.
        self.ids = list(ids)
        #: The length of the prompt.
        self.start = len(ids)
        self.limit = limit
        self.eos = eos
        self.finish_reason: FinishReason | None = None
        #: Why no further token could be chosen, where that was so.
        self.error: Error | None = None
        self.logprobs: list[float] = []
        self.top_logprobs: list[list[tuple[int, float]]] = []
        self.drafted = 0
        self.accepted = 0
        self._n_vocab = n_vocab
        self._decoder = tokenizer.decode_stream()
        self._stop = StopStrings(check_stop(settings.stop))
        self._pieces: list[str] = []

    @property
    def finished(self) -> bool:
        """Whether the text takes no more tokens."""
        return self.finish_reason is not None or self.error is not None

    @property
    def room(self) -> int:
        """How many more tokens the text may have."""
        return self.start + self.limit - len(self.ids)

    @property
    def text(self) -> str:
        """The new text that is certain by now."""
        return "".join(self._pieces)

    def advance(self, after: Floats | int) -> Step | None:
        """The next token, chosen from the logits after the last one, or by the first of `draws`; None where none can
        be, and `error` says why."""
        try:
            token = after if isinstance(after, int) else self.choose(after, self.ids)
        except InputError as error:
            self.error = error
            return None
        if self.settings.logprobs is not None and not isinstance(after, int):
            logarithms = log_probabilities(after[: self._n_vocab])
            self.logprobs.append(float(logarithms[token]))
            best = highest(logarithms, self.settings.logprobs) if self.settings.logprobs else ()
            self.top_logprobs.append([(int(i), float(logarithms[i])) for i in best])
        self.ids.append(token)
        if token == self.eos:
            text, self.finish_reason = "", "eos"
        else:
            text = self._stop.feed(self._decoder.feed(token))
            if not self.room:
                self.finish_reason = "length"
        if self.finish_reason:
            text += self._stop.feed(self._decoder.flush()) + self._stop.flush()
        if self._stop.found:
            self.finish_reason = "stop"
        self._pieces.append(text)
        return Step(self.prompt, self.sample, token, text, self.finish_reason)

    def draws(self, position: int, count: int) -> list[Draw | None]:
        """The draws of the ids at `count` positions from that one, for a device; None for one that takes more: the text
        so far, as penalties and bans do, or all logits, as log-probabilities do."""
        settings = self.settings
        if not settings.plain or settings.logprobs is not None:
            return [None] * count
        return [
            None if self._banned(i) else settings.draw(self._n_vocab, self._key(i))
            for i in range(position, position + count)
        ]

    def choose(self, logits: Floats, ids: Sequence[int]) -> int:
        """The id that the text would have after `ids`, from these logits.  Raises as `Sampling.choose` does."""
        key, banned = self._key(len(ids)), self._banned(len(ids))
        return self.settings.choose(logits[: self._n_vocab], ids, key=key, banned=banned, prompt=self.start)

    def _key(self, position: int) -> int:
        return sample_key(self.seed, self.sample, position) if self.settings.temperature else 0

    def _banned(self, length: int) -> list[int]:
        """The ids that may not follow `length` ids: end-of-text, where it is too early."""
        return [self.eos] if self.eos is not None and length - self.start < self.settings.min_new_tokens else []

    def generation(self) -> Generation:
        """The finished text.  Raises its error where there is one."""
        if self.error is not None:
            raise self.error
        if self.finish_reason is None:
            raise InputError("the text has not ended yet")
        with_logprobs = self.settings.logprobs is not None
        return Generation(
            text=self.text,
            ids=self.ids[self.start :],
            finish_reason=self.finish_reason,
            prompt_ids=self.ids[: self.start],
            seed=self.seed,
            logprobs=self.logprobs if with_logprobs else None,
            top_logprobs=self.top_logprobs if with_logprobs else None,
            drafted=self.drafted,
            accepted=self.accepted,
        )
