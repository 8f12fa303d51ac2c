"""A language model that is a real one in all but size: calls of it take some hundred microseconds."""

from __future__ import annotations

import numpy as np
from seeded import tensors

import gpt2fast
from gpt2fast import GPT2, Config, LanguageModel


def tiny_model(n_ctx: int = 16) -> LanguageModel:
    """One layer of eight numbers, under the demo model's tokenizer."""
    tokenizer = gpt2fast.Tokenizer.from_pretrained(gpt2fast.hub.resolve("demo"))
    config = Config(vocab_size=tokenizer.n_vocab, n_ctx=n_ctx, n_embd=8, n_layer=1, n_head=1)
    arrays = {name: np.asarray(values) for name, values in tensors(config).items()}
    return LanguageModel(GPT2.from_tensors(config, arrays), tokenizer)
