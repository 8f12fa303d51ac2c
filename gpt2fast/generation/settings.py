"""The settings of a generation: how tokens are chosen, and when a text ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gpt2fast._internal.arguments import flag, whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.generation.grammar import Grammar, read_grammar
from gpt2fast.generation.processors import AllowedTokens, LogitsProcessor, StoppingCriterion, functions
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
    #: A function `(ids, logits) -> logits`, or several, called for every token: `ids` int64 (T,) are those of prompt
    #: and text so far, `logits` (n_vocab,) a copy after penalties and bans and before temperature and filters.  What
    #: it returns must depend on nothing else: drafts are tried and taken back.  One that raises ends its own text, with
    #: a ProcessorError that names it.
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] = ()
    #: A function `(prompt, ids) -> ids` to the ids that may follow, as transformers has it; `prompt` is the number of
    #: the prompt in a batch.
    prefix_allowed_tokens_fn: AllowedTokens | None = None
    #: A function `(ids, logits) -> bool`, or several, called after every new token, which is the last of `ids`; where
    #: one returns True the text ends with that token.  `logits` are those that it was chosen from, None for a token
    #: that a grammar left no choice about.
    stopping_criteria: StoppingCriterion | Sequence[StoppingCriterion] = ()
    #: What texts are like, at most one of these, by llguidance (the extra `gpt2fast[grammar]`): a regular expression as
    #: Rust's crate regex has them, for the whole text; a JSON schema, as a dict, as JSON, or a class of pydantic's; a
    #: list of texts of which one is said; a context-free grammar in llguidance's Lark; one in that or in llama.cpp's
    #: GBNF.  A text that ends with "stop" or "eos" is complete; one that ends with "length" is the beginning of one.
    regex: str | None = None
    json_schema: str | Mapping[str, Any] | bool | type | None = None
    choices: Sequence[str] | None = None
    lark: str | None = None
    grammar: str | None = None
    #: A function without arguments that makes a matcher for a text: xgrammar's GrammarMatcher, outlines-core's Guide,
    #: or an object with `fill_next_token_bitmask(bitmask, index)`, which sets bit i % 32 of the int32 bitmask's element
    #: `[index, i // 32]` where id i may follow, `accept_token(id)`, which tells whether it does, and `rollback(count)`.
    token_mask: Callable[[], Any] | None = None
    #: The one of regex, json_schema, choices, lark and grammar that was given, as it was read.
    asked_grammar: Grammar | None = field(default=None, init=False, repr=False)

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
        for name in ("logits_processor", "stopping_criteria"):
            self._set(name, functions(name, getattr(self, name)))
        for name in ("prefix_allowed_tokens_fn", "token_mask"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InputTypeError(f"{name} is of type {type(value).__name__}; expected a callable")
        kinds = ("regex", "json_schema", "choices", "lark", "grammar")
        self._set("asked_grammar", read_grammar(**{name: getattr(self, name) for name in kinds}))
        if self.asked_grammar is not None and self.token_mask is not None:
            raise InputError(f"{self.asked_grammar.kind} and token_mask were given; expected one of them")
        if self.ignore_eos and (self.asked_grammar is not None or self.token_mask is not None):
            name = "token_mask" if self.asked_grammar is None else self.asked_grammar.kind
            raise InputError(f"ignore_eos is set, but {name} says where texts end")

    @property
    def plain(self) -> bool:
        constrained = self.asked_grammar is not None or self.token_mask is not None
        functions = (self.logits_processor, self.stopping_criteria, self.prefix_allowed_tokens_fn)
        return super().plain and not constrained and not any(functions)

    @property
    def forcing(self) -> bool:
        """Whether the one token that a grammar leaves can be taken unasked: none is banned, no function has a say."""
        banned = (self.no_repeat_ngram_size, self.banned_ids, self.banned_sequences)
        return not any((*banned, self.logits_processor, self.prefix_allowed_tokens_fn))

    def _named_ids(self) -> dict[str, Iterable[int]]:
        return {**super()._named_ids(), "stop_token_ids": self.stop_token_ids}
