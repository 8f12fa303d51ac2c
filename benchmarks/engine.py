"""Tokens per second of the engine on GPT-2 124M, in each dtype, and of transformers and CTranslate2 where installed.

    python benchmarks/engine.py [--rounds 5] [--threads 1 2] [--size gpt2] [--device cuda]

Weights come from a seed.  Float32 logits are compared with the expected ones of the tests before anything is timed.
Shown are medians: prefill of 128 and 512 tokens (last logits only), decoding after 32 and 900 tokens, and decoding of 8
and 32 texts at once; and for one text the weights read a second, to hold against what the memory gives.  On a GPU both
sides bring the logits to the host after every step, as whoever chooses a token there needs them.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import seeded  # noqa: E402
from engine_peers import DECODES, PREFILLS, CTranslate2, transformers_rates  # noqa: E402

from gpt2fast import get_encoding  # noqa: E402
from gpt2fast.bench import decoding_rate, prefill_rate  # noqa: E402
from gpt2fast.cuda.device import open_device  # noqa: E402
from gpt2fast.kernels.cpu import cpu_level  # noqa: E402
from gpt2fast.model import GPT2  # noqa: E402

COLUMNS = ("prefill 128", "prefill 512", "decode at 32", "decode at 900", "8 texts", "32 texts", "GB/s")


def ours(model: GPT2, rounds: int) -> list[float]:
    """The figures of a row but the last."""
    return [
        *(prefill_rate(model, length, rounds) for length in PREFILLS),
        *(decoding_rate(model, length, batch, 4 * rounds) for length, batch in DECODES),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--size", choices=["gpt2", "gpt2-medium"], default="gpt2")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:NUMBER (default: cpu)")
    options = parser.parse_args()
    config = seeded.config(options.size)
    tensors = seeded.tensors(config)
    expected = np.load(ROOT / "tests" / "data" / "reference" / f"expected-{options.size}.npz")
    kinds = [("float32", "panel"), ("float32", "blas"), ("bfloat16", "panel"), ("int8", "panel"), ("int4", "panel")]
    their_dtypes = ["float32"]
    if options.device != "cpu":
        their_dtypes, options.threads = ["float32", "float16", "bfloat16"], options.threads[:1]
        kinds = [(dtype, "panel") for dtype in their_dtypes]
    where = cpu_level() if options.device == "cpu" else open_device(options.device).description
    print(
        f"{platform.processor() or platform.machine()}, {where}; Python {platform.python_version()}, NumPy "
        f"{np.__version__}; {options.size}; {options.rounds} rounds; {time.strftime('%d %B %Y')}"
    )
    print(f"{'threads, dtype':26}" + "".join(f"{column:>15}" for column in COLUMNS))

    def show(name: str, row: list[float], size: float) -> None:
        print(f"{name:26}" + "".join(f"{value:15.0f}" for value in row) + f"{size * row[2] / 1e9:15.1f}", flush=True)

    with tempfile.TemporaryDirectory() as directory:
        for threads in options.threads:
            for dtype, gemm in kinds:
                model = GPT2.from_tensors(
                    config, tensors, dtype=dtype, device=options.device, gemm=gemm, num_threads=threads
                )
                error = np.abs(model(expected["ids_1"], last_only=True) - expected["last_logits_1"]).max()
                if dtype == "float32" and error > 1e-3:
                    raise SystemExit(f"{dtype} {gemm} is off by {error}")
                bits = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8.5, "int4": 4.5}[dtype]
                show(f"{threads}, {dtype} {model.gemm}", ours(model, options.rounds), model.num_parameters * bits / 8)
            path = Path(directory)
            if not (path / "config.json").exists():
                GPT2.from_tensors(config, tensors).save_pretrained(path)
                get_encoding("gpt2").save_pretrained(path)
            if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
                for dtype in their_dtypes:
                    row = transformers_rates(path, threads, options.rounds, options.device, dtype)
                    size = model.num_parameters * (4 if dtype == "float32" else 2)
                    show(f"{threads}, transformers {dtype}", row, size)
            if importlib.util.find_spec("ctranslate2") and options.device == "cpu":
                for dtype, size in (("float32", 4), ("int8", 1)):
                    peer = CTranslate2(path, threads, dtype)
                    error = np.abs(peer.logits(expected["ids_1"]) - expected["last_logits_1"]).max()
                    if dtype == "float32" and error > 1e-3:
                        raise SystemExit(f"CTranslate2 is off by {error}")
                    show(f"{threads}, CTranslate2 {dtype}", peer.rates(options.rounds), model.num_parameters * size)


if __name__ == "__main__":
    main()
