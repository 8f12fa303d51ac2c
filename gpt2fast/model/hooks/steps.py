"""The network step by step, with a stop wherever a function is called.

Every step is the kernel that the engine's own pass takes, on the same numbers, so what no function changes is the same
bit for bit.  Where the engine has no such number, because it fuses two steps, the number is made beside it, and what
the engine made stands for all that a function has left as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt2fast.kernels import elementwise, steps
from gpt2fast.kernels.linear import Weight
from gpt2fast.kernels.norm import layer_norm_rows
from gpt2fast.model.hooks.functions import Functions, HookPoint, visit
from gpt2fast.model.hooks.names import layer_of

if TYPE_CHECKING:
    from gpt2fast.kernels.plan import Plan
    from gpt2fast.kernels.transformer import Transformer

__all__ = ["Group", "Steps", "bias_of", "groups", "head_weights", "layer_norm_scale", "product"]

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Texts of a pass that functions get together, as they have the same number of new tokens and of older ones."""

    #: The segments of the plan, and the rows of the cache.
    segments: range
    rows: tuple[int, ...]
    #: Tokens that were in the cache before, and new ones, of each text.
    start: int
    count: int
    #: The first new token, among those of the pass.
    first: int

    @property
    def tokens(self) -> slice:
        """The new tokens among those of the pass."""
        return slice(self.first, self.first + len(self.rows) * self.count)


def groups(rows: Integers, counts: Integers, lengths: Integers) -> list[Group]:
    """One group of all texts where they are alike, else one for each."""
    starts = [int(lengths[row]) for row in rows]
    if len(set(counts.tolist())) == 1 and len(set(starts)) == 1:
        return [Group(range(len(rows)), tuple(rows.tolist()), starts[0], int(counts[0]), 0)]
    firsts = np.cumsum(counts) - counts
    return [
        Group(range(s, s + 1), (int(rows[s]),), starts[s], int(counts[s]), int(firsts[s])) for s in range(len(rows))
    ]


class Steps:
    """A pass over the tokens of `plan`, in which `functions` are called.

    `parts` are the keywords of `Transformer`.  Activations are float32 [T, ...] of the T tokens of all texts, one text
    after another; functions get [texts, tokens, ...].
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        transformer: Transformer,
        functions: Functions,
        plan: Plan,
        groups: Sequence[Group],
        num_threads: int,
    ) -> None:
        self._parts, self._transformer, self._functions = parts, transformer, functions
        self._plan, self._groups, self._num_threads = plan, groups, num_threads
        self._n_head: int = parts["n_head"]
        self._epsilon: float = parts["epsilon"]
        self._inside = {
            layer_of(name) for name in functions if not name.endswith(("hook_resid_pre", "hook_resid_post"))
        }

    def embed(self, ids: npt.NDArray[np.int32]) -> Floats:
        """The residual stream [T, E] before the first layer, for ids (T,)."""
        wte, wpe = self._parts["wte"], self._parts["wpe"]
        tokens = np.concatenate([wte.outputs(id, id + 1) for id in ids.tolist()])
        tokens = self._at("hook_embed", tokens)
        return tokens + self._at("hook_pos_embed", wpe[self._plan.places()])

    def layers(self, x: Floats, first: int, last: int) -> Floats:
        """What the layers `first` to `last` - 1 make of the residual stream [T, E].

        Layers that nobody looks into run in one stretch, as they do without hooks.
        """
        layer = first
        while layer < last:
            x = self._at(f"blocks.{layer}.hook_resid_pre", x)
            after = layer + 1
            if layer in self._inside:
                x = self._layer(layer, x)
            else:
                while (
                    after < last
                    and after not in self._inside
                    and f"blocks.{after - 1}.hook_resid_post" not in self._functions
                    and f"blocks.{after}.hook_resid_pre" not in self._functions
                ):
                    after += 1
                x = self._transformer.layers(self._plan, x, layer, after, num_threads=self._num_threads)
            x = self._at(f"blocks.{after - 1}.hook_resid_post", x)
            layer = after
        return x

    def final_norm(self, x: Floats, outputs: Integers) -> Floats:
        """The final hidden states [len(outputs), E] of the tokens `outputs`, numbers of rows of x [T, E]."""
        if self._wants("ln_final.hook_scale", "ln_final.hook_normalized"):
            return self._norm(x, self._parts["ln_f"], "ln_final")[outputs]
        return self._norm(x[outputs], self._parts["ln_f"], "ln_final")

    def _layer(self, layer: int, x: Floats) -> Floats:
        block, name = self._parts["blocks"][layer], f"blocks.{layer}"
        h = self._norm(x, block["ln_1"], f"{name}.ln1")  # [T, E]
        z = self._attend(layer, self._multiply(block["c_attn"], h))  # [T, E]
        if self._wants(f"{name}.attn.hook_result", f"{name}.hook_attn_out"):
            out = self._multiply(block["c_proj"], z)
            x = x + self._at(f"{name}.hook_attn_out", self._results(layer, z, out))
        else:
            x = self._multiply(block["c_proj"], z, add_to=x)
        x = self._at(f"{name}.hook_resid_mid", x)
        h = self._norm(x, block["ln_2"], f"{name}.ln2")
        activation = self._parts["activation"]
        if self._wants(f"{name}.mlp.hook_pre"):
            h = self._at(f"{name}.mlp.hook_pre", self._multiply(block["c_fc"], h))  # [T, n_inner]
            h = steps.activate(h, activation, num_threads=self._num_threads)
        else:
            h = self._multiply(block["c_fc"], h, activation=activation)
        h = self._at(f"{name}.mlp.hook_post", h)
        if self._wants(f"{name}.hook_mlp_out"):
            return x + self._at(f"{name}.hook_mlp_out", self._multiply(block["mlp_c_proj"], h))
        return self._multiply(block["mlp_c_proj"], h, add_to=x)

    def _norm(self, x: Floats, parameters: tuple[Floats, Floats], name: str) -> Floats:
        weight, bias = parameters
        if not self._wants(f"{name}.hook_scale", f"{name}.hook_normalized"):
            return layer_norm_rows(x, weight, bias, self._epsilon, num_threads=self._num_threads)
        # x * 1 - 0 is x, also where x is -0.
        ones, nothing = np.ones_like(weight), np.full_like(bias, -0.0)
        normalized = layer_norm_rows(x, ones, nothing, self._epsilon, num_threads=self._num_threads)
        if self._wants(f"{name}.hook_scale"):
            mean, scale = layer_norm_scale(x, self._epsilon)
            changed = self._at(f"{name}.hook_scale", scale)
            if changed is not scale:
                normalized = np.where(changed == scale, normalized, (x - mean) / changed)
        return steps.scale_and_shift(self._at(f"{name}.hook_normalized", normalized), weight, bias)

    # Attention

    def _attend(self, layer: int, qkv: Floats) -> Floats:
        name = f"blocks.{layer}.attn"
        if self._wants(f"{name}.hook_q", f"{name}.hook_k", f"{name}.hook_v"):
            parts = np.split(self._by_head(qkv, 3 * self._n_head), 3, axis=1)
            parts = [self._at(f"{name}.hook_{letter}", part) for letter, part in zip("qkv", parts, strict=True)]
            qkv = np.concatenate(parts, axis=1).reshape(qkv.shape)
        scale = self._parts["blocks"][layer]["scale"]
        z = steps.attend(self._plan, qkv, layer=layer, scale=scale, num_threads=self._num_threads)
        z = self._by_head(z, self._n_head)  # [T, H, D]
        if self._wants(f"{name}.hook_attn_scores", f"{name}.hook_pattern"):
            queries = self._by_head(qkv, 3 * self._n_head)[:, : self._n_head]
            for group in self._groups:
                z[group.tokens] = self._look_at_pattern(layer, group, queries[group.tokens], z[group.tokens], scale)
        return self._at(f"{name}.hook_z", z).reshape(len(z), -1)

    def _look_at_pattern(self, layer: int, group: Group, queries: Floats, z: Floats, scale: float) -> Floats:
        """What attention gives [texts * T, H, D] for a group's queries of the same shape, once functions have seen its
        scores and its pattern; `z`, what the engine has made, for every query whose pattern nobody changed."""
        name = f"blocks.{layer}.attn"
        texts = [steps.keys_and_values(self._plan, segment, layer) for segment in group.segments]
        q = queries.reshape(len(texts), group.count, *queries.shape[1:]).swapaxes(1, 2)  # [texts, H, T, D]
        heads = [(b, h) for b in range(len(texts)) for h in range(self._n_head)]
        length = group.start + group.count
        scores = np.empty((*q.shape[:3], length), np.float32)
        for b, h in heads:
            scores[b, h] = product(q[b, h], texts[b][0][h])
        scores *= np.float32(scale)
        scores[..., np.arange(length) > group.start + np.arange(group.count)[:, None]] = -np.inf
        seen = self._visit(f"{name}.hook_attn_scores", group, scores)
        if not self._wants(f"{name}.hook_pattern") and seen is scores:
            return z
        before = softmax(scores)
        pattern = self._visit(f"{name}.hook_pattern", group, before if seen is scores else softmax(seen))
        if pattern is before:
            return z
        mixed = np.empty(q.shape, np.float32)
        for b, h in heads:
            mixed[b, h] = product(pattern[b, h], texts[b][1][h])
        changed = (pattern != before).any(axis=-1, keepdims=True)
        changed, mixed = (part.swapaxes(1, 2).reshape(len(z), self._n_head, -1) for part in (changed, mixed))
        return np.where(changed, mixed, z)

    def _results(self, layer: int, z: Floats, out: Floats) -> Floats:
        """`out` [T, E], what attention adds to the stream, once functions have seen each head's share of it."""
        name = f"blocks.{layer}.attn.hook_result"
        if not self._wants(name):
            return out
        weights = head_weights(self._parts["blocks"][layer]["c_proj"], self._n_head)
        z = self._by_head(z, self._n_head)
        shares = [product(z[:, head], weights[head]) for head in range(self._n_head)]
        results = np.stack(shares, axis=1)  # [T, H, E]
        changed = self._at(name, results)
        if changed is results:
            return out
        total = changed[:, 0].copy()
        for head in range(1, self._n_head):
            total += changed[:, head]
        total += bias_of(self._parts["blocks"][layer]["c_proj"])
        return np.where((changed != results).any(axis=(1, 2))[:, None], total, out)

    # Calls

    def _wants(self, *names: str) -> bool:
        return any(name in self._functions for name in names)

    def _at(self, name: str, array: Floats) -> Floats:
        """What the functions at `name` make of `array` [T, ...]: itself, untouched, where they change nothing."""
        if name not in self._functions:
            return array
        found = []
        for group in self._groups:
            part = array[group.tokens].reshape(len(group.rows), group.count, *array.shape[1:])
            changed = self._visit(name, group, part)
            found.append((group.tokens, changed, changed is not part))
        if not any(different for _, _, different in found):
            return array
        out = np.empty(array.shape, np.float32)
        for tokens, changed, _ in found:
            out[tokens] = changed.reshape(-1, *array.shape[1:])
        return out

    def _visit(self, name: str, group: Group, array: Floats) -> Floats:
        functions = self._functions.get(name)
        return array if functions is None else visit(functions, array, HookPoint(name, group.rows, group.start))

    def _multiply(self, weight: Weight, x: Floats, **options: Any) -> Floats:
        return weight.multiply(x, num_threads=self._num_threads, **options)

    def _by_head(self, array: Floats, count: int) -> Floats:
        return array.reshape(len(array), count, -1)


def product(a: Floats, b: Floats) -> Floats:
    """a [m, k] times b [k, n]: float32 [m, n], in the order of the engine's products, so that its bits are the same
    everywhere."""
    return Weight.panels(np.ascontiguousarray(b)).multiply(np.ascontiguousarray(a))


def head_weights(weight: Weight, n_head: int) -> Floats:
    """Each head's share of the matrix after attention: float32 [n_head, head_dim, n_embd], W_O of TransformerLens."""
    values = weight.values()
    return values.reshape(n_head, -1, values.shape[1])


def bias_of(weight: Weight) -> Floats:
    """The bias (n,) of a matrix: what it makes of nothing."""
    nothing = np.zeros((1, weight.shape[0]), np.float32)
    return weight.multiply(nothing).reshape(-1)


def softmax(scores: Floats) -> Floats:
    """The softmax over the last dimension, with the attention kernel's order of sums; 0 where all scores are -inf."""
    length = scores.shape[-1]
    top = scores.max(axis=-1, keepdims=True)
    e = elementwise.exp(scores - np.where(top == -np.inf, np.float32(0), top))
    lanes = np.zeros((*scores.shape[:-1], -(-length // 16) * 16), np.float32)
    lanes[..., :length] = e
    lanes = lanes.reshape(*scores.shape[:-1], -1, 16)
    total = lanes[..., 0, :].copy()
    for block in range(1, lanes.shape[-2]):
        total += lanes[..., block, :]
    total = _halved(total)
    pattern: Floats = e * (np.float32(1) / np.where(total == 0, np.float32(1), total))
    return pattern


def layer_norm_scale(x: Floats, epsilon: float) -> tuple[Floats, Floats]:
    """The mean of each row of x [T, n] and the root of its variance plus epsilon: float32 [T, 1] each, in which sums
    are of double precision and 16 lanes."""

    def mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        lanes = np.zeros((len(values), -(-values.shape[1] // 16) * 16))
        lanes[:, : values.shape[1]] = values
        total = lanes[:, :16].copy()
        for first in range(16, lanes.shape[1], 16):
            total += lanes[:, first : first + 16]
        return np.asarray(_halved(total) / values.shape[1])

    wide = x.astype(np.float64)
    middle = mean(wide)
    variance = mean((wide - middle) ** 2)
    return middle.astype(np.float32), np.sqrt(variance + float(np.float32(epsilon))).astype(np.float32)


def _halved(lanes: Any) -> Any:
    """The sum of 16 lanes, the second half added to the first and so on: [..., 1]."""
    for width in (8, 4, 2, 1):
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
    return lanes
