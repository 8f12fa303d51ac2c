"""datatrove: a filter that keeps documents by their perplexity.

from datatrove.executor import LocalPipelineExecutor
from gpt2fast.integrations.datatrove import PerplexityFilter

LocalPipelineExecutor([reader, PerplexityFilter("gpt2", maximum=200, dtype="int8"), writer]).run()
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2fast._internal.arguments import real_number
from gpt2fast.errors import MissingDependencyError
from gpt2fast.integrations.scores import TextScorer

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel

try:
    from datatrove.pipeline.filters.base_filter import BaseFilter
except ImportError:
    raise MissingDependencyError("this needs the package datatrove: pip install datatrove") from None

__all__ = ["PerplexityFilter"]


class PerplexityFilter(BaseFilter):  # type: ignore[misc]
    """Keeps documents whose perplexity is from `minimum` to `maximum`, and notes `perplexity` and `bits_per_byte` in
    the metadata of all.  An empty document has none and is dropped.

    `model` is a name or directory that `gpt2fast.load` takes with `options` (dtype, num_threads …), or a
    `LanguageModel`; each process loads it when its first document comes.  `exclusion_writer` and `batch_size` are
    datatrove's.

    Raises InputError or InputTypeError for bounds that are no numbers.
    """

    name = "🧮 gpt2fast perplexity"

    def __init__(
        self,
        model: str | Path | LanguageModel = "demo",
        *,
        minimum: float = 0.0,
        maximum: float = math.inf,
        exclusion_writer: Any = None,
        batch_size: int = 64,
        **options: Any,
    ) -> None:
        super().__init__(exclusion_writer, batch_size)
        self.minimum = real_number("minimum", minimum)
        self.maximum = maximum if maximum == math.inf else real_number("maximum", maximum)
        self._scorer = TextScorer(model, field="text", options=options)

    def filter(self, doc: Any) -> bool | tuple[bool, str]:
        """Whether to keep a document, and if not, why."""
        return self.filter_batch([doc])[0]

    def filter_batch(self, batch: Sequence[Any]) -> list[bool | tuple[bool, str]]:
        """The same of several, which is quicker."""
        found = self._scorer.columns([doc.text for doc in batch])
        for doc, perplexity, bits in zip(batch, found["perplexity"], found["bits_per_byte"], strict=True):
            doc.metadata.update(perplexity=perplexity, bits_per_byte=bits)
        return [self._verdict(perplexity) for perplexity in found["perplexity"]]

    def _verdict(self, perplexity: float | None) -> bool | tuple[bool, str]:
        if perplexity is None:
            return False, "empty"
        if perplexity < self.minimum:
            return False, "perplexity_below_minimum"
        return perplexity <= self.maximum or (False, "perplexity_above_maximum")
