"""Time to read a checkpoint of 124 million parameters, against the reference package `safetensors`.

    python benchmarks/loading.py [--rounds 9] [--directory DIRECTORY]

Needs `pip install safetensors ml_dtypes`, and 1.3 GB of space for the files, in a temporary directory or DIRECTORY.
The files are in the page cache, as after a download or a first start.  Before anything is timed, every contestant's
arrays are compared.  The contestants take turns, each time in a new process; shown are the median of the rounds,
the quickest and the slowest one, and the median of the processor time of all threads, which other programs on the
machine disturb less.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy as reference

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "tests" / "support")]

import seeded  # noqa: E402

from gpt2fast import safetensors as st  # noqa: E402
from gpt2fast._internal.threads import default_num_threads  # noqa: E402

Arrays = dict[str, np.ndarray]


def files_in(directory: Path) -> dict[str, Path]:
    """The paths of the files, by kind."""
    return {kind: directory / f"{kind}.safetensors" for kind in ("aligned", "misaligned", "f16", "bf16")}


def write_files(paths: dict[str, Path]) -> None:
    """Write the same weights in the forms in which they are published."""
    weights = seeded.tensors(seeded.config("gpt2"))
    st.save_file(weights, paths["aligned"], {"format": "pt"})
    content = paths["aligned"].read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    # As the file that everyone downloads: the header's length is no multiple of four.
    paths["misaligned"].write_bytes(
        struct.pack("<Q", length + 3) + content[8 : 8 + length] + b"   " + content[8 + length :]
    )
    st.save_file({name: array.astype(np.float16) for name, array in weights.items()}, paths["f16"])
    st.save_file({name: array.astype(ml_dtypes.bfloat16) for name, array in weights.items()}, paths["bf16"])


def read_every_value(tensors: Arrays) -> Arrays:
    """The same arrays, after a look at each page."""
    for array in tensors.values():
        array.reshape(-1).view(np.uint8)[::4096].max()
    return tensors


def float32(path: Path) -> Arrays:
    """What the model loader does: each tensor read, then widened."""
    with st.safe_open(path) as file:
        names = file.keys()
        return {name: st.as_float32(file.get_tensor(name), file.get_slice(name).get_dtype()) for name in names}


def reference_float32(path: Path) -> Arrays:
    """The same with the reference package and NumPy's own conversion."""
    with safetensors.safe_open(path, "np") as file:
        names = file.keys()
        return {name: file.get_tensor(name).astype(np.float32) for name in names}


def tasks(paths: dict[str, Path]) -> dict[str, dict[str, Callable[[], Arrays]]]:
    """What is timed: by task and contestant a function that returns arrays."""
    found: dict[str, dict[str, Callable[[], Arrays]]] = {}
    for kind in ("aligned", "misaligned"):
        path = paths[kind]
        found[f"all tensors of float32, {kind}"] = {
            "gpt2fast": lambda path=path: st.load_file(path),
            "gpt2fast mmap": lambda path=path: st.load_file(path, mmap=True),
            "reference": lambda path=path: reference.load_file(path),
        }
    path = paths["aligned"]
    found["the same, and every page looked at"] = {
        "gpt2fast": lambda: read_every_value(st.load_file(path)),
        "gpt2fast mmap": lambda: read_every_value(st.load_file(path, mmap=True)),
        "reference": lambda: read_every_value(reference.load_file(path)),
    }
    for kind in ("f16", "bf16"):
        path = paths[kind]
        found[f"{kind} as float32"] = {
            "gpt2fast": lambda path=path: float32(path),
            "reference": lambda path=path: reference_float32(path),
        }

    def rows(opened: object) -> Arrays:
        return {"wte.weight": opened.get_slice("wte.weight")[1000:1010]}  # type: ignore[attr-defined]

    def ours() -> Arrays:
        with st.safe_open(paths["aligned"]) as file:
            return rows(file)

    def theirs() -> Arrays:
        with safetensors.safe_open(paths["aligned"], "np") as file:
            return rows(file)

    found["ten rows of one tensor"] = {"gpt2fast": ours, "reference": theirs}
    return found


def check(contestants: dict[str, Callable[[], Arrays]]) -> None:
    """Raise AssertionError where two contestants disagree."""
    first = None
    for read in contestants.values():
        arrays = read()
        first = arrays if first is None else first
        if arrays.keys() != first.keys():
            raise AssertionError("different names")
        for name, array in arrays.items():
            if array.dtype != first[name].dtype or array.tobytes() != first[name].tobytes():
                raise AssertionError(f"different values of {name}")


def measure(directory: Path, task: str, contestants: list[str], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds, and seconds of processor time, of each round, by contestant, who take turns.

    Each round is a process of its own: in one that has loaded before, memory is there already, which hides much of the
    work from some contestants and not from others.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name in contestants:
            program = [sys.executable, __file__, "--directory", directory, "--one", task, name]
            wall, processor = subprocess.run(program, check=True, capture_output=True, text=True).stdout.split()
            times[name].append((float(wall), float(processor)))
    return times


def measure_one(read: Callable[[], Arrays]) -> None:
    """Print the seconds, and those of processor time, that one call takes."""
    start, worked = time.perf_counter(), time.process_time()
    arrays = read()
    print(time.perf_counter() - start, time.process_time() - worked)
    del arrays


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--directory", type=Path, help="keep the files here, and use those that are there")
    parser.add_argument("--one", nargs=2, metavar=("TASK", "CONTESTANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        task, name = options.one
        measure_one(tasks(files_in(options.directory))[task][name])
        return
    print(
        f"{processor()}, {len(os.sched_getaffinity(0))} processors, {default_num_threads()} threads; "
        f"{platform.system()} {platform.release()}; Python {platform.python_version()}, NumPy {np.__version__}, "
        f"safetensors {safetensors.__version__}; {options.rounds} rounds; {time.strftime('%d %B %Y')}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        paths = files_in(directory)
        if not all(path.exists() for path in paths.values()):
            write_files(paths)
        for task, contestants in tasks(paths).items():
            check(contestants)
            times = measure(directory, task, list(contestants), options.rounds)
            medians = {name: statistics.median(wall for wall, _ in rounds) for name, rounds in times.items()}
            print(f"\n{task}")
            for name, rounds in times.items():
                walls, worked = zip(*rounds, strict=True)
                print(
                    f"  {name:14}{medians[name] * 1e3:8.2f} ms  ({min(walls) * 1e3:.2f} to {max(walls) * 1e3:.2f}), "
                    f"{statistics.median(worked) * 1e3:.2f} ms of processor; "
                    f"{medians['reference'] / medians[name]:.2f} times the reference's speed"
                )


if __name__ == "__main__":
    main()
