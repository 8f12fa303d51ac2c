"""GPT-2 weights from a seed: full-size models without a download, and small ones of any shape.

The recipe is fixed: `tests/data/reference/expected-gpt2*.npz` hold what Hugging Face transformers computed from these
very numbers (NumPy's PCG64 stream is stable across versions and platforms).
"""

from __future__ import annotations

import numpy as np

from gpt2fast.checkpoint.config import Config
from gpt2fast.checkpoint.names import expected_shapes

SIZES = {  # layers, heads, width
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}
SEED = 20191105


def config(name):
    """The Config of a published size."""
    layers, heads, width = SIZES[name]
    return Config(vocab_size=50257, n_ctx=1024, n_embd=width, n_layer=layers, n_head=heads, eos_token_id=50256)


def tensors(config, seed=SEED):
    """Weights as a dict of float32 arrays, drawn in the order of the network.

    The scales keep activations and logits of order one, as in a trained model.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = {}
    for name, shape in expected_shapes(config).items():
        value = generator.standard_normal(shape, dtype=np.float32)
        if "ln_" in name:
            value = value * np.float32(0.1) + np.float32(name.endswith("weight"))
        elif name.endswith("bias") or name == "wpe.weight":
            value *= np.float32(0.05)
        elif name in ("wte.weight", "lm_head.weight"):
            value *= np.float32(0.1)
        else:
            value *= np.float32(1 / np.sqrt(shape[0]))
            if "c_proj" in name:
                value *= np.float32(1 / np.sqrt(2 * config.n_layer))
        drawn[name] = value
    return drawn
