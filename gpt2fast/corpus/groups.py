"""The documents of a corpus, some at a time, for jobs that have a model read them; and what tells models apart."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpt2fast.corpus.documents import Reading, read_batches
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.score_job import Place

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel

__all__ = ["DocumentGroup", "document_groups", "model_identity"]

#: Documents that are read together: as many as these bytes of text have, at least one.  Enough to fill many passes of
#: the network, little enough for a bar that moves.
_GROUP_BYTES = 1 << 14


@dataclass
class DocumentGroup:
    """Documents that are read together, the number of the first in its file, how far in the file they bring us, and
    how many were left out up to here."""

    texts: list[str]
    number: int
    raw: int
    skipped: int
    after: Place


def document_groups(source: Input, start: Place, how: Reading) -> Iterator[DocumentGroup]:
    """The documents of a file from a place on, some at a time."""
    open_parts: list[bytes] = []
    place, skipped = replace(start, behind=0), start.skipped
    known = start.behind  # documents behind the cursor that need not be scored
    before = 0
    for batch in read_batches(source, start.cursor, how):
        skipped += batch.skipped
        texts: list[str] = []
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
            size += len(text)
            if size >= _GROUP_BYTES:
                raw = before + (batch.raw - before) * done // max(batch.text_bytes, 1)
                yield DocumentGroup(texts, place.number - len(texts), raw, skipped, place)
                texts, size = [], 0
        before = batch.raw
        if not batch.cursor.is_open:
            known = max(known - place.behind, 0)
            place = replace(place, cursor=batch.cursor, behind=0, skipped=skipped)
        yield DocumentGroup(texts, place.number - len(texts), before, skipped, place)


def model_identity(lm: LanguageModel) -> str:
    """What tells models apart, and tokenizers: their settings, and where they are the same bits every time also the
    logits of a few ids."""
    digest = hashlib.blake2b(pickle.dumps(lm.tokenizer, 4), digest_size=16)
    digest.update(repr((lm.model.config, lm.model.dtype, lm.model.device, lm.model.gemm)).encode())
    if lm.model.same_bits:
        ids = np.arange(min(8, lm.model.config.n_ctx)) % lm.model.config.vocab_size
        digest.update(np.ascontiguousarray(lm.model(ids, last_only=True)).tobytes())
    return digest.hexdigest()
