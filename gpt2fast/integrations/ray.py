"""Ray Data: token ids, or scores, for a dataset's column of text.

import ray
from gpt2fast.integrations.ray import ScoreBatches, TokenizeBatches

dataset = ray.data.read_parquet("corpus/")
tokens = dataset.map_batches(TokenizeBatches(eot="append"), batch_format="pyarrow")
tokens.write_parquet("tokens/")
scored = dataset.map_batches(ScoreBatches("gpt2", dtype="int8"), batch_format="pyarrow")
scored.write_parquet("scored/")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2fast.errors import InputTypeError
from gpt2fast.integrations.column import TextColumn
from gpt2fast.integrations.scores import TextScorer
from gpt2fast.tokenizer.encoding import Tokenizer

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel

__all__ = ["ScoreBatches", "TokenizeBatches"]


class TokenizeBatches(TextColumn):
    """A callable for `ray.data.Dataset.map_batches(…, batch_format="pyarrow")`: an Arrow table in, an Arrow table out.

    The column `field` of strings gives way to the column `output` of list<uint16> (uint32 where the vocabulary is
    larger); with `keep_text` it stays, too.  Nothing is copied on the way in or out, and no Python objects are made of
    the texts.  `eot` puts end-of-text "append" after or "prepend" before each document.  The tokenizer is GPT-2's
    unless another is given; special tokens in texts are ordinary text.  A null stays null.

    An object can be handed to Ray as it is (it is small, and the tokenizer is made once in each worker process), or the
    class with `fn_constructor_kwargs`, for actors.  Ray runs a task per processor, hence `num_threads` 1.

    A call raises InputTypeError where the batch is no Arrow table, or the column holds no strings, and InputError where
    there is no such column.

    >>> import pyarrow
    >>> table = pyarrow.table({"id": [1, 2], "text": ["hello world", "hi"]})
    >>> TokenizeBatches(eot="append")(table).to_pydict()
    {'id': [1, 2], 'input_ids': [[31373, 995, 50256], [5303, 50256]]}
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        field: str = "text",
        output: str = "input_ids",
        eot: str = "none",
        keep_text: bool = False,
        num_threads: int | None = 1,
    ) -> None:
        super().__init__(tokenizer, field=field, output=output, eot=eot, num_threads=num_threads)
        self._keep_text = keep_text

    def __call__(self, batch: Any) -> Any:
        """The batch with the ids of its texts."""
        _check_table(batch)
        self._check(batch.column_names)
        ids = self._ids_of(batch[self._field])
        if not self._keep_text:
            batch = batch.drop_columns([self._field])
        if self._output in batch.column_names:
            return batch.set_column(batch.column_names.index(self._output), self._output, ids)
        return batch.append_column(self._output, ids)


class ScoreBatches(TextScorer):
    """A callable for `ray.data.Dataset.map_batches(…, batch_format="pyarrow")`: an Arrow table in, the same table with
    the scores of its texts out.

    The columns that are added are `tokens`, `log_likelihood` (natural logarithm), `perplexity` and `bits_per_byte`,
    null where there is no text.  `model` is a name or directory that `gpt2fast.load` takes with `options` (dtype …), or
    a `LanguageModel`; each worker loads it once.  Ray runs a task per processor, hence `num_threads` 1.

    A call raises InputTypeError where the batch is no Arrow table, or the column holds no strings, and InputError where
    there is no such column, or one of those names.

    >>> import pyarrow
    >>> table = ScoreBatches()(pyarrow.table({"id": [1, 2], "text": ["Once upon a time", None]}))
    >>> table.column_names, table["tokens"].to_pylist()
    (['id', 'text', 'tokens', 'log_likelihood', 'perplexity', 'bits_per_byte'], [4, None])
    """

    def __init__(
        self,
        model: str | Path | LanguageModel = "demo",
        *,
        field: str = "text",
        num_threads: int | None = 1,
        **options: Any,
    ) -> None:
        super().__init__(model, field=field, options={"num_threads": num_threads, **options})

    def __call__(self, batch: Any) -> Any:
        """The batch with the scores of its texts."""
        import pyarrow as pa

        _check_table(batch)
        self.check(batch.column_names)
        types = (pa.int64(), pa.float64(), pa.float64(), pa.float64())
        for (name, values), type in zip(self.columns(batch[self._field].to_pylist()).items(), types, strict=True):
            batch = batch.append_column(name, pa.array(values, type))
        return batch


def _check_table(batch: Any) -> None:
    import pyarrow as pa

    if not isinstance(batch, pa.Table):
        raise InputTypeError(
            f"the batch is of type {type(batch).__name__}; expected an Arrow table: "
            'dataset.map_batches(..., batch_format="pyarrow")'
        )
