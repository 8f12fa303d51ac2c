"""`gpt2fast.sampling`: how one token is chosen from logits.  The code is in `gpt2fast.generation.sampling`."""

from __future__ import annotations

from gpt2fast.generation.sampling import *  # noqa: F403
from gpt2fast.generation.sampling import __all__ as __all__
