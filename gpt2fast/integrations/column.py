"""What the callables for other tools have in common: a column of texts becomes one of token ids."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpt2fast.errors import InputError
from gpt2fast.tokenizer.arrow import eot_of, tokenize_column
from gpt2fast.tokenizer.encoding import Tokenizer, get_encoding

__all__ = ["TextColumn"]


class TextColumn:
    """The column `field` of texts, and how it becomes the column `output` of ids.

    Raises InputError for an unknown `eot`, or one that the tokenizer, GPT-2's unless another is given, has not.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, *, field: str, output: str, eot: str, num_threads: int | None
    ) -> None:
        self._tokenizer = get_encoding() if tokenizer is None else tokenizer
        self._field = field
        self._output = output
        self._eot = eot
        self._eot_id = eot_of(self._tokenizer, eot)
        self._num_threads = num_threads

    def _check(self, names: Collection[str]) -> None:
        """Raises InputError where the column is not among those of these names."""
        if self._field not in names:
            raise InputError(f"there is no column {self._field!r}, but {', '.join(map(repr, names))}")

    def _ids_of(self, column: Any) -> Any:
        """The ids of an Arrow column of texts, likewise a column."""
        return tokenize_column(column, self._tokenizer, eot=self._eot, num_threads=self._num_threads, name=self._field)
