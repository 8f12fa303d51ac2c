"""The safetensors format in memory: arrays to bytes and back, and tensors as they are, without NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.safetensors.dtypes import ITEM_SIZES, RANKS, SUB_BYTE, dtype_name, numpy_dtype, refuse_packed
from gpt2fast.safetensors.files import bytes_of
from gpt2fast.safetensors.header import Entry, build_header, header_of, show
from gpt2fast.safetensors.reader import check_values
from gpt2fast.safetensors.writer import check_metadata, check_names, one_after_the_other, plan, write_content

__all__ = ["RawTensor", "deserialize", "load", "save", "serialize"]

Array = npt.NDArray[Any]

_NAME = "data"  # what messages call the content


class RawTensor(TypedDict):
    """A tensor as the format has it: the name of its dtype, its shape, and its bytes in row-major, little-endian
    order."""

    dtype: str
    shape: list[int]
    data: bytes


def load(data: bytes | bytearray | memoryview) -> dict[str, Array]:
    """The tensors of a safetensors file in memory by name, in the order of their data: new arrays, independent of
    `data`.

    Everything is checked as `load_file` does.  Raises InputError where it is not a correct safetensors file, and
    InputTypeError where `data` is no bytes or a dtype is unknown or has elements that are no whole bytes.

    >>> load(save({"w": np.float32([1.0, 2.0])}))
    {'w': array([1., 2.], dtype=float32)}
    """
    content = _bytes(data)
    header = header_of(content, _NAME)
    tensors: dict[str, Array] = {}
    for name, entry in header.entries.items():
        where = f"{_NAME}: tensor {show(name)}"
        refuse_packed(entry.dtype, where)
        tensors[name] = np.empty(entry.shape, numpy_dtype(entry.dtype))
        if entry.end > entry.begin:
            bytes_of(tensors[name])[:] = content[header.data_start + entry.begin : header.data_start + entry.end]
        check_values(tensors[name], entry.dtype, where)
    return tensors


def save(
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str] | None = None,
    *,
    dtypes: Mapping[str, str] | None = None,
) -> bytes:
    """The safetensors file of arrays, by name: the bytes that `save_file` writes, whose arguments and errors these are.

    >>> load(save({"w": np.arange(6).reshape(2, 3)}, {"made": "here"}))["w"].tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    entries = plan(tensors, {} if dtypes is None else dtypes)
    head = build_header(entries, check_metadata(metadata))
    content = BytesIO()
    write_content(content, head, entries, tensors)
    return content.getvalue()


def deserialize(data: bytes | bytearray | memoryview) -> list[tuple[str, RawTensor]]:
    """The tensors of a safetensors file in memory, in the order of their data, as they are stored: each a name with a
    dict of "dtype" (the format's name), "shape" and "data", the bytes.

    Types that NumPy does not have come, too: those of 4 and 6 bits, bfloat16, 8-bit floats.  Raises InputError where it
    is not a correct safetensors file, InputTypeError where `data` is no bytes or a dtype is unknown.

    >>> deserialize(save({"w": np.int8([1, 2])}))
    [('w', {'dtype': 'I8', 'shape': [2], 'data': b'\\x01\\x02'})]
    """
    content = _bytes(data)
    header = header_of(content, _NAME)
    return [
        (
            name,
            {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data": bytes(content[header.data_start + entry.begin : header.data_start + entry.end]),
            },
        )
        for name, entry in header.entries.items()
    ]


def serialize(tensors: Mapping[str, RawTensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The safetensors file of tensors as they are stored: what `deserialize` gives, as a dict by name.

    "dtype" is the format's name ("F32", "BF16", "F4") or NumPy's ("float32").  Raises InputError for a name that is not
    Unicode text, or data that is not as long as dtype and shape say, and InputTypeError for an unknown dtype.

    >>> content = serialize({"w": {"dtype": "F4", "shape": [2], "data": b"a"}})
    >>> dict(deserialize(content))["w"]["data"]
    b'a'
    """
    check_names(tensors)
    found = {name: _entry(name, tensor) for name, tensor in tensors.items()}
    entries = one_after_the_other(found)
    parts = [_bytes(tensors[name]["data"]) for name in entries]
    return b"".join([build_header(entries, check_metadata(metadata)), *parts])


def _entry(name: str, tensor: RawTensor) -> Entry:
    """What the header says of a tensor that begins at byte 0."""
    where = f"tensor {show(name)}"
    if not isinstance(tensor, Mapping) or not {"dtype", "shape", "data"} <= tensor.keys():
        raise InputTypeError(f"{where}: expected a dict of dtype, shape and data")
    dtype = _format_name(tensor["dtype"])
    if dtype is None:
        raise InputTypeError(
            f"{where}: unknown dtype {str(tensor['dtype'])[:80]!a}, expected one of {', '.join(RANKS)}"
        )
    try:
        shape = tuple(whole_number("a dimension", size) for size in tensor["shape"])
        size = len(_bytes(tensor["data"]))
    except (InputError, InputTypeError) as error:
        raise type(error)(f"{where}: {error}") from None
    bits = math.prod(shape) * (SUB_BYTE[dtype] if dtype in SUB_BYTE else 8 * ITEM_SIZES[dtype])
    if bits != 8 * size:
        raise InputError(f"{where}: {dtype} of shape {list(shape)} takes {bits} bits, data has {8 * size}")
    return Entry(dtype, shape, 0, size)


def _format_name(dtype: str) -> str | None:
    if not isinstance(dtype, str) or dtype in RANKS:
        return dtype if isinstance(dtype, str) else None
    try:
        return dtype_name(np.dtype(dtype))
    except TypeError:
        return {"bfloat16": "BF16"}.get(dtype)


def _bytes(data: object) -> memoryview:
    if isinstance(data, str) or not hasattr(data, "__len__"):
        raise InputTypeError(f"data is of type {type(data).__name__}, expected bytes")
    try:
        return memoryview(data).cast("B")  # type: ignore[arg-type]
    except TypeError:
        raise InputTypeError(f"data is of type {type(data).__name__}, expected contiguous bytes") from None
