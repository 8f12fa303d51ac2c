"""Pairs of sentences, one of them good: how often a model finds that one more probable, as BLiMP asks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from statistics import NormalDist
from typing import Any

from gpt2fast._internal.arguments import each, real_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.scoring.items import Scorer

__all__ = ["ComparedPair", "Comparison", "compare"]

#: Pairs that are scored together.
_GROUP = 128


@dataclass(frozen=True)
class ComparedPair:
    """What became of a pair: the log-likelihoods of its sentences, natural logarithms."""

    good: float
    bad: float
    #: What the pair tests, "" where it does not say.
    paradigm: str = ""

    @property
    def correct(self) -> bool:
        """Whether the good sentence is the more probable one; of two that are equally probable neither is."""
        return self.good > self.bad


@dataclass(frozen=True)
class Comparison:
    """What became of pairs of sentences: `accuracy`, and `by_paradigm` that of each paradigm."""

    #: The pairs, in the order in which they came.
    pairs: List[ComparedPair]

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def correct(self) -> int:
        """How many pairs have the more probable sentence where it should be."""
        return sum(pair.correct for pair in self.pairs)

    @property
    def accuracy(self) -> float:
        """The share of them; NaN where there are no pairs."""
        return self.correct / len(self) if self.pairs else math.nan

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Wilson's score interval of the accuracy (Wilson 1927): (0, 1) where there are no pairs.

        Raises InputError for a confidence that is not between 0 and 1.

        >>> low, high = Comparison([ComparedPair(-1.0, -2.0)] * 8 + [ComparedPair(-2.0, -1.0)] * 2).interval()
        >>> round(low, 3), round(high, 3)
        (0.49, 0.943)
        """
        confidence = real_number("confidence", confidence, least=0, most=1)
        if not 0 < confidence < 1:
            raise InputError(f"confidence is {confidence:g}; expected more than 0 and less than 1")
        count = len(self)
        if not count:
            return 0.0, 1.0
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        middle = self.correct + z * z / 2
        reach = z * math.sqrt(self.correct * (count - self.correct) / count + z * z / 4)
        whole = count + z * z
        # Where all pairs agree, one border is exact, whatever rounding makes of it.
        low = (middle - reach) / whole if self.correct else 0.0
        high = (middle + reach) / whole if self.correct < count else 1.0
        return max(low, 0.0), min(high, 1.0)

    def by_paradigm(self) -> dict[str, Comparison]:
        """The comparison of each paradigm's pairs, in the order in which the paradigms came."""
        found: dict[str, list[ComparedPair]] = {}
        for pair in self.pairs:
            found.setdefault(pair.paradigm, []).append(pair)
        return {paradigm: Comparison(pairs) for paradigm, pairs in found.items()}

    def rows(self, confidence: float = 0.95) -> list[dict[str, Any]]:
        """A table, as dicts: for each paradigm, and at the end for all pairs as "all", `paradigm`, `pairs`, `correct`,
        `accuracy`, and the borders `low` and `high` of its confidence interval."""
        found = []
        for name, part in [*((name, part) for name, part in self.by_paradigm().items() if name), ("all", self)]:
            low, high = part.interval(confidence)
            row = {"paradigm": name, "pairs": len(part), "correct": part.correct}
            found.append({**row, "accuracy": part.accuracy, "low": low, "high": high})
        return found

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(row["paradigm"]) for row in rows)
        return "\n".join(
            f"{row['paradigm']:{width}}  {row['correct']:5} of {row['pairs']:5}  {row['accuracy']:6.1%}  "
            f"[{row['low']:.1%}, {row['high']:.1%}]"
            for row in rows
        )


def compare(lm: Scorer, pairs: Iterable[Any], *, by: str = "UID", **options: Any) -> Comparison:
    """Score both sentences of each of `pairs`, whole; see `LanguageModel.compare`, which explains the arguments."""
    found = []
    left = enumerate(each("pairs", pairs, "pairs of sentences"))
    while group := list(islice(left, _GROUP)):
        parts = [_parts(pair, f"pairs[{i}]", by) for i, pair in group]
        scores = iter(lm.score_batch([sentence for good, bad, _ in parts for sentence in (good, bad)], **options))
        found += [
            ComparedPair(next(scores).log_likelihood, next(scores).log_likelihood, paradigm) for _, _, paradigm in parts
        ]
    return Comparison(found)


def _parts(pair: Any, name: str, by: str) -> tuple[str | bytes, str | bytes, str]:
    if isinstance(pair, Mapping):
        for key in ("sentence_good", "sentence_bad"):
            if key not in pair:
                raise InputError(f"{name} has no {key!r}, but {', '.join(map(repr, pair)) or 'nothing'}")
        paradigm = pair.get(by)
        good, bad = pair["sentence_good"], pair["sentence_bad"]
        found: tuple[Any, Any, str] = (good, bad, "" if paradigm is None else str(paradigm))
    elif isinstance(pair, (list, tuple)) and len(pair) == 2:
        found = (*pair, "")
    else:
        raise InputTypeError(f"{name} is {pair!r:.60}; expected a good and a bad sentence")
    for sentence in found[:2]:
        if not isinstance(sentence, (str, bytes)):
            raise InputTypeError(f"{name} has a sentence of type {type(sentence).__name__}; expected str or bytes")
    return found
