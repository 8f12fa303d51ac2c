"""What distributions over the vocabulary say of log-probabilities: variances, and cross-entropies of two models.

Sums and functions are those of the kernels, so the bits are the same on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.kernels import elementwise

__all__ = ["cross_entropies", "variances"]

_LN2 = 0.6931471805599453

Logits = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]


def variances(logits: Logits) -> Floats:
    """The variance of the log-probability, a natural logarithm, of an id drawn from softmax(row), for each row of
    logits (T, n_vocab): sum p (log p)^2 - (sum p log p)^2, float64 (T,).  A row that is not finite has NaN.

    >>> variances(np.array([[0, 0], [0, np.log(3)]])).round(4)
    array([0.    , 0.2263])
    """
    found = np.full(len(logits), np.nan)
    for i, row in enumerate(np.asarray(logits, np.float64)):
        highest = row.max()
        if np.isfinite(highest):
            # Log-probabilities but for a constant, which a variance does not see.
            values = np.where(row > -np.inf, row - highest, 0.0)
            weights = elementwise.exp(row - highest)
            whole = elementwise.total(weights)
            away = values - elementwise.total(weights * values) / whole
            found[i] = elementwise.total(weights * (away * away)) / whole
    return found


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
