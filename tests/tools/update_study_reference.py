"""Writes tests/data/reference/study/transformerlens.json: what an exploratory script on TransformerLens finds in the
demo model, the logit attribution and the patching of docs/moving/transformerlens.md.

    pip install torch "transformers==5.24.*" "transformer_lens>=3,<4" && python tests/tools/update_study_reference.py
"""

from __future__ import annotations

import json
from typing import Any

import torch
from update_hook_reference import CHECKPOINTS, ROOT, hooked

OUT = ROOT / "tests" / "data" / "reference" / "study" / "transformerlens.json"
# <|endoftext|> and two texts, "Once upon a time there was a king who lived in the forest. One day the", and with a fox.
CLEAN = "Once upon a time there was a king who lived in the forest. One day the"
CORRUPTED = "Once upon a time there was a fox who lived in the forest. One day the"


def main() -> None:
    """Write the file."""
    from gpt2fast import load

    tokenizer = load("demo").tokenizer
    begin = tokenizer.eot_token
    king, fox = (tokenizer.encode_single_token(word) for word in (" king", " fox"))
    clean, corrupted = (torch.tensor([[begin, *tokenizer.encode_ordinary(text)]]) for text in (CLEAN, CORRUPTED))
    torch.set_grad_enabled(False)
    model = hooked(CHECKPOINTS["demo"][0])

    def difference(logits: torch.Tensor) -> float:
        return (logits[0, -1, king] - logits[0, -1, fox]).item()

    logits, cache = model.run_with_cache(clean)
    direction = (model.W_U[:, king] - model.W_U[:, fox]) * model.ln_final.w
    parts, labels = cache.decompose_resid(layer=-1, pos_slice=-1, return_labels=True)
    layers = cache.apply_ln_to_stack(parts, layer=-1, pos_slice=-1)[:, 0] @ direction
    results, names = cache.stack_head_results(layer=-1, pos_slice=-1, return_labels=True)
    heads = cache.apply_ln_to_stack(results, layer=-1, pos_slice=-1)[:, 0] @ direction

    def patched(name: str, place: Any) -> float:
        def patch(activation: torch.Tensor, hook: Any) -> torch.Tensor:
            activation[place] = cache[name][place]
            return activation

        return difference(model.run_with_hooks(corrupted, fwd_hooks=[(name, patch)]))

    every = range(model.cfg.n_layers)
    found = {
        "difference": [difference(logits), difference(model(corrupted))],
        "labels": labels,
        "layers": layers.tolist(),
        "head_labels": names,
        "heads": heads.tolist(),
        "z": [
            [patched(f"blocks.{layer}.attn.hook_z", (slice(None), slice(None), head)) for head in range(8)]
            for layer in every
        ],
        "resid_pre": [
            [patched(f"blocks.{layer}.hook_resid_pre", (slice(None), place)) for place in range(clean.shape[1])]
            for layer in every
        ],
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
