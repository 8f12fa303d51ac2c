"""Generation: the loop that turns prompts into texts, token by token, for any number of texts at once.

Every text has a row of the model's cache and grows on its own.  A row that has finished is given to the next prompt in
the queue at once, so nothing is padded and nobody waits for the longest.  Samples of one prompt share its computation:
the first one's row is copied.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from gpt2fast.arguments import whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.sampling import Sampling, highest, log_probabilities, random_generator
from gpt2fast.stop_strings import StopStrings, check_stop

__all__ = ["FinishReason", "Generation", "Settings", "Step", "generate", "steps"]

FinishReason = Literal["stop", "eos", "length"]
Prompt = Sequence[int] | npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Settings(Sampling):
    """How texts are generated: how tokens are chosen (see `Sampling`), and when a text ends.

    Raises InputError or InputTypeError, naming the field, where a value makes no sense.
    """

    #: A text ends after this many tokens at the latest; None: at the end of the model's context.
    max_new_tokens: int | None = 60
    #: End-of-text is not chosen before this many tokens.
    min_new_tokens: int = 0
    #: A text ends before the first of these strings, wherever tokens begin and end.
    stop: str | Sequence[str] | None = None
    #: The same seed gives the same text, whatever the batch around it.  None draws one; `Generation.seed` tells it.
    #: A sequence has one for each prompt.
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
        self._set("stop", check_stop(self.stop))
        if isinstance(self.seed, (Sequence, np.ndarray)) and not isinstance(self.seed, (str, bytes)):
            self._set("seed", tuple(whole_number("a seed", seed) for seed in self.seed))
        elif self.seed is not None:
            self._set("seed", whole_number("seed", self.seed))
        if self.logprobs is not None:
            self._set("logprobs", whole_number("logprobs", self.logprobs))
        if self.overflow not in ("stop", "error", "slide"):
            raise InputError(f"overflow is {self.overflow!r}; expected 'stop', 'error' or 'slide'")
        if self.overflow == "slide" and self.max_new_tokens is None:
            raise InputError("max_new_tokens is None and overflow 'slide': such a text might never end")
        self._set("batch_size", whole_number("batch_size", self.batch_size, least=1))


@dataclass(frozen=True, kw_only=True)
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

    def __str__(self) -> str:
        return self.text


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


class _Cache(Protocol):
    @property
    def lengths(self) -> npt.NDArray[np.integer[Any]]: ...
    def truncate(self, row: int, length: int) -> None: ...
    def copy_row(self, source: int, target: int) -> None: ...


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    n: int = 1,
    on_token: Callable[[Step], object] | None = None,
) -> list[list[Generation]]:
    """The `n` texts that continue each of `prompts`, lists of token ids; an empty one starts from end-of-text.

    `on_token` is called with every `Step` as it is made.  Raises InputError, before anything is computed, where a
    prompt has ids outside the vocabulary or does not fit the context, and where the model's logits are not finite.
    """
    texts = _Texts(model, tokenizer, prompts, settings, n)
    for step in texts.run():
        if on_token is not None:
            on_token(step)
    rows = iter(texts.rows)
    return [[next(rows).generation() for _ in range(texts.n)] for _ in prompts]


def steps(model: Any, tokenizer: Any, prompts: Sequence[Prompt], settings: Settings, *, n: int = 1) -> Iterator[Step]:
    """The tokens of the same texts as `generate`'s, one `Step` after the other, as they are made.

    Arguments are checked at the call; errors as in `generate`.
    """
    return _Texts(model, tokenizer, prompts, settings, n).run()


class _Row:
    """One text: its ids so far, its random numbers, its decoder."""

    def __init__(self, texts: _Texts, prompt: int, sample: int, ids: list[int], seed: int) -> None:
        self.texts = texts
        self.prompt = prompt
        self.sample = sample
        self.ids = list(ids)
        self.start = len(ids)
        self.seed = seed
        self.slid = False  # the cache no longer begins with the prompt
        self.finish_reason: FinishReason | None = None
        settings = texts.settings
        self.limit = texts.new_tokens(self.start)
        self.generator = random_generator(seed, sample)
        self.decoder = texts.tokenizer.decode_stream()
        self.stop = StopStrings(check_stop(settings.stop))
        self.pieces: list[str] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[list[tuple[int, float]]] = []

    def holds_prompt_of(self, other: _Row) -> bool:
        """Whether this text's row of the cache begins with the whole prompt of `other`."""
        return self.prompt == other.prompt and len(self.ids) > self.start and not self.slid

    def advance(self, logits: Floats) -> Step:
        """Choose the next token from the logits after the last one."""
        settings, eos = self.texts.settings, self.texts.eos
        count = len(self.ids) - self.start
        banned = [eos] if eos is not None and count < settings.min_new_tokens else ()
        token = settings.choose(logits, self.ids, self.generator, banned=banned)
        if settings.logprobs is not None:
            logarithms = log_probabilities(logits)
            self.logprobs.append(float(logarithms[token]))
            best = highest(logarithms, settings.logprobs) if settings.logprobs else ()
            self.top_logprobs.append([(int(i), float(logarithms[i])) for i in best])
        self.ids.append(token)
        if token == eos:
            text, self.finish_reason = "", "eos"
        else:
            text = self.stop.feed(self.decoder.feed(token))
            if count + 1 == self.limit:
                self.finish_reason = "length"
        if self.finish_reason:
            text += self.stop.feed(self.decoder.flush()) + self.stop.flush()
        if self.stop.found:
            self.finish_reason = "stop"
        self.pieces.append(text)
        return Step(self.prompt, self.sample, token, text, self.finish_reason)

    def generation(self) -> Generation:
        with_logprobs = self.texts.settings.logprobs is not None
        return Generation(
            text="".join(self.pieces),
            ids=self.ids[self.start :],
            finish_reason=cast(FinishReason, self.finish_reason),
            prompt_ids=self.ids[: self.start],
            seed=self.seed,
            logprobs=self.logprobs if with_logprobs else None,
            top_logprobs=self.top_logprobs if with_logprobs else None,
        )


class _Texts:
    """All texts of one call, checked and ready to run."""

    def __init__(self, model: Any, tokenizer: Any, prompts: Sequence[Prompt], settings: Settings, n: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self.n = whole_number("n", n, least=1)
        self.n_ctx: int = model.config.n_ctx
        # A checkpoint's table may be padded beyond the tokenizer's ids: those have no text and are never chosen.
        self.n_vocab: int = min(model.config.vocab_size, tokenizer.n_vocab)
        self.eos = self._end_of_text()
        settings.check_ids(self.n_vocab)
        seeds = self._seeds(len(prompts))
        checked = [
            self._checked(prompt, f"prompts[{i}]" if len(prompts) > 1 else "the prompt")
            for i, prompt in enumerate(prompts)
        ]
        self.rows = [_Row(self, i, sample, ids, seeds[i]) for i, ids in enumerate(checked) for sample in range(self.n)]

    def _end_of_text(self) -> int | None:
        eos: int | None = self.model.config.eos_token_id
        if eos is None and "<|endoftext|>" in self.tokenizer.special_tokens_set:
            eos = self.tokenizer.eot_token
        return eos if eos is not None and eos < self.n_vocab else None

    def _seeds(self, count: int) -> Sequence[int]:
        seed = self.settings.seed
        if seed is None:
            return [secrets.randbits(32) for _ in range(count)]
        if isinstance(seed, int):
            return [seed] * count
        if len(seed) != count:
            raise InputError(f"seed has {len(seed)} seeds; there are {count} prompts")
        return seed

    def _checked(self, prompt: Prompt, name: str) -> list[int]:
        if isinstance(prompt, (str, bytes)) or not isinstance(prompt, (Sequence, np.ndarray)):
            raise InputTypeError(f"{name} is of type {type(prompt).__name__}; expected a list of token ids")
        ids = [whole_number(f"an id of {name}", i) for i in prompt]
        if not ids and self.eos is None:
            raise InputError(
                f"{name} is empty, and neither configuration nor tokenizer has an end-of-text to start from"
            )
        ids = ids or [self.eos]  # type: ignore[list-item]
        vocab_size = self.model.config.vocab_size
        if max(ids) >= vocab_size:
            raise InputError(f"{name} has id {max(ids)}, which is outside the vocabulary of {vocab_size} tokens")
        wanted = (self.settings.max_new_tokens or 1) if self.settings.overflow == "error" else 1
        # The last new token needs no position: nothing is computed from it.
        if self.settings.overflow != "slide" and len(ids) + wanted - 1 > self.n_ctx:
            raise InputError(
                f"{name} has {len(ids)} tokens, and {wanted} new {'is' if wanted == 1 else 'are'} wanted: that takes "
                f"a context of {len(ids) + wanted - 1} tokens; the model's limit is {self.n_ctx}"
            )
        return ids

    def new_tokens(self, prompt_length: int) -> int:
        """How many tokens a text with such a prompt may have at most."""
        room, wanted = self.n_ctx - prompt_length + 1, self.settings.max_new_tokens
        if wanted is None:
            return room
        return wanted if self.settings.overflow == "slide" else min(wanted, room)

    def run(self) -> Iterator[Step]:
        """Generate all texts, token by token."""
        waiting = deque(self.rows)
        count = min(self.settings.batch_size, len(waiting))
        if not count:
            return
        capacity = min(self.n_ctx, max(row.start + row.limit - 1 for row in waiting))
        cache = self.model.new_cache(count, capacity)
        tenants: dict[int, _Row] = {}  # who is in each row of the cache, or was last
        while True:
            pending = {i: self._continue(cache, i, row) for i, row in tenants.items() if not row.finish_reason}
            begun = set()
            # More samples of a prompt wait until the first one's row can be copied.
            while waiting and len(pending) < count and waiting[0].prompt not in begun:
                row = waiting.popleft()
                donor = next((i for i, other in tenants.items() if other.holds_prompt_of(row)), None)
                slot = min((i for i in range(count) if i not in pending), key=lambda i: i == donor)
                if donor is None:
                    begun.add(row.prompt)
                pending[slot] = self._begin(cache, slot, row, donor)
                tenants[slot] = row
            if not pending:
                return
            slots = sorted(pending)
            logits = self.model.extend(cache, slots, [np.array(pending[i], np.int32) for i in slots])
            for i, after in zip(slots, logits, strict=True):
                yield tenants[i].advance(after[: self.n_vocab])

    def _continue(self, cache: _Cache, slot: int, row: _Row) -> list[int]:
        """The ids with which a text goes on in its row of the cache."""
        if cache.lengths[slot] < self.n_ctx:
            return row.ids[-1:]
        cache.truncate(slot, 0)
        row.slid = True
        return row.ids[-max(self.n_ctx // 2, 1) :]

    def _begin(self, cache: _Cache, slot: int, row: _Row, donor: int | None) -> list[int]:
        """The ids with which a new text begins in row `slot` of the cache; the rest of its prompt is there."""
        if donor is None:
            cache.truncate(slot, 0)
            row.slid = row.start > self.n_ctx
            return row.ids[-self.n_ctx :]
        cache.copy_row(donor, slot)
        cache.truncate(slot, row.start - 1)  # the prompt's last token again, for its logits
        return row.ids[-1:]
