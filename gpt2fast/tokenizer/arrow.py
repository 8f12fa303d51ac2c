"""Arrow columns of strings to columns of token ids, without a copy on the way in or out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import one_of
from gpt2fast.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["eot_of", "insert_eot", "plain_strings", "texts_of", "tokenize_column"]

_MOST_TOKENS = 2**31 - 1  # list offsets have 32 bits


def plain_strings(column: Any, name: str) -> Any:
    """The array as string or large_string: itself, or cast from another type of strings.

    Raises InputTypeError, with the column's name, where it holds anything else.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column
    held = kind.value_type if pa.types.is_dictionary(kind) else kind
    if any(getattr(pa.types, f"is_{one}", lambda _: False)(held) for one in ("string", "large_string", "string_view")):
        return column.cast(pa.large_string())
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    raise InputTypeError(f"the column {name!r} is of type {kind}; expected strings")


def texts_of(column: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """The bytes of an array of string or large_string, where they are, and the spans of its values in them."""
    if not len(column):
        return b"", np.zeros(1, np.int64)
    _, offsets, data = column.buffers()
    wide = str(column.type) == "large_string"
    spans = np.frombuffer(offsets, np.int64 if wide else np.int32, len(column) + 1, column.offset * (8 if wide else 4))
    return b"" if data is None else memoryview(data), spans.astype(np.int64)


def insert_eot(
    ids: npt.NDArray[Any],
    lengths: npt.NDArray[np.int64],
    where: str,
    eot: int,
    which: Any = slice(None),
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The same texts with `eot` before each or after it ("prepend" or "append"), or of those that `which` selects.

    >>> insert_eot(np.array([7, 8, 9]), np.array([2, 1]), "append", 0)[0].tolist()
    [7, 8, 0, 9, 0]
    """
    ends = np.cumsum(lengths)
    places = (ends - lengths if where == "prepend" else ends)[which]
    lengths = lengths.copy()
    lengths[which] += 1
    return np.insert(ids, places, eot), lengths


def eot_of(tokenizer: Tokenizer, eot: str) -> int:
    """The id that `eot` ("none", "append", "prepend") puts in; 0 for none.

    Raises InputError where it is something else, or the tokenizer has no end-of-text.
    """
    if one_of("eot", eot, ("none", "append", "prepend")) == "none":
        return 0
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"eot is {eot!r}, but the tokenizer {tokenizer.name!r} has no <|endoftext|> and names no eos_token"
        )
    return tokenizer.eos_token_id


def tokenize_column(
    column: Any, tokenizer: Tokenizer, *, eot: str = "none", num_threads: int | None = 1, name: str = "text"
) -> Any:
    """The ids of each string of an Arrow array or chunked array: list<uint16>, uint32 for a larger vocabulary.

    The strings are read where they are, and the lists made around the encoder's own array.  Null stays null.  Raises
    InputTypeError where the column, called `name` in the message, holds no strings.

    >>> import pyarrow, gpt2fast
    >>> tokenize_column(pyarrow.array(["hello world", None, ""]), gpt2fast.get_encoding()).to_pylist()
    [[31373, 995], None, []]
    """
    import pyarrow as pa

    eot_id = eot_of(tokenizer, eot)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    lists = []
    for chunk in chunks:
        chunk = plain_strings(chunk, name)
        null = chunk.is_null().to_numpy(zero_copy_only=False) if chunk.null_count else None
        ids, offsets = tokenizer.encode_spans(
            *texts_of(chunk if null is None else chunk.fill_null("")), num_threads=num_threads
        )
        if eot != "none":
            ids, lengths = insert_eot(ids, np.diff(offsets), eot, eot_id, slice(None) if null is None else ~null)
            offsets = np.concatenate(([0], np.cumsum(lengths)))
        if offsets[-1] > _MOST_TOKENS:
            raise InputError(
                f"{offsets[-1]:,} tokens in one batch, lists have room for {_MOST_TOKENS:,}: use smaller ones"
            )
        mask = None if null is None else pa.array(null)
        lists.append(pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids), mask=mask))
    if not isinstance(column, pa.ChunkedArray):
        return lists[0]
    value = pa.uint16() if tokenizer.n_vocab <= 1 << 16 else pa.uint32()
    return pa.chunked_array(lists, pa.list_(value))
