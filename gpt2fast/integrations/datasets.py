"""Hugging Face datasets: token ids, or scores, for a dataset's column of text.

    from gpt2fast.integrations.datasets import ScoreExamples, TokenizeExamples

    scored = dataset.map(ScoreExamples("gpt2", dtype="int8"), batched=True)
    good = scored.filter(lambda perplexity: perplexity is not None and perplexity < 200, input_columns="perplexity")
    tokens = dataset.map(TokenizeExamples(eot="append"), batched=True, remove_columns=dataset.column_names)

With `dataset.with_format("arrow")` before `map` no Python objects are made of the texts at all, which is quicker.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt2fast.errors import InputTypeError
from gpt2fast.integrations.column import TextColumn
from gpt2fast.integrations.scores import TextScorer
from gpt2fast.tokenizer.arrow import insert_eot
from gpt2fast.tokenizer.encoding import Tokenizer

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel

__all__ = ["ScoreExamples", "TokenizeExamples"]


class TokenizeExamples(TextColumn):
    """A callable for `datasets.Dataset.map(…, batched=True)`: examples in, their ids out in the column `output`.

    The ids are arrays of uint16 (uint32 where the vocabulary is larger), which datasets keeps as such.  `eot` puts
    end-of-text "append" after or "prepend" before each document.  The tokenizer is GPT-2's unless another is given;
    special tokens in texts are ordinary text.  Pickles to the same bytes each time, so datasets finds its cached
    results again.  Of a dataset in the format "arrow" the batch is a table, and comes back with the ids in the place of
    the text.

    A call raises InputError where there is no such column, and InputTypeError where it holds anything but strings.

    >>> TokenizeExamples(eot="append")({"text": ["hello world", "hi"]})["input_ids"][0].tolist()
    [31373, 995, 50256]
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        field: str = "text",
        output: str = "input_ids",
        eot: str = "none",
        num_threads: int | None = None,
    ) -> None:
        super().__init__(tokenizer, field=field, output=output, eot=eot, num_threads=num_threads)

    def __call__(self, batch: Any) -> Any:
        """The ids of the batch's texts, by the name of their column; of a table, the table with them."""
        if not hasattr(batch, "column_names") and not isinstance(batch, Mapping):
            raise InputTypeError(f"the batch is of type {type(batch).__name__}; expected columns by their names")
        names = list(getattr(batch, "column_names", None) or batch.keys())
        self._check(names)
        texts = batch[self._field]
        if isinstance(texts, str):
            raise InputTypeError("the batch is a single example; say dataset.map(..., batched=True)")
        if hasattr(batch, "column_names"):  # what comes back is the whole of the new dataset
            return batch.drop_columns([self._field]).append_column(self._output, self._ids_of(texts))
        return {self._output: self._encode(list(texts))}

    def _encode(self, texts: list[Any]) -> list[Any]:
        ids, offsets = self._tokenizer.encode_batch_flat(texts, num_threads=self._num_threads)
        if self._eot != "none":
            ids, lengths = insert_eot(ids, np.diff(offsets), self._eot, self._eot_id)
            offsets = np.concatenate(([0], np.cumsum(lengths)))
        return np.split(ids, offsets[1:-1]) if texts else []


class ScoreExamples(TextScorer):
    """A callable for `datasets.Dataset.map(…, batched=True)`: examples in, columns with the scores of their texts out.

    The columns are `tokens`, `log_likelihood` (natural logarithm), `perplexity` and `bits_per_byte`, null where there
    is no text.  `model` is a name or directory that `gpt2fast.load` takes with `options` (dtype, num_threads …), or a
    `LanguageModel`; each process loads it once.  Pickles to the same bytes each time, so datasets finds its cached
    results again.  A dataset in the format "arrow" is to be set to another before.

    A call raises InputError where there is no such column, or one of those names, and InputTypeError where it holds
    anything but strings.

    >>> found = ScoreExamples()({"text": ["Once upon a time", None]})
    >>> found["tokens"], [value and round(value, 2) for value in found["perplexity"]]
    ([4, None], [7.07, None])
    """

    def __init__(self, model: str | Path | LanguageModel = "demo", *, field: str = "text", **options: Any) -> None:
        super().__init__(model, field=field, options=options)

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        """The scores of the batch's texts, by the names of their columns."""
        if hasattr(batch, "column_names"):
            raise InputTypeError("the batch is an Arrow table; score the dataset with_format(None)")
        if not isinstance(batch, Mapping):
            raise InputTypeError(f"the batch is of type {type(batch).__name__}; expected columns by their names")
        self.check(list(batch))
        texts = batch[self._field]
        if isinstance(texts, str):
            raise InputTypeError("the batch is a single example; say dataset.map(..., batched=True)")
        return self.columns(list(texts))
