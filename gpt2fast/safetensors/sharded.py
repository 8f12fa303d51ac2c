"""Sharded checkpoints: several safetensors files, and the index that says which tensor is in which."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy.typing as npt

from gpt2fast._internal.arguments import listed, path_name
from gpt2fast._internal.atomic import atomic_write
from gpt2fast.errors import InputError, InputTypeError, MissingFileError
from gpt2fast.safetensors.files import open_file, read_at
from gpt2fast.safetensors.header import build_header, read_strings, show
from gpt2fast.safetensors.reader import load_file
from gpt2fast.safetensors.writer import check_metadata, plan, write_content

__all__ = ["INDEX_NAME", "SINGLE_NAME", "load_sharded", "read_index", "save_sharded"]

Array = npt.NDArray[Any]

#: The file that says which tensor of a sharded checkpoint is in which shard.
INDEX_NAME = "model.safetensors.index.json"
#: The file of a checkpoint that is not sharded.
SINGLE_NAME = "model.safetensors"

_SHARD = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")
_SIZE = re.compile(r"(\d{1,18})\s*([KMGT]?)(i?)B", re.IGNORECASE | re.ASCII)
_MAX_INDEX = 1 << 28  # bytes; that of a model with a million tensors is half as long


def read_index(directory: str | os.PathLike[str]) -> dict[str, Path]:
    """For each tensor of a sharded checkpoint the path of the shard that has it, from `model.safetensors.index.json`.

    Every shard is a file of this very directory, and exists; whether it holds what the index says is for the reader to
    check.

    Raises MissingFileError where the index or a shard is missing, InputError where the index is not what it should be
    or names a path elsewhere.
    """
    folder = Path(path_name(directory))
    index = folder / INDEX_NAME
    with open_file(index) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_INDEX:
            raise InputError(f"{index}: is {size} bytes long, the limit is {_MAX_INDEX}")
        weight_map = read_strings(read_at(file, size, 0), "weight_map", str(index))
    if weight_map is None:
        raise InputError(f"{index}: there is no weight_map in it, an object from tensors to files")
    for name, file_name in weight_map.items():
        # A name with a separator could lead anywhere; Hugging Face's own files never have one.
        if not re.fullmatch(r"[^/\\:\0]+\.safetensors", file_name):
            raise InputError(
                f"{index}: weight_map has {show(file_name)} for {show(name)}, expected the name of a .safetensors file"
            )
    paths = {file_name: folder / file_name for file_name in weight_map.values()}
    for path in paths.values():
        if not path.is_file():
            raise MissingFileError(f"{path}: there is no such file, {INDEX_NAME} names it")
    return {name: paths[file_name] for name, file_name in weight_map.items()}


def load_sharded(directory: str | os.PathLike[str], *, mmap: bool = False) -> dict[str, Array]:
    """The tensors of a checkpoint directory by name: of `model.safetensors`, else of the shards that its index names.

    `mmap` is that of `load_file`, whose errors are raised too.  Raises MissingFileError where there is neither of the
    two files, and InputError where a shard lacks a tensor that the index says it has, or has one that it does not.
    """
    folder = Path(path_name(directory))
    single = folder / SINGLE_NAME
    if single.is_file():
        return load_file(single, mmap=mmap)
    if not (folder / INDEX_NAME).exists():
        raise MissingFileError(f"{folder}: there is neither {SINGLE_NAME} nor {INDEX_NAME}")
    index = read_index(folder)
    found: dict[str, Array] = {}
    for path in dict.fromkeys(index.values()):
        shard = load_file(path, mmap=mmap)
        check_shard(path, shard, index)
        found.update(shard)
    return {name: found[name] for name in index}


def check_shard(path: Path, names: Iterable[str], index: Mapping[str, Path]) -> None:
    """Raise InputError where the tensors in the shard at `path` are not exactly those that the index puts there."""
    path_name(path)
    if not isinstance(index, Mapping):
        raise InputTypeError(f"index is of type {type(index).__name__}; expected a mapping from names to paths")
    there, expected = set(listed("names", names, "names")), {name for name, home in index.items() if home == path}
    _refuse(f"{path}: lacks tensors that {INDEX_NAME} says it has", expected - there)
    _refuse(f"{path}: has tensors that {INDEX_NAME} does not say it has", there - expected)


def _refuse(what: str, names: Iterable[str]) -> None:
    listed = sorted(names)
    if listed:
        more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
        raise InputError(f"{what}: {', '.join(map(show, listed[:8]))}{more}")


def save_sharded(
    tensors: Mapping[str, Array],
    directory: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    max_shard_size: int | str = "5GB",
    dtypes: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write arrays, by name, to shards and an index as Hugging Face names them; the paths of the files written.

    Tensors keep their order and fill one shard after the other, up to `max_shard_size` bytes of data: a number, or text
    such as "500MB" or "2GiB".  A larger tensor gets a shard of its own.  What fits in one shard becomes one
    `model.safetensors` without an index.  The directory is made where it is missing.

    All files are written and on the disk before the first of them takes its name, the index last; on a failure before
    that nothing has changed.  A process that is killed between the renames leaves the old checkpoint, the new one, or
    shards without an index, which are not read; never a mixture.  At the end shards, index or single file of an older
    checkpoint in that directory are removed, which a reader could take for parts of this one.

    Raises the errors of `save_file`, and InputError where `max_shard_size` is not a positive size.

    >>> import tempfile
    >>> import numpy as np
    >>> directory = tempfile.TemporaryDirectory()
    >>> tensors = {"a": np.zeros(300), "b": np.zeros(200), "c": np.ones(100)}
    >>> [path.name for path in save_sharded(tensors, directory.name, max_shard_size="3KB")]
    ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors', 'model.safetensors.index.json']
    >>> list(load_sharded(directory.name))
    ['a', 'b', 'c']
    >>> directory.cleanup()
    """
    limit = _parse_size(max_shard_size)
    entries = plan(tensors, {} if dtypes is None else dtypes)
    metadata = check_metadata(metadata)
    shards: list[list[str]] = [[]]
    size = total = 0
    for name in tensors:
        length = entries[name].end - entries[name].begin
        if shards[-1] and size + length > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += length
        total += length
    if len(shards) == 1:
        names = [SINGLE_NAME]
    else:
        names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    folder = Path(path_name(directory))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{folder}: is not a directory") from None
    replaced = any((folder / name).exists() for name in names)
    with ExitStack() as files:
        # Left in the opposite order: the shards take their names before the index does.
        if len(shards) > 1:
            homes = {name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard}
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(homes.items()))}
            file = files.enter_context(atomic_write(folder / INDEX_NAME))
            file.write((json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode())
            _settle(file)
        for file_name, shard in zip(names, shards, strict=True):
            part = {name: tensors[name] for name in shard}
            places = plan(part, {name: entries[name].dtype for name in shard})
            file = files.enter_context(atomic_write(folder / file_name))
            write_content(file, build_header(places, metadata), places, part)
            _settle(file)
        if len(shards) > 1 and replaced:
            # Were the process to end between two renames, the old index would pair old shards with new ones.
            (folder / INDEX_NAME).unlink(missing_ok=True)
    if len(shards) > 1:
        names.append(INDEX_NAME)
    _remove_older(folder, names)
    return [folder / name for name in names]


def _settle(file: BinaryIO) -> None:
    """Have it on the disk now, where a failure still changes nothing, and not when the files take their names."""
    file.flush()
    os.fsync(file.fileno())


def _remove_older(folder: Path, names: list[str]) -> None:
    for path in folder.iterdir():
        ours = path.name in (SINGLE_NAME, INDEX_NAME) or _SHARD.fullmatch(path.name)
        if ours and path.name not in names:
            path.unlink()


def _parse_size(size: int | str) -> int:
    """Bytes from a number, or from text such as "500MB" (10**6) or "2GiB" (2**30)."""
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise InputTypeError(f"max_shard_size is of type {type(size).__name__}, expected an integer or text like '5GB'")
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            raise InputError(f"max_shard_size is {size!r}, expected a number of bytes, or text like '500MB' or '2GiB'")
        number, unit, binary = match.groups()
        count: int = int(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " ")
    else:
        count = size
    if count < 1:
        raise InputError(f"max_shard_size is {count}, expected at least 1 byte")
    return count
