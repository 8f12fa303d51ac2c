"""What a `Look` holds: the arrays of a text as a model reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["LookArrays"]

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LookArrays:
    """A text as the model reads it, T tokens, L layers, H heads.

    Position 0 is the token that texts begin with, where the model has one.
    """

    #: The text as it was given.
    text: str | bytes
    #: The token ids, with the one that texts begin with, int64 (T,).
    ids: Integers
    #: The tokens' texts; bytes where a token is a part of a character.
    tokens: list[str | bytes]
    #: -log2 of each token's probability after all before it, in bits, float32 (T,); NaN for the first.
    surprisal: Floats
    #: How many tokens were more probable, plus one, int64 (T,); 0 for the first.
    ranks: Integers
    #: How much of its attention position q of a head gives to position k, in 255ths, uint8 (L, H, T, T) as
    #: [layer, head, q, k].
    patterns: npt.NDArray[np.uint8]
    #: The likeliest next tokens after each layer, best first, int64 (L + 1, T, K); at 0 those of the embeddings.
    lens_ids: Integers
    #: Their probabilities, float32 (L + 1, T, K).
    lens_probabilities: Floats
    #: The natural logarithm of the probability that the text's next token has after each layer, float32 (L + 1, T - 1).
    lens_log_probabilities: Floats
    #: What each head adds to the logit of the text's token at position t + 1, float32 (L, H, T - 1).
    head_shares: Floats
    #: What each MLP adds, float32 (L, T - 1).
    mlp_shares: Floats
    #: What the token's embedding, its position's, and all biases of attention and of the last LayerNorm add,
    #: float32 (3, T - 1).
    other_shares: Floats
    #: The texts of all ids in `lens_ids`.
    texts: dict[int, str | bytes]

    def __len__(self) -> int:
        return len(self.ids)
