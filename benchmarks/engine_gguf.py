"""GPT-2 as the GGUF files that llama.cpp reads, for benchmarks/engine.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

DATA = Path(__file__).resolve().parent.parent / "gpt2fast" / "data" / "gpt2"
#: The names of a layer's parts there, and ours.
PARTS = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


def write_gguf(weights: dict[str, np.ndarray], config: dict[str, Any], path: Path) -> None:
    """Write the float32 `weights` of a checkpoint, by their published names, and GPT-2's vocabulary to `path`."""
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_ctx"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    vocabulary = json.loads((DATA / "vocab.json").read_text(encoding="utf-8"))
    merges = (DATA / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(vocabulary) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([merge for merge in merges if merge])
    writer.add_tensor("token_embd.weight", weights["wte.weight"])
    writer.add_tensor("position_embd.weight", weights["wpe.weight"])
    for end in ("weight", "bias"):
        writer.add_tensor(f"output_norm.{end}", weights[f"ln_f.{end}"])
        for layer in range(config["n_layer"]):
            for theirs, ours in PARTS.items():
                # A product's weights are [output][input] there.
                writer.add_tensor(f"blk.{layer}.{theirs}.{end}", weights[f"h.{layer}.{ours}.{end}"].T.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantise_gguf(source: Path, path: Path, kind: str) -> None:
    """Write the file again in `kind`, as llama.cpp's own tool does."""
    import llama_cpp

    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}[kind]
    if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), settings) != 0:
        raise RuntimeError(f"llama.cpp did not quantise {source} to {kind}")
