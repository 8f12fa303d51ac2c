"""Tokens per second of the engine and of others on the same GPT-2, in turns.

    python benchmarks/engine.py [--rounds 3] [--threads 2] [--size gpt2] [--record] [--neighbour]

Contestants that are not installed are left out (pip install torch transformers ctranslate2 onnx onnxruntime openvino
gguf llama-cpp-python).  Weights come from a seed.  Each contestant lives in a process of its own, and its logits are
compared with those that transformers gave for these weights before anything is timed; one that is off by more than
TOLERANCES says is named and not timed.  Then they take turns at each measure, the others stopped meanwhile, for some
rounds; shown are medians.  What the machine gives, memory to NumPy's `max` and products to its BLAS, is measured just
before a contestant; "memory %" is the share of the first that the weights make which it reads to decode one text,
"products %" the share of the second in a prompt of 512, which can be more than all where they are not of float32.
"first" is the time from the start of the process to the first logits, the checkpoint being in the page cache, and
"first MB" the memory until then.

`--neighbour` measures, instead, two threads of ours beside a busy process, and one thread without.  `--device cuda`
puts our models and transformers' on a GPU.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import seeded  # noqa: E402
from engine_peers import ENGINES, missing  # noqa: E402
from results import environment, record  # noqa: E402

PEERS = Path(__file__).with_name("engine_peers.py")
Measure = tuple[Any, ...]
#: Prompts that are read; and texts decoded after so many tokens, so many at once.
MEASURES: tuple[Measure, ...] = (
    *(("prefill", length) for length in (32, 128, 512, 1024)),
    *(("decode", length, batch) for length, batch in ((32, 1), (900, 1), (16, 4), (16, 8), (16, 16), (16, 32))),
)
#: The limit of the machine that a measure is held against.
LIMITS: dict[Measure, str] = {("decode", 32, 1): "memory", ("prefill", 512): "products"}
#: How far logits may be off, by what weights are kept as; their deviation is 3.2.  llama.cpp's "f32" has a cache of 16
#: bits and a table for GELU.
TOLERANCES = {"float32": 1e-3, "f32": 0.05, "float16": 0.1, "bfloat16": 0.3, "int8": 1.0, "q8_0": 1.0}
TOLERANCES |= {"int4": 5.0, "q4_0": 5.0}
#: Bits of a weight; q4_0 keeps the last layer, a third of the whole, in 6.6 bits.
BITS = {"float32": 32, "f32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "q8_0": 8.5, "int4": 4.5, "q4_0": 5.1}
GPU_KINDS = ("float32", "float16", "bfloat16")
BASE = "transformers float32"


def measure_name(measure: Measure) -> str:
    """What stands above its column."""
    if measure[0] == "prefill":
        return f"read {measure[1]}"
    return f"at {measure[1]}" if measure[2] == 1 else f"{measure[2]} texts"


class Running:
    """A contestant's process.  It is stopped unless it is asked: some engines' threads spin while they wait."""

    def __init__(self, name: str, directory: Path, threads: int, device: str, peers: Path = PEERS) -> None:
        limits = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        arguments = [name, str(directory), str(threads), device, str(time.time())]
        self._process = subprocess.Popen(
            [sys.executable, str(peers), "serve", *arguments],
            env=environment(**limits), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        atexit.register(self._process.kill)
        #: From the start of the process to first logits; its memory until then.
        self.seconds, self.memory = self._answer()

    def ask(self, *what: Any) -> Any:
        """The answer to one request."""
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(" ".join(self._log.read().split("\n")[-4:]))
        self._process.send_signal(signal.SIGSTOP)
        return json.loads(line)


def names(options: argparse.Namespace) -> list[str]:
    """The contestants that can take part; others are named with the reason."""
    found = []
    on_gpu = options.device != "cpu"
    for engine, kind_of in ENGINES.items():
        kinds = [kind for kind in kind_of.kinds if (kind in GPU_KINDS if on_gpu else kind != "float16")]
        wanted = [f"{engine} {kind}" for kind in kinds]
        if options.only:
            wanted = [name for name in wanted if name in options.only or engine in options.only]
        if engine == "machine" or options.device.split(":")[0] not in kind_of.devices or not wanted:
            continue
        if lacking := missing(engine):
            print(
                f"left out: {engine}, as {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed"
            )
        else:
            found += wanted
    if not found:
        raise SystemExit(f"no contestants: {', '.join(ENGINES)} are known")
    return found


def prepare(directory: Path, size: str, contestants: list[str]) -> list[str]:
    """Write the checkpoint and what is made of it, each in a process of its own; the contestants that have theirs."""
    if not (directory / "model.safetensors").exists():
        from gpt2fast import get_encoding
        from gpt2fast.model.gpt2 import GPT2

        config = seeded.config(size)
        GPT2.from_tensors(config, seeded.tensors(config)).save_pretrained(directory)
        get_encoding("gpt2").save_pretrained(directory)
    ready = []
    for name in contestants:
        command = [sys.executable, str(PEERS), "convert", name, str(directory)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            print(f"left out: {name}, which could not be converted: {run.stderr.strip().splitlines()[-1]}")
        else:
            ready.append(name)
    return ready


def start(
    contestants: list[str], directory: Path, threads: int, options: argparse.Namespace
) -> tuple[dict[str, Running], dict[str, dict[str, float]]]:
    """Start each contestant once a round, and keep the last; what starting took, and how far its logits are off."""
    running: dict[str, Running] = {}
    starts: dict[str, list[Running]] = {name: [] for name in contestants}
    for i in range(options.rounds):
        for name in contestants:
            try:
                running[name] = Running(name, directory, threads, options.device)
            except RuntimeError as error:
                print(f"left out: {name}, which failed: {error}")
                contestants = [other for other in contestants if other != name]
                continue
            starts[name].append(running[name])
            if i < options.rounds - 1:
                running.pop(name).close()
    expected = ROOT / "tests" / "data" / "reference" / f"expected-{options.size}.npz"
    facts = {}
    for name in list(running):
        error = running[name].ask("error", str(expected))
        facts[name] = {
            "first s": statistics.median(run.seconds for run in starts[name]),
            "first MB": statistics.median(run.memory for run in starts[name]) / 1e6,
            "error": error,
        }
        if not error <= TOLERANCES[name.split()[1]]:
            print(f"left out: {name}, whose logits are off by {error:.3g}")
            running.pop(name).close()
    return running, facts


class Race:
    """What was measured, by contestant and measure: a figure for each round."""

    def __init__(self, size: str) -> None:
        self.seconds: dict[tuple[str, Measure], list[float]] = {}
        #: What the machine gave just before.
        self.limits: dict[tuple[str, Measure], list[float]] = {}
        config = seeded.config(size)
        in_layers = 12 * config.n_embd**2 * config.n_layer
        self._read = in_layers + config.vocab_size * config.n_embd
        # Products with the weights, then queries with keys and shares with values, of 256 positions on average.
        self._operations = 512 * (2 * in_layers + 4 * 256 * config.n_embd * config.n_layer)

    def rates(self, name: str) -> dict[str, list[float]]:
        """A contestant's tokens a second, of each round."""
        return {
            measure_name(measure): [
                measure[1 if measure[0] == "prefill" else 2] / seconds for seconds in self.seconds[name, measure]
            ]
            for measure in MEASURES
        }

    def shares(self, name: str) -> dict[str, list[float]]:
        """The percentages of what the machine gave that a contestant made of it, of each round."""
        work = {"memory": self._read * BITS[name.split()[1]] / 8, "products": self._operations}
        return {
            f"{limit} %": [
                100 * work[limit] / seconds / given
                for seconds, given in zip(self.seconds[name, measure], self.limits[name, measure], strict=True)
            ]
            for measure, limit in LIMITS.items()
        }

    def limit(self, limit: str) -> float:
        """What the machine gave, the median."""
        return statistics.median(
            value for (_, measure), values in self.limits.items() if LIMITS[measure] == limit for value in values
        )


def race(running: dict[str, Running], machine: Running | None, options: argparse.Namespace) -> Race:
    """Let all take turns, for some rounds."""
    measured = Race(options.size)
    for i in range(options.rounds):
        for measure in MEASURES:
            for name, contestant in running.items():
                if i == 0 and measure[0] == "prefill":
                    contestant.ask(*measure)  # some prepare themselves for a length at its first sight
                if machine and measure in LIMITS:
                    measured.limits.setdefault((name, measure), []).append(machine.ask(LIMITS[measure]))
                measured.seconds.setdefault((name, measure), []).append(contestant.ask(*measure))
    return measured


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print a table."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    print(f"{'':23}" + "".join(f"{column:>11}" for column in columns))
    for name, row in rows.items():
        cells = (f"{row[column]:>11.{0 if row[column] >= 20 else 2}f}" for column in columns)
        print(f"{name:23}" + "".join(cells), flush=True)


def compare(
    contestants: list[str], directory: Path, threads: int, options: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Race the contestants and print three tables; what was measured, for each contestant the figures of all rounds."""
    running, facts = start(contestants, directory, threads, options)
    # The limits of a GPU are not measured.
    machine = Running("machine limits", directory, threads, "cpu") if options.device == "cpu" else None
    measured = race(running, machine, options)
    every = {name: measured.rates(name) for name in running}
    rates = medians(every)
    print(f"\nthreads: {threads}")
    for name, contestant in running.items():
        facts[name]["peak MB"] = contestant.ask("peak_memory") / 1e6
        contestant.close()
    if machine:
        machine.close()
        shares = {name: measured.shares(name) for name in rates}
        every = {name: every[name] | shares[name] for name in rates}
        facts = {name: facts[name] | row for name, row in medians(shares).items()}
        memory, products = measured.limit("memory") / 1e9, measured.limit("products") / 1e9
        print(f"the machine: {memory:.1f} GB/s read, {products:.0f} GF/s of float32 products")
    show({name: facts[name] for name in rates})
    print("\ntokens per second")
    show(rates)
    if BASE in rates:
        print(f"\nthe same, times {BASE}")
        show({name: {key: row[key] / rates[BASE][key] for key in row} for name, row in rates.items()})
    return every


def medians(rows: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """The same with the median of each figure."""
    return {name: {key: statistics.median(values) for key, values in row.items()} for name, row in rows.items()}


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """A process that takes what it can get of one core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def beside_a_neighbour(contestants: list[str], directory: Path, options: argparse.Namespace) -> None:
    """Print what two threads make beside a busy process, as a multiple of one thread on the machine alone."""
    print(f"{'':23}{'1 thread':>10}{'2 threads':>10}{'2, beside':>10}{'ratio':>10}")
    for name in contestants:
        one, two = (Running(name, directory, threads, options.device) for threads in (1, 2))
        taken: list[tuple[float, float, float]] = []
        for _ in range(2 * options.rounds + 1):
            alone = one.ask("sustained", 32, 60), two.ask("sustained", 32, 60)
            with busy_neighbour():
                taken.append((*alone, two.ask("sustained", 32, 60)))
        one.close()
        two.close()
        rates = [1 / statistics.median(times) for times in zip(*taken, strict=True)]
        print(f"{name:23}" + "".join(f"{rate:10.0f}" for rate in rates) + f"{rates[2] / rates[0]:10.2f}", flush=True)


def versions() -> dict[str, str]:
    """The packages that took part."""
    found = {}
    for package in ("numpy", "torch", "transformers", "ctranslate2", "onnxruntime", "openvino", "llama-cpp-python"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--size", choices=["gpt2", "gpt2-medium"], default="gpt2")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:NUMBER (default: cpu)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help='engines, or engines and kinds as "gpt2fast int8"')
    parser.add_argument("--directory", type=Path, help="keep checkpoint and conversions here (default: nowhere)")
    parser.add_argument(
        "--record", action="store_true", help="keep the figures of the last number of threads in results.json"
    )
    parser.add_argument("--neighbour", action="store_true", help="instead: two threads beside a busy process")
    options = parser.parse_args()
    if options.neighbour and not options.only:
        options.only = ["gpt2fast"]
    contestants = names(options)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        contestants = prepare(directory, options.size, contestants)
        described = f"{platform.machine()}, {os.cpu_count()} cores; {options.size}; {options.rounds} rounds"
        taking_part = ", ".join(f"{package} {found}" for package, found in versions().items())
        print(f"{described}; {time.strftime('%d %B %Y')}; Python {platform.python_version()}, {taking_part}")
        if options.neighbour:
            return beside_a_neighbour(contestants, directory, options)
        for threads in options.threads if options.device == "cpu" else [2]:
            measured = compare(contestants, directory, threads, options)
        if options.record:
            settings = "" if options.size == "gpt2" else f"--size {options.size}"
            record("engine", measured, versions=versions(), options=settings)


if __name__ == "__main__":
    main()
