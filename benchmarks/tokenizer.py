"""Tokenizers compared: ids first, then rates.  Every contestant runs in a process of its own.

    python benchmarks/tokenizer.py [--english FILE] [--size 10000000] [--rounds 3] [--record]

Contestants that are not installed are left out (pip install tiktoken==0.14.0 tokenizers gigatoken fastokens
splintr-rs snaptokens).  Each first has to give tiktoken's ids for the beginning of every text; one that does not is
named and not timed.  "fresh" is a text that the process has not seen, "again" the median of later calls in the process;
what is printed is the median of `--rounds` processes, by turns.  Rates are MB of UTF-8 a second.

The process of a contestant is held to one processor (on Linux), as some have threads of their own; the rows "all
processors" are of another process, which is not.
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
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizer_corpora as corpora
from results import environment, record

DATA = Path(__file__).resolve().parent.parent / "gpt2fast" / "data" / "gpt2"
CONTESTANTS = ("gpt2fast", "tiktoken", "gigatoken", "fastokens", "splintr", "snaptokens", "tokenizers")
PACKAGES = {"splintr": "splintr-rs"}  # where the package is called otherwise
SLOW = ("tiktoken", "tokenizers")  # timed once and with fewer calls
TEXTS = ("English", "code", "ten languages")
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
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
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


def write_texts(directory: Path, arguments: argparse.Namespace) -> None:
    """The texts that are timed, once for all processes."""
    size = arguments.size
    every = {
        "English": corpora.english(size, arguments.english),
        "code": corpora.code(size),
        "ten languages": corpora.ten_languages(size),
    }
    for name, text in every.items():
        (directory / name).write_text(text, encoding="utf-8", newline="")


def seconds(call: Callable[[Any], Any], argument: Any) -> float:
    """How long one call takes; what it returns is freed in that time."""
    start = time.perf_counter()
    call(argument)
    return time.perf_counter() - start


def worker(name: str, directory: Path, one_processor: bool) -> dict[str, Any]:
    """Time one contestant: rates by row, or under "wrong" the texts for which its ids are not tiktoken's."""
    if one_processor and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    results: dict[str, float] = {}
    start = time.perf_counter()
    ways = contestant(name, directory)
    results["load (ms)"] = 1e3 * (time.perf_counter() - start)
    every = {text: (directory / text).read_text(encoding="utf-8") for text in TEXTS}
    expected = directory / "expected.json"  # written by the first contestant, tiktoken
    own = {kind: [int(i) for i in ways["list"](text[:CHECKED])] for kind, text in every.items()}
    if name == "tiktoken" and not expected.exists():
        expected.write_text(json.dumps(own))
    elif wrong := [kind for kind, ids in json.loads(expected.read_text()).items() if own[kind] != ids]:
        return {"wrong": wrong}
    if "array" in ways:
        ways["array"]("warm")  # the first array may import NumPy
    if not one_processor:
        return all_processors(ways, every)
    calls = 2 if name in SLOW else 7
    for kind, text in every.items():
        megabytes = len(text.encode()) / 1e6
        fresh = text[CHECKED:]
        for way in ("array", "list"):
            if way in ways:
                if way == "array":
                    fresh_megabytes = len(fresh.encode()) / 1e6
                    results[f"{kind}, array, fresh"] = fresh_megabytes / seconds(ways[way], fresh)
                again = statistics.median(seconds(ways[way], text) for _ in range(calls))
                results[f"{kind}, {way}, again"] = megabytes / again
    lines = corpora.short_lines(every["English"], 100_000)
    megabytes = sum(map(len, lines)) / 1e6
    for way in ("lines", "line lists"):
        if way in ways:
            results[f"100,000 {way}"] = megabytes / statistics.median(seconds(ways[way], lines) for _ in range(calls))
    if "array" in ways and name not in SLOW:
        for kind, text in corpora.hostile().items():
            results[f"hostile, {kind}"] = len(text.encode()) / 1e6 / seconds(ways["array"], text)
    number = 20_000
    start = time.perf_counter()
    for _ in range(number):
        ways["list"]("hello world")
    results["11 bytes (us)"] = 1e6 * (time.perf_counter() - start) / number
    if "decode" in ways:
        ids = ways["list"](every["English"])
        results["decode (M tokens/s)"] = len(ids) / 1e6 / min(seconds(ways["decode"], ids) for _ in range(calls))
    results["peak memory (MB)"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return results


def all_processors(ways: dict[str, Callable[[Any], Any]], every: dict[str, str]) -> dict[str, float]:
    """The rows in which a contestant may use what threads it likes, and ours one and two."""
    results = {}
    english = every["English"]
    lines = corpora.short_lines(english, 100_000)
    documents = [english[at : at + 2000] for at in range(0, len(english), 2000)]
    for way, argument, row in (
        ("array", english, "English, array, again"),
        ("list", english, "English, list, again"),
        ("lines", lines, "100,000 lines"),
        ("two threads", lines, "100,000 lines, two threads"),
        ("lines", documents, "English, 2,000 characters each"),
        ("two threads", documents, "English, 2,000 characters each, two threads"),
    ):
        if way in ways:
            megabytes = len(argument if isinstance(argument, str) else "".join(argument)) / 1e6
            again = statistics.median(seconds(ways[way], argument) for _ in range(7))
            results[f"all processors: {row}"] = megabytes / again
    return results


def installed(name: str) -> str | None:
    """The version of a package, None where it is not installed."""
    try:
        return version(PACKAGES.get(name, name))
    except PackageNotFoundError:
        return "(this tree)" if name == "gpt2fast" else None


def run(name: str, directory: str, *options: str) -> dict[str, float] | None:
    """Time a contestant in a process of its own; None where that fails or its ids are wrong, which is printed."""
    command = [sys.executable, __file__, "--worker", name, "--directory", directory, *options]
    path = os.pathsep.join([str(DATA.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=environment(PYTHONPATH=path), capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: failed\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "wrong" in result:
        print(f"{name}: other ids than tiktoken in {result['wrong']}: not timed", file=sys.stderr)
        return None
    return result


def main() -> None:
    """Compare; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--english", type=Path, help="a text file or .gz of English prose; default: Python's documentation"
    )
    parser.add_argument("--size", type=int, default=10_000_000, help="characters of each text")
    parser.add_argument("--only", nargs="*", default=CONTESTANTS, help="contestants beside tiktoken, the reference")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each contestant, by turns")
    parser.add_argument("--record", action="store_true", help="keep the figures in results.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one-processor", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(worker(arguments.worker, arguments.directory, arguments.one_processor)))
        return
    versions = {name: found for name in CONTESTANTS if (found := installed(name))}
    for name in arguments.only:
        if name not in versions:
            print(f"{name}: not installed", file=sys.stderr)
    measured: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        write_texts(Path(directory), arguments)
        names = ["tiktoken", *(n for n in CONTESTANTS if n != "tiktoken" and n in arguments.only and n in versions)]
        for turn in range(arguments.rounds):
            for name in names:
                if turn > 0 and (name in SLOW or name not in measured):
                    continue
                found = [run(name, directory, "--one-processor")]
                if found[0] and name not in SLOW:
                    found.append(run(name, directory))
                if None not in found:
                    measured.setdefault(name, []).extend(result for result in found if result)
    every = {
        name: {row: [rates[row] for rates in runs if row in rates] for row in dict.fromkeys(chain(*runs))}
        for name, runs in measured.items()
    }
    results = {name: {row: statistics.median(rates) for row, rates in rows.items()} for name, rows in every.items()}
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {date.today()}")
    print("  ".join(f"{name} {found}" for name, found in versions.items()), "\n")
    names = [name for name in CONTESTANTS if name in results]
    print(f"{'MB/s where nothing else is said':60}" + "".join(f"{name:>12}" for name in names))
    for row in dict.fromkeys(row for name in names for row in results[name]):
        cells = (f"{rate:.{1 if rate >= 1 else 2}f}" if (rate := results[name].get(row)) else "-" for name in names)
        print(f"{row:60}" + "".join(f"{cell:>12}" for cell in cells))
    if arguments.record:
        taking_part = {name: versions[name] for name in names if name != "gpt2fast"}
        settings = f"--size {arguments.size} --rounds {arguments.rounds}"
        record("tokenizer", {name: every[name] for name in names}, versions=taking_part, options=settings)


if __name__ == "__main__":
    main()
