"""Documents to rows: what is measured of them, and what a row, or a condition, says of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpt2fast._internal.numerics import numerics_version
from gpt2fast.corpus.condition import Condition
from gpt2fast.corpus.groups import Group
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.score_job import ScoreCounts
from gpt2fast.corpus.tables import VERSION, Column
from gpt2fast.errors import InputError

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel
    from gpt2fast.scoring.score import Score

__all__ = ["KEPT_COLUMNS", "Scoring", "columns_of", "condition_of", "shown"]

#: A document's numbers, with which its row goes on after `file` and `document`.
_NUMBERS: dict[str, tuple[type, Callable[[Score], float]]] = {
    "bytes": (int, lambda score: score.num_bytes),
    "tokens": (int, len),
    "log_likelihood": (float, lambda score: score.log_likelihood),
    "perplexity": (float, lambda score: score.perplexity),
    "bits_per_byte": (float, lambda score: score.bits_per_byte),
}
#: Those that are about who wrote it: Fast-DetectGPT's statistic, and GLTR's shares of likely tokens.
_DETECTION: dict[str, tuple[type, Callable[[Score], float]]] = {
    "variance": (float, lambda score: math.fsum(score.variances) / len(score) if len(score) else math.nan),
    "curvature": (float, lambda score: score.curvature),
    "top_10": (float, lambda score: score.share_within(10)),
    "top_100": (float, lambda score: score.share_within(100)),
    "top_1000": (float, lambda score: score.share_within(1000)),
}
#: The Binoculars score, for which there is a second model.
_BINOCULARS = "binoculars"
_TOKENS: dict[str, tuple[type, Callable[[Score], Any]]] = {
    "ids": (int, lambda score: score.ids.tolist()),
    "log_probabilities": (float, lambda score: score.log_probabilities.tolist()),
    "ranks": (int, lambda score: score.ranks.tolist()),
    "entropies": (float, lambda score: score.entropies.tolist()),
}
_DETECTION_TOKENS: dict[str, tuple[type, Callable[[Score], Any]]] = {
    "variances": (float, lambda score: score.variances.tolist()),
}
#: What is noted of a document that is kept: the number of its file, and that of its record in the file.
KEPT_COLUMNS = [Column("input", int), Column("record", int)]


def columns_of(*, detect: bool, observed: bool, text: bool, tokens: bool) -> list[Column]:
    """The columns of a table, but for that of `numerics_version`."""
    numbers = {**_NUMBERS, **(_DETECTION if detect else {})}
    lists = {**_TOKENS, **(_DETECTION_TOKENS if detect else {})}
    return [
        Column("file", str),
        Column("document", int),
        *(Column(name, type) for name, (type, _) in numbers.items()),
        *[Column(_BINOCULARS, float)] * observed,
        *[Column("text", str)] * text,
        *(Column(name, type, is_list=True) for name, (type, _) in lists.items() if tokens),
    ]


def condition_of(keep: str, *, observed: bool) -> Condition:
    """The condition, on the numbers of columns.  Raises InputError where it is none, or needs an observer."""
    condition = Condition(keep, [*_NUMBERS, *_DETECTION, _BINOCULARS])
    if _BINOCULARS in condition.names and not observed:
        raise InputError(f"the condition {keep!r} asks for binoculars, which two models look through; say the observer")
    return condition


@dataclass(frozen=True)
class Scoring:
    """How documents are scored, and what rows say of them: `wanted` columns, or which meet the condition."""

    lm: LanguageModel
    observer: LanguageModel | None
    wanted: Sequence[Column] | Condition
    #: Those of `LanguageModel.score`.
    options: dict[str, Any]

    @property
    def columns(self) -> Sequence[Column]:
        """The columns of the rows."""
        return KEPT_COLUMNS if isinstance(self.wanted, Condition) else self.wanted

    @property
    def keeps(self) -> bool:
        """Whether rows are those of documents that are kept."""
        return isinstance(self.wanted, Condition)

    def rows(self, source: Input, number: int, group: Group, counts: ScoreCounts) -> list[list[Any]]:
        """The rows of a group of documents of `source`, the input of this number; `counts` grow by the documents."""
        if not group.texts:
            return []
        names = self.wanted.names if isinstance(self.wanted, Condition) else [column.name for column in self.wanted]
        scores = self.lm.score_batch(group.texts, **self.options)
        values: list[dict[str, Callable[[], Any]]] = [
            {name: partial(value, score) for name, (_, value) in _VALUES.items()} for score in scores
        ]
        if self.observer is not None and _BINOCULARS in names:
            from gpt2fast.scoring.detection import binoculars

            found = binoculars(self.lm, self.observer, group.texts, **self.options)
            for one, seen in zip(values, found, strict=True):
                one[_BINOCULARS] = partial(getattr, seen, "ratio")
        rows: list[list[Any]] = []
        for i, (score, numbers) in enumerate(zip(scores, values, strict=True)):
            if not isinstance(self.wanted, Condition):
                row: dict[str, Callable[[], Any]] = {
                    **numbers,
                    **_of_place(source, group.number + i),
                    "text": partial(getattr, score, "text"),
                }
                rows.append([row[column.name]() for column in self.wanted])
            elif self.wanted({name: numbers[name]() for name in names}):
                rows.append([number, group.records[i]])
                counts.kept += 1
            counts.documents += 1
            counts.tokens += len(score)
            counts.text_bytes += score.num_bytes
            counts.log_likelihood += score.log_likelihood
        return rows


_VALUES: dict[str, tuple[type, Callable[[Score], Any]]] = {**_NUMBERS, **_DETECTION, **_TOKENS, **_DETECTION_TOKENS}


def shown(source: Input) -> str:
    """The name of a file in a table.  One that is no UTF-8 would make a table that is none, either."""
    return source.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _of_place(source: Input, number: int) -> dict[str, Callable[[], Any]]:
    return {
        "file": lambda: shown(source),
        "document": lambda: number,
        VERSION: lambda: numerics_version,
    }
