"""A corpus to a token file: `gpt2fast tokenize` beside the loop that people write, tiktoken in a pool of processes.

    python benchmarks/corpus.py [--size 100000000] [--rounds 3]

The loop is that of nanoGPT's prepare.py without its framework: a process per processor parses JSON lines, encodes with
tiktoken, puts end-of-text after each document and hands back uint16, which one process writes.  Times are of
whole processes, start to end, on the clock and on the processors (which other work disturbs less); the least of the
rounds, taken in turn.  All files must come out equal, or there are no
figures.  Half of the documents are English, half Python; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tokenizer_corpora as corpora

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
from tokenizer_reference import reference  # noqa: E402

KINDS = ("jsonl", "jsonl.gz", "jsonl.zst", "txt", "parquet")
SEPARATOR = "<|endoftext|>"


def write_corpus(directory: Path, size: int) -> int:
    """The same documents in every kind of file; how many bytes of UTF-8 they are."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet
    import zstandard

    half = size // 2
    text = corpora.english(half) + corpora.code(half)
    documents = [text[start : start + 3000] + "\n" for start in range(0, len(text), 3000)]
    lines = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(documents)).encode()
    (directory / "in.jsonl").write_bytes(lines)
    (directory / "in.jsonl.gz").write_bytes(gzip.compress(lines, 6))
    (directory / "in.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines))
    (directory / "in.txt").write_text(f"{SEPARATOR}\n".join(documents), encoding="utf-8", newline="")
    pyarrow.parquet.write_table(pa.table({"text": documents}), directory / "in.parquet", row_group_size=5000)
    return sum(len(text.encode()) for text in documents)


def encode_lines(lines: list[bytes]) -> bytes:
    """The tokens of JSON lines, by tiktoken."""
    encode = reference().encode_ordinary  # made once in a process
    ids: list[int] = []
    for line in lines:
        ids += encode(json.loads(line)["text"])
        ids.append(50256)
    return np.array(ids, np.uint16).tobytes()


def loop(source: str, out: str) -> None:
    """What people write: JSON lines to a .bin."""

    def batches():
        with open(source, "rb") as file:
            while lines := file.readlines(1 << 20):
                yield lines

    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool, open(out, "wb") as file:
        for part in pool.imap(encode_lines, batches()):
            file.write(part)


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds on the clock, and on the processors by the process and its own."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    taken, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100_000_000, help="bytes of text, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", nargs=2, metavar=("SOURCE", "OUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        return loop(*arguments.loop)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        size = write_corpus(directory, arguments.size)
        jobs = {"tiktoken, a pool, jsonl": [sys.executable, __file__, "--loop", f"{name}/in.jsonl", f"{name}/loop.bin"]}
        for kind in KINDS:
            command = [sys.executable, "-m", "gpt2fast", "tokenize", f"{name}/in.{kind}", "-o", f"{name}/{kind}.bin"]
            jobs[f"gpt2fast tokenize, {kind}"] = [
                *command, "--append-eot", "--overwrite", "--quiet", "--separator", SEPARATOR
            ]  # fmt: skip
        times: dict[str, list[tuple[float, float]]] = {job: [] for job in jobs}
        for _ in range(arguments.rounds):
            for job, command in jobs.items():
                times[job].append(timed(command))
        expected = (directory / "loop.bin").read_bytes()
        for kind in KINDS:
            if (directory / f"{kind}.bin").read_bytes() != expected:
                raise SystemExit(f"other tokens from {kind} than from tiktoken")
    print(f"{size / 1e6:.0f} MB of text, {len(expected) // 2:,} tokens, the same in all files")
    print(
        f"{len(os.sched_getaffinity(0))} processors, {platform.machine()}, Python {platform.python_version()}, ", end=""
    )
    print(f"tiktoken {version('tiktoken')}, least of {arguments.rounds}; load {os.getloadavg()[0]:.1f}")
    best = {job: tuple(map(min, zip(*taken, strict=True))) for job, taken in times.items()}
    wall, cpu = best["tiktoken, a pool, jsonl"]
    print(f"{'':32} {'clock':>9} {'':>11} {'':>11} {'processors':>10}")
    for job, (seconds, used) in best.items():
        rate = f"{seconds:7.2f} s {size / seconds / 1e6:6.1f} MB/s {wall / seconds:5.1f} times"
        print(f"{job:32} {rate} {used:8.2f} s {cpu / used:5.1f} times")


if __name__ == "__main__":
    main()
