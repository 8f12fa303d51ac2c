"""LayerNorm (Ba, Kiros and Hinton 2016, https://arxiv.org/abs/1607.06450) of rows of activations."""

import numpy as np
import numpy.typing as npt

def layer_norm_rows(
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    epsilon: float,
    *,
    num_threads: int = 1,
) -> npt.NDArray[np.float32]:
    """LayerNorm of each row of x [m, n] as a new float32 array: the kernel alone, for tests and benchmarks."""
