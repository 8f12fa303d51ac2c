"""From the start of a process to the first logits of a 124M checkpoint, and the memory that takes.

    python benchmarks/first_logits.py [--rounds 5] [--directory DIRECTORY]

Contestants: gpt2fast in each dtype, and transformers where it and PyTorch are installed.  Each round is a new process
that imports the library, loads the model and computes the logits after five tokens; the contestants take turns.  The
file is in the page cache.  Before anything is timed, float32 logits are compared with the expected ones of the tests.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import seeded  # noqa: E402
from results import environment  # noqa: E402

OURS = """
from gpt2fast.model.gpt2 import GPT2
logits = GPT2.from_pretrained({directory!r}, dtype={dtype!r})({ids}, last_only=True)
"""
TRANSFORMERS = """
import torch
from transformers import GPT2LMHeadModel
with torch.inference_mode():
    logits = GPT2LMHeadModel.from_pretrained({directory!r})(torch.tensor([{ids}])).logits[0, -1].numpy()
"""
REPORT = """
import json, resource, time
now = time.time()
print(json.dumps([now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, [float(x) for x in logits]]))
"""


def run(program: str) -> tuple[float, float, np.ndarray]:
    """Seconds from the start of a process to its logits, its peak memory in MiB, and the logits."""
    start = time.time()
    command = [sys.executable, "-c", program + REPORT]
    out = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, cwd=ROOT)
    end, memory, logits = json.loads(out.stdout.splitlines()[-1])
    return end - start, memory, np.array(logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="keep the checkpoint here, and use the one that is there")
    options = parser.parse_args()
    expected = np.load(ROOT / "tests" / "data" / "reference" / "expected-gpt2.npz")
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        if not (directory / "model.safetensors").exists():
            from gpt2fast import safetensors

            directory.mkdir(parents=True, exist_ok=True)
            config = seeded.config("gpt2")
            safetensors.save_file(seeded.tensors(config), directory / "model.safetensors", {"format": "pt"})
            (directory / "config.json").write_text(json.dumps(config.to_dict()))
        facts = {"directory": str(directory), "ids": expected["ids_0"].tolist()}
        programs = {
            f"gpt2fast {dtype}": OURS.format(dtype=dtype, **facts) for dtype in ("float32", "bfloat16", "int8", "int4")
        }
        if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
            programs["transformers float32"] = TRANSFORMERS.format(**facts)
        for name in programs:
            error = np.abs(run(programs[name])[2] - expected["last_logits_0"]).max()
            if "float32" in name and error > 1e-3:
                raise SystemExit(f"{name} is off by {error}")
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for _ in range(options.rounds):
            for name, program in programs.items():
                rounds[name].append(run(program)[:2])
    for name, measured in rounds.items():
        seconds, memory = zip(*measured, strict=True)
        print(
            f"{name:22}{statistics.median(seconds):7.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
            f"{statistics.median(memory):6.0f} MiB"
        )


if __name__ == "__main__":
    main()
