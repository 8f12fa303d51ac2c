"""Cross-entropies of two models' distributions over the vocabulary.

Sums and functions are those of the kernels, so the bits are the same on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.kernels import elementwise

__all__ = ["cross_entropies"]

_LN2 = 0.6931471805599453

Logits = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]


def cross_entropies(x: Logits, y: Logits) -> Floats:
    """-sum p log2 q over the ids, in bits, of p = softmax(x) and q = softmax(y), for each row of logits (T, n_vocab):
    float64 (T,).  Infinite where an id that has a probability in p has none in q; a row that is not finite has NaN.

    >>> cross_entropies(np.zeros((1, 4)), np.array([[0.0, 0, 0, -np.inf]]))
    array([inf])
    >>> cross_entropies(np.zeros((1, 4)), np.zeros((1, 4)))
    array([2.])
    """
    found = np.full(len(x), np.nan)
    for i, (given, seen) in enumerate(zip(np.asarray(x, np.float64), np.asarray(y, np.float64), strict=True)):
        highest = given.max(), seen.max()
        if np.isfinite(highest).all():
            weights = elementwise.exp(given - highest[0])
            logs = seen - highest[1]
            norm = elementwise.log(np.array([elementwise.total(elementwise.exp(logs))]))[0]
            products = np.where(weights > 0, weights, 0.0) * np.where(weights > 0, norm - logs, 0.0)
            found[i] = elementwise.total(products) / elementwise.total(weights) / _LN2
    return found
