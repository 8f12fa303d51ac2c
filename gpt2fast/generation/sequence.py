"""A text that is generated: its ids so far, its draws, the characters that are certain, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import GrammarError, InputError, NonFiniteError, ProcessorError
from gpt2fast.generation.constraint import Constraint
from gpt2fast.generation.processors import allow_only, process, says_stop
from gpt2fast.generation.sampling import highest, log_probabilities, sample_key
from gpt2fast.generation.settings import Settings
from gpt2fast.generation.stop_strings import StopStrings, check_stop
from gpt2fast.model.hooks.steering import Steering
from gpt2fast.scheduler import LOGITS, Choices, Need, Sequence
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["FinishReason", "GeneratedSequence", "Generation", "Step"]

# Proposals for a text at most: with its last token they fill the twelve rows that cost hardly more than one.
_PROPOSALS = 11

FinishReason = Literal["stop", "eos", "length", "error"]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True, repr=False)
class Generation:
    """A generated text."""

    #: The new text, without the prompt, end-of-text or a stop string.
    text: str
    #: All new token ids, those of end-of-text or a stop string included.
    ids: list[int]
    #: Why the text ended: "stop" (a stop string, one of `stop_token_ids`, a stopping criterion, or a grammar after
    #: which nothing can come), "eos" (end-of-text), "length" (`max_new_tokens`, or the context) or "error" (of a batch,
    #: a text whose processor or grammar failed).
    finish_reason: FinishReason
    #: The ids of the prompt.
    prompt_ids: list[int]
    #: The seed, given or drawn; with it the same call gives the same text.
    seed: int
    #: The natural logarithm of each new token's probability before any filter and temperature; None where not asked.
    logprobs: list[float] | None = None
    #: For each new token the likeliest ids and their log-probabilities, best first; None where not asked for.
    top_logprobs: list[list[tuple[int, float]]] | None = None
    #: What went wrong, where the text ended with "error".
    error: Exception | None = None
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


class GeneratedSequence(Sequence):
    """A text under way: from the outputs after its last id it gets one id after another, until there is a
    `finish_reason`.

    `ids` is the prompt, at least one id; `limit` the most new tokens that there may be; ids from `n_vocab` on are never
    chosen; each of `ends` ends the text, and so do the settings' `stop_token_ids`.  A choice is a function of the
    logits, the ids before it, the seed and `sample`.  Of a prompt longer than the model's context of `n_ctx` tokens the
    end is taken.  `constraint` knows which new ids may follow which.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        ids: List[int],
        settings: Settings,
        *,
        seed: int,
        limit: int,
        n_vocab: int,
        n_ctx: int,
        ends: frozenset[int],
        prompt: int = 0,
        sample: int = 0,
        constraint: Constraint | None = None,
        steer: tuple[Steering, ...] = (),
    ) -> None:
        super().__init__(list(ids))
        self.steer = steer
        self.dropped = max(len(ids) - n_ctx, 0)
        self.prompt = prompt
        self.sample = sample
        self.settings = settings
        self.seed = seed
        #: The length of the prompt.
        self.start = len(ids)
        self.limit = limit
        self._eos: frozenset[int] = frozenset() if settings.ignore_eos else ends
        #: The ids that end the text.
        self.ends = self._eos.union(settings.stop_token_ids)
        self.finish_reason: FinishReason | None = None
        #: The new tokens.
        self.steps: list[Step] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[list[tuple[int, float]]] = []
        #: How many tokens speculative decoding proposed, and how many of these were right.
        self.drafted = 0
        self.accepted = 0
        self._n_vocab = n_vocab
        self._constraint = constraint
        self._draft_length = 4
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decode_stream()
        self._stop = StopStrings(check_stop(settings.stop))

    @property
    def complete(self) -> bool:
        """Whether the text has ended."""
        return self.finish_reason is not None

    @property
    def next_output(self) -> int:
        """The place of the last id: the next one is chosen from what comes after it."""
        return len(self.ids) - 1

    @property
    def room(self) -> int:
        """How many more tokens the text may have."""
        return self.start + self.limit - len(self.ids)

    @property
    def draft_length(self) -> int:
        """One more than was proposed after proposals that were right throughout, else one more than were right."""
        return min(self._draft_length, self.room - 1)

    @property
    def text(self) -> str:
        """The new text that is certain by now."""
        return "".join(step.text for step in self.steps)

    def need(self, start: int, stop: int) -> Need:
        """Draws where a choice takes nothing but the logits after the last id; else, as for penalties, bans, grammars
        and log-probabilities, the logits."""
        settings = self.settings
        if self._constraint is not None:
            self._constraint.begin(self.ids[self.start :], self.drafts)
        if not settings.plain or settings.logprobs is not None or self._banned(start + 1):
            return LOGITS
        return Choices([settings.draw(self._n_vocab, self._key(place + 1)) for place in range(start, stop)])

    def take(self, values: Any) -> None:
        """Go on by an id, and by one for each proposal that was right; `values` are ids, or rows of logits."""
        drafts, first = self.drafts, len(self.ids)
        while not self.finish_reason:
            place = len(self.ids) - first
            if place >= len(values) or self.ids[first:] != drafts[:place]:
                break
            value = values[place]
            if isinstance(value, int):
                if value < 0:
                    raise NonFiniteError("the logits are not finite")
                self._append(value)
            else:
                token = self.choose(value, self.ids)
                self._report(value, token)
                self._append(token, value)
            self._append_forced()
        if drafts:
            right = next((i for i, (a, b) in enumerate(zip(self.ids[first:], drafts, strict=False)) if a != b), None)
            right = min(len(self.ids) - first, len(drafts)) if right is None else right
            self.drafted += len(drafts)
            self.accepted += right
            most = self._draft_length if right == len(drafts) else right
            self._draft_length = min(most + 1, _PROPOSALS)

    def possible(self, drafts: list[int]) -> list[int]:
        """The first of `drafts`, as many as the grammar allows."""
        if self._constraint is None or not drafts:
            return drafts
        return drafts[: self._constraint.allowed(self.ids[self.start :], drafts)]

    def slide(self, n_ctx: int) -> None:
        """Keep the newer half of the context."""
        self.dropped = len(self.ids) - max(n_ctx // 2, 1)

    def choose(self, logits: Floats, ids: List[int]) -> int:
        """The id that the text would have after `ids`, from these logits.  Raises as `Sampling.choose` does, and
        GrammarError and ProcessorError."""
        key, banned, mask = self._key(len(ids)), self._banned(len(ids)), None
        if self._constraint is not None:
            new = list(ids[self.start :])
            forced = self._constraint.forced(new)
            if forced is not None:
                return forced
            mask = self._constraint.mask(new)
            if banned and mask.sum() == mask[banned].sum():  # nothing else can follow: the end is not too early
                banned = []
        return self.settings.choose(
            logits[: self._n_vocab],
            ids,
            key=key,
            banned=banned,
            prompt=self.start,
            process=None if self.settings.plain else lambda values: self._processed(values, ids, mask),
        )

    def constrained(self, logarithms: Floats, ids: List[int]) -> Floats:
        """What the caller's functions and the grammar make of the log-probabilities of the tokens after `ids`."""
        mask = None if self._constraint is None else self._constraint.mask(list(ids[self.start :]))
        return self._processed(logarithms, ids, mask)

    def ended_by_caller(self, ids: list[int]) -> bool:
        """Whether `ids` are a complete text for the grammar, or for one of the caller's stopping criteria."""
        if self._constraint is not None and self._constraint.finished(ids[self.start :]):
            return True
        return says_stop(self.settings.stopping_criteria, ids, None)  # type: ignore[arg-type]

    def _processed(self, logits: Floats, ids: List[int], mask: npt.NDArray[np.bool_] | None) -> Floats:
        """The logits after the caller's functions, and those that the grammar does not allow -infinity."""
        settings = self.settings
        if settings.prefix_allowed_tokens_fn is not None:
            logits = allow_only(settings.prefix_allowed_tokens_fn, self.prompt, ids, logits)
        if settings.logits_processor:
            logits = process(settings.logits_processor, ids, logits)  # type: ignore[arg-type]
        if mask is not None:
            allowed = np.full_like(logits, -np.inf)
            np.copyto(allowed, logits, where=mask)
            logits = allowed
            if logits.max() == -np.inf:
                raise GrammarError("no token is left to choose: those that the grammar allows are banned")
        return logits

    def _key(self, position: int) -> int:
        return sample_key(self.seed, self.sample, position) if self.settings.temperature else 0

    def _banned(self, length: int) -> list[int]:
        """The ids that may not follow `length` ids: end-of-text, where it is too early."""
        return sorted(self.ends) if length - self.start < self.settings.min_new_tokens else []

    def _report(self, logits: Floats, token: int) -> None:
        if self.settings.logprobs is not None:
            logarithms = log_probabilities(logits)
            self.logprobs.append(float(logarithms[token]))
            best = highest(logarithms, self.settings.logprobs) if self.settings.logprobs else ()
            self.top_logprobs.append([(int(i), float(logarithms[i])) for i in best])

    def _append(self, token: int, logits: Floats | None = None, *, again: bool = False) -> None:
        """Go on by a token, chosen from `logits`; with `again` it was there before."""
        self.ids.append(token)
        if token in self.ends:
            text, self.finish_reason = "", "eos" if token in self._eos else "stop"
        else:
            text = self._stop.feed(self._decoder.feed(token))
            if self._constraint is not None and self._constraint.finished(self.ids[self.start :]):
                self.finish_reason = "stop"
            elif not self.room:
                self.finish_reason = "length"
            criteria = self.settings.stopping_criteria
            if criteria and not again and says_stop(criteria, self.ids, logits):  # type: ignore[arg-type]
                self.finish_reason = "stop"
        if self.finish_reason:
            text += self._stop.feed(self._decoder.flush()) + self._stop.flush()
        if self._stop.found:
            self.finish_reason = "stop"
        self.steps.append(Step(self.prompt, self.sample, token, text, self.finish_reason))

    def _append_forced(self) -> None:
        """Go on by the tokens that the grammar leaves no choice about: the network reads them all in its next pass.
        Where log-probabilities are asked for it has to be asked about each."""
        if self._constraint is not None and self.settings.logprobs is None:
            while not self.finish_reason:
                token = self._constraint.forced(self.ids[self.start :])
                if token is None:
                    return
                self._append(token)

    def end_after(self, count: int) -> None:
        """End the text after its first `count` new tokens, with "stop" where it has not ended there by itself."""
        if count == len(self.steps) and self.finish_reason:
            return
        tokens = [step.id for step in self.steps[:count]]
        del self.ids[self.start :], self.logprobs[count:], self.top_logprobs[count:]
        self.steps, self.finish_reason = [], None
        self._decoder, self._stop = self._tokenizer.decode_stream(), StopStrings(check_stop(self.settings.stop))
        for token in tokens:
            self._append(token, again=True)
        if self.finish_reason is None:
            self.finish_reason = "stop"
            last = self.steps[-1]
            text = last.text + self._stop.feed(self._decoder.flush()) + self._stop.flush()
            self.steps[-1] = replace(last, text=text, finish_reason="stop")

    def generation(self) -> Generation:
        """The text, finished or ended by a function of the caller's or the grammar.  Raises any other error."""
        if self.error is not None and not isinstance(self.error, (GrammarError, ProcessorError)):
            raise self.error
        if self.finish_reason is None and self.error is None:
            raise InputError("the text has not ended yet")
        with_logprobs = self.settings.logprobs is not None
        return Generation(
            text=self.text,
            ids=self.ids[self.start :],
            finish_reason="error" if self.error else self.finish_reason or "error",
            error=self.error,
            prompt_ids=self.ids[: self.start],
            seed=self.seed,
            logprobs=self.logprobs if with_logprobs else None,
            top_logprobs=self.top_logprobs if with_logprobs else None,
            drafted=self.drafted,
            accepted=self.accepted,
        )
