"""The documents of a corpus, some at a time, for jobs that have a model read them; and what tells models apart."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpt2fast.corpus.batches import DocumentBatch
from gpt2fast.corpus.score_job import Place

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel

__all__ = ["Group", "groups", "model_identity"]

#: Documents that are read together: as many as these bytes of text have, at least one.  Enough to fill many passes of
#: the network, little enough for a bar that moves.
GROUP_BYTES = 1 << 14


@dataclass
class Group:
    """Documents that are read together, the numbers of their records, the number of the first among the file's
    documents, how far in the file they bring us, and how many were left out up to here."""

    texts: list[str]
    records: list[int]
    number: int
    raw: int
    skipped: int
    after: Place


def groups(batches: Iterable[DocumentBatch], start: Place) -> Iterator[Group]:
    """The documents of a file, of which the batches are those from the cursor of a place on, some at a time."""
    open_parts: list[bytes] = []
    place, skipped = replace(start, behind=0), start.skipped
    known = start.behind  # documents behind the cursor that need not be scored
    before = 0
    for batch in batches:
        skipped += batch.skipped
        texts: list[str] = []
        records: list[int] = []
        size = done = 0
        for i in range(len(batch.spans) - 1):
            part = bytes(batch.data[batch.spans[i] : batch.spans[i + 1]])
            done += len(part)
            open_parts.append(part)
            if batch.cursor.is_open and i == len(batch.spans) - 2:
                break
            text = b"".join(open_parts)
            open_parts = []
            place = replace(place, behind=place.behind + 1)
            if place.behind <= known:
                continue
            place = replace(place, number=place.number + 1)
            texts.append(text.decode())
            records.append(place.number - 1 if batch.records is None else int(batch.records[i]))
            size += len(text)
            if size >= GROUP_BYTES:
                raw = before + (batch.raw - before) * done // max(batch.text_bytes, 1)
                yield Group(texts, records, place.number - len(texts), raw, skipped, place)
                texts, records, size = [], [], 0
        before = batch.raw
        if not batch.cursor.is_open:
            known = max(known - place.behind, 0)
            place = replace(place, cursor=batch.cursor, behind=0, skipped=skipped)
        yield Group(texts, records, place.number - len(texts), before, skipped, place)


def model_identity(lm: LanguageModel) -> str:
    """What tells models apart, and tokenizers: their settings, and where they are the same bits every time also the
    logits of a few ids."""
    digest = hashlib.blake2b(pickle.dumps(lm.tokenizer, 4), digest_size=16)
    digest.update(repr((lm.model.config, lm.model.dtype, lm.model.device, lm.model.gemm)).encode())
    if lm.model.same_bits:
        ids = np.arange(min(8, lm.model.config.n_ctx)) % lm.model.config.vocab_size
        digest.update(np.ascontiguousarray(lm.model(ids, last_only=True)).tobytes())
    return digest.hexdigest()
