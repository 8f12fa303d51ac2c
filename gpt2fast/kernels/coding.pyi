"""Range coding of tokens by the frequencies that a row of logits gives them, and CRC-32C."""

from typing import final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

@final
class Encoder:
    """Tokens in, bytes out."""

    def __init__(self) -> None: ...
    def __len__(self) -> int:
        """How many bytes have been written so far; those of the last tokens are still to come."""

    def encode(self, logits: npt.NDArray[np.float32], ids: npt.NDArray[np.int64], *, num_threads: int = 1) -> int:
        """Write `ids` (T,), each by its row of `logits` (T, n); the number of tokens written, which is less than T
        where the logits of the next one are not finite."""

    def finish(self) -> bytes:
        """All bytes, of which a `Decoder` reads the tokens."""

@final
class Decoder:
    """The tokens of what an `Encoder` wrote, one after another."""

    def __init__(self, data: bytes) -> None: ...
    def decode(self, logits: npt.NDArray[np.float32]) -> int:
        """The next id, by the row `logits` (n,) that it was written by; -1 where the logits are not finite, -2 where no
        encoder wrote these bytes."""

def crc32c(data: Buffer, before: int = 0) -> int:
    """The CRC-32C of `data`, which comes after what has the CRC-32C `before`."""
