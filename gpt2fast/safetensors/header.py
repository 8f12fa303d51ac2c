"""The header of a safetensors file: read, checked in full before any data is touched, and built.

The format: eight bytes with the header's length, a JSON object that gives each tensor's dtype, shape and place, and the
data (https://github.com/huggingface/safetensors#format).  What is in that object is checked by `rust/src/safetensors`,
in memory for what it says; Python's objects are made of what is asked for.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from functools import cached_property
from io import FileIO
from typing import NamedTuple

import numpy as np

from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.safetensors.files import read_at

__all__ = [
    "MAX_HEADER",
    "METADATA",
    "Entry",
    "Header",
    "build_header",
    "header_of",
    "read_header",
    "read_strings",
    "show",
]

#: The longest header that is read or written, in bytes.  The reference package has the same limit.
MAX_HEADER = 100_000_000
METADATA = "__metadata__"

_MAX_DIMS = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
_LOOKED_AT = 512  # bytes of a file that is something else, to say what


class Entry(NamedTuple):
    """One tensor: the format's name of its dtype, its shape, and where its bytes are within the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header:
    """What a file's header says: the tensors in the order of their data, the metadata, and where the data starts.

    Raises InputError, or InputTypeError for an unknown dtype, which begins with `name` and names the tensor.
    """

    def __init__(self, raw: bytes, data_size: int, name: str) -> None:
        from gpt2fast._bpe import SafetensorsHeader  # whoever imports the package may never open a file

        try:
            self._parsed = SafetensorsHeader(raw, data_size, _MAX_DIMS)
        except ValueError as error:
            raise InputError(f"{name}: {error}") from None
        except TypeError as error:
            raise InputTypeError(f"{name}: {error}") from None
        #: Where in the file the data starts, in bytes, and how many there are.
        self.data_start, self.data_size = 8 + len(raw), data_size

    def names(self) -> list[str]:
        """The names of the tensors."""
        return self._parsed.names()

    def get(self, name: str) -> Entry | None:
        """The tensor of that name, None where there is none."""
        try:
            found = self._parsed.get(name)
        except (TypeError, UnicodeEncodeError):  # no name at all, or one with half a surrogate pair
            return None
        return None if found is None else Entry(*found)

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """All of them by name."""
        return {name: Entry(*self._parsed.get(name)) for name in self.names()}  # type: ignore[misc]

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata, a new dict; empty where there is none."""
        return self._parsed.metadata()


def read_header(file: FileIO, path: str) -> Header:
    """The checked header of an open file; no byte of its data is read.

    Raises InputError (InputTypeError for an unknown dtype) that names `path`, and the tensor.
    """
    size = os.fstat(file.fileno()).st_size
    length = _length(read_at(file, _LOOKED_AT, 0), size, path)
    raw = read_at(file, length, 8)
    if len(raw) < length:
        raise InputError(f"{path}: the file became shorter while it was read")
    return Header(raw, size - 8 - length, path)


def header_of(content: memoryview, name: str) -> Header:
    """The checked header of a file in memory, which messages call `name`."""
    length = _length(bytes(content[:_LOOKED_AT]), len(content), name)
    return Header(bytes(content[8 : 8 + length]), len(content) - 8 - length, name)


def _length(start: bytes, size: int, path: str) -> int:
    """The length of the header of a file of `size` bytes that starts so."""
    if size < 8 or len(start) < 8:
        raise InputError(f"{path}: not a safetensors file: {size} bytes long, the header's length alone takes 8")
    length: int = struct.unpack("<Q", start[:8])[0]
    if length > MAX_HEADER or length > size - 8 or start[8:9] != b"{":
        raise InputError(f"{path}: {_explain_start(start, length, size)}")
    return length


def _explain_start(start: bytes, length: int, size: int) -> str:
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
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
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


def read_strings(raw: bytes, key: str, what: str) -> dict[str, str] | None:
    """The strings of the object that the JSON object `raw` has under `key`; None where there is no such object.

    Raises InputError, which starts with `what`, where it is no JSON, has a key twice, or something else than strings.
    """
    from gpt2fast._bpe import strings_under

    try:
        return strings_under(raw, key)
    except ValueError as error:
        raise InputError(f"{what}: {error}") from None


def show(value: str, limit: int = 80) -> str:
    """A name as it is quoted in messages: escaped, and short however long it is."""
    return ascii(value) if len(value) <= limit else ascii(value[:limit]) + "..."


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
