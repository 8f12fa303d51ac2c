"""The logit lens (nostalgebraist 2020): what the network would say after each of its layers.

The residual stream after a layer goes through the final LayerNorm and the head, as if the rest of the layers were not
there.  A tuned lens (Belrose et al. 2023, arXiv:2303.08112) puts an affine map in the place of that rest.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError, NonFiniteError
from gpt2fast.model.outputs import measures
from gpt2fast.model.pairing import beginning, shared_vocabulary
from gpt2fast.scoring.tuned_lens import TunedLens

if TYPE_CHECKING:
    from gpt2fast.model.gpt2 import GPT2
    from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["Lens", "lens"]


class Pair(Protocol):
    """A network and its tokenizer: `gpt2fast.LanguageModel`."""

    model: GPT2
    tokenizer: Tokenizer


@dataclass(frozen=True, eq=False)
class Lens:
    """How probable each token of a text is to every layer, T tokens, L layers."""

    #: The token ids, int64 (T,).
    ids: npt.NDArray[np.int64]
    #: The natural logarithm of each token's probability after all before it, float64 (L + 1, T): at 0 to the
    #: embeddings, at i after i layers, so at L to the whole network.
    log_probabilities: npt.NDArray[np.float64]
    #: How many tokens were more probable, plus one, int64 (L + 1, T).
    ranks: npt.NDArray[np.int64]
    #: Entropies, in bits, of the distributions that the tokens came from, float64 (L + 1, T).
    entropies: npt.NDArray[np.float64]

    @property
    def surprisal(self) -> npt.NDArray[np.float64]:
        """-log2 of each token's probability, in bits, float64 (L + 1, T)."""
        return self.log_probabilities / -math.log(2)


def lens(lm: Pair, text: str | bytes, *, tuned: str | bytes | os.PathLike[str] | None = None) -> Lens:
    """How probable each token of `text` is to every layer of the model: a `Lens`.

    The text comes after the token that texts begin with; of a model without one, the first token has no probability and
    is left out.  The last row is what `LanguageModel.score` gives, bit for bit.

    `tuned` is a safetensors file with the affine maps of a tuned lens, which the stream after each layer but the last
    goes through before.  For i from 0 to n_layer - 1, of the stream x after i layers, it has `i.weight` (n_embd,
    n_embd) and `i.bias` (n_embd,), where x becomes `x + weight @ x + bias`, as the package tuned-lens has it; or
    `map.i.weight` and `map.i.bias`, where it becomes `weight @ x + bias`.  Biases may be missing.

    Raises InputError for a text of no tokens or over the context and a file that does not fit the model,
    MissingFileError where it is not there, and NonFiniteError where logits are not finite.

    >>> import gpt2fast
    >>> seen = lens(gpt2fast.load("demo"), "Once upon a time")
    >>> seen.surprisal.round(1)[[0, 3, 6]]  # to the embeddings, after three layers, after all six
    array([[36.1, 63.8, 38.3, 31.5],
           [29.7, 12.4,  3.5, 11.1],
           [10.4,  0.5,  0.3,  0.1]])
    """
    model, tokenizer = lm.model, lm.tokenizer
    first = beginning(model, tokenizer)
    ids = [*([] if first is None else [first]), *tokenizer.encode_ordinary(text)]
    if len(ids) < 2:
        raise InputError("the text has no token with another before it")
    n_layer, n_vocab = model.config.n_layer, shared_vocabulary(model, tokenizer)
    maps = None if tuned is None else TunedLens.load(tuned, model.config)
    names = ["blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in range(n_layer))]
    _, streams = model.run_with_cache(ids[:-1], names, stop_at_layer=n_layer)
    found = []
    for layer, name in enumerate(names):
        stream = np.asarray(streams[name]) if maps is None else maps(np.asarray(streams[name]), layer)
        logits = model.run_with_hooks(stream, start_at_layer=n_layer)[0]  # the final LayerNorm and the head
        found.append(measures(logits[:, :n_vocab], ids[1:]))
    values = np.stack(found)  # [L + 1, T, 4]
    if np.isnan(values).any():
        raise NonFiniteError("the logits are not finite after every layer; the weights are damaged")
    return Lens(np.array(ids[1:], np.int64), values[:, :, 0], values[:, :, 1].astype(np.int64), values[:, :, 2])
