"""How probable a text is, token by token: `score`, sums over words and other `spans`, and the `report` of a score."""

from __future__ import annotations

from gpt2fast.scoring.detection import Binoculars, binoculars
from gpt2fast.scoring.items import word_rows
from gpt2fast.scoring.pairs import ComparedPair, Comparison
from gpt2fast.scoring.score import Score, SpanScore, TokenScore
from gpt2fast.scoring.spans import regions

__all__ = [
    "Binoculars",
    "ComparedPair",
    "Comparison",
    "Score",
    "SpanScore",
    "TokenScore",
    "binoculars",
    "regions",
    "word_rows",
]
