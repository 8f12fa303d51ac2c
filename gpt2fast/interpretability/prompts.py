"""Texts as the functions of this package take them: a text, or the ids of its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import ids_of
from gpt2fast.errors import InputError
from gpt2fast.model.pairing import beginning

if TYPE_CHECKING:
    from gpt2fast.scoring.lens import Pair

__all__ = ["prompt_ids"]


def prompt_ids(lm: Pair, name: str, text: Any, *, bos: bool) -> npt.NDArray[np.int64]:
    """The ids (T,) of a text, after the token that texts begin with unless `bos` is False; ids stay as they are.

    Raises InputError for no token at all, more than the model's context, and ids outside the vocabulary;
    InputTypeError for what is neither text nor ids.  Both name the argument, `name`.
    """
    config = lm.model.config
    if isinstance(text, (str, bytes)):
        first = beginning(lm.model, lm.tokenizer) if bos else None
        text = [*([] if first is None else [first]), *lm.tokenizer.encode_ordinary(text)]
    ids: npt.NDArray[np.int64] = ids_of(name, text, config.vocab_size)
    if not 1 <= len(ids) <= config.n_ctx:
        raise InputError(f"{name} has {len(ids)} tokens; expected 1 to {config.n_ctx}, the model's context")
    return ids
