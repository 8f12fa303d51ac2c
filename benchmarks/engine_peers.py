"""The other engines of benchmarks/engine.py: the same six rates, of transformers and of CTranslate2."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import numpy as np

from gpt2fast.bench import median_seconds

#: Prompts' lengths that are read; lengths and batches that decoding is measured at.
PREFILLS = (128, 512)
DECODES = ((32, 1), (900, 1), (32, 8), (32, 32))


def transformers_rates(
    directory: Path, threads: int, rounds: int, device: str = "cpu", dtype: str = "float32"
) -> list[float]:
    """Tokens per second of transformers; its logits come to the host after every step."""
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    model = GPT2LMHeadModel.from_pretrained(directory).eval().to(device, getattr(torch, dtype))
    ids = (torch.arange(1024) * 37 % model.config.vocab_size).to(device)

    def decode(length: int, batch: int) -> float:
        cache = model(ids[:length].repeat(batch, 1), logits_to_keep=1).past_key_values
        one = torch.full((batch, 1), 5, device=device)
        step = lambda: model(one, past_key_values=cache, logits_to_keep=1).logits.cpu()  # noqa: E731
        return batch / median_seconds(step, 4 * rounds)

    def prefill(length: int) -> float:
        return length / median_seconds(lambda: model(ids[None, :length], logits_to_keep=1).logits.cpu(), rounds)

    with torch.inference_mode():
        return [*map(prefill, PREFILLS), *(decode(length, batch) for length, batch in DECODES)]


class CTranslate2:
    """CTranslate2 with a GPT-2 of Hugging Face's layout, tokenizer included, converted into `directory`/ct2."""

    def __init__(self, directory: Path, threads: int, compute_type: str) -> None:
        import ctranslate2

        converted = directory / "ct2"
        if not converted.is_dir():
            ctranslate2.converters.TransformersConverter(str(directory)).convert(str(converted))
        self._model = ctranslate2.Generator(
            str(converted), compute_type=compute_type, intra_threads=threads, inter_threads=1
        )
        self._tokens: list[str] = json.loads((converted / "vocabulary.json").read_text(encoding="utf-8"))

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """The logits after the last id."""
        return np.array(self._model.forward_batch([self._named(ids)]))[0, -1]

    def rates(self, rounds: int) -> list[float]:
        """Tokens per second.  It decodes in one call: 41 tokens less the time for one."""
        ids = np.arange(1024) * 37 % 50257

        def seconds(length: int, new: int, batch: int = 1) -> float:
            prompts = [self._named(ids[:length])] * batch
            start = time.perf_counter()
            self._model.generate_batch(
                prompts, max_length=new, min_length=new, include_prompt_in_result=False, max_batch_size=batch
            )
            return time.perf_counter() - start

        def decode(length: int, batch: int) -> float:
            seconds(length, 1, batch)
            took = [seconds(length, 41, batch) - seconds(length, 1, batch) for _ in range(rounds)]
            return 40 * batch / statistics.median(took)

        return [
            *(length / median_seconds(lambda length=length: seconds(length, 1), rounds) for length in PREFILLS),
            *(decode(length, batch) for length, batch in DECODES),
        ]

    def _named(self, ids: np.ndarray) -> list[str]:
        return [self._tokens[i] for i in ids]
