"""Sharded checkpoints: several safetensors files and the index that says which tensor is in which."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gpt2fast.errors import InputError, MissingFileError
from gpt2fast.safetensors.reader import load_file

__all__ = ["INDEX_NAME", "load_sharded", "read_index"]

#: The name of the file that says which tensor is in which shard.
INDEX_NAME = "model.safetensors.index.json"


def read_index(directory: str | os.PathLike[str]) -> dict[str, Path]:
    """For each tensor of a sharded checkpoint the path of its shard; the paths are checked, the shards not opened."""
    index = Path(directory) / INDEX_NAME
    try:
        content = json.loads(index.read_bytes())
    except FileNotFoundError:
        raise MissingFileError(f"{index}: there is no such file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{index}: not JSON: {error}") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict):
        raise InputError(f"{index}: there is no object weight_map in it")
    paths = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or set(file) & set("/\\\0"):
            raise InputError(f"{index}: weight_map has {file!a} for {name!a}, expected the name of a .safetensors file")
        paths[name] = Path(directory) / file
    for path in set(paths.values()):
        if not path.is_file():
            raise MissingFileError(f"{path}: there is no such file, {INDEX_NAME} names it")
    return paths


def load_sharded(directory: str | os.PathLike[str], *, mmap: bool = False) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a sharded checkpoint by name."""
    paths = read_index(directory)
    tensors: dict[str, npt.NDArray[Any]] = {}
    for path in sorted(set(paths.values())):
        tensors.update(load_file(path, mmap=mmap))
    return tensors
