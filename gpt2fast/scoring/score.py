"""Scoring: how probable a text is under the model, token by token.

Each token's logits are looked at where they are made, a few rows at a time, so memory does not grow with the text.
Texts are sequences of a scheduler, which reads what several of them begin with once.

Performance notes (30 November 2026, two cores of a busy AMD EPYC, medians):
- 64 texts of 9 tokens, demo model: 318 ms together, 797 ms one by one.
- Four continuations of a context of 397 tokens, demo model: 318 ms together, 759 ms one by one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import flag, listed, whole_number
from gpt2fast.errors import InputError, InputTypeError, NonFiniteError
from gpt2fast.kernels import elementwise
from gpt2fast.model.pairing import Configured, beginning, ending, shared_vocabulary
from gpt2fast.scheduler import LOGITS, Measures, Model, Need, Scheduler, Sequence
from gpt2fast.scoring.later import Later
from gpt2fast.scoring.notebook import render_fragment
from gpt2fast.scoring.spans import Punctuation, Span, tokens_of_spans, words
from gpt2fast.scoring.texts import Scorable, as_scorable, text_of_ids
from gpt2fast.scoring.word_starts import (
    BowCorrection,
    Starts,
    bow_kind,
    corrections,
    log_shares,
    word_starting_ids,
)
from gpt2fast.tokenizer.encoding import Tokenizer
from gpt2fast.tokenizer.special import allowed_by

__all__ = [
    "Score",
    "ScoredSequence",
    "ScoredText",
    "SpanScore",
    "TokenScore",
    "measured",
    "score_choices",
    "score_sequences",
    "score_texts",
]

_LN2 = 0.6931471805599453  # of C libraries' logarithms not all are the same

# Texts that are read together: short ones as many as may fill a step, long ones as many as the cache has room for by so
# many tokens, at least a few: its address space is reserved, though memory comes as needed.
_SLOTS = 128
_CACHED = 16384
_FEWEST = 16
# Tokens that stay in the cache after their text was measured, besides one text's: all that a step may have ended.
_KEPT = 256

S = TypeVar("S", bound=Sequence)

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenScore:
    """One token of a scored text."""

    id: int
    #: Its part of the text; a character that it shares with the next token is in both.
    text: str | bytes
    #: Where it is in the text: from this character (of bytes: byte) to before that one.
    span: tuple[int, int]
    #: The natural logarithm of its probability after everything before it.
    log_probability: float
    #: How many tokens were more probable, plus one.
    rank: int
    #: The entropy of the distribution that it came from, in bits: how open the choice was.
    entropy: float
    #: The surprisal in bits, -log2 of the probability.  A field, so that tables made of tokens have it.
    surprisal: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "surprisal", -self.log_probability / _LN2)


@dataclass(frozen=True)
class SpanScore:
    """A word, or another part of a scored text."""

    text: str | bytes
    #: Where it is in the text: from this character (of bytes: byte) to before that one.
    span: tuple[int, int]
    #: The sum of its tokens' log-probabilities, natural logarithms; corrected where that was asked for.
    log_probability: float
    #: How many tokens count to it.
    num_tokens: int
    #: Whether these tokens and the span have the same borders, white space aside.  Where not, a token counts whole to
    #: the span that it begins in.
    exact: bool
    #: The entropy, in bits, of the distribution that its first token came from: how open the choice was before it; NaN
    #: where no token counts to it.
    entropy: float
    #: How many tokens were more probable than its first one, plus one; 0 where no token counts to it.
    rank: int
    #: The surprisal in bits, -log2 of the probability.
    surprisal: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "surprisal", -self.log_probability / _LN2)


@dataclass(frozen=True, eq=False)
class Score:
    """A scored text: arrays with a value for each of its T tokens, and what they amount to."""

    #: The text, as it was given.
    text: str | bytes
    #: The token ids, int64 (T,).
    ids: Ids
    #: From which character (of bytes: byte) to before which each token goes, int64 (T, 2).
    spans: Ids
    #: Natural logarithms of the tokens' probabilities, each after everything before it, float64 (T,).
    log_probabilities: Floats
    #: How many tokens were more probable, plus one, int64 (T,).
    ranks: Ids
    #: Entropies of the distributions that the tokens came from, in bits, float64 (T,).
    entropies: Floats
    #: Variances of the log-probability (a natural logarithm) of a token drawn from these distributions, float64 (T,).
    variances: Floats
    #: How probable it is between its tokens that a word begins: read when it is needed.
    _starts: Callable[[], Starts] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_starts": None}  # the model stays where it is

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return (
            f"<Score of {len(self)} tokens: perplexity {self.perplexity:.4g}, {self.bits_per_byte:.4g} bits per byte>"
        )

    def _repr_html_(self) -> str:
        return render_fragment(((token.text, token.surprisal) for token in self.tokens), repr(self).strip("<>"))

    @property
    def surprisal(self) -> Floats:
        """The surprisals in bits, float64 (T,): -log2 of the probabilities."""
        return self.log_probabilities / -_LN2

    @cached_property
    def log_likelihood(self) -> float:
        """The natural logarithm of the whole text's probability."""
        return math.fsum(chain.from_iterable(_slices(self.log_probabilities)))

    @property
    def perplexity(self) -> float:
        """e to the mean negative log-probability of a token; NaN for an empty text."""
        if not len(self):
            return math.nan
        return float(elementwise.exp(np.array(-self.log_likelihood / len(self))))

    @property
    def bits_per_byte(self) -> float:
        """The surprisal of the text over its length in UTF-8, which compares models of different tokenizers; NaN for an
        empty text."""
        return -self.log_likelihood / _LN2 / self.num_bytes if self.num_bytes else math.nan

    @property
    def curvature(self) -> float:
        """Fast-DetectGPT's statistic: how much more probable the text is than what the model itself would draw in its
        place, in standard deviations.  High where the text is likely to be a model's.

        With p_t the distribution that token x_t came from, mu_t = sum_v p_t(v) log p_t(v), which is minus the entropy,
        and sigma_t^2 = sum_v p_t(v) (log p_t(v))^2 - mu_t^2, one of the `variances`:

            curvature = sum_t (log p_t(x_t) - mu_t) / sqrt(sum_t sigma_t^2)

        the analytic form of the conditional probability curvature, with one model for sampling and scoring: Bao et al.
        2024, "Fast-DetectGPT", arXiv:2310.05130.  NaN for an empty text, and where the model left no choice.

        >>> import gpt2fast
        >>> lm = gpt2fast.load("demo")
        >>> texts = [lm.generate("Once upon a time", seed=1).text, "He bought a second-hand laptop online."]
        >>> [round(score.curvature, 1) for score in lm.score_batch(texts)]
        [3.4, -3.2]
        """
        spread = math.fsum(self.variances)
        if not spread:
            return math.nan
        return (self.log_likelihood + math.fsum(self.entropies) * _LN2) / math.sqrt(spread)

    def share_within(self, rank: int) -> float:
        """The share of tokens that were among the `rank` likeliest; NaN for an empty text.

        With the ranks 10, 100 and 1000 these are the buckets of GLTR: text that a model wrote has few tokens beyond
        them.  Gehrmann et al. 2019, "GLTR: Statistical Detection and Visualization of Generated Text",
        arXiv:1906.04043.  Raises InputError for a rank below 1.

        >>> import gpt2fast
        >>> score = gpt2fast.load("demo").score("Once upon a time there was a philosopher.")
        >>> [round(score.share_within(rank), 2) for rank in (10, 100, 1000)]
        [0.71, 0.93, 1.0]
        """
        rank = whole_number("rank", rank, least=1)
        return float(np.count_nonzero(self.ranks <= rank) / len(self)) if len(self) else math.nan

    @cached_property
    def num_bytes(self) -> int:
        """The length of the text in bytes, of str in UTF-8."""
        return len(self.text.encode()) if isinstance(self.text, str) else len(self.text)

    @property
    def num_characters(self) -> int:
        """The length of the text in characters; of bytes, how many bytes do not continue a character of UTF-8."""
        return len(self.text) if isinstance(self.text, str) else sum(byte & 0xC0 != 0x80 for byte in self.text)

    @property
    def is_greedy(self) -> bool:
        """Whether no token had a more probable one beside it: greedy generation could have written this text."""
        return bool((self.ranks == 1).all())

    def by_word(
        self, punctuation: Punctuation = "attached", *, bow_correction: BowCorrection = False
    ) -> list[SpanScore]:
        """The surprisals of words, which are what white space separates: a `SpanScore` for each.

        A word's surprisal includes that of the space before it, which is a part of its first token; white space after
        the last word counts to none.  Punctuation is "attached" to its word, or "separate": then it is an item of its
        own at a word's beginning or end, and stays inside a word as in "don't".

        With `bow_correction` these are probabilities of words, not of their tokens: that the word ends belongs to it,
        and that one begins, which the space of its first token says, to the word before.  True is the definition of
        Pimentel and Meister 2024 (arXiv:2406.14561), as in their package wordsprobability; "minicons" that of minicons,
        which leaves the first word as it is and does not count the end of the text as the end of a word.  Both find
        borders by the space before a token: at other white space, as between lines, there is no correction.  The text
        is read once more for it.  Raises InputError for another value, and where the score was unpickled and so knows
        no model.

        >>> import gpt2fast
        >>> score = gpt2fast.load("demo").score("Once upon a time, there was a king.")
        >>> [(word.text, round(word.surprisal, 1)) for word in score.by_word()][3:]
        [('time,', 5.7), ('there', 4.3), ('was', 1.7), ('a', 1.1), ('king.', 11.6)]
        >>> [word.text for word in score.by_word("separate")][-2:]
        ['king', '.']
        >>> [(word.text, round(word.surprisal, 1)) for word in score.by_word(bow_correction=True)][3:]
        [('time,', 5.7), ('there', 4.4), ('was', 1.7), ('a', 1.2), ('king.', 12.0)]
        """
        return self.by_spans(words(self.text, punctuation), bow_correction=bow_correction)

    def by_spans(self, spans: List[Span], *, bow_correction: BowCorrection = False) -> list[SpanScore]:
        """The surprisals of parts of the text, given as (start, end) in characters, of bytes in bytes: a `SpanScore`
        for each, sentences, regions of interest or another tokenizer's words.

        A token counts, whole, to the span that holds its first character that is not white space; a token of white
        space alone goes with the one that follows.  Where a token crosses a span's border, `exact` is False.  Raises
        InputTypeError or InputError for what is no span of the text.

        >>> import gpt2fast
        >>> score = gpt2fast.load("demo").score("Once upon a time there was a king.")
        >>> [(part.text, part.num_tokens, part.exact) for part in score.by_spans([(0, 16), (17, 33)])]
        [('Once upon a time', 4, True), ('there was a king', 4, True)]
        """
        spans = listed("spans", spans, "pairs of a start and an end")
        values = self.log_probabilities
        kind = bow_kind(bow_correction)
        if kind:
            if self._starts is None:
                raise InputError(
                    "bow_correction needs the model, which an unpickled score has not; score the text again"
                )
            values = values + corrections(self._starts(), kind)
        return [
            SpanScore(
                self.text[start:end],
                (start, end),
                math.fsum(values[first:last]),
                last - first,
                exact,
                entropy=float(self.entropies[first]) if last > first else math.nan,
                rank=int(self.ranks[first]) if last > first else 0,
            )
            for (start, end), (first, last, exact) in zip(
                spans, tokens_of_spans(self.text, self.spans, spans), strict=True
            )
        ]

    def starts(self) -> Starts:
        """How probable it is before and after each token that a word begins, for which the text is read once more.

        Raises InputError where the score was unpickled, and so knows no model.
        """
        if self._starts is None:
            raise InputError("bow_correction needs the model, which an unpickled score has not; score the text again")
        return self._starts()

    @property
    def tokens(self) -> list[TokenScore]:
        """The same, token by token."""
        return [
            TokenScore(id, self.text[start:end], (start, end), log_probability, rank, entropy)
            for id, (start, end), log_probability, rank, entropy in zip(
                self.ids.tolist(),
                self.spans.tolist(),
                self.log_probabilities.tolist(),
                self.ranks.tolist(),
                self.entropies.tolist(),
                strict=True,
            )
        ]


def score_texts(
    model: Model,
    tokenizer: Tokenizer,
    texts: List[Scorable],
    *,
    context: Scorable = "",
    stride: int | None = None,
    bos: bool = True,
    eos: bool = False,
    allow_special: bool = False,
) -> list[Score]:
    """The scores of `texts`, in their order, each after `context`, and that after the token that begins texts.

    A text, and the context, may also be given as token ids.

    White space at the context's end goes to the texts, as GPT-2's tokens carry the space before a word.  Without `bos`
    there is no token that begins texts; where there is no context either, a text's first token comes after nothing, has
    no probability, and is left out of its score.  With `eos` the token that ends texts comes after each text and is
    scored with it, as a token without characters.  With `allow_special` special tokens in the texts and the context are
    these tokens, else text.

    A text beyond the model's context is read in windows, each `stride` tokens further on than the last one (default:
    half the context), so that every token sees at least the context less `stride` tokens before it.

    Raises InputTypeError for what is no text, and InputError where a text cannot be scored: a lone surrogate, no
    token to begin with, logits that are not finite.
    """
    scored = score_sequences(
        model, tokenizer, texts, context=context, stride=stride, bos=bos, eos=eos, allow_special=allow_special
    )
    sequences = [text.sequence for text in scored]
    for _ in measured(model, shared_vocabulary(model, tokenizer), [sequences]):
        pass
    of_text = bos and not len(context)
    starts = Later(partial(_read_starts, model, tokenizer, sequences, of_text=of_text))
    return [replace(text.score(), _starts=starts.of(i)) for i, text in enumerate(scored)]


def _read_starts(model: Model, tokenizer: Tokenizer, sequences: List[ScoredSequence], *, of_text: bool) -> list[Starts]:
    """The `Starts` of texts that were scored, which are read once more; `of_text`, where they come after nothing."""
    starting, end = word_starting_ids(tokenizer), ending(model, tokenizer)
    n_vocab = shared_vocabulary(model, tokenizer)
    groups = [starting[starting < n_vocab], np.array([] if end is None else [end], np.int64)]
    reading = [StartsSequence(sequence, groups, n_ctx=model.config.n_ctx) for sequence in sequences]
    for _ in measured(model, n_vocab, [reading]):
        pass
    return [
        Starts(one.shares, np.isin(sequence.targets, starting), np.isin(sequence.targets, groups[1]), of_text)
        for one, sequence in zip(reading, sequences, strict=True)
    ]


def measured(model: Model, n_vocab: int, groups: Iterable[List[S]]) -> Iterator[S]:
    """Have a scheduler read the sequences, and give each one that was not complete as soon as it is.

    The sequences of a group begin alike, and what they share is read once; neighbouring groups share what they can.
    Groups enter in their order, as slots become free.  Raises the error of a sequence that fails.
    """
    queue = deque(filter(None, ([one for one in group if not one.complete] for group in groups)))
    lengths = [len(sequence.ids) for group in queue for sequence in group]
    if not lengths:
        return
    capacity = min(model.config.n_ctx, max(lengths))
    slots = min(len(lengths), max(min(_CACHED // capacity, _SLOTS), _FEWEST))
    # The others of a group enter after the step that ended its beginning, which until then must be kept.
    kept = 1 + -(-_KEPT // capacity)
    scheduler: Scheduler[S] = Scheduler(model, n_vocab=n_vocab, slots=kept, background=slots, capacity=capacity)
    left = len(lengths)
    while left:
        while queue and scheduler.running + scheduler.waiting < slots:
            scheduler.add(*queue.popleft())
        for sequence in scheduler.step():
            if sequence.error is not None:
                raise sequence.error
            if sequence.finished:
                left -= 1
                yield sequence


def score_choices(
    model: Model,
    tokenizer: Tokenizer,
    context: str | bytes,
    choices: List[str | bytes],
    *,
    bos: bool = True,
    allow_special: bool = False,
) -> list[Score]:
    """The scores of `choices` as continuations of `context`, in their order; see `score_texts`, which raises the same.

    An empty context without `bos` is the token that begins texts all the same: a choice is scored whole.
    """
    _checked(context, "context")
    choices, bos = listed("choices", choices, "a list of texts"), flag("bos", bos)
    for i, choice in enumerate(choices):
        if type(_checked(choice, f"choices[{i}]")) is not type(context):
            raise InputTypeError(
                f"choices[{i}] is of type {type(choice).__name__}, context of type {type(context).__name__}"
            )
        if not choice:
            raise InputError(f"choices[{i}] is empty")
    bos = bos or not context.strip()
    return score_texts(model, tokenizer, choices, context=context, bos=bos, allow_special=allow_special)


def _after(space: Any, text: str | bytes) -> Any:
    """The text with the white space before it; an empty one stays so."""
    if not text or not space:
        return text
    if isinstance(text, str):
        return (space if isinstance(space, str) else space.decode()) + text
    return (space.encode() if isinstance(space, str) else space) + text


class ScoredSequence(Sequence):
    """A text that is scored: `ids` (T,) from place `first` on, each after all before it.

    A text beyond the model's context is read in windows, each of which goes on `stride` tokens further than the last.
    """

    background = True

    def __init__(self, ids: list[int], first: int, *, n_ctx: int, stride: int) -> None:
        # Nothing comes of what is after the last id.
        super().__init__(ids[:-1])
        #: The ids that are measured.
        self.targets = ids[first:]
        #: What comes before them is read only.
        self.first = first
        #: How far windows go on.
        self.stride = stride
        self._done = 0
        self._parts: list[Floats] = []
        self.dropped = self._window(n_ctx)

    @property
    def next_output(self) -> int:
        """The place of the last id before the next one to be measured."""
        return self.first - 1 + self._done

    @property
    def complete(self) -> bool:
        """Whether all ids are measured."""
        return self._done == len(self.targets)

    @property
    def log_probabilities(self) -> Floats:
        """The natural logarithms of the probabilities of the ids so far, float64 (n,)."""
        return self.measures[:, 0]

    @property
    def ranks(self) -> Ids:
        """How many ids were more probable than each of the ids so far, plus one, int64 (n,)."""
        return self.measures[:, 1].astype(np.int64)

    @property
    def measures(self) -> Floats:
        """The measures of the ids so far: float64 (n, 4), as `gpt2fast.model.outputs.measures` says."""
        return np.concatenate([np.empty((0, 4)), *self._parts])

    def need(self, start: int, stop: int) -> Need:
        return Measures(self.targets[start - self.first + 1 : stop - self.first + 1])

    def take(self, values: Any) -> None:
        broken = np.isnan(values[:, 0])
        if broken.any():
            self._done += int(broken.argmax())
            raise NonFiniteError("the logits are not finite")
        self._parts.append(values)
        self._done += len(values)

    def slide(self, n_ctx: int) -> None:
        self.dropped = self._window(n_ctx)

    def _window(self, n_ctx: int) -> int:
        """How many of the first ids the window that goes on from the next output leaves out."""
        end = min(max(n_ctx, self.next_output + self.stride), len(self.ids))
        return max(end - n_ctx, 0)


class StartsSequence(ScoredSequence):
    """A text that was scored, read for the `shares` of groups of ids before each of its tokens and after the last."""

    def __init__(self, scored: ScoredSequence, groups: List[Ids], *, n_ctx: int) -> None:
        ids = scored.ids[: scored.first] + scored.targets
        # Any id will do behind the last one: it is not read, and nobody asks for its probability.
        super().__init__([*ids, 0], scored.first, n_ctx=n_ctx, stride=scored.stride)
        self._groups = groups

    @property
    def shares(self) -> Floats:
        """The logarithms of the groups' probabilities, float64 (n, groups)."""
        return np.concatenate([np.empty((0, len(self._groups))), *self._parts])

    def need(self, start: int, stop: int) -> Need:
        return LOGITS

    def take(self, values: Any) -> None:
        shares = log_shares(values, self._groups)
        if np.isnan(shares).any():
            raise NonFiniteError("the logits are not finite")
        self._parts.append(shares)
        self._done += len(shares)


def score_sequences(
    model: Configured,
    tokenizer: Tokenizer,
    texts: List[Scorable],
    *,
    context: Scorable = "",
    stride: int | None = None,
    bos: bool = True,
    eos: bool = False,
    allow_special: bool = False,
) -> list[ScoredText]:
    """What `score_texts` has a scheduler read, one for each of `texts`.  Arguments and errors are the same."""
    n_ctx = model.config.n_ctx
    stride = max(n_ctx // 2, 1) if stride is None else whole_number("stride", stride, least=1)
    if stride > n_ctx:
        raise InputError(f"stride is {stride}; the model's context is {n_ctx} tokens")
    bos, eos = flag("bos", bos), flag("eos", eos)
    allowed = allowed_by(allow_special)

    def encoded(text: str | bytes) -> list[int]:
        return _listed(tokenizer.encode_to_numpy(text, allowed_special=allowed, disallowed_special=()))

    before = as_scorable(context, "context")
    stem = before if isinstance(before, list) else before.rstrip()
    space: Any = before[len(stem) :]
    begin = stem if isinstance(stem, list) else encoded(stem)
    if bos:
        first = beginning(model, tokenizer)
        if first is None:
            raise InputError(
                "neither configuration nor tokenizer has a bos or end-of-text for a text to come after; bos=False "
                "scores without one"
            )
        begin = [first, *begin]
    end = ending(model, tokenizer) if eos else None
    if eos and end is None:
        raise InputError("neither configuration nor tokenizer has a token that ends texts; eos=False scores without it")
    n_vocab = shared_vocabulary(model, tokenizer)
    in_context = max(begin, default=0)
    found = []
    for i, given in enumerate(listed("texts", texts, "a list of texts")):
        text = as_scorable(given, f"texts[{i}]")
        read = begin
        if isinstance(text, list):
            numbers = text
            _check_highest(max(numbers, default=0), n_vocab, f"texts[{i}]")
            text, pairs = text_of_ids(tokenizer, numbers)
            ids, spans = np.array(numbers, np.uint32), np.array(pairs, np.int64).reshape(-1, 2)
            if numbers and space:
                read = begin + encoded(space)
        else:
            text = _after(space, text)
            ids, spans = tokenizer.encode_with_offsets_flat(text, allowed_special=allowed)
        if end is not None:
            ids = np.append(ids, np.uint32(end))
            spans = np.concatenate([spans, np.full((1, 2), len(text), np.int64)])
        _check_highest(max(in_context, int(ids.max(initial=0))), n_vocab, f"texts[{i}]")
        # What comes after nothing cannot be measured.
        unscored = 0 if read else 1
        scored = ScoredSequence(read + _listed(ids), len(read) + unscored, n_ctx=n_ctx, stride=stride)
        found.append(ScoredText(text, ids[unscored:], spans[unscored:], scored))
    return found


def _check_highest(token: int, n_vocab: int, name: str) -> None:
    if token >= n_vocab:
        raise InputError(f"{name} has token {token}; the model's vocabulary has {n_vocab} tokens")


def _slices(numbers: npt.NDArray[Any]) -> Iterator[list[Any]]:
    """The numbers in lists of thousands: none of them is so long that other threads would notice its making."""
    return (numbers[start : start + 4096].tolist() for start in range(0, len(numbers), 4096))


def _listed(numbers: npt.NDArray[Any]) -> list[Any]:
    return list(chain.from_iterable(_slices(numbers)))


class ScoredText(NamedTuple):
    """A text, its tokens, and the sequence that measures them."""

    text: str | bytes
    ids: npt.NDArray[np.uint32]
    spans: Ids
    sequence: ScoredSequence

    def score(self) -> Score:
        """The score, once the sequence is complete."""
        measures = self.sequence.measures
        return Score(
            text=self.text,
            ids=self.ids.astype(np.int64),
            spans=self.spans,
            log_probabilities=measures[:, 0],
            ranks=measures[:, 1].astype(np.int64),
            entropies=measures[:, 2],
            variances=measures[:, 3],
        )


def _checked(text: Any, name: str) -> str | bytes:
    if not isinstance(text, (str, bytes)):
        raise InputTypeError(f"{name} is of type {type(text).__name__}; expected str or bytes")
    return text
