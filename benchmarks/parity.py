"""Thousands of texts through this tokenizer and through tiktoken and Hugging Face's two GPT-2 tokenizers: the same ids?

    python benchmarks/parity.py [--encodes 30000] [--decodes 2000] [--seed 0]

Texts are drawn from several scripts, source code, odd white space and characters of every kind; lengths run from
nothing to some thousand characters.  Needs tiktoken; tokenizers and transformers are compared where they are installed.
Exits with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import sysconfig
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import gpt2fast

FILES = Path(gpt2fast.__file__).parent / "data" / "gpt2"
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SAMPLE = """
the of and to in is that it was for on are as with his they I'm don't we'll they've you're it's Größe naïve déjà 'S '
привет мир 日本語 漢字 한국어 हिन्दी العربية עברית ไทย ελληνικά 123 3.14 2026-11-30 http://example.org/?q=1 _x_ ... !?
def __init__(self): return {} != [] -> 🙂 👨‍👩‍👧 🇫🇷 ½ ² ٣ Ⅷ #include <stdio.h> ======== --------
"""
WORDS = SAMPLE.split()
BLANKS = (" ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", "    ", "\u00a0", "\u3000", "\u2028", "\x85", "")


def texts(count: int, rng: random.Random) -> list[str]:
    """`count` texts: words in many scripts, arbitrary characters, and pieces of Python's own library."""
    library = [path.read_text(errors="replace") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]

    def any_character() -> str:
        code = rng.choice((rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x110000)))
        return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)

    found = []
    for _ in range(count):
        kind = rng.random()
        length = int(4 ** (6 * rng.random())) - 1
        if kind < 0.5:
            found.append("".join(rng.choice(WORDS) + rng.choice(BLANKS) for _ in range(length // 5)))
        elif kind < 0.8:
            found.append("".join(any_character() for _ in range(length)))
        else:
            source = rng.choice(library)
            start = rng.randrange(len(source) + 1)
            found.append(source[start : start + length])
    return found


def peers() -> dict[str, tuple[Callable[[str], list[int]], Callable[[list[int]], str]]]:
    """How each installed peer encodes and decodes."""
    import tiktoken

    byte_of = {symbol: byte for byte, symbol in enumerate(gpt2fast.get_encoding("gpt2").byte_symbols())}
    ids = json.loads((FILES / "vocab.json").read_text(encoding="utf-8"))
    special = {"<|endoftext|>": ids.pop("<|endoftext|>")}
    ranks = {bytes(byte_of[symbol] for symbol in token): id_ for token, id_ in ids.items()}
    ours = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    found: dict[str, tuple[Callable[[str], list[int]], Callable[[list[int]], str]]] = {
        "tiktoken": (ours.encode_ordinary, ours.decode)
    }
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        fast = Tokenizer(models.BPE.from_file(str(FILES / "vocab.json"), str(FILES / "merges.txt")))
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        fast.decoder = decoders.ByteLevel()
        found["tokenizers"] = (lambda text: fast.encode(text).ids, fast.decode)
    except ImportError:
        print("tokenizers is not installed: left out")
    try:
        from transformers import GPT2Tokenizer

        slow = GPT2Tokenizer(str(FILES / "vocab.json"), str(FILES / "merges.txt"))
        if type(slow).__mro__[1].__name__ == "PreTrainedTokenizer":  # later versions wrap the fast one
            found["transformers (Python)"] = (
                lambda text: slow.encode(text, add_special_tokens=False),
                lambda ids: slow.decode(ids, clean_up_tokenization_spaces=False),
            )
        else:
            print("this transformers has no GPT-2 tokenizer of its own: left out")
    except ImportError:
        print("transformers is not installed: left out")
    return found


def reclassified() -> set[str]:
    """Characters that `regex`, which the Python tokenizer splits with, has in another class: its Unicode is newer."""
    import regex

    enc = gpt2fast.get_encoding("gpt2")
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    found = set()
    for before, pattern in (("a", r"\p{L}"), ("1", r"\p{N}")):
        matches = regex.compile(pattern).match
        found |= {c for c in every if (matches(c) is not None) != (len(enc.split(before + c)) == 1)}
    return found


def installed(name: str) -> str:
    """The name with its version."""
    package = name.split(" ")[0]
    try:
        return f"{name} {version(package)}"
    except PackageNotFoundError:
        return name


def main() -> int:
    """Compare; returns the exit status."""
    parser = argparse.ArgumentParser(description="Compare ids with other GPT-2 tokenizers.")
    parser.add_argument("--encodes", type=int, default=30_000)
    parser.add_argument("--decodes", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    enc = gpt2fast.get_encoding("gpt2")
    sample = texts(arguments.encodes, rng)
    ids = enc.encode_ordinary_batch(sample)
    flat, offsets = enc.encode_batch_flat(sample)
    for i, text in enumerate(sample):
        if flat[offsets[i] : offsets[i + 1]].tolist() != ids[i] or enc.decode(ids[i]) != text:
            print(f"different ids by another way, or no round trip: {text!r}")
            return 1
    sequences = [[rng.randrange(50257) for _ in range(rng.randrange(40))] for _ in range(arguments.decodes)]
    size = sum(len(text.encode()) for text in sample) / 1e6
    print(f"{len(sample)} texts, {size:.1f} MB, seed {arguments.seed}; {len(sequences)} sequences of random ids")
    for name, (encode, decode) in peers().items():
        start = time.perf_counter()
        other = reclassified() if "Python" in name else set()
        skipped = 0
        for text, expected in zip(sample, ids, strict=True):
            if not other.isdisjoint(text):
                skipped += 1
            elif encode(text) != expected:
                print(f"{installed(name)} differs on {text!r}")
                return 1
        for sequence in sequences:
            if decode(sequence) != enc.decode(sequence):
                print(f"{installed(name)} decodes {sequence} differently")
                return 1
        note = f", {skipped} texts with characters of a newer Unicode left out" if skipped else ""
        print(f"{installed(name)}: all the same{note} ({time.perf_counter() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
