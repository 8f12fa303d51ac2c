"""Activations kept and heads knocked out, beside TransformerLens: milliseconds, for a text of a 124M model.

    pip install torch "transformers==5.24.*" "transformer_lens>=3,<4"
    python benchmarks/hooks.py [--directory DIRECTORY] [--tokens 15] [--rounds 3] [--threads 2] [--record]

What is measured, without gradients on both sides:

- "plain run"       the logits, with no hook
- "keep everything" `run_with_cache` of all activations
- "keep one"        `run_with_cache` of the residual stream after the middle layer
- "144 heads"       each head of the model set to zero in a run of its own: the loop with `run_with_hooks` as people
                    write it, every run through all layers; then `ablation_sweep`, whose runs share the layers below

Both libraries' activations at every name are compared before anything is timed, and the metrics of all 144 runs before
anything is printed.  The contestants take turns.  Without --directory a checkpoint of random weights with GPT-2
small's sizes is made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "tools")]

import seeded  # noqa: E402
from results import record  # noqa: E402
from update_hook_reference import hooked  # noqa: E402

import gpt2fast  # noqa: E402
from gpt2fast import safetensors  # noqa: E402
from gpt2fast.interpretability import ablation_sweep  # noqa: E402

#: The metric of a run is the difference of these two tokens' logits after the last token.
GOOD, BAD = 464, 262


def write_checkpoint(directory: Path) -> None:
    """GPT-2 small with random weights."""
    config = seeded.config("gpt2")
    safetensors.save_file(seeded.tensors(config), directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config.to_dict()))


class TransformerLens:
    """The tasks as TransformerLens does them."""

    def __init__(self, directory: Path, ids: np.ndarray) -> None:
        self.model = hooked(directory)
        self.model.set_use_attn_result(False)
        self.model.requires_grad_(False)
        self.ids = torch.from_numpy(ids)[None]

    def plain(self) -> Any:
        return self.model(self.ids)

    def everything(self) -> Any:
        return self.model.run_with_cache(self.ids)[1]

    def one(self) -> Any:
        return self.model.run_with_cache(self.ids, names_filter=middle(self.model.cfg.n_layers))[1]

    def heads(self) -> np.ndarray:
        found = np.empty((self.model.cfg.n_layers, self.model.cfg.n_heads))
        for layer, head in np.ndindex(found.shape):

            def zero(z: torch.Tensor, hook: Any, head: int = head) -> torch.Tensor:
                z[:, :, head] = 0
                return z

            logits = self.model.run_with_hooks(self.ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", zero)])
            found[layer, head] = logits[0, -1, GOOD] - logits[0, -1, BAD]
        return found


class Ours:
    """The tasks as gpt2fast does them."""

    def __init__(self, directory: Path, ids: np.ndarray, threads: int) -> None:
        self.lm = gpt2fast.load(directory, tokenizer="gpt2", num_threads=threads)
        self.model = self.lm.model
        self.ids = ids

    def plain(self) -> Any:
        return self.model(self.ids)

    def everything(self) -> Any:
        return self.model.run_with_cache(self.ids)[1]

    def one(self) -> Any:
        return self.model.run_with_cache(self.ids, middle(self.model.config.n_layer))[1]

    def heads(self) -> np.ndarray:
        found = np.empty((self.model.config.n_layer, self.model.config.n_head))
        for layer, head in np.ndindex(found.shape):

            def zero(z: np.ndarray, hook: Any, head: int = head) -> None:
                z[:, :, head] = 0

            logits = self.model.run_with_hooks(self.ids, [(f"blocks.{layer}.attn.hook_z", zero)])
            found[layer, head] = logits[-1, GOOD] - logits[-1, BAD]
        return found

    def sweep(self, last_only: bool = False) -> np.ndarray:
        def metric(logits: np.ndarray) -> float:
            last = logits if last_only else logits[-1]
            return float(last[GOOD] - last[BAD])

        return ablation_sweep(self.lm, self.ids, metric, "z", last_only=last_only)


def middle(n_layer: int) -> str:
    """The name of the one activation that is kept."""
    return f"blocks.{n_layer // 2}.hook_resid_post"


def check(theirs: TransformerLens, ours: Ours) -> None:
    """Ends the program where the results differ by more than rounding."""
    kept, expected = ours.everything(), theirs.everything()
    for name in kept:
        a, b = np.asarray(kept[name]), expected[name].numpy()
        finite = np.isfinite(b)
        if (finite != np.isfinite(a)).any() or np.abs(a[finite] - b[finite]).max() > 1e-3 * max(
            1, np.abs(b[finite]).max()
        ):
            raise SystemExit(f"{name} differs")


def check_heads(found: dict[str, np.ndarray]) -> None:
    """Ends the program where the metrics without a head differ: those of TransformerLens by more than rounding, those
    of gpt2fast among themselves at all."""
    expected, loop, *sweeps = found.values()
    if np.abs(loop - expected).max() > 1e-3 * max(1, np.abs(expected).max()):
        raise SystemExit("logits without a head differ")
    if not all(np.array_equal(loop, sweep) for sweep in sweeps):
        raise SystemExit("the sweep's bits are not those of the loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="a checkpoint of GPT-2's vocabulary")
    parser.add_argument("--tokens", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="keep the figures in results.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        if options.directory is None:
            write_checkpoint(directory)
        ids = np.random.default_rng(19).integers(0, 50257, options.tokens)
        theirs, ours = TransformerLens(directory, ids), Ours(directory, ids, options.threads)
    check(theirs, ours)
    tasks: dict[tuple[str, str], tuple[Callable[[], Any], int]] = {}
    for who, contestant in (("TransformerLens", theirs), ("gpt2fast", ours)):
        tasks[who, "plain run"] = contestant.plain, 5
        tasks[who, "keep everything"] = contestant.everything, 5
        tasks[who, "keep one"] = contestant.one, 5
        tasks[who, "144 heads"] = contestant.heads, 1
    tasks["gpt2fast, ablation_sweep", "144 heads"] = ours.sweep, 1
    tasks["gpt2fast, ablation_sweep, last_only", "144 heads"] = lambda: ours.sweep(last_only=True), 1
    times: dict[str, dict[str, list[float]]] = {}
    metrics: dict[str, np.ndarray] = {}
    for _ in range(options.rounds):
        for (who, task), (function, repeats) in tasks.items():
            for _ in range(repeats):
                start = time.perf_counter()
                found = function()
                times.setdefault(who, {}).setdefault(task, []).append(1000 * (time.perf_counter() - start))
                if task == "144 heads":
                    metrics[who] = found
    check_heads(metrics)
    for who, row in times.items():
        for task, measured in row.items():
            median = statistics.median(measured)
            base = statistics.median(times["TransformerLens"][task])
            print(
                f"{who:36}{task:17}{median:9.1f} ms ({min(measured):.1f} to {max(measured):.1f}){base / median:7.1f} x"
            )
    if options.record:
        record(
            "hooks",
            times,
            versions={
                "gpt2fast": gpt2fast.__version__,
                "transformer_lens": version("transformer_lens"),
                "torch": torch.__version__,
            },
            options=f"--tokens {options.tokens} --threads {options.threads}",
        )


if __name__ == "__main__":
    main()
