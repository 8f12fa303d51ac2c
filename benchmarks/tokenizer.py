"""Tokenizers compared: ids first, then rates.  Every contestant runs in a process of its own.

    python benchmarks/tokenizer.py [--english FILE] [--size 10000000] [--chart docs/tokenizer.svg]

Contestants that are not installed are left out (pip install tiktoken==0.14.0 tokenizers gigatoken fastokens
splintr-rs snaptokens).  Each first has to give tiktoken's ids for the beginning of every text; one that does not is
named and not timed.  "fresh" is a text that the process has not seen, "again" the median of later rounds.  Rates are MB
of UTF-8 a second.  `--cpu-time` counts the thread's time on the processor, for busy machines; peers with threads of
their own then look too fast.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tokenizer_corpora as corpora
from charts import bar_chart

DATA = Path(__file__).resolve().parent.parent / "gpt2fast" / "data" / "gpt2"
CONTESTANTS = ("gpt2fast", "tiktoken", "gigatoken", "fastokens", "splintr", "snaptokens", "tokenizers")
PACKAGES = {"splintr": "splintr-rs"}  # where the package is called otherwise
CHECKED = 300_000  # characters of each text whose ids are compared


def tokenizer_json(directory: Path) -> Path:
    """GPT-2's two files as a tokenizer.json, which most contestants read."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"id": 50256, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False}
    vocabulary = json.loads((DATA / "vocab.json").read_text(encoding="utf-8"))
    merges = [line for line in (DATA / "merges.txt").read_text(encoding="utf-8").split("\n")[1:] if line]
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    bpe |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": merges}
    content = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level}
    content |= {"added_tokens": [special | {"normalized": True, "special": True}], "post_processor": level}
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(content | {"decoder": level, "model": bpe}), encoding="utf-8")
    return path


def contestant(name: str, directory: Path) -> dict[str, Callable[[Any], Any]]:
    """Its ways of encoding: `list` and `array` of one text, `lines` (arrays of many), `decode`."""
    if name == "gpt2fast":
        import gpt2fast

        enc = gpt2fast.get_encoding("gpt2")
        return {
            "list": enc.encode_ordinary,
            "array": lambda text: enc.encode_batch_flat([text], num_threads=1)[0],
            "lines": lambda texts: enc.encode_batch_flat(texts, num_threads=1),
            "line lists": lambda texts: enc.encode_ordinary_batch(texts, num_threads=1),
            "two threads": lambda texts: enc.encode_batch_flat(texts, num_threads=2),
            "decode": enc.decode,
        }
    if name == "tiktoken":
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
        from tokenizer_reference import reference

        peer = reference()
        return {
            "list": peer.encode_ordinary,
            "array": lambda text: peer.encode_to_numpy(text, disallowed_special=()),
            "line lists": lambda texts: [peer.encode_ordinary(text) for text in texts],
            "decode": peer.decode,
        }
    path = str(tokenizer_json(directory))
    if name == "gigatoken":
        import gigatoken

        giga = gigatoken.Tokenizer(path)
        return {
            "list": lambda text: giga.encode_batch_list([text], parallel=False)[0],
            "array": giga.encode,
            "lines": lambda texts: giga.encode_batch(texts, parallel=False),
            "line lists": lambda texts: giga.encode_batch_list(texts, parallel=False),
            "decode": giga.decode,
        }
    if name == "fastokens":
        import fastokens

        fast = fastokens.Tokenizer.from_file(path)
        return {
            "list": lambda text: fast.encode_ordinary(text).ids,
            "array": lambda text: fast.encode_batch_flat([text])[0],
        }
    if name == "splintr":
        import splintr

        splinter = splintr.from_json(path)
        return {"list": splinter.encode_ordinary, "array": splinter.encode_flat, "decode": splinter.decode}
    if name == "snaptokens":
        import snaptokens

        snap = snaptokens.Tokenizer.from_file(path)
        return {
            "list": lambda text: snap.encode(text).ids,
            "array": lambda text: snap.encode_batch_flat([text])[0],
            "decode": snap.decode,
        }
    import tokenizers

    hugging_face = tokenizers.Tokenizer.from_file(path)
    return {"list": lambda text: hugging_face.encode(text, add_special_tokens=False).ids, "decode": hugging_face.decode}


def texts(arguments: argparse.Namespace) -> dict[str, str]:
    """The texts that are timed."""
    size = arguments.size
    return {
        "English": corpora.english(size, arguments.english),
        "code": corpora.code(size),
        "ten languages": corpora.ten_languages(size),
    }


def worker(arguments: argparse.Namespace) -> None:
    """Time one contestant; the results go to stdout as JSON."""
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    results: dict[str, float] = {}

    def seconds(call: Callable[[Any], Any], argument: Any) -> float:
        start = clock()
        call(argument)
        return clock() - start

    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        ways = contestant(arguments.worker, Path(directory))
        results["load (ms)"] = 1e3 * (time.perf_counter() - start)
    every = texts(arguments)
    expected = json.loads(Path(arguments.expected).read_text()) if arguments.expected else {}
    own = {name: [int(i) for i in ways["list"](text[:CHECKED])] for name, text in every.items()}
    if not expected:
        Path(arguments.write_expected).write_text(json.dumps(own))
    elif wrong := [name for name in own if own[name] != expected[name]]:
        print(json.dumps({"wrong": wrong}))
        return
    if "array" in ways:
        ways["array"]("warm")  # the first array may import NumPy
    rounds = 2 if arguments.worker in ("tiktoken", "tokenizers") else 7
    for name, text in every.items():
        megabytes = len(text.encode()) / 1e6
        fresh = text[CHECKED:]
        for way in ("array", "list"):
            if way in ways:
                if way == "array":
                    fresh_megabytes = len(fresh.encode()) / 1e6
                    results[f"{name}, array, fresh"] = fresh_megabytes / seconds(ways[way], fresh)
                again = statistics.median(seconds(ways[way], text) for _ in range(rounds))
                results[f"{name}, {way}, again"] = megabytes / again
    lines = corpora.short_lines(every["English"], 100_000)
    megabytes = sum(map(len, lines)) / 1e6
    for way in ("lines", "two threads", "line lists"):
        if way in ways:
            results[f"100,000 {way}"] = megabytes / statistics.median(seconds(ways[way], lines) for _ in range(rounds))
    if "array" in ways and arguments.worker != "tiktoken":
        for name, text in corpora.hostile().items():
            results[f"hostile, {name}"] = len(text.encode()) / 1e6 / seconds(ways["array"], text)
    number = 20_000
    start = clock()
    for _ in range(number):
        ways["list"]("hello world")
    results["11 bytes (us)"] = 1e6 * (clock() - start) / number
    if "decode" in ways:
        ids = ways["list"](every["English"])
        results["decode (M tokens/s)"] = len(ids) / 1e6 / min(seconds(ways["decode"], ids) for _ in range(rounds))
    results["peak memory (MB)"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps(results))


def installed(name: str) -> str | None:
    """The version of a package, None where it is not installed."""
    try:
        return version(PACKAGES.get(name, name))
    except PackageNotFoundError:
        return "(this tree)" if name == "gpt2fast" else None


def chart(path: Path, results: dict[str, dict[str, float]], versions: dict[str, str]) -> None:
    """Bars as SVG: fresh text to arrays, what a corpus is tokenized at."""
    rows = {text: f"{text}, array, fresh" for text in ("English", "code", "ten languages")}
    groups = {
        text: {name: result[row] for name, result in results.items() if row in result} for text, row in rows.items()
    }
    names = ", ".join(f"{name} {version_}" for name, version_ in versions.items() if name in results)
    title = "Text not seen before to an array of ids, one thread"
    bar_chart(path, title, groups, " MB/s", f"{names}; {platform.machine()}, {date.today()}")


def main() -> None:
    """Compare; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--english", type=Path, help="a text file or .gz of English prose; default: Python's documentation"
    )
    parser.add_argument("--size", type=int, default=10_000_000, help="characters of each text")
    parser.add_argument("--only", nargs="*", default=CONTESTANTS, help="contestants beside tiktoken, the reference")
    parser.add_argument("--cpu-time", action="store_true", help="count time on the processor")
    parser.add_argument("--chart", type=Path, help="write a chart (SVG) here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--expected", help=argparse.SUPPRESS)
    parser.add_argument("--write-expected", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    versions = {name: found for name in CONTESTANTS if (found := installed(name))}
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        expected = str(Path(directory) / "expected.json")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(DATA.parents[2]), os.environ.get("PYTHONPATH", "")])
        }
        for name in ("tiktoken", *(n for n in CONTESTANTS if n != "tiktoken" and n in arguments.only)):
            if name not in versions:
                print(f"{name}: not installed", file=sys.stderr)
                continue
            option = "--write-expected" if name == "tiktoken" else "--expected"
            command = [sys.executable, __file__, "--worker", name, option, expected, "--size", str(arguments.size)]
            command += ["--english", str(arguments.english)] if arguments.english else []
            command += ["--cpu-time"] if arguments.cpu_time else []
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if run.returncode:
                print(f"{name}: failed\n{run.stderr[-2000:]}", file=sys.stderr)
                continue
            result = json.loads(run.stdout.splitlines()[-1])
            if "wrong" in result:
                print(f"{name}: other ids than tiktoken in {result['wrong']}: not timed", file=sys.stderr)
                continue
            results[name] = result
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {date.today()}")
    print("  ".join(f"{name} {found}" for name, found in versions.items()), "\n")
    names = [name for name in CONTESTANTS if name in results]
    print(f"{'MB/s where nothing else is said':34}" + "".join(f"{name:>12}" for name in names))
    for row in dict.fromkeys(row for name in names for row in results[name]):
        cells = (f"{results[name][row]:12.1f}" if row in results[name] else f"{'-':>12}" for name in names)
        print(f"{row:34}" + "".join(cells))
    if arguments.chart:
        chart(arguments.chart, {name: results[name] for name in names}, versions)


if __name__ == "__main__":
    main()
