"""A draw: one token id chosen from one row of logits, by random bits that are a function of what they are for.

No generator is kept and none is advanced.  The bits of an id are a function of the seed, of which of a prompt's samples
the text is, of the id's position in the text, and of the id; so a text can be taken up anywhere, and a draft, a GPU and
another batch make the same draws because there are no others to make.

Performance notes (30 November 2026, NumPy on one core of a busy AMD EPYC, 50,257 logits, median of 40):
- temperature 0 takes 9 us, top-k 40 takes 53 us, top-k 40 with top-p 0.9 takes 65 us, the whole vocabulary 0.23 ms.
- A race of the whole vocabulary took 1.4 ms, most of it for the exponentials and weights of tokens that cannot win.
- Inverse transform sampling took 0.4 ms there, but a draft's choice then often was another than the network's: of an
  int8 draft's proposals at temperature 0.8 64 % were right, 86 % by the race.
- The k highest by np.argpartition take 540 us, by np.partition and a comparison 360 us.  What is here looks at the
  maxima of columns of 64 values first: a tenth of that.
- Top-p over the whole vocabulary sorts 256 tokens, then 4,096 where these do not reach p, and so on: 1.1 ms for normal
  logits of deviation 3, which are flatter than text's.  A full sort takes 11 ms.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import whole_number
from gpt2fast.errors import InputTypeError
from gpt2fast.kernels import elementwise

__all__ = ["Draw", "choose", "highest", "kept", "sample_key"]

_COLUMN = 64  # `highest` looks at the maxima of so many values each
# SplitMix64's increment, and the shifts and factors of its finalizer (Steele et al. 2014, "Fast splittable pseudorandom
# number generators"; the constants are Stafford's variant 13).
_GAMMA = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_64_BITS = 2**64 - 1

Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.integer[Any]]


class Draw(NamedTuple):
    """One choice from a row of logits, which `choose` makes on a host and a device makes where the logits are.

    >>> Draw(n_vocab=50257, key=0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0).temperature  # greedy
    0.0
    """

    #: Only the first so many logits are tokens; `top_k` is no more.
    n_vocab: int
    #: 64 random bits, as `sample_key` makes them; not used where the temperature is 0.
    key: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float


def sample_key(seed: int, sample: int = 0, position: int = 0) -> int:
    """The 64 random bits from which the id at `position` of a text is drawn.

    `seed` is a whole number from 0, however large; `sample` says which of a prompt's texts it is, from 0; `position`
    counts the ids before it, the prompt's among them.  The first 8 bytes of the SHA-256 of sample and seed start a
    SplitMix64 generator (Steele et al. 2014), of which this is output number `position`; SplitMix64 started from it
    gives each id its bits.

    >>> sample_key(42, position=3) == sample_key(42, position=3) != sample_key(42, position=4)
    True
    """
    position = whole_number("position", position)
    bits = _start(seed, sample) + (position + 1) * _GAMMA & _64_BITS
    for shift, factor in _MIX:
        bits = (bits ^ bits >> shift) * factor & _64_BITS
    return bits ^ bits >> 31


@lru_cache(maxsize=1024)
def _start(seed: int, sample: int) -> int:
    """Where the generator of a text starts."""
    seed, sample = whole_number("seed", seed), whole_number("sample", sample, most=2**63 - 1)
    # The sample has a fixed width and a number no leading zeros: no two pairs have the same bytes.
    told = sample.to_bytes(8, "little") + seed.to_bytes((seed.bit_length() + 7) // 8, "little")
    return int.from_bytes(sha256(told).digest()[:8], "little")


def choose(logits: Floats, draw: Draw) -> int:
    """The id that `draw` takes from the row `logits`, which are finite or -infinity, and not all of them that.

    >>> choose(np.array([0.5, 2.0, 1.0]), Draw(3, 0, 0.0, 0, 1.0, 0.0))
    1
    """
    values = logits[: draw.n_vocab]
    if draw.temperature == 0:
        return int(values.argmax())
    # An exponential race: the token with the least of exponential numbers over weights is each one with just its
    # probability.  Each id has its own number, whatever the filters left: so logits that are nearly the same, of a
    # draft or another machine, nearly always choose the same token.
    key = np.uint64(draw.key)
    if draw.top_k or draw.top_p < 1 or draw.min_p > 0:
        ids, weights = kept(values, draw)
    else:
        ids = _contenders(key, values, draw.temperature)
        weights = _weights(values, ids, draw.temperature)
    return int(ids[_times(key, ids, weights).argmin()])


def kept(values: Floats, draw: Draw) -> tuple[Ids, npt.NDArray[np.float64]]:
    """The ids that top-k, top-p and min-p keep, and their probabilities up to a common factor."""
    ids = highest(values, draw.top_k) if draw.top_k else np.arange(len(values))
    weights = _weights(values, ids, draw.temperature)
    if draw.top_p < 1:
        fewest = _fewest(weights, draw.top_p)
        ids, weights = ids[fewest], weights[fewest]
    if draw.min_p > 0:
        likely = weights >= draw.min_p * weights.max()
        ids, weights = ids[likely], weights[likely]
    return ids, weights


def _weights(values: Floats, ids: Ids, temperature: float) -> npt.NDArray[np.float64]:
    """The probabilities of `ids` up to a factor."""
    # Differences from the top, in float64: the largest weight is 1, whatever the temperature.
    differences = values[ids].astype(np.float64) - float(values.max())
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, weight 0: as meant
        result: npt.NDArray[np.float64] = elementwise.exp(differences / temperature)
    return result


def _contenders(key: np.uint64, values: Floats, temperature: float) -> Ids:
    """The ids among which the winner of the race of all is."""
    best = highest(values, 256)
    weights = _weights(values, best, temperature)
    # No other's weight is above the last of these, so it takes an exponential number under `bound` to win.
    bound = _times(key, best, weights).min() * weights[-1]
    least = max(int(elementwise.exp(np.array(-bound)) * 2.0**53) - 8, 0)  # 8: for what rounding does
    others = np.flatnonzero(_bits(key, np.arange(len(values))) >= np.uint64(least << 11))
    return np.concatenate([best, others])


def highest(values: Floats, k: int) -> Ids:
    """The places of the `k` highest values, best first, of equal ones the first.

    >>> highest(np.array([1.0, 3.0, 2.0, 3.0]), 3)
    array([1, 3, 2])
    """
    k = whole_number("k", k)
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "fiu":
        raise InputTypeError("values are no row of real numbers in an array")
    n = len(values)
    columns = n // _COLUMN
    if k < columns:
        # The k highest of the columns' maxima are k values, so none under the least of these can be among the k best.
        maxima = values[: columns * _COLUMN].reshape(_COLUMN, columns).max(axis=0)
        places = np.flatnonzero(values >= np.partition(maxima, columns - k)[columns - k])
    elif k < n:
        places = np.flatnonzero(values >= np.partition(values, n - k)[n - k])
    else:
        places = np.arange(n)
    return places[np.argsort(-values[places], kind="stable")][:k]


def _times(key: np.uint64, ids: Ids, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """When each id arrives in the race: an exponentially distributed number, positive, over its weight."""
    numbers = -elementwise.log(((_bits(key, ids) >> np.uint64(11)) + 0.5) * 2.0**-53)
    with np.errstate(divide="ignore", over="ignore"):  # a weight of next to nothing never wins
        result: npt.NDArray[np.float64] = numbers / weights
    return result


def _bits(key: np.uint64, ids: Ids) -> npt.NDArray[np.uint64]:
    """64 random bits for each id: SplitMix64 (Steele et al. 2014) of key and id."""
    bits = ids.astype(np.uint64)
    bits += np.uint64(1)
    bits *= np.uint64(_GAMMA)
    bits += key
    shifted = np.empty_like(bits)  # new memory costs more than what is computed in it
    for shift, factor in _MIX:
        bits ^= np.right_shift(bits, np.uint64(shift), out=shifted)
        bits *= np.uint64(factor)
    bits ^= np.right_shift(bits, np.uint64(31), out=shifted)
    return bits


def _fewest(weights: npt.NDArray[np.float64], share: float) -> Ids:
    """The places of the fewest weights that together reach `share` of their sum, best first, at least one."""
    target = share * elementwise.total(weights)
    size = 256  # most often enough, and far from sorting a vocabulary
    while True:
        best = highest(weights, size)
        cumulative = np.cumsum(weights[best])
        if cumulative[-1] >= target or size >= len(weights):
            return best[: np.searchsorted(cumulative, target) + 1]
        size *= 16
