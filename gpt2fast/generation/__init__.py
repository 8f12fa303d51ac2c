"""Texts that go on: settings in, generated texts out.

From the top down:

- `generate`      prompts in, texts out, any number at once
- `beam`          the most probable texts instead of drawn ones
- `speculation`   several tokens proposed, checked in one pass
- `sequence`      one text that grows, a sequence of the scheduler
- `settings`      how tokens are chosen and when a text ends
- `sampling`      penalties and bans, and one id chosen from one row of logits
- `stop_strings`  where a text ends, across the borders of tokens
"""

from __future__ import annotations

from gpt2fast.generation.sequence import FinishReason, Generation, Step
from gpt2fast.generation.settings import Settings

__all__ = ["FinishReason", "Generation", "Settings", "Step"]
