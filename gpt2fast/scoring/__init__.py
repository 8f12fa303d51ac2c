"""How probable a text is, token by token: `score`, sums over words and other `spans`, and the `report` of a score."""

from __future__ import annotations

from gpt2fast.scoring.score import Score, SpanScore, TokenScore

__all__ = ["Score", "SpanScore", "TokenScore"]
