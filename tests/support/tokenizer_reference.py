"""The reference that the tokenizer is tested against: tiktoken, built from our own files without a download."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import tiktoken

import gpt2fast

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
GPT2 = Path(gpt2fast.__file__).parent / "data" / "gpt2"
END_OF_TEXT = "<|endoftext|>"


def byte_of_symbol() -> dict[str, int]:
    """The byte behind each symbol of vocab.json, derived as the published encoder derives it."""
    bytes_ = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    symbols = [chr(byte) for byte in bytes_]
    for byte in range(256):
        if byte not in bytes_:
            symbols.append(chr(256 + len(bytes_) - 188))
            bytes_.append(byte)
    return dict(zip(symbols, bytes_, strict=True))


@functools.cache
def reference(vocab: Path = GPT2 / "vocab.json") -> tiktoken.Encoding:
    """tiktoken with the ids of a vocab.json whose ids follow its merges, `<|endoftext|>` its special token."""
    byte_of = byte_of_symbol()
    ids = json.loads(vocab.read_text(encoding="utf-8"))
    special = {END_OF_TEXT: ids.pop(END_OF_TEXT)}
    ranks = {bytes(byte_of[symbol] for symbol in token): id_ for token, id_ in ids.items()}
    return tiktoken.Encoding("reference", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


def gpt2() -> gpt2fast.Tokenizer:
    """Our tokenizer of GPT-2."""
    return gpt2fast.get_encoding("gpt2")
