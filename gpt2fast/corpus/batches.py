"""What flows through a job: texts in one buffer, and how far in the inputs they bring us."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["BATCH_BYTES", "HASHED_BYTES", "Cursor", "DocumentBatch", "batch_of", "merge_small", "prefetch"]

#: Bytes of text that are encoded together: enough for many threads, little against the memory there is.
BATCH_BYTES = 1 << 23

#: So much of a document's beginning decides whether it goes to train or val: a long one is never in memory as a whole.
#: The first part of a document that is read in parts is no shorter.
HASHED_BYTES = 1 << 16

T = TypeVar("T")


@dataclass(frozen=True)
class Cursor:
    """A place between documents, or within one, from where a job can go on.

    `file` is the place in the list of inputs, `position` that within it: decompressed bytes, or rows of Parquet.
    `line` counts the lines before it.  Where `is_open`, the document before goes on here, and `to_val` says on which
    side.
    """

    file: int = 0
    position: int = 0
    line: int = 0
    is_open: bool = False
    to_val: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class DocumentBatch:
    """Texts: number i is `data[spans[i]:spans[i + 1]]`.

    Each is a document, but the first may be more of the one that the last batch left open (`continues`), and the last
    may leave one open (`cursor.is_open`).  `raw` is how many bytes of the input's file were read for it.
    """

    data: Any
    spans: npt.NDArray[np.int64]
    continues: bool
    cursor: Cursor
    raw: int = 0
    skipped: int = 0
    mended: int = 0
    #: Whether a job can go on from the cursor: not where a long text is passed on in parts.
    is_place: bool = True
    #: The number in the file of each document's record, from 0: a line, an element of an array or a row.  None of text
    #: files, which have no records, and where the reader was not asked for it.
    records: npt.NDArray[np.int64] | None = None

    @property
    def text_bytes(self) -> int:
        return int(self.spans[-1] - self.spans[0])

    @property
    def documents(self) -> int:
        """How many documents end here."""
        return len(self.spans) - 1 - self.cursor.is_open if len(self.spans) > 1 else 0


def batch_of(texts: list[bytes], continues: bool, cursor: Cursor) -> DocumentBatch:
    """A batch of separate texts."""
    spans = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=spans[1:])
    return DocumentBatch(texts[0] if len(texts) == 1 else b"".join(texts), spans, continues, cursor)


def merge_small(batches: Generator[DocumentBatch, None, None]) -> Generator[DocumentBatch, None, None]:
    """The same texts in batches of about BATCH_BYTES at most, as far as they can be had by joining.

    Small files would otherwise be a batch each, and the work of a batch is little only against many texts.
    """
    held: list[DocumentBatch] = []
    held_bytes = 0
    with closing(batches):
        for batch in batches:
            cost = batch.text_bytes + 32 * len(batch.spans)
            if held and held_bytes + cost > BATCH_BYTES:
                yield _joined(held)
                held, held_bytes = [], 0
            held.append(batch)
            held_bytes += cost
    if held:
        yield _joined(held)


def _joined(batches: list[DocumentBatch]) -> DocumentBatch:
    if len(batches) == 1:
        return batches[0]
    data = b"".join(memoryview(batch.data)[batch.spans[0] : batch.spans[-1]] for batch in batches)
    # A text that goes on in the next batch is one with what it goes on with.
    lengths: list[npt.NDArray[np.int64]] = []
    for batch in batches:
        new = np.diff(batch.spans)
        if lengths and batch.continues and len(new):
            lengths[-1][-1] += new[0]
            new = new[1:]
        if len(new):
            lengths.append(new)
    spans = np.zeros(sum(map(len, lengths)) + 1, np.int64)
    if lengths:
        np.cumsum(np.concatenate(lengths), out=spans[1:])
    return DocumentBatch(
        data,
        spans,
        batches[0].continues,
        batches[-1].cursor,
        batches[-1].raw,
        sum(batch.skipped for batch in batches),
        sum(batch.mended for batch in batches),
    )


def prefetch(items: Generator[T, None, None], depth: int = 1) -> Generator[T, None, None]:
    """The same items, made ahead by a thread of their own, `depth` of them waiting at most; errors come through.

    When this is closed, so is `items`, by that thread, as soon as it is not waiting for something else.
    """
    waiting: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: T | None, error: BaseException | None) -> bool:
        while not stopped.is_set():
            with suppress(queue.Full):
                waiting.put((item, error), timeout=0.1)
                return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(item, None):
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)
        finally:
            items.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = waiting.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join(2)  # not for ever: it may be waiting for standard input
