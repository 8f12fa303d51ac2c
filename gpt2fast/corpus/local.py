"""The engine for one machine: a thread reads, all processors encode, and this thread writes."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing, suppress

from gpt2fast.corpus.batches import Cursor, DocumentBatch, merge_small, prefetch
from gpt2fast.corpus.documents import Reading, read_batches
from gpt2fast.corpus.encoding import Encoder
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.job import Job
from gpt2fast.corpus.progress import Progress

__all__ = ["run"]


def run(job: Job, how: Reading, *, progress: bool | None, checkpoint_seconds: float) -> None:
    """Do what is left of the job.  Errors come through, and leave it to be gone on with."""
    plan = job.plan
    start = Cursor() if job.cursor is None else Cursor(**job.cursor)
    encoder = Encoder(plan.tokenizer, plan.options, plan.dtype, how.num_threads)
    sizes = [max(source.size, 0) for source in plan.inputs]
    total = sum(sizes) if all(source.is_file for source in plan.inputs) else None
    done = prefetch(encoder.encode_all(prefetch(merge_small(_read_all(plan.inputs, start, how))), start))
    saved = time.monotonic()
    whole = True  # the outputs, the counts and the cursor are of one moment
    with closing(done), Progress(total, sum(sizes[: start.file]), progress) as bar:
        try:
            for encoded in done:
                before = job.outputs.tokens
                whole = False
                job.outputs.append(encoded)
                job.counts.add(encoded)
                if encoded.is_place:
                    job.cursor = encoded.cursor.as_json()
                    whole = True
                bar.update(sum(sizes[: encoded.cursor.file]) + encoded.raw, job.outputs.tokens - before)
                if whole and time.monotonic() - saved >= checkpoint_seconds:
                    job.save(job.cursor)
                    saved = time.monotonic()
        except BaseException:
            if whole and job.cursor is not None:
                with suppress(OSError):  # the error that comes through is the one to tell of
                    job.save(job.cursor)
            raise


def _read_all(inputs: Sequence[Input], start: Cursor, how: Reading) -> Generator[DocumentBatch, None, None]:
    for number in range(start.file, len(inputs)):
        first = start if number == start.file else Cursor(number)
        yield from read_batches(inputs[number], first, how)
