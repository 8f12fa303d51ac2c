"""The header of a safetensors file: read, checked in full before any data is touched, and built.

The format: eight bytes with the header's length, a JSON object that gives each tensor's dtype, shape and place, and the
data (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from io import FileIO
from typing import Any, NamedTuple

import numpy as np

from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.safetensors.dtypes import ITEM_SIZES, SUB_BYTE
from gpt2fast.safetensors.files import read_at

__all__ = ["MAX_HEADER", "METADATA", "Entry", "Header", "build_header", "loads_strict", "read_header", "show"]

#: The longest header that is read or written, in bytes.  The reference package has the same limit.
MAX_HEADER = 100_000_000
METADATA = "__metadata__"

_MAX_DIMS = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
# NumPy counts elements and bytes in a signed machine word.
_MAX_BYTES = 2**63 - 1


class Entry(NamedTuple):
    """One tensor: the format's name of its dtype, its shape, and where its bytes are within the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """What a file's header says: the tensors in the order of their data, the metadata, and where the data starts."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    data_start: int
    data_size: int


class _Number(str):
    """A number of the header that no dimension or offset can be: its text."""


def read_header(file: FileIO, path: str) -> Header:
    """The checked header of an open file; no byte of its data is read.

    Raises InputError (InputTypeError for an unknown dtype) that names `path`, and the tensor.
    """
    size = os.fstat(file.fileno()).st_size
    start = read_at(file, 16, 0)
    if size < 8 or len(start) < 8:
        raise InputError(f"{path}: not a safetensors file: {size} bytes long, the header's length alone takes 8")
    (length,) = struct.unpack("<Q", start[:8])
    if length > MAX_HEADER or length > size - 8 or start[8:9] != b"{":
        raise InputError(f"{path}: {_explain_start(file, start, length, size)}")
    raw = read_at(file, length, 8)
    if len(raw) < length:
        raise InputError(f"{path}: the file became shorter while it was read")
    return _parse(raw, size - 8 - length, path)


def _explain_start(file: FileIO, start: bytes, length: int, size: int) -> str:
    """What a file is that does not start as a safetensors file does."""
    if start.startswith(b"version http"):
        return "not a safetensors file but a Git LFS pointer to one: fetch the content with `git lfs pull`"
    if start.startswith(b"PK\x03\x04"):
        return "not a safetensors file but a zip archive, as torch.save writes them: convert it with PyTorch"
    if start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")) and length > MAX_HEADER:
        return "not a safetensors file but a Python pickle, perhaps of PyTorch: convert it with PyTorch"
    if start.startswith(b"GGUF"):
        return "not a safetensors file but a GGUF file"
    if start.startswith(b"\x89HDF\r\n"):
        return "not a safetensors file but an HDF5 file"
    text = read_at(file, 512, 0).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "not a safetensors file but an HTML page, perhaps the error page of a download"
    if text.startswith(b"{"):
        return "not a safetensors file but JSON text: the eight bytes of the header's length are missing"
    if not any(start):
        return "not a safetensors file: it starts with zeros, perhaps it was allocated but never written"
    if start[8:9] == b"{" and size - 8 < length <= MAX_HEADER:
        return f"truncated: the header alone is {length} bytes long, the file ends after {size - 8} of them"
    if start[8:9] == b"{" and struct.unpack(">Q", start[:8])[0] <= MAX_HEADER:
        return "the header's length is big-endian; safetensors files are little-endian"
    if length > MAX_HEADER:
        return f"not a safetensors file: its first 8 bytes give a header of {length} bytes, the limit is {MAX_HEADER}"
    if length > size - 8:
        return f"not a safetensors file, or truncated: a header of {length} bytes in a file of {size}"
    if length == 0:
        return "not a safetensors file: its header is empty"
    return f"not a safetensors file: the header starts with {start[8:9]!r}, expected b'{{'"


def _parse_int(text: str) -> int | _Number:
    # 2**64 has 20 digits.  Longer numbers, which Python may take quadratic time for, are never converted.
    return int(text) if len(text) <= 20 and text != "-0" else _Number(text[:40])


def _parse_float(text: str) -> _Number:
    return _Number(text[:40])


def _parse_constant(text: str) -> Any:
    raise InputError(f"not JSON: {text}")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InputError(f"{show(name)} occurs twice")
            seen.add(name)
    for name, value in pairs:
        for text in (name, value):
            if type(text) is str and not text.isascii() and not _is_unicode(text):
                raise InputError(f"{show(text)} holds half of a surrogate pair, which is no character")
    return result


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def show(value: object, limit: int = 80) -> str:
    """`value` as it is quoted in messages: escaped, and short however long it is."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str):
        return ascii(value) if len(value) <= limit else ascii(value[:limit]) + "..."
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    return "a list" if isinstance(value, list) else "an object"


def loads_strict(raw: bytes, what: str) -> Any:
    """The JSON value in `raw`, whatever is in it: no duplicate keys, no NaN, no half characters, no slow numbers.

    Numbers that are no integers of at most 20 characters come as strings of a type of their own.  Raises InputError,
    which starts with `what`.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what}: not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_pairs,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_parse_constant,
        )
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{what}: not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise InputError(f"{what}: nested too deeply") from None


def _parse(raw: bytes, data_size: int, path: str) -> Header:
    header = loads_strict(raw, f"{path}: header")
    if type(header) is not dict:
        raise InputError(f"{path}: the header is {show(header)}, expected an object")
    metadata = _check_metadata(header.pop(METADATA, None), path)
    entries = {name: _check_entry(value, f"{path}: tensor {show(name)}") for name, value in header.items()}
    entries = dict(sorted(entries.items(), key=lambda item: item[1][2:]))
    _check_layout(entries, data_size, path)
    return Header(entries, metadata, 8 + len(raw), data_size)


def _check_metadata(value: Any, path: str) -> dict[str, str]:
    if value is None:  # absent; null is what some writers make of that
        return {}
    if type(value) is not dict:
        raise InputError(f"{path}: {METADATA} is {show(value)}, expected an object of strings")
    for name, text in value.items():
        if type(text) is not str:
            raise InputError(f"{path}: {METADATA} has {show(text)} for {show(name)}, expected a string")
    return value


def _check_entry(value: Any, where: str) -> Entry:
    if type(value) is not dict:
        raise InputError(f"{where}: described by {show(value)}, expected an object of dtype, shape and data_offsets")
    missing = [field for field in ("dtype", "shape", "data_offsets") if field not in value]
    if missing:
        raise InputError(f"{where}: {' and '.join(missing)} missing")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if type(dtype) is not str:
        raise InputError(f"{where}: dtype is {show(dtype)}, expected a string")
    if dtype not in ITEM_SIZES:
        if dtype in SUB_BYTE:
            raise InputTypeError(f"{where}: elements of dtype {dtype} are no whole bytes, which NumPy cannot hold")
        raise InputTypeError(f"{where}: unknown dtype {show(dtype)}, expected one of {', '.join(ITEM_SIZES)}")
    if type(shape) is not list:
        raise InputError(f"{where}: shape is {show(shape)}, expected a list of integers")
    if len(shape) > _MAX_DIMS:
        raise InputError(f"{where}: shape has {len(shape)} dimensions, NumPy holds at most {_MAX_DIMS}")
    size = ITEM_SIZES[dtype]
    for dimension in shape:
        if type(dimension) is not int or dimension < 0:
            raise InputError(f"{where}: shape has {show(dimension)}, expected integers of at least 0")
        # NumPy leaves zeros out when it counts what an array would take, so an empty one can be too large as well.
        size *= dimension or 1
        if size > _MAX_BYTES:
            raise InputError(f"{where}: shape {shape} takes more bytes than a machine word can count")
    if type(offsets) is not list or len(offsets) != 2:
        found = f"a list of {len(offsets)}" if type(offsets) is list else show(offsets)
        raise InputError(f"{where}: data_offsets is {found}, expected a list of two integers")
    for offset in offsets:
        if type(offset) is not int or offset < 0:
            raise InputError(f"{where}: data_offsets has {show(offset)}, expected integers of at least 0")
    begin, end = offsets
    size = 0 if 0 in shape else size
    if end - begin != size:
        raise InputError(
            f"{where}: {dtype} of shape {shape} takes {size} bytes, data_offsets {begin} to {end} hold {end - begin}"
        )
    return Entry(dtype, tuple(shape), begin, end)


def _check_layout(entries: Mapping[str, Entry], data_size: int, path: str) -> None:
    """Refuse gaps, overlaps and bytes that no tensor owns."""
    place = 0
    for name, entry in entries.items():
        if entry.begin != place:
            what = "overlaps the tensor before it" if entry.begin < place else "leaves a gap before it"
            raise InputError(
                f"{path}: tensor {show(name)}: starts at byte {entry.begin} of the data and {what}, "
                f"which ends at byte {place}"
            )
        place = entry.end
    if place > data_size:
        raise InputError(f"{path}: truncated: the header describes {place} bytes of data, the file holds {data_size}")
    if place < data_size:
        raise InputError(f"{path}: {data_size - place} bytes follow the last tensor, which ends at byte {place}")


def build_header(entries: Mapping[str, Entry], metadata: Mapping[str, str] | None) -> bytes:
    """The header's length and the header, padded with spaces so that the data starts at a multiple of eight bytes."""
    content: dict[str, object] = {}
    if metadata is not None:
        content[METADATA] = dict(sorted(metadata.items()))
    for name, entry in entries.items():
        content[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (entry.begin, entry.end)}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise InputError(f"names and metadata make a header of {len(text)} bytes, the limit is {MAX_HEADER}")
    return struct.pack("<Q", len(text)) + text
