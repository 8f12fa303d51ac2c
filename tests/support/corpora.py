"""Small corpora in every format, written and read with the libraries that others use, and their tokens by tiktoken."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import zstandard
from tokenizer_reference import reference

EOT = 50256
#: Documents with what may go wrong in them: quotes, line ends, other scripts, the end-of-text's name, nothing.
DOCUMENTS = (
    "Once upon a time there was a fox.\n",
    'She said: "It\'s\r\nlate"\t…\n',
    "Ein Bär — 一二三，四。 🦊🦊\n",
    "<|endoftext|> is text here\n\n\n  indented\n",
    "\x00\x1f\x7f\u2028\u0085 odd\n",
    "x\n",
)
SEPARATOR = "=== next ==="


def tokens(text: str) -> list[int]:
    """The ids by tiktoken."""
    return reference().encode_ordinary(text)


def stream(documents: Sequence[str], eot: str = "none") -> list[int]:
    """The ids of all documents, one after the other."""
    ids: list[int] = []
    for document in documents:
        ids += [EOT] * (eot == "prepend") + tokens(document) + [EOT] * (eot == "append")
    return ids


def compress(content: bytes, compression: str) -> bytes:
    """Two members or frames, as tools that work in parallel write them."""
    half = len(content) // 2
    if compression == "gz":
        return gzip.compress(content[:half]) + gzip.compress(content[half:])
    if compression == "zst":
        frame = zstandard.ZstdCompressor().compress
        return frame(content[:half]) + frame(content[half:])
    return content


def write(path: Path, documents: Sequence[str], field: str = "text") -> Path:
    """A corpus whose kind and compression the path's suffixes tell; texts are separated by SEPARATOR."""
    kind, _, compression = path.name.partition(".")[2].partition(".")
    if kind == "txt":
        content = f"{SEPARATOR}\n".join(documents).encode()
    elif kind == "jsonl":
        lines = [json.dumps({"id": i, field: text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(documents)]
        content = "\n".join(lines).encode() + b"\n"
    else:
        table = pa.table({"id": range(len(documents)), field: pa.array(documents, pa.string())})
        sink = pa.BufferOutputStream()
        pyarrow.parquet.write_table(table, sink, row_group_size=4)
        content = sink.getvalue().to_pybytes()
    path.write_bytes(compress(content, compression))
    return path


def read(path: Path, format: str) -> npt.NDArray[Any]:
    """The ids in a token file, read as those who use it do."""
    if format == "nanogpt":
        return np.fromfile(path, "<u2")
    if format == "llmc":
        header = np.fromfile(path, "<i4", 256)
        assert header[:2].tolist() == [20240520, 1]
        assert not header[3:].any()
        ids = np.fromfile(path, "<u2", offset=1024)
        assert header[2] == len(ids)
        return ids
    if format == "npy":
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        assert array.dtype in (np.uint16, np.uint32)
        return np.array(array)
    return np.array([i for row in rows(path) for i in row], np.uint16)


def rows(path: Path) -> list[list[int]]:
    """The documents in a Parquet file of tokens."""
    table = pyarrow.parquet.read_table(path)
    assert table.schema.field("input_ids").type.value_type in (pa.uint16(), pa.uint32())
    found: list[list[int]] = table["input_ids"].to_pylist()
    return found
