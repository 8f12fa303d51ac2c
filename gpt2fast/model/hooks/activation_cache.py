"""What a run has kept of its activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import whole_number
from gpt2fast.errors import InputError
from gpt2fast.model.hooks.names import act_name
from gpt2fast.model.hooks.steps import product

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

    # What the residual stream is made of

    def decompose_resid(
        self,
        layer: int | None = None,
        *,
        mlp_input: bool = False,
        mode: Literal["all", "mlp", "attn"] = "all",
        incl_embeds: bool = True,
        apply_ln: bool = False,
    ) -> tuple[Floats, list[str]]:
        """What has been added up in the residual stream before `layer` (default: before the final LayerNorm), and the
        labels of the parts: float32 [parts, texts, tokens, n_embd].

        The parts are the embeddings of tokens and positions, "embed" and "pos_embed", and what attention and MLP of
        each layer put out, "0_attn_out", "0_mlp_out" …; with `mlp_input` the attention of `layer` too.  `mode` leaves
        one kind out, and `incl_embeds=False` the embeddings.  With all parts, their sum is the residual stream.  With
        `apply_ln`, `apply_ln_to_stack` has been applied to them.

        Raises InputError where the run has not kept a part, or there is no such layer.

        >>> import gpt2fast
        >>> logits, cache = gpt2fast.load("demo").model.run_with_cache([1, 2, 3])
        >>> parts, labels = cache.decompose_resid(2)
        >>> parts.shape, labels
        ((6, 1, 3, 256), ['embed', 'pos_embed', '0_attn_out', '0_mlp_out', '1_attn_out', '1_mlp_out'])
        """
        number = self._layer(layer)
        if mode not in ("all", "mlp", "attn"):
            raise InputError(f"mode is {mode!r}; expected 'all', 'mlp' or 'attn'")
        labels = ["embed", "pos_embed"] if incl_embeds else []
        for i in range(number):
            labels += [f"{i}_attn_out"] * (mode != "mlp") + [f"{i}_mlp_out"] * (mode != "attn")
        if mlp_input and mode != "mlp" and number < self._parameters.config.n_layer:
            labels.append(f"{number}_attn_out")
        names = [label if "embed" in label else tuple(label.split("_", 1)[::-1]) for label in labels]
        parts = [self._array(name if isinstance(name, str) else (name[0], int(name[1]))) for name in names]
        if not parts:
            raise InputError("there is nothing before layer 0 but the embeddings, and incl_embeds is False")
        stack = np.stack(parts)
        return self.apply_ln_to_stack(stack, number, mlp_input=mlp_input) if apply_ln else stack, labels

    def stack_head_results(
        self, layer: int | None = None, *, incl_remainder: bool = False, apply_ln: bool = False
    ) -> tuple[Floats, list[str]]:
        """What each head of the layers before `layer` (default: of all) adds to the residual stream, its layer's bias
        aside, and the labels "L0H0", "L0H1" …: float32 [heads, texts, tokens, n_embd].

        With `incl_remainder` there is one more part, "remainder", all else that the stream is made of.  With
        `apply_ln`, `apply_ln_to_stack` has been applied to them.  Made of `attn.hook_z`, which the run must have kept.

        Raises as `decompose_resid` does.
        """
        number, config = self._layer(layer), self._parameters.config
        labels, parts = [], []
        for i in range(number):
            z = self._array(("z", i))  # [..., H, D]
            weight = self._parameters.tensor(f"h.{i}.attn.c_proj.weight")  # [E, H D]
            for head, values in enumerate(np.split(weight, config.n_head, axis=1)):
                flat = np.ascontiguousarray(z[..., head, :]).reshape(-1, config.head_dim)
                parts.append(product(flat, values.T).reshape(*z.shape[:-2], config.n_embd))
                labels.append(f"L{i}H{head}")
        if incl_remainder:
            stream = self._array(("resid_post", number - 1) if number else ("resid_pre", 0))
            parts.append(stream - np.sum(parts, axis=0, dtype=np.float32))
            labels.append("remainder")
        if not parts:
            raise InputError("there are no heads before layer 0")
        stack = np.stack(parts)
        return self.apply_ln_to_stack(stack, number) if apply_ln else stack, labels

    def apply_ln_to_stack(self, stack: npt.ArrayLike, layer: int | None = None, *, mlp_input: bool = False) -> Floats:
        """Parts of the residual stream [parts, texts, tokens, n_embd] as the LayerNorm that reads their sum has them:
        centred, and divided by the scale that it had in the run.

        The norm is the first of `layer`, with `mlp_input` the second, by default the final one; its weight and bias are
        left out.  The parts' sum becomes what `hook_normalized` has there.

        Raises InputError where the run has not kept the scale.
        """
        number = self._layer(layer)
        final = number == self._parameters.config.n_layer
        scale = self._array(("scale",) if final else ("scale", number, "ln2" if mlp_input else "ln1"))
        array = np.asarray(stack, np.float32)
        centred: Floats = (array - array.mean(axis=-1, keepdims=True)) / scale
        return centred

    def _layer(self, layer: int | None) -> int:
        n_layer = self._parameters.config.n_layer
        number = n_layer if layer is None or layer == -1 else whole_number("layer", layer)
        if number > n_layer:
            raise InputError(f"layer is {number}; the model has {n_layer} layers")
        return number

    def _array(self, key: Key) -> Floats:
        value = self[key]
        if isinstance(value, list):
            raise InputError("the texts are of different lengths; run them one by one")
        return value

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
