"""The formats of token files: what stands before the tokens, and how a file that is whole gets its final form."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.atomic import atomic_write
from gpt2fast.corpus.dependencies import pyarrow_parquet
from gpt2fast.errors import InputError

__all__ = ["FORMATS", "MOST_TOKENS_OF_A_ROW", "PART", "PART_OF_ROWS", "Format", "mapped", "write_parquet"]

#: A row holds a document, and Arrow counts its tokens with 32 bits.
MOST_TOKENS_OF_A_ROW = 2**31 - 1


@dataclass(frozen=True)
class Format:
    """A format of token files.

    `header` gives the bytes before the tokens, of the same length for any count of them.  `most_tokens` is what a file
    can hold.  With `by_document` a file is made of documents and keeps their borders.
    """

    name: str
    suffix: str
    dtypes: tuple[str, ...]
    header: Callable[[int, np.dtype[Any]], bytes]
    most_tokens: int = 2**62
    by_document: bool = False

    def dtype(self, n_vocab: int) -> np.dtype[Any]:
        """The type of the tokens of a vocabulary of this size, little-endian.

        Raises InputError where the format has no type that is large enough.
        """
        if n_vocab <= 1 << 16:
            return np.dtype("<u2")
        if "uint32" not in self.dtypes:
            raise InputError(
                f"the vocabulary has {n_vocab:,} tokens; the format {self.name} has 16 bits for an id, which is enough "
                "for 65,536.  The formats npy and parquet have 32"
            )
        return np.dtype("<u4")


def _no_header(tokens: int, dtype: np.dtype[Any]) -> bytes:
    return b""


def _llmc_header(tokens: int, dtype: np.dtype[Any]) -> bytes:
    """llm.c: 256 integers of 32 bits; a magic number, the version for 16-bit tokens, how many there are."""
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, tokens
    return header.tobytes()


def _npy_header(tokens: int, dtype: np.dtype[Any]) -> bytes:
    """NumPy: its header, which has room for a growing first dimension."""
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (tokens,)}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


def write_parquet(
    path: str, tokens: npt.NDArray[Any], lengths: npt.NDArray[np.int64], row_group_tokens: int = 1 << 24
) -> None:
    """Write the documents that have these numbers of `tokens`, one after the other: lists in a column `input_ids`.

    The file appears whole or not at all.  Rows are written in groups of about `row_group_tokens`.
    """
    pa, parquet = pyarrow_parquet("writing .parquet")
    value = pa.uint16() if tokens.itemsize == 2 else pa.uint32()
    column = pa.field("input_ids", pa.list_(pa.field("element", value, nullable=False)), nullable=False)
    schema = pa.schema([column])
    with (
        atomic_write(path) as file,
        parquet.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        row = token = 0
        while row < len(lengths):
            ends = np.cumsum(lengths[row : row + (1 << 16)])
            count = max(1, int(np.searchsorted(ends, row_group_tokens, "right")))
            offsets = np.concatenate(([0], ends[:count])).astype(np.int32)
            values = pa.array(tokens[token : token + int(offsets[-1])], value)
            lists = pa.ListArray.from_arrays(pa.array(offsets), values, type=column.type)
            writer.write_table(pa.table([lists], schema=schema), row_group_size=count)
            row, token = row + count, token + int(offsets[-1])


def mapped(path: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The numbers of a file; no file of nothing can be mapped."""
    return np.memmap(path, dtype, "r") if os.path.getsize(path) else np.empty(0, dtype)


#: What tasks of a cluster write: bare tokens, with their documents' lengths where the outputs will need them.
PART = Format("part", "", ("uint16", "uint32"), _no_header)
PART_OF_ROWS = Format("part", "", ("uint16", "uint32"), _no_header, by_document=True)

FORMATS = {
    one.name: one
    for one in (
        Format("nanogpt", ".bin", ("uint16",), _no_header),
        Format("llmc", ".bin", ("uint16",), _llmc_header, most_tokens=2**31 - 1),
        Format("npy", ".npy", ("uint16", "uint32"), _npy_header),
        Format("parquet", ".parquet", ("uint16", "uint32"), _no_header, by_document=True),
    )
}
