"""How fast a checkpoint runs here: what `gpt2fast bench` prints.

Every dtype has a process of its own, so that memory is its own, too.  Rates are medians of calls on made-up ids; speed
does not depend on which.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.system import peak_memory
from gpt2fast.model.backend import DType
from gpt2fast.model.gpt2 import GPT2

__all__ = ["decoding_rate", "measure", "median_seconds", "prefill_rate", "render_json", "render_table", "reread_rate"]

PREFILLS = (32, 128, 512, 1024)
BATCHES = (1, 4, 8, 16, 32)


def median_seconds(call: Callable[[], object], rounds: int) -> float:
    """The median seconds of `rounds` calls, after one that is not counted."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def some_ids(model: GPT2, count: int) -> npt.NDArray[np.int64]:
    """That many different ids of the model's vocabulary."""
    return np.arange(count) * 37 % model.config.vocab_size


def prefill_rate(model: GPT2, length: int, rounds: int = 5) -> float:
    """Tokens per second of reading a prompt of that length, logits after its last token included."""
    ids = some_ids(model, length)
    return length / median_seconds(lambda: model(ids, last_only=True), rounds)


def decoding_rate(model: GPT2, length: int, batch: int = 1, rounds: int = 20) -> float:
    """Tokens per second of `batch` texts together, one token a text and step, after `length` tokens each."""
    cache = model.new_cache(batch, min(length + rounds + 1, model.config.n_ctx))
    model(np.tile(some_ids(model, length), (batch, 1)), cache, last_only=True)
    one = np.full((batch, 1), 5)
    return batch / median_seconds(lambda: model(one, cache, last_only=True), rounds)


def reread_rate(model: GPT2, length: int, rounds: int = 5) -> float:
    """Tokens per second of one text after `length` tokens without a cache: everything is read anew for each token."""
    return prefill_rate(model, length, rounds) / length


def measure(
    directory: str | Path, *, dtypes: Sequence[str], num_threads: int | None = None, rounds: int = 5
) -> dict[str, dict[str, float]]:
    """For each dtype the figures of the checkpoint in `directory`, by their names with units.

    Raises as `GPT2.from_pretrained` does.
    """
    spawn = multiprocessing.get_context("spawn")
    found = {}
    for dtype in dtypes:
        with ProcessPoolExecutor(1, spawn) as pool:
            found[dtype] = pool.submit(_measure_one, str(directory), cast(DType, dtype), num_threads, rounds).result()
    return found


def _measure_one(directory: str, dtype: DType, num_threads: int | None, rounds: int) -> dict[str, float]:
    start = time.perf_counter()
    model = GPT2.from_pretrained(directory, dtype=dtype, num_threads=num_threads)
    loaded = time.perf_counter()
    model([1, 2, 3, 4, 5], last_only=True)
    first = time.perf_counter()
    n_ctx = model.config.n_ctx
    short, long = min(32, n_ctx // 2), n_ctx * 7 // 8 - 1
    figures = {"load, ms": 1e3 * (loaded - start), "first logits, ms": 1e3 * (first - loaded)}
    for length in PREFILLS:
        if length <= n_ctx:
            figures[f"prefill of {length}, tokens/s"] = prefill_rate(model, length, rounds)
    steps = min(4 * rounds, n_ctx - long - 1)
    figures[f"decode at {short}, tokens/s"] = decoding_rate(model, short, rounds=min(4 * rounds, n_ctx - short - 1))
    figures[f"decode at {long}, tokens/s"] = decoding_rate(model, long, rounds=steps)
    figures[f"the same without a cache at {short}, tokens/s"] = reread_rate(model, short, rounds)
    for batch in BATCHES[1:]:
        rate = decoding_rate(model, short, batch, min(4 * rounds, n_ctx - short - 1))
        figures[f"{batch} texts at {short}, tokens/s"] = rate
    figures["weights, MB"] = model.nbytes / 1e6
    figures["peak memory, MB"] = peak_memory() / 1e6
    return figures


def render_table(found: dict[str, dict[str, float]]) -> str:
    """The figures as a table with a column for each dtype."""
    names = list(next(iter(found.values()), {}))
    width = max(map(len, names), default=0)
    lines = [" " * width + "".join(f"{dtype:>11}" for dtype in found)]
    for name in names:
        values = "".join(f"{_short(figures[name]):>11}" for figures in found.values())
        lines.append(f"{name:{width}}{values}")
    return "\n".join(lines) + "\n"


def render_json(found: dict[str, dict[str, float]], facts: dict[str, Any]) -> str:
    """The facts of the run and the figures as one JSON object."""
    return json.dumps({**facts, "figures": found}, indent=2) + "\n"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
