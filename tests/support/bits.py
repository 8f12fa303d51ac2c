"""SHA-256 of everything that the engine promises to be the same bit for bit on every processor and operating system.

Inputs are ids counted off in whole numbers, and checkpoints that are in the repository, so nothing here depends on the
machine but what is tested.  It needs NumPy and the kernels, not the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gpt2fast
from gpt2fast.checkpoint.config import Config
from gpt2fast.kernels import elementwise
from gpt2fast.kernels.norm import layer_norm_rows
from gpt2fast.model.draw import Draw, choose, sample_key
from gpt2fast.model.gpt2 import GPT2

ROOT = Path(__file__).resolve().parents[2]
#: The digests that every machine has to give, by model and dtype.
GOLDEN = ROOT / "tests" / "data" / "bits.json"
MODELS = {
    "demo": ROOT / "gpt2fast" / "data" / "demo",
    "gelu-exact": ROOT / "tests" / "data" / "reference" / "tiny" / "gelu-exact",
    "untied": ROOT / "tests" / "data" / "reference" / "tiny" / "untied",
}
DTYPES = ("float32", "bfloat16", "int8", "int4")


def digest(values: Any) -> str:
    """The SHA-256 of the bytes of an array, little-endian."""
    array = np.ascontiguousarray(values)
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def some_ids(model: GPT2, count: int, start: int = 1) -> list[int]:
    """Ids all over the vocabulary."""
    return [(start * 7919 + i * i * 31 + i * 977) % model.config.vocab_size for i in range(count)]


def load(name: str, dtype: str) -> GPT2:
    """One of `MODELS`, on two threads."""
    config = Config.from_pretrained(MODELS[name])
    return GPT2.from_tensors(config, tensors(MODELS[name] / "model.safetensors"), dtype=dtype, num_threads=2)


def tensors(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file of float16 or float32: the package's own reader needs the Rust half."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    found = {}
    for tensor, entry in header.items():
        first, last = entry["data_offsets"]
        values = np.frombuffer(content[start + first : start + last], {"F16": "<f2", "F32": "<f4"}[entry["dtype"]])
        found[tensor] = values.reshape(entry["shape"]).copy()
    return found


def logits_in_three_ways(model: GPT2, ids: list[int]) -> Iterator[tuple[str, Any]]:
    """The logits (T, vocab_size) of a text of its own, token by token with a cache, and in a batch."""
    yield "prompt", model(ids)
    cache = model.new_cache()
    yield "cached", np.concatenate([model([token], cache) for token in ids])
    others = some_ids(model, len(ids), 5)
    yield "batch", model(np.array([others, ids, others]))[1]


def continued(model: GPT2, ids: list[int], count: int, *, temperature: float = 0.0, top_p: float = 1.0) -> list[int]:
    """The ids that come next, greedily or by draws from the whole vocabulary."""
    cache, text, new = model.new_cache(), list(ids), list(ids)
    for _ in range(count):
        key = sample_key(17, position=len(text))
        draw = Draw(model.config.vocab_size, key, temperature=temperature, top_k=0, top_p=top_p, min_p=0.0)
        new = [choose(model(new, cache, last_only=True), draw)]
        text += new
    return text[len(ids) :]


def digests(model: GPT2) -> dict[str, str]:
    """What is promised of a model, by name; "prompt", "cached" and "batch" are to be equal."""
    ids = some_ids(model, 24)
    logits = dict(logits_in_three_ways(model, ids))
    found = {way: digest(values) for way, values in logits.items()}
    targets = np.array(ids[1:], np.int64)
    found["hidden states"] = digest(model.hidden_states(ids))
    measures = elementwise.measures(logits["prompt"][:-1], targets)
    found["scores"] = digest(np.ascontiguousarray(measures[:, :3]))
    found["variances"] = digest(np.ascontiguousarray(measures[:, 3]))
    found["greedy text"] = digest(np.array(continued(model, ids[:5], 12), np.int64))
    drawn = continued(model, ids[:5], 12, temperature=0.9), continued(model, ids[:5], 12, temperature=0.9, top_p=0.95)
    found["sampled texts"] = digest(np.array(drawn, np.int64))
    whole = hashlib.sha256()
    for name, matrix in sorted(model._parameters.matrices.items()):
        if matrix.nbytes:  # the embeddings of an untied head point into the checkpoint
            whole.update(name.encode() + matrix.panels_data().tobytes())
    found["packed weights"] = whole.hexdigest()
    return found


def stages(model: GPT2) -> Iterator[tuple[str, Any]]:
    """What each kernel puts out on the way to the logits, from the first to the last: names and arrays.

    Each takes what the ones before it have given, so the first that differs is the one that computes otherwise.
    """
    config, parameters, ids = model.config, model._parameters, some_ids(model, 24)
    residual = model._apply(ids, None, False, stages=list(range(2 * config.n_layer + 2)))

    def norm(name: str, x: Any) -> Any:
        weight, bias = parameters.others[f"{name}.weight"], parameters.others[f"{name}.bias"]
        return layer_norm_rows(np.ascontiguousarray(x), weight, bias, config.layer_norm_epsilon)

    def product(name: str, x: Any, activation: str = "linear") -> Any:
        return parameters.matrices[f"{name}.weight"].multiply(x, activation=activation)

    yield "embeddings", residual[0]
    for i in range(config.n_layer):
        x = norm(f"h.{i}.ln_1", residual[2 * i])
        yield f"h.{i}.ln_1 (layer_norm)", x
        yield f"h.{i}.attn.c_attn (linear)", product(f"h.{i}.attn.c_attn", x)
        yield f"h.{i}.attn (attention, then linear)", residual[2 * i + 1]
        x = norm(f"h.{i}.ln_2", residual[2 * i + 1])
        yield f"h.{i}.ln_2 (layer_norm)", x
        x = product(f"h.{i}.mlp.c_fc", x, config.activation_function)
        yield f"h.{i}.mlp.c_fc (linear, then {config.activation_function})", x
        yield f"h.{i}.mlp.c_proj (linear)", residual[2 * i + 2]
    x = norm("ln_f", residual[2 * config.n_layer])
    yield "ln_f (layer_norm)", x
    yield "head (linear)", product("wte" if config.tie_word_embeddings else "lm_head", x)


def functions() -> dict[str, str]:
    """The functions of one variable, over floats of every magnitude."""
    singles = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    doubles = (np.arange(2**16, dtype=np.uint64) * np.uint64(2**48 - 59)).view(np.float64)
    singles, doubles = singles[~np.isnan(singles)], doubles[~np.isnan(doubles)]  # whose bits are not promised
    return {
        "exp float32": digest(elementwise.exp(singles)),
        "erf float32": digest(elementwise.erf(singles)),
        "exp float64": digest(elementwise.exp(doubles)),
        "log float64": digest(elementwise.log(np.abs(doubles))),
        "sum float64": digest(np.array(elementwise.total(elementwise.exp(np.clip(doubles, -700, 600))))),
    }


def short(model: GPT2) -> list[list[str]]:
    """The stages' names with the beginnings of their digests."""
    return [[name, digest(values)[:12]] for name, values in stages(model)]


def golden() -> dict[str, Any]:
    """What is in the file."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


def first_difference(model: GPT2, expected: list[list[str]]) -> str:
    """The name of the first stage that differs from the expected ones."""
    for (name, wanted), (_, found) in zip(expected, short(model), strict=True):
        if wanted != found:
            return name
    return "none on the way to the logits"


def problems(name: str, dtype: str) -> list[str]:
    """In what a model differs from the golden digests, and which kernel differs first; empty where nothing does."""
    model, expected = load(name, dtype), golden()["models"][f"{name} {dtype}"]
    found = digests(model)
    wrong = [what for what, wanted in expected["digests"].items() if found[what] != wanted]
    if not wrong:
        return []
    first = first_difference(model, expected["stages"])
    return [f"{name} {dtype}: {', '.join(wrong)}; the first kernel that differs: {first}"]


def collected() -> dict[str, Any]:
    """What the file is to hold, computed here and now."""
    models = {}
    for name in MODELS:
        for dtype in DTYPES:
            model = load(name, dtype)
            models[f"{name} {dtype}"] = {"digests": digests(model), "stages": short(model)}
    return {"numerics_version": gpt2fast.numerics_version, "functions": functions(), "models": models}
