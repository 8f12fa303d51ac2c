"""exp, log, erf and sums of arrays, and the measures of rows of logits: the same bits on every processor."""

from typing import Any

import numpy as np
import numpy.typing as npt

def exp(x: npt.ArrayLike, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """e to the power of each value of x, an array of float64 or float32, as a new array or in `out`, which may be x."""

def log(x: npt.ArrayLike, out: npt.NDArray[np.float64] | None = None) -> npt.NDArray[np.float64]:
    """The natural logarithm of each value of x, an array of float64, as a new array or in `out`, which may be x."""

def erf(x: npt.ArrayLike, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """The error function of each value of x, an array of float32, as a new array or in `out`, which may be x."""

def total(x: npt.NDArray[np.float64]) -> float:
    """The sum of the float64 values x (n,), a float: in 16 lanes, of which lane j adds x[j], x[j + 16] … in order."""

def measures(
    logits: npt.NDArray[np.float32], targets: npt.NDArray[np.int64], *, num_threads: int = 1
) -> npt.NDArray[np.float64]:
    """What each row of logits says about its target: float64 (T, 4), the target's log-probability (a natural
    logarithm), its rank (how many logits are higher, plus one), the entropy of the row's softmax in bits, and the
    variance of the log-probability (a natural logarithm) of what is drawn from that softmax."""
