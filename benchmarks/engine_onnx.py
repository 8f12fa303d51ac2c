"""GPT-2 as an ONNX file whose cache goes in and comes out: what onnxruntime reads in benchmarks/engine.py.

The graph is written from the checkpoint, with the operators that ONNX has for this purpose (Attention, Gelu,
LayerNormalization), so that no exporter stands between the engine and its speed.  Inputs: `ids` (B, T), and `key_N` and
`value_N` (B, heads, P, width of a head) of each layer.  Outputs: `logits` (B, vocabulary) after the last id, and
`new_key_N` and `new_value_N`, the T new positions appended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 23  # the first with Attention


class _Graph:
    """Nodes and constants as they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def add(self, operator: str, *inputs: str, outputs: list[str] | None = None, **attributes: Any) -> str:
        names = outputs or [f"{operator}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0]


def write_onnx(weights: dict[str, np.ndarray], heads: int, path: Path) -> None:
    """Write the float32 `weights` of a checkpoint, by their published names, as a graph to `path`."""
    width = weights["wte.weight"].shape[1]
    layers = sum(name.endswith(".attn.c_attn.weight") for name in weights)
    graph = _Graph()

    def number(name: str, *values: int) -> str:
        return graph.constant(name, np.array(values, np.int64))

    def weight(name: str) -> str:
        return graph.constant(name, weights[name])

    def product(x: str, name: str) -> str:
        return graph.add("Add", graph.add("MatMul", x, weight(f"{name}.weight")), weight(f"{name}.bias"))

    def norm(x: str, name: str) -> str:
        return graph.add("LayerNormalization", x, weight(f"{name}.weight"), weight(f"{name}.bias"), epsilon=1e-5)

    zero, one = number("zero", 0), number("one", 1)
    past = graph.add("Shape", "key_0", start=2, end=3)
    length = graph.add("Add", past, graph.add("Shape", "ids", start=1, end=2))
    positions = graph.add("Slice", weight("wpe.weight"), past, length, zero)
    x = graph.add("Add", graph.add("Gather", weight("wte.weight"), "ids"), positions)
    # A position sees itself and what is before it, those in the cache among them.
    scalar = number("squeezed", 0)
    first, end = graph.add("Squeeze", past, scalar), graph.add("Squeeze", length, scalar)
    step = graph.constant("step", np.array(1, np.int64))
    start = graph.constant("start", np.array(0, np.int64))
    rows = graph.add("Unsqueeze", graph.add("Range", first, end, step), one)
    mask = graph.add("GreaterOrEqual", rows, graph.add("Range", start, end, step))
    cache_in, cache_out = [], []
    for layer in range(layers):
        name = f"h.{layer}"
        joined = product(norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn")
        q, k, v = (f"{part}_{layer}" for part in ("q", "k", "v"))
        graph.add("Split", joined, outputs=[q, k, v], axis=2, num_outputs=3)
        names = [f"attended_{layer}", f"new_key_{layer}", f"new_value_{layer}"]
        cache_in += [f"key_{layer}", f"value_{layer}"]
        cache_out += names[1:]
        attended = graph.add(
            "Attention", q, k, v, mask, *cache_in[-2:], outputs=names, q_num_heads=heads, kv_num_heads=heads
        )
        x = graph.add("Add", x, product(attended, f"{name}.attn.c_proj"))
        inner = graph.add("Gelu", product(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc"), approximate="tanh")
        x = graph.add("Add", x, product(inner, f"{name}.mlp.c_proj"))
    x = norm(graph.add("Gather", x, graph.constant("final", np.array(-1, np.int64)), axis=1), "ln_f")
    head = graph.constant("head", weights["wte.weight"].T)
    graph.add("MatMul", x, head, outputs=["logits"])

    def described(name: str, kind: int, *shape: str | int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    size = width // heads
    made = helper.make_graph(
        graph.nodes,
        "gpt2",
        [
            described("ids", TensorProto.INT64, "B", "T"),
            *(described(name, TensorProto.FLOAT, "B", heads, "P", size) for name in cache_in),
        ],
        [
            described("logits", TensorProto.FLOAT, "B", weights["wte.weight"].shape[0]),
            *(described(name, TensorProto.FLOAT, "B", heads, "P + T", size) for name in cache_out),
        ],
        graph.constants,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


def quantise_onnx(source: Path, path: Path) -> None:
    """Write the graph again with its products in int8: weights by output channel, activations as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source,
        path,
        op_types_to_quantize=["MatMul"],
        weight_type=QuantType.QInt8,
        per_channel=True,
        use_external_data_format=True,
    )
