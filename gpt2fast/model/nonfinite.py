"""Where in the network a text's numbers cease to be finite: asked only when its logits are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import NonFiniteError

__all__ = ["located"]

Ids = Sequence[int] | npt.NDArray[np.integer[Any]]


def located(error: NonFiniteError, model: Any, ids: Ids, first: int = 0) -> NonFiniteError:
    """The same error, which now tells where the numbers that the model makes of `ids` are not finite first.

    The text is run again up to one place of the network after another, halving the distance.  Positions are counted
    from 0, the first of `ids` is at `first`.  A model that cannot show what is inside, as on another device, or that
    gives finite numbers now, leaves the error as it was.
    """
    if not hasattr(model, "residual"):
        return error
    ids = np.asarray(ids)
    last = 2 * model.config.n_layer + 1
    # What is not finite stays so on its way through the network: it is added to, and all sums with it are the same.
    low, high = 0, last + 1
    row = -1
    while low < high:
        stage = (low + high) // 2
        broken = ~np.isfinite(model.residual(ids, stage)).all(axis=1)
        if broken.any():
            high, row = stage, int(broken.argmax())
        else:
            low = stage + 1
    if low > last:
        if np.isfinite(model(ids, last_only=True).max()):
            return error
        row = len(ids) - 1
    return NonFiniteError(f"{error}; {_name(low, last)} is not finite first, at position {first + row} (id {ids[row]})")


def _name(stage: int, last: int) -> str:
    if stage == 0:
        return "the embedding (wte + wpe)"
    if stage == last:
        return "the output of the final LayerNorm (ln_f)"
    if stage > last:
        return "the output of the head"
    layer, half = divmod(stage - 1, 2)
    return f"the output of layer {layer}'s {'MLP' if half else 'attention'} (h.{layer}.{'mlp' if half else 'attn'})"
