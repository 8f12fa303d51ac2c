"""Write tests/data/sae: small sparse autoencoders as SAELens saves them, with what SAELens makes of activations.

Run it where sae-lens is installed, beside safetensors and PyTorch:

    python tests/tools/update_sae_reference.py

The weights are drawn by chance.  Beside each cfg.json and sae_weights.safetensors there is expected.npz: activations,
their features, what these decode to, and the output of a pass with the error term in which feature 3 was 2 throughout.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import sae_lens
import torch
from sae_lens import SAE

HOME = Path(__file__).parents[1] / "data" / "sae"
D_IN, D_SAE = 12, 30
COMMON = {"d_in": D_IN, "d_sae": D_SAE, "dtype": "float32", "device": "cpu"}
RESIDUAL = "blocks.1.hook_resid_post"

CONFIGS: dict[str, dict[str, Any]] = {
    "standard": {"architecture": "standard"},
    "layer-norm": {"architecture": "standard", "normalize_activations": "layer_norm", "apply_b_dec_to_input": False},
    "heads": {
        "architecture": "standard",
        "normalize_activations": "constant_norm_rescale",
        "reshape_activations": "hook_z",
        "hook_name": "blocks.1.attn.hook_z",
    },
    "topk": {"architecture": "topk", "k": 4},
    "topk-rescaled": {"architecture": "topk", "k": 7, "rescale_acts_by_decoder_norm": True},
    "jumprelu": {"architecture": "jumprelu", "normalize_activations": "none"},
}
# As SAELens 3 wrote it; what is in it now is read from the same file by both.
FORMER = {
    **COMMON,
    "hook_point": RESIDUAL,
    "hook_point_layer": 1,
    "activation_fn_str": "topk",
    "activation_fn_kwargs": {"k": 3},
    "normalize_activations": False,
    "context_size": 128,
    "lp_norm": 1.0,
}


def main() -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    torch.manual_seed(7)
    for name, options in CONFIGS.items():
        metadata = {"hook_name": options.pop("hook_name", RESIDUAL), "model_name": "gpt2"}
        write(HOME / name, SAE.from_dict({**COMMON, **options, "metadata": metadata}))
    write(HOME / "former", SAE.from_dict({**COMMON, "architecture": "topk", "k": 3, "metadata": {}}))
    (HOME / "former" / "cfg.json").write_text(json.dumps(FORMER, indent=1))
    for directory in HOME.iterdir():
        expect(directory)
    print(f"by sae-lens {sae_lens.__version__}")


def write(directory: Path, sae: Any) -> None:
    """Save the autoencoder with weights drawn by chance."""
    for name, parameter in sae.named_parameters():
        drawn = torch.randn_like(parameter) * (0.1 if name == "b_enc" else 0.5)
        parameter.data = drawn.abs() if name == "threshold" else drawn
    directory.mkdir(parents=True)
    sae.save_model(directory)


def expect(directory: Path) -> None:
    """Write what SAELens makes of it."""
    sae = SAE.load_from_disk(directory)
    shape = (2, 9, 3, 4) if directory.name == "heads" else (2, 9, D_IN)
    activation = 2 * torch.randn(shape)
    with torch.no_grad():
        features = sae.encode(activation)
        decoded = sae.decode(features)
        sae.use_error_term = True

        def change(features: torch.Tensor, hook: Any) -> torch.Tensor:
            features[..., 3] = 2
            return features

        spliced = sae.run_with_hooks(activation, fwd_hooks=[("hook_sae_acts_post", change)])
    values = {"activation": activation, "features": features, "decoded": decoded, "spliced": spliced}
    np.savez_compressed(directory / "expected.npz", **{name: value.numpy() for name, value in values.items()})


if __name__ == "__main__":
    main()
