"""GPT-2 as an OpenVINO graph whose cache is its state, for benchmarks/engine.py.

Inputs: `ids` (B, T), `positions` (T,), and `rows` (B,), int32: which text of the state each row goes on with.  Output:
the logits after the last id, (B, vocabulary).  The graph has the form (variable, gather, concatenation, scaled
dot-product attention) that OpenVINO's plugin for processors joins into one operation on a cache in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino.opset13 as ops


def openvino_graph(weights: dict[str, np.ndarray], heads: int) -> openvino.Model:
    """The float32 `weights` of a checkpoint, by their published names, as a graph."""
    width = weights["wte.weight"].shape[1]
    layers = sum(name.endswith(".attn.c_attn.weight") for name in weights)
    size = width // heads
    sinks = []

    def numbers(*values: int) -> Any:
        return ops.constant(np.array(values, np.int64))

    def number(value: int) -> Any:
        return ops.constant(np.array(value, np.int64))

    def product(x: Any, name: str) -> Any:
        weight = ops.constant(np.ascontiguousarray(weights[f"{name}.weight"].T))
        return ops.add(ops.matmul(x, weight, False, True), ops.constant(weights[f"{name}.bias"]))

    def norm(x: Any, name: str) -> Any:
        normal = ops.mvn(x, numbers(-1), True, 1e-5, "inside_sqrt")
        scaled = ops.multiply(normal, ops.constant(weights[f"{name}.weight"]))
        return ops.add(scaled, ops.constant(weights[f"{name}.bias"]))

    def by_heads(x: Any) -> Any:
        return ops.transpose(ops.reshape(x, numbers(0, 0, heads, size), True), numbers(0, 2, 1, 3))

    def remembered(new: Any, name: str) -> Any:
        """What the state holds, in the order of `rows`, and `new`; that is the state from then on."""
        held = ops.read_value(nothing, name, openvino.Type.f32, openvino.PartialShape([-1, heads, -1, size]))
        joined = ops.concat([ops.gather(held, rows, number(0)), new], 2)
        sinks.append(ops.assign(joined, name))
        return joined

    ids = ops.parameter([-1, -1], openvino.Type.i64, name="ids")
    positions = ops.parameter([-1], openvino.Type.i64, name="positions")
    rows = ops.parameter([-1], openvino.Type.i32, name="rows")
    batch = ops.gather(ops.shape_of(ids), numbers(0), number(0))
    nothing = ops.broadcast(ops.constant(np.float32(0)), ops.concat([batch, numbers(heads, 0, size)], 0))
    table = ops.constant(weights["wte.weight"])
    x = ops.add(
        ops.gather(table, ids, number(0)), ops.gather(ops.constant(weights["wpe.weight"]), positions, number(0))
    )
    # A position sees itself and what is before it, those in the state among them.
    end = ops.add(ops.gather(positions, number(-1), number(0)), number(1))
    columns = ops.range(number(0), end, number(1), openvino.Type.i64)
    seen = ops.greater_equal(ops.unsqueeze(positions, numbers(1)), columns)
    mask = ops.unsqueeze(
        ops.select(seen, ops.constant(np.float32(0)), ops.constant(np.float32(-np.inf))), numbers(0, 1)
    )
    for layer in range(layers):
        name = f"h.{layer}"
        parts = ops.split(product(norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn"), number(2), 3)
        query, key, value = (by_heads(parts.output(i)) for i in range(3))
        key, value = remembered(key, f"key_{layer}"), remembered(value, f"value_{layer}")
        heads_attended = ops.transpose(ops.scaled_dot_product_attention(query, key, value, mask), numbers(0, 2, 1, 3))
        attended = ops.reshape(heads_attended, numbers(0, 0, width), True)
        x = ops.add(x, product(attended, f"{name}.attn.c_proj"))
        inner = ops.gelu(product(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc"), "TANH")
        x = ops.add(x, product(inner, f"{name}.mlp.c_proj"))
    last = ops.gather(norm(x, "ln_f"), number(-1), number(1))
    logits = ops.result(ops.matmul(last, table, False, True), name="logits")
    return openvino.Model([logits], sinks, [ids, positions, rows], "gpt2")
