"""Public functions called with odd values: what is raised is an error of gpt2fast or a TypeError, nothing else."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpt2fast
from gpt2fast import compression, corpus, safetensors
from gpt2fast.corpus.encoding import goes_to_val


class Text(str):
    """A subclass of str."""


class Number(int):
    """A subclass of int."""


READ_ONLY = np.arange(4)
READ_ONLY.flags.writeable = False

ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "-1": lambda: -1,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "10**30": lambda: 10**30,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "1.5": lambda: 1.5,
    "a complex number": lambda: 1j,
    "a word": lambda: "odd",
    "no text": lambda: "",
    "half a surrogate pair": lambda: "\ud800",
    "a NUL": lambda: "a\0b",
    "bytes": lambda: b"x",
    "a bytearray": lambda: bytearray(b"x"),
    "a strided memoryview": lambda: memoryview(b"abcd")[::2],
    "an empty list": list,
    "ragged lists": lambda: [[1], [2, 3]],
    "[None]": lambda: [None],
    "['a']": lambda: ["a"],
    "[1.5]": lambda: [1.5],
    "[-1]": lambda: [-1],
    "[2**70]": lambda: [2**70],
    "an empty dict": dict,
    "a dict": lambda: {1: 2},
    "a set": lambda: {1},
    "a range": lambda: range(3),
    "a generator": lambda: (i for i in (1, 2)),
    "an object": object,
    "a type": lambda: int,
    "a function": lambda: len,
    "...": lambda: ...,
    "an array of floats": lambda: np.array([1.5]),
    "an array without dimensions": lambda: np.array(3),
    "a matrix": lambda: np.zeros((2, 2), np.int64),
    "an array with gaps": lambda: np.arange(8)[::2],
    "an array of bytes": lambda: np.array([1], np.uint8),
    "a complex array": lambda: np.array([1j]),
    "an array of objects": lambda: np.array([None]),
    "an array of bools": lambda: np.array([True]),
    "an array of words": lambda: np.array(["a"]),
    "big-endian": lambda: np.arange(3).astype(">i4"),
    "read-only": lambda: READ_ONLY,
    "a subclass of str": lambda: Text("odd"),
    "a subclass of int": lambda: Number(3),
}


def calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Functions, with arguments that they take; each argument in turn becomes an odd one."""
    enc, lm = gpt2fast.get_encoding(), gpt2fast.load("demo")
    return {
        "tokenize_files": (corpus.tokenize_files, {"inputs": "a.txt", "out": "out.npy"}),
        "score_files": (corpus.score_files, {"inputs": "a.txt", "out": "out.jsonl", "lm": lm}),
        "goes_to_val": (goes_to_val, {"beginning": b"x", "fraction": 0.5, "seed": 0}),
        "get_encoding": (gpt2fast.get_encoding, {"name": "gpt2"}),
        "encode_spans": (enc.encode_spans, {"data": b"hi", "spans": [0, 2]}),
        "encode_batch_flat": (enc.encode_batch_flat, {"texts": ["hi"]}),
        "encode_ordinary_batch": (enc.encode_ordinary_batch, {"texts": ["hi"]}),
        "encode_with_offsets": (enc.encode_with_offsets, {"text": "hi"}),
        "count": (enc.count, {"text": "hi"}),
        "count_batch": (enc.count_batch, {"texts": ["hi"]}),
        "split": (enc.split, {"text": "hi"}),
        "decode_bytes_batch": (enc.decode_bytes_batch, {"batch": [[1]]}),
        "load_file": (safetensors.load_file, {"path": "a.safetensors"}),
        "read_file": (safetensors.read_file, {"path": "a.safetensors"}),
        "read_metadata": (safetensors.read_metadata, {"path": "a.safetensors"}),
        "safe_open": (safetensors.safe_open, {"path": "a.safetensors"}),
        "load_sharded": (safetensors.load_sharded, {"directory": "."}),
        "save_file": (safetensors.save_file, {"tensors": {"a": np.zeros(3)}, "path": "out.safetensors"}),
        "compress": (compression.compress, {"data": b"hi", "lm": lm}),
        "decompress": (compression.decompress, {"data": compression.compress(b"hi", lm), "lm": lm}),
        "compression.open": (compression.open, {"file": "out.g2z", "lm": lm, "mode": "wb"}),
        "compression.inspect": (compression.inspect, {"file": "a.txt"}),
        "GPT2": (lm.model.__call__, {"ids": [1, 2]}),
        "hidden_states": (lm.model.hidden_states, {"ids": [1, 2]}),
        "new_cache": (lm.model.new_cache, {}),
    }


#: What a caller gives to be called, or what shows a bar and starts a cluster.
_NOT_TRIED = {"on_skip", "on_note", "progress", "engine", "address", "lm", "self"}


@pytest.mark.parametrize("name", calls())
def test_odd_arguments(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # which is what takes time here
    Path("a.txt").write_text("hello")
    safetensors.save_file({"a": np.zeros(3)}, "a.safetensors")
    function, arguments = calls()[name]
    found = []
    for argument in inspect.signature(function).parameters.keys() - _NOT_TRIED:
        for odd, value in ODD.items():
            for path in tmp_path.glob("out.*"):
                os.unlink(path)
            try:
                function(**{**arguments, argument: value()})
            except (gpt2fast.Error, TypeError):
                pass
            except Exception as error:
                found.append(f"{argument}: {odd}: {error!r}")
    assert not found
