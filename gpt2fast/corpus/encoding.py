"""Batches of texts to tokens for each output: end-of-text put in, documents dealt out to train and val."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import real_number, whole_number
from gpt2fast.corpus.batches import BATCH_BYTES, HASHED_BYTES, Cursor, DocumentBatch
from gpt2fast.errors import InputTypeError
from gpt2fast.tokenizer.arrow import eot_of, insert_eot
from gpt2fast.tokenizer.cuts import cut_inside

if TYPE_CHECKING:
    from gpt2fast.corpus.options import CorpusOptions
    from gpt2fast.tokenizer.encoding import Tokenizer
    from gpt2fast.tokenizer.special import Allowed

__all__ = ["Encoded", "Encoder", "goes_to_val", "in_parts"]

#: Bytes of text that are encoded by one call, about.
_AT_ONCE = 2 * BATCH_BYTES


@dataclass
class Part:
    """The tokens of texts of these lengths; the first and last as in a DocumentBatch."""

    ids: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]
    continues: bool
    is_open: bool


@dataclass
class Encoded:
    """What a batch becomes: a part for each output, and what to count."""

    parts: dict[str, Part]
    cursor: Cursor
    documents: int
    text_bytes: int
    skipped: int
    mended: int
    raw: int
    is_place: bool


def goes_to_val(beginning: bytes | memoryview, fraction: float, seed: int) -> bool:
    """Whether the document that begins so goes to val, as `fraction` of all do.

    The hash of the first 65,536 bytes of its UTF-8 decides (BLAKE2b of 8 bytes, the seed in decimal its key, read as a
    big-endian number, against `fraction` times 2**64): the same document goes the same way in any corpus and order.

    >>> goes_to_val(b"Once upon a time", 0.5, seed=0), goes_to_val(b"Once upon a time", 0.5, seed=1)
    (True, False)
    """
    if not isinstance(beginning, (bytes, memoryview)) or not memoryview(beginning).c_contiguous:
        raise InputTypeError(f"beginning is of type {type(beginning).__name__}; expected contiguous bytes")
    real_number("fraction", fraction, least=0, most=1)
    digest = hashlib.blake2b(
        beginning[:HASHED_BYTES], digest_size=8, key=str(whole_number("seed", seed)).encode()
    ).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def in_parts(batch: DocumentBatch, tokenizer: Tokenizer, allowed: Allowed = frozenset()) -> Iterator[DocumentBatch]:
    """The batch, or where it has very long texts several that together are the same, with a cursor for the last only:
    what becomes of a text takes several times its memory.  `allowed` are the special tokens that are found."""
    fine = _cut_finely(memoryview(batch.data), batch.spans, tokenizer, allowed)
    if fine is batch.spans:
        yield batch
        return
    ends = [*np.flatnonzero(np.diff(fine // _AT_ONCE)).tolist(), len(fine) - 1]
    start, done, is_open = batch.spans[:1], 1, batch.continues
    for end in ends:
        # Texts of nothing at a border are in the part that ends there.
        known = int(np.searchsorted(batch.spans, fine[end], "right"))
        continues, is_open = is_open, int(batch.spans[known - 1]) != int(fine[end])
        spans = np.concatenate([start, batch.spans[done:known], fine[end : end + 1][: int(is_open)]])
        start, done = spans[-1:], known
        if end == len(fine) - 1:
            yield replace(batch, spans=spans, continues=continues)
        elif len(spans) > 1:
            cursor = replace(batch.cursor, is_open=is_open)
            yield DocumentBatch(batch.data, spans, continues, cursor, batch.raw, is_place=False)
        else:
            is_open = continues


def _cut_finely(
    data: memoryview, spans: npt.NDArray[np.int64], tokenizer: Tokenizer, allowed: Allowed
) -> npt.NDArray[np.int64]:
    """The borders of the texts, once each, and within those of more than two BATCH_BYTES places where a cut changes no
    id, about every BATCH_BYTES; `spans` itself where there are none."""
    cuts = []
    for number in np.flatnonzero(np.diff(spans) > 2 * BATCH_BYTES).tolist():
        start, size = int(spans[number]), BATCH_BYTES
        while spans[number + 1] - start > 2 * size:
            part = data[start : start + size]
            cut = tokenizer.last_cut(part, allowed_special=allowed) or cut_inside(part, tokenizer)
            if cut:
                start, size = start + cut, BATCH_BYTES
                cuts.append(start)
            else:
                size *= 2
    return np.unique(np.append(spans, np.array(cuts, np.int64))) if cuts else spans


class Encoder:
    """Turns batches into tokens."""

    def __init__(self, tokenizer: Tokenizer, options: CorpusOptions, dtype: np.dtype[Any], num_threads: int) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self._dtype = np.dtype(dtype.name)
        self._num_threads = num_threads
        self._eot = eot_of(tokenizer, options.eot)

    def encode_all(
        self, batches: Generator[DocumentBatch, None, None], start: Cursor
    ) -> Generator[Encoded, None, None]:
        """The tokens of each batch; `start` is the cursor that the first begins at."""
        to_val = start.to_val
        with closing(batches):
            for whole in batches:
                for batch in in_parts(whole, self._tokenizer, self._options.allowed_special):
                    encoded = self._encode(batch, to_val)
                    to_val = encoded.cursor.to_val
                    yield encoded

    def _encode(self, batch: DocumentBatch, to_val: bool) -> Encoded:
        ids, offsets = self._tokenizer.encode_spans(
            batch.data,
            batch.spans,
            dtype=self._dtype,
            num_threads=self._num_threads,
            allowed_special=self._options.allowed_special,
        )
        lengths = np.diff(offsets)
        continues, is_open = batch.continues, batch.cursor.is_open
        if self._options.eot != "none" and len(lengths):
            # A document that continues has had it before, one that is open gets it after when it ends.
            which = slice(int(continues), None) if self._options.eot == "prepend" else slice(0, len(lengths) - is_open)
            ids, lengths = insert_eot(ids, lengths, self._options.eot, self._eot, which)
        parts = {"": Part(ids, lengths, continues, is_open)}
        if self._options.val_fraction > 0:
            val = self._deal(batch, to_val)
            if len(val):
                to_val = bool(val[-1])
            of_val = np.repeat(val, lengths)
            parts = {
                name: Part(
                    ids[of_val == side],
                    lengths[val == side],
                    continues and len(val) > 0 and val[0] == side,
                    is_open and to_val == side,
                )
                for name, side in (("train", False), ("val", True))
            }
        return Encoded(
            parts,
            replace(batch.cursor, to_val=to_val and is_open),
            batch.documents,
            batch.text_bytes,
            batch.skipped,
            batch.mended,
            batch.raw,
            batch.is_place,
        )

    def _deal(self, batch: DocumentBatch, to_val: bool) -> npt.NDArray[np.bool_]:
        """Which texts go to val; one that continues goes where its beginning went."""
        data, spans = memoryview(batch.data).cast("B"), batch.spans.tolist()
        val = np.empty(len(spans) - 1, bool)
        first = 0
        if batch.continues and len(val):
            val[0] = to_val
            first = 1
        fraction, seed = self._options.val_fraction, self._options.seed
        for i in range(first, len(val)):
            val[i] = goes_to_val(data[spans[i] : min(spans[i + 1], spans[i] + HASHED_BYTES)], fraction, seed)
        return val
