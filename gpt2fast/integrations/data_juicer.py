"""Data-Juicer: a filter by perplexity, which once this is imported recipes call `gpt2fast_perplexity_filter`.

process:
  - gpt2fast_perplexity_filter:
      model: gpt2
      max_score: 200
"""

from __future__ import annotations

from typing import Any

from gpt2fast.errors import MissingDependencyError
from gpt2fast.integrations.scores import TextScorer

try:
    from data_juicer.ops.base_op import OPERATORS, Filter
    from data_juicer.utils.constant import Fields, StatsKeys
except ImportError:
    raise MissingDependencyError("this needs the package data_juicer: pip install py-data-juicer") from None

__all__ = ["Gpt2fastPerplexityFilter"]


@OPERATORS.register_module("gpt2fast_perplexity_filter")
class Gpt2fastPerplexityFilter(Filter):  # type: ignore[misc]
    """Keeps samples whose perplexity, the stat `llm_perplexity`, is from `min_score` to `max_score`: Data-Juicer's
    `llm_perplexity_filter` with GPT-2 on a CPU, and like there, a stat that is there is not computed again.  An empty
    text has the perplexity infinity.

    `model` and `model_params` are what `gpt2fast.load` takes; each process loads the model when its first sample comes.
    """

    _batched_op = True

    def __init__(
        self,
        model: str = "demo",
        model_params: dict[str, Any] | None = None,
        min_score: float = 1.0,
        max_score: float = 100.0,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.min_score = min_score
        self.max_score = max_score
        self._scorer = TextScorer(model, field=self.text_key, options=model_params or {})

    def compute_stats_batched(self, samples: Any, *args: Any, **kwargs: Any) -> Any:
        """The samples with the perplexity of each in its stats."""
        stats = samples[Fields.stats]
        left = [i for i, one in enumerate(stats) if StatsKeys.llm_perplexity not in one]
        found = self._scorer.columns([samples[self.text_key][i] for i in left])["perplexity"]
        for i, perplexity in zip(left, found, strict=True):
            stats[i][StatsKeys.llm_perplexity] = float("inf") if perplexity is None else perplexity
        return samples

    def process_batched(self, samples: Any) -> Any:
        """Whether to keep each sample."""
        return [
            self.get_keep_boolean(one[StatsKeys.llm_perplexity], self.min_score, self.max_score)
            for one in samples[Fields.stats]
        ]
