"""Where in the network a text's numbers cease to be finite: asked only when its logits are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt2fast.checkpoint.config import Config
from gpt2fast.errors import NonFiniteError

__all__ = ["located", "not_finite"]

Floats = npt.NDArray[np.floating[Any]]
Ids = Sequence[int] | npt.NDArray[np.integer[Any]]


class Model(Protocol):
    """`gpt2fast.GPT2`, as far as it is asked here."""

    @property
    def config(self) -> Config: ...
    def residual(self, ids: npt.ArrayLike, stage: int) -> Floats: ...


def not_finite(logits: Floats) -> NonFiniteError:
    """The error that says what of `logits` (n_vocab,), of which the highest is not finite, is not."""
    nans, infinities = int(np.isnan(logits).sum()), int((logits == np.inf).sum())
    if not nans and not infinities:
        return NonFiniteError(f"the logits are not finite: all {logits.size} are -infinity")
    return NonFiniteError(
        f"the logits are not finite: {nans} of {logits.size} are NaN, {infinities} are infinity; the weights are "
        "damaged or too large for float32"
    )


def located(error: NonFiniteError, model: Model, ids: Ids, first: int, output: int) -> NonFiniteError:
    """The same error, which now tells where the numbers that the model makes of `ids` are not finite first.

    The text is run again up to one place of the network after another, halving the distance.  Positions are counted
    from 0, the first of `ids` is at `first`.  Where all is finite up to the head, its output at `output` is not.
    """
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
        row = output - first
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
