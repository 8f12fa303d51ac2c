"""Tensors in files: a checked reader and an atomic writer of the safetensors format, over NumPy alone.

>>> import os, tempfile
>>> import numpy as np
>>> from gpt2fast import safetensors as st
>>> directory = tempfile.TemporaryDirectory()
>>> path = os.path.join(directory.name, "model.safetensors")
>>> st.save_file({"w": np.arange(3.0)}, path, {"made": "here"})
>>> st.load_file(path)
{'w': array([0., 1., 2.])}
>>> directory.cleanup()
"""

from __future__ import annotations

from gpt2fast.safetensors.header import Entry
from gpt2fast.safetensors.lazy import SafeOpen, TensorSlice, safe_open
from gpt2fast.safetensors.memory import RawTensor, deserialize, load, save, serialize
from gpt2fast.safetensors.reader import File, load_file, read_file, read_metadata
from gpt2fast.safetensors.sharded import INDEX_NAME, SINGLE_NAME, check_shard, load_sharded, read_index, save_sharded
from gpt2fast.safetensors.widen import as_float32
from gpt2fast.safetensors.writer import save_file

__all__ = [
    "INDEX_NAME",
    "SINGLE_NAME",
    "Entry",
    "File",
    "RawTensor",
    "SafeOpen",
    "TensorSlice",
    "as_float32",
    "check_shard",
    "deserialize",
    "load",
    "load_file",
    "load_sharded",
    "read_file",
    "read_index",
    "read_metadata",
    "safe_open",
    "save",
    "save_file",
    "save_sharded",
    "serialize",
]
