"""What a run has kept of its activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import InputError
from gpt2fast.model.hooks.names import act_name

if TYPE_CHECKING:
    from gpt2fast.model.parameters import Parameters

__all__ = ["Activation", "ActivationCache"]

Floats = npt.NDArray[np.float32]
#: One array for all texts, or one for each where these are not alike.
Activation: TypeAlias = "Floats | list[Floats]"
#: A full name, or what `act_name` makes one of: ("pattern", 3), ("normalized", 0, "ln2").
Key: TypeAlias = "str | tuple[str | int | None, ...]"


class ActivationCache(Mapping[Key, Activation]):
    """The activations of a run by their names, float32 arrays, in the order of computation.

    `cache["blocks.3.attn.hook_pattern"]` may be written `cache["pattern", 3]`, and `cache["blocks.0.ln2.hook_scale"]`
    `cache["scale", 0, "ln2"]`.  An array's first dimension are the texts; of texts of different lengths there is a list
    with an array for each text, without that dimension, so that `cache[name][i]` is text i's in both cases.

    >>> import gpt2fast
    >>> lm = gpt2fast.load("demo")
    >>> logits, cache = lm.model.run_with_cache(lm.tokenizer.encode("Once upon a time"))
    >>> cache["pattern", 3].shape, cache["resid_post", -1].shape
    ((1, 8, 4, 4), (1, 4, 256))
    """

    def __init__(self, values: Mapping[str, Activation], parameters: Parameters, *, has_batch_dim: bool = True) -> None:
        self._values = dict(values)
        self._parameters = parameters
        #: Whether the first dimension of the arrays are the texts.
        self.has_batch_dim = has_batch_dim

    def __getitem__(self, key: Key) -> Activation:
        name = self._name(key)
        if name in self._values:
            return self._values[name]
        near = get_close_matches(name, self._values, 1, 0.75)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {len(self._values)} others"
        raise _MissingActivation(f"the run has not kept {name!r}{hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return (self._name(key) if isinstance(key, tuple) else key) in self._values

    def __repr__(self) -> str:
        return f"<ActivationCache of {len(self)} activations, {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the activations take."""
        # Two names may have the same array: what a layer puts out is what the next one takes.
        arrays = {id(array): array for value in self._values.values() for array in _arrays(value)}
        return sum(array.nbytes for array in arrays.values())

    def remove_batch_dim(self) -> ActivationCache:
        """The same activations without the first dimension, for one text.  Raises InputError where there are more.

        >>> import gpt2fast
        >>> logits, cache = gpt2fast.load("demo").model.run_with_cache([1, 2, 3])
        >>> cache.remove_batch_dim()["resid_pre", 0].shape
        (3, 256)
        """
        if not self.has_batch_dim:
            return self
        values: dict[str, Activation] = {}
        for name, value in self._values.items():
            if len(value) != 1:
                raise InputError(f"there are {len(value)} texts; only one text's activations need no dimension for it")
            values[name] = value[0]
        return ActivationCache(values, self._parameters, has_batch_dim=False)

    def _name(self, key: Key) -> str:
        if isinstance(key, str):
            return act_name(key) if key in ("embed", "pos_embed") else key
        name, layer, kind = (*key, None, None)[:3]
        if isinstance(layer, (int, np.integer)) and layer < 0:
            layer += self._parameters.config.n_layer
        return act_name(name, layer, kind)  # type: ignore[arg-type]


class _MissingActivation(InputError, KeyError):
    __str__ = Exception.__str__  # KeyError would quote the sentence


def _arrays(value: Activation) -> list[Floats]:
    return value if isinstance(value, list) else [value]
