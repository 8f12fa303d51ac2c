"""What the callables for other tools have in common: texts become columns of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2fast._internal.arguments import listed
from gpt2fast.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel

__all__ = ["SCORE_COLUMNS", "TextScorer"]

#: The columns that a text's score has.
SCORE_COLUMNS = ("tokens", "log_likelihood", "perplexity", "bits_per_byte")


class TextScorer:
    """Scores of texts, by a model that each process loads when it scores its first text.

    `model` is a name or a directory that `gpt2fast.load` takes with `options`, or a `LanguageModel`.  An object pickles
    as the name and the options, to the same bytes each time.
    """

    def __init__(self, model: str | Path | LanguageModel, *, field: str, options: dict[str, Any]) -> None:
        self._model = model
        self._field = field
        self._options = options
        self._loaded: LanguageModel | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    @property
    def lm(self) -> LanguageModel:
        """The model."""
        if not isinstance(self._model, (str, Path)):
            return self._model
        if self._loaded is None:
            from gpt2fast.language_model import load  # where texts are only tokenized, no engine is loaded

            self._loaded = load(self._model, **self._options)
        return self._loaded

    def columns(self, texts: Sequence[Any]) -> dict[str, list[Any]]:
        """The columns of SCORE_COLUMNS for the texts; a text that is None has None in all of them, and an empty one in
        `perplexity` and `bits_per_byte`.  Raises InputTypeError, naming the field, for what is no text."""
        texts = listed("texts", texts, "a column of texts")
        for text in texts:
            if text is not None and not isinstance(text, (str, bytes)):
                raise InputTypeError(f"{self._field!r} holds a {type(text).__name__}; expected str")
        scores = iter(self.lm.score_batch([text for text in texts if text is not None]))
        rows: list[tuple[float | None, ...]] = []
        for text in texts:
            if text is None:
                rows.append((None,) * len(SCORE_COLUMNS))
                continue
            score = next(scores)
            values = (len(score), score.log_likelihood, score.perplexity, score.bits_per_byte)
            rows.append(tuple(None if math.isnan(value) else value for value in values))
        return {name: [row[i] for row in rows] for i, name in enumerate(SCORE_COLUMNS)}

    def check(self, names: Sequence[str]) -> None:
        """Raises InputError where the field is not among the columns of these names, or a column of a score is."""
        names = listed("names", names, "names of columns")
        for name in names:
            if not isinstance(name, str):
                raise InputTypeError(f"names has {name!r:.60}; expected names of columns")
        if self._field not in names:
            raise InputError(f"there is no column {self._field!r}, but {', '.join(map(repr, names))}")
        taken = [name for name in SCORE_COLUMNS if name in names]
        if taken:
            raise InputError(f"there is a column {taken[0]!r} already, which scores have, too; rename it before")
