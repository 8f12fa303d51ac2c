"""Which definition of its arithmetic this version of gpt2fast computes with; docs/how/numerics.md has it."""

from __future__ import annotations

__all__ = ["numerics_version"]

#: Goes up when any bit changes of what `gemm="panel"` gives on a CPU for the same model and input: logits, hidden
#: states, log-probabilities, the texts of seeds, packed weights.
numerics_version = 1
