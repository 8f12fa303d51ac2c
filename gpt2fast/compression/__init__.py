"""Text at the model's entropy: lossless compression by a language model.

    >>> import gpt2fast
    >>> lm = gpt2fast.load("demo")
    >>> text = b"Once upon a time there was a poor woodcutter, who lived with his wife. " * 12
    >>> packed = gpt2fast.compression.compress(text, lm)
    >>> gpt2fast.compression.decompress(packed, lm) == text
    True

A file opens wherever gpt2fast runs, with the model that wrote it: logits are the same bits on every processor.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, BinaryIO, Literal, cast, overload

from gpt2fast._internal.arguments import one_of
from gpt2fast.compression.codec import Model
from gpt2fast.compression.container import ModelRecord
from gpt2fast.compression.reader import BATCH, CompressedReader, Info, inspect
from gpt2fast.compression.writer import CHUNK, CompressedWriter
from gpt2fast.errors import InputTypeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BATCH", "CHUNK", "CompressedReader", "CompressedWriter", "Info", "ModelRecord", "compress", "decompress"]
__all__ += ["inspect", "open"]


def compress(data: Buffer, lm: Model, *, chunk: int = CHUNK) -> bytes:
    """The bytes of `data` compressed by the language model `lm`, as `gpt2fast.load` gives it.

    Any bytes survive.  They are best when they are text of the kind that the model was trained on; what it does not
    shorten is kept as DEFLATE has it or as it is, so nothing grows by more than 64 bytes and a thousandth.

    Each `chunk` bytes (256 to 1,048,576) are coded by themselves: larger chunks take fewer bytes, smaller ones are
    decoded with more of them side by side, and give a part sooner.

    Raises InputTypeError where `data` is no bytes or `lm` no language model; InputError for a model on a GPU or with
    gemm="blas", whose results are not the same everywhere, and for logits that are not finite.

    >>> import gpt2fast
    >>> len(compress(b"", gpt2fast.load("demo")))
    52
    """
    if isinstance(data, str):
        raise InputTypeError("data is of type str; expected bytes: data.encode() has them")
    out = io.BytesIO()
    with CompressedWriter(out, lm, chunk=chunk) as file:
        file.write(data)
    return out.getvalue()


def decompress(data: Buffer, lm: Model, *, batch: int = BATCH) -> bytes:
    """The bytes that `compress` got, by the language model that it had.

    `batch` is how many chunks are decoded side by side, each of which takes a row of the model's cache.

    Raises InputError where `data` is damaged, cut off, followed by something, or was written with another model,
    tokenizer, dtype or version of the arithmetic.
    """
    try:
        file = io.BytesIO(data)
    except (TypeError, ValueError, BufferError):  # ValueError: of arrays of objects and the like
        raise InputTypeError(f"data is of type {type(data).__name__}; expected bytes") from None
    return CompressedReader(cast(BinaryIO, file), lm, batch=batch).readall()


@overload
def open(file: str | os.PathLike[str] | BinaryIO, lm: Model, mode: Literal["rb"] = "rb") -> CompressedReader: ...


@overload
def open(
    file: str | os.PathLike[str] | BinaryIO, lm: Model, mode: Literal["wb"], *, chunk: int = CHUNK
) -> CompressedWriter: ...


def open(
    file: str | os.PathLike[str] | BinaryIO,
    lm: Model,
    mode: Literal["rb", "wb"] = "rb",
    *,
    chunk: int = CHUNK,
) -> CompressedReader | CompressedWriter:
    """A compressed file, a path or a binary file, to read ("rb") or to write ("wb").

    What is read can be sought in: only the chunks that are asked for are decoded.  What is written at a path appears
    there when it is closed, whole or not at all.  Raises InputError for another mode, and as `CompressedReader` and
    `CompressedWriter` do.

    >>> import gpt2fast, tempfile
    >>> lm = gpt2fast.load("demo")
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with gpt2fast.compression.open(f"{directory}/tale.g2z", lm, "wb") as file:
    ...         _ = file.write(b"Once upon a time there was a king, who had a daughter." * 20)
    ...     with gpt2fast.compression.open(f"{directory}/tale.g2z", lm) as file:
    ...         _ = file.seek(5)
    ...         file.read(11)
    b'upon a time'
    """
    if one_of("mode", mode, ("rb", "wb")) == "wb":
        return CompressedWriter(file, lm, chunk=chunk)
    return CompressedReader(file, lm)
