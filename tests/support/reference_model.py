"""GPT-2 in NumPy, slow and plain: what every kernel, and the network as a whole, is tested against.

Written for reading: each function is one idea, shapes are beside the lines, computed in the precision of its input
(tests give it float64).  T is the number of tokens, E the width, H the number of heads.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from gpt2fast.checkpoint.config import ACTIVATIONS as FORMULAS


def gelu_new(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2)))


def relu(x):
    return np.maximum(x, 0)


def silu(x):
    return x * 0.5 * (1 + np.tanh(x / 2))  # the logistic function, written so that nothing overflows


def quick_gelu(x):
    return silu(1.702 * x) / 1.702  # x times the logistic function of 1.702 x


def identity(x):
    return x


ACTIVATIONS = {
    "linear": identity,
    "gelu_new": gelu_new,
    "gelu": gelu,
    "relu": relu,
    "silu": silu,
    "quick_gelu": quick_gelu,
    "tanh": np.tanh,
}


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, weight, bias, epsilon):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * weight + bias


def linear(x, weight, bias=0, activation="linear"):
    return ACTIVATIONS[activation](x @ weight + bias)  # [T, k] @ [k, n] -> [T, n]


def quantise(x):
    """x [T, k] float32 as the kernels see it beside weights of 8 or 4 bits: 8 bits and a scale for every 64 values."""
    seen = np.zeros(x.shape)
    for first in range(0, x.shape[1], 64):
        group = x[:, first : first + 64]
        largest = np.abs(group).max(axis=1, keepdims=True)
        inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
        seen[:, first : first + 64] = np.rint(group * inverse).astype(np.float64) * (largest / np.float32(127))
    return seen


def bfloat16(x):
    """Rounded to the nearest number with 8 significant bits, as float64."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32).astype(np.float64)


def fused(a, b, c):
    """a * b + c of three floats, rounded once to float32: the nearest, of two the one with an even last bit."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = np.float32(float(exact))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    finite = [value for value in candidates if np.isfinite(value)]
    return min(finite, key=lambda value: (abs(Fraction(float(value)) - exact), int(value.view(np.uint32)) & 1))


def attention(qkv, n_head, scale, kept=np.asarray):
    T, width = qkv.shape  # [T, 3E]
    qkv = np.concatenate([qkv[:, : width // 3], kept(qkv[:, width // 3 :])], axis=1)  # keys and values as in the cache
    q, k, v = (part.reshape(T, n_head, -1).swapaxes(0, 1) for part in np.split(qkv, 3, axis=-1))  # each [H, T, E/H]
    scores = q @ k.swapaxes(1, 2) * scale  # [H, T, T]
    scores = np.where(np.tril(np.ones((T, T), bool)), scores, -np.inf)
    return (softmax(scores) @ v).swapaxes(0, 1).reshape(T, width // 3)  # [T, E]


def residuals(ids, config, tensors, kept=np.asarray):
    """What flows between the halves of layers for ids [T]: 2 n_layer + 2 arrays [T, E], the embeddings, the sums after
    each attention and each MLP, and the final hidden states.  Takes a gpt2fast.Config and tensors under bare names."""
    w = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    epsilon = config.layer_norm_epsilon

    def norm(x, name):
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], epsilon)

    def product(x, name, activation="linear"):
        return linear(x, w[f"{name}.weight"], w[f"{name}.bias"], activation)

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]  # [T, E]
    stages = [x]
    for i in range(config.n_layer):
        h = product(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn")  # [T, 3E]
        x = x + product(attention(h, config.n_head, config.attention_scale(i), kept), f"h.{i}.attn.c_proj")
        stages.append(x)
        h = product(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc", FORMULAS[config.activation_function])  # [T, n_inner]
        x = x + product(h, f"h.{i}.mlp.c_proj")
        stages.append(x)
    return [*stages, norm(x, "ln_f")]


def hidden_states(ids, config, tensors):
    """The final hidden states [T, E] of ids [T]."""
    return residuals(ids, config, tensors)[-1]


def logits(ids, config, tensors):
    """The logits [T, vocab_size] of ids [T]."""
    head = tensors["wte.weight" if config.tie_word_embeddings else "lm_head.weight"]
    return hidden_states(ids, config, tensors) @ np.asarray(head, np.float64).T
