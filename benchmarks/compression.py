"""How short texts become, and how long that takes: `gpt2fast compress` beside other compressors.

    python benchmarks/compression.py tales.txt [more.txt …] [--bytes 120000] [--train corpus.txt]
        [--dtypes float32,int8] [--model demo] [--threads N] [--chunk 8192] [--rounds 1] [--nnzip COMMAND]

Of each file the first `--bytes` are taken, 120,000 by default.  Every compressor gives the text back before its numbers
count.  Beside lzma (xz -9e), bz2 and zlib of Python there are, where they are installed, zstandard (--ultra -22, and
with a dictionary of 112,640 bytes trained on 4 MB of `--train`, which is not counted), brotli (quality 11, window of
16 MB) and pyppmd (PPMd variant I, order 6, 64 MB).  `--nnzip` is a command that reads a text from standard input and
writes it compressed, for another compressor by a language model; only its size and rate are shown.

Printed are bytes, bits per byte, and KB a second (1,000 bytes) of the fastest of `--rounds`, for which the machine
should have nothing else to do; `entropy` is what `lm.score` says that the text holds, in sliding windows, no chunks.
"""

from __future__ import annotations

import argparse
import bz2
import importlib
import lzma
import platform
import shlex
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpt2fast
from gpt2fast import compression

Function = Callable[[bytes], bytes]


@lru_cache(maxsize=1)
def dictionary(train: bytes) -> Any:
    """What zstd makes of the first 4 MB of a text."""
    parts = [train[place : place + 4096] for place in range(0, min(len(train), 1 << 22), 4096)]
    return optional("zstandard").train_dictionary(112_640, parts, level=22)


def others(train: bytes) -> Iterator[tuple[str, Function, Function]]:
    """The compressors that know no model: name, there and back."""
    xz = {"preset": 9 | lzma.PRESET_EXTREME}
    yield "zlib -9", partial(zlib.compress, level=9), zlib.decompress
    yield "bzip2 -9", bz2.compress, bz2.decompress
    yield "xz -9e", partial(lzma.compress, **xz), lzma.decompress
    if zstandard := optional("zstandard"):
        dictionaries: list[tuple[str, dict[str, Any]]] = [("zstd --ultra -22", {})]
        if train:
            dictionaries.append(("zstd -22, dictionary", {"dict_data": dictionary(train)}))
        for name, how in dictionaries:
            packer, unpacker = zstandard.ZstdCompressor(level=22, **how), zstandard.ZstdDecompressor(**how)
            yield name, packer.compress, unpacker.decompress
    if brotli := optional("brotli"):
        yield "brotli -q 11", partial(brotli.compress, quality=11, lgwin=24), brotli.decompress
    if pyppmd := optional("pyppmd"):
        how = {"max_order": 6, "mem_size": 64 << 20}
        yield "PPMd (I, order 6)", partial(pyppmd.compress, **how), partial(pyppmd.decompress, **how)


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"[{name} is not installed]", file=sys.stderr)
        return None


def timed(function: Function, content: bytes, rounds: int) -> tuple[bytes, float]:
    """What a function makes of the bytes, and the seconds of its fastest call."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        made = function(content)
        best = min(best, time.perf_counter() - start)
    return made, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--bytes", type=int, default=120_000)
    parser.add_argument("--train", help="what zstd's dictionary is trained on")
    parser.add_argument("--dtypes", default="float32,int8")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--chunk", type=int, default=compression.CHUNK)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--nnzip", metavar="COMMAND", help="another compressor by a model: standard input to output")
    options = parser.parse_args()

    train = Path(options.train).read_bytes() if options.train else b""
    models = {
        dtype: gpt2fast.load(options.model, dtype=dtype, num_threads=options.threads)
        for dtype in options.dtypes.split(",")
    }
    threads = next(iter(models.values())).model.num_threads
    print(f"{platform.machine()}, {threads} threads, {options.model}, {time.strftime('%d %B %Y')}")
    for file in options.files:
        content = Path(file).read_bytes()[: options.bytes]
        print(f"\n{Path(file).name}, {len(content):,} bytes")
        print(f"{'':22}{'bytes':>9}{'bits/byte':>11}{'there KB/s':>13}{'back KB/s':>12}")
        ours = [
            (
                f"gpt2fast {dtype}",
                partial(compression.compress, lm=lm, chunk=options.chunk),
                partial(compression.decompress, lm=lm),
            )
            for dtype, lm in models.items()
        ]
        for name, there, back in (*others(train), *ours):
            packed, seconds = timed(there, content, options.rounds)
            unpacked, back_seconds = timed(back, packed, options.rounds)
            if unpacked != content:
                raise SystemExit(f"{name} does not give the text back")
            show(name, len(packed), content, seconds, back_seconds)
        for dtype, lm in models.items():
            show(f"entropy {dtype}", lm.score(content).bits_per_byte * len(content) / 8, content)
        if options.nnzip:
            start = time.perf_counter()
            packed = subprocess.run(
                shlex.split(options.nnzip), input=content, stdout=subprocess.PIPE, check=True
            ).stdout
            show(options.nnzip.split()[0], len(packed), content, time.perf_counter() - start)


def show(name: str, size: float, content: bytes, *seconds: float) -> None:
    rates = "".join(f"{len(content) / 1000 / took:{width}.2f}" for took, width in zip(seconds, (13, 12), strict=False))
    print(f"{name:22}{round(size):9,}{8 * size / len(content):11.3f}{rates}", flush=True)


if __name__ == "__main__":
    main()
