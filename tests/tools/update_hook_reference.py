"""Writes tests/data/reference/hooks/*.npz: what TransformerLens sees in small checkpoints at every hook, and the logits
that it gives where one activation is halved.

    pip install torch "transformers==5.24.*" "transformer_lens>=3,<4" && python tests/tools/update_hook_reference.py

The models are unprocessed: no LayerNorm is folded, nothing is centred.  Names in the files are those of the hooks, and
"patched:" before one says that these are logits, of the first text's last token, after half of what was there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights
from transformers import GPT2LMHeadModel

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "reference" / "tiny"
OUT = ROOT / "tests" / "data" / "reference" / "hooks"
#: Directory of the checkpoint, layers that are written, and how many logits of those after a patch.
CHECKPOINTS: dict[str, tuple[Path, tuple[int, ...], int]] = {
    "demo": (ROOT / "gpt2fast" / "data" / "demo", (0, 5), 256),
    "plain": (TINY / "plain", (0, 1, 2), 311),
    **{
        name: (TINY / name, (2,), 311)
        for name in ("epsilon", "gelu-exact", "inner", "no-attn-scale", "relu", "scale-by-layer", "untied")
    },
}


def hooked(directory: Path) -> HookedTransformer:
    """The checkpoint as TransformerLens runs it, in float32."""
    original = GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    c = original.config
    config = HookedTransformerConfig(
        n_layers=c.n_layer,
        d_model=c.n_embd,
        n_ctx=c.n_positions,
        d_head=c.n_embd // c.n_head,
        n_heads=c.n_head,
        d_mlp=c.n_inner or 4 * c.n_embd,
        d_vocab=c.vocab_size,
        act_fn=c.activation_function,
        eps=c.layer_norm_epsilon,
        use_attn_scale=c.scale_attn_weights,
        scale_attn_by_inverse_layer_idx=c.scale_attn_by_inverse_layer_idx,
        normalization_type="LN",
        device="cpu",
    )
    model = HookedTransformer(config)
    weights = convert_gpt2_weights(original, config)
    weights["unembed.W_U"] = original.lm_head.weight.T  # that of an untied model, too
    model.load_and_process_state_dict(
        weights, fold_ln=False, center_writing_weights=False, center_unembed=False, fold_value_biases=False
    )
    model.set_use_attn_result(True)
    ids = torch.arange(12)[None] % c.vocab_size
    with torch.no_grad():
        difference = (model(ids) - original(ids).logits).abs().max()
    assert difference < 1e-4, f"{directory}: logits differ by {difference}"
    return model


def half(activation: torch.Tensor, hook: Any) -> torch.Tensor:
    """Half of what is there; masked scores stay masked."""
    return activation * 0.5


def main() -> None:
    """Write all files."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name, (directory, layers, columns) in CHECKPOINTS.items():
        model = hooked(directory)
        ids = torch.from_numpy(np.random.default_rng(19).integers(0, model.cfg.d_vocab, (2, 6)))
        if name == "demo":
            ids = ids[:1]
        with torch.no_grad():
            logits, cache = model.run_with_cache(ids)
            found = {"ids": ids.numpy(), "logits": logits[:, :, :columns].numpy()}
            for key, value in cache.items():
                if key.startswith("unembed."):  # the final hidden states and the logits, which have no hooks here
                    continue
                if not key.startswith("blocks.") or int(key.split(".")[1]) in layers:
                    found[key] = value.numpy()
                    patched = model.run_with_hooks(ids, fwd_hooks=[(key, half)])
                    found[f"patched:{key}"] = patched[0, -1, :columns].numpy()
        np.savez_compressed(OUT / f"{name}.npz", **found)
        print(name, len(found), (OUT / f"{name}.npz").stat().st_size)


if __name__ == "__main__":
    main()
