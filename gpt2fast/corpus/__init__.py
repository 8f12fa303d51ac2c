"""Corpora of text, JSON, CSV, Parquet and Arrow to token files, for nanoGPT, llm.c, NumPy and Arrow, or to scores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpt2fast._internal.arguments import flag, one_of, real_number, whole_number
from gpt2fast._internal.threads import resolve_num_threads
from gpt2fast.corpus import cluster, local
from gpt2fast.corpus.activating import ActivatingSummary, max_activating_files
from gpt2fast.corpus.documents import Reading
from gpt2fast.corpus.inputs import find_inputs
from gpt2fast.corpus.items import score_items
from gpt2fast.corpus.job import JobPlan, Summary, TooManyShards, opened
from gpt2fast.corpus.options import CorpusOptions, Target
from gpt2fast.corpus.scores import ScoreSummary, score_files
from gpt2fast.corpus.workdir import NO_ROOM, WorkDirectory, warn
from gpt2fast.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = [
    "ActivatingSummary",
    "ScoreSummary",
    "Summary",
    "max_activating_files",
    "score_files",
    "score_items",
    "tokenize_files",
]


def tokenize_files(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | None = None,
    format: str | None = None,
    input_format: str | None = None,
    field: str = "text",
    separator: str | None = None,
    eot: str = "none",
    allow_special: bool = False,
    val_fraction: float = 0.0,
    seed: int = 0,
    shard_tokens: int | None = None,
    max_shards: int | None = 10_000,
    on_error: str = "error",
    on_skip: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    num_threads: int | None = None,
    progress: bool | None = False,
    overwrite: bool = False,
    restart: bool = False,
    checkpoint_seconds: float = 10.0,
    engine: str = "local",
    address: str | None = None,
) -> Summary:
    """Tokenize files into token files, and return what was done.

    A job that was stopped, also by a kill or a full disk, goes on when the same call is made again, and its outputs are
    then those of an uninterrupted run, byte for byte.  Until everything is done, there is nothing under the names of
    the outputs, but directories whose names end in `.partial`.  Memory stays bounded whatever the size of the inputs.

    inputs
        Files, directories, globs, or "-" for standard input: text (a document a file), JSON lines or a JSON array, CSV,
        Parquet and Arrow IPC, each also with .gz, .zst, .xz or .bz2.  Known by their suffix, or by `input_format`
        ("jsonl", "txt.gz").  A file that is reached twice, by links, is read once.
    out
        A file whose suffix tells the format, or a directory for train (and val) with `format`: "nanogpt" (bare 16-bit
        ids, .bin), "llmc" (.bin), "npy", "parquet" (`input_ids`, a list for each document).
    tokenizer
        GPT-2's by default.
    field
        The field of JSON, the column of CSV, Parquet or Arrow.  `meta.text` is the one of that name, or else `text`
        within `meta`.
    separator
        In text files: the line that separates documents ("" for blank lines).  `<|endoftext|>` separates them within a
        line, too.
    eot
        "append" puts end-of-text after each document, "prepend" before, "none" nowhere.
    allow_special
        Whether special tokens in the texts, as `<|endoftext|>`, are these tokens; they are ordinary text by default.
    val_fraction, seed
        The fraction of documents that goes to val instead of train, chosen by their hash; see
        `gpt2fast.corpus.encoding.goes_to_val`.  Seeds are 0 to 2**64 - 1.
    shard_tokens, max_shards
        Tokens for each file, which are then numbered.  Of Parquet, a shard ends with the document that fills it.  More
        than `max_shards` files are refused, None for no limit: where the size of the inputs tells, before anything is
        done.
    on_error
        What to do with a bad line (no JSON, no such field, no string, no UTF-8): "error" refuses it and names file and
        line; "skip" leaves the document out, counts it, and calls `on_skip` with the message; "replace" first makes
        U+FFFD of bytes that are not UTF-8.
    on_note
        Called with a sentence about what is not as it may seem: a pipe in a directory that is left out, a file that is
        there twice, a separator that never stands alone.  By default these are warnings.
    num_threads, progress
        Processors to use, all by default.  Whether to show a progress bar; None means on a terminal.
    overwrite, restart
        Replace outputs that are there; without it also a file that appears while the job runs is left as it is, and the
        job refused.  Forget what an interrupted job has done.
    checkpoint_seconds
        How often progress is saved.
    engine, address
        "ray" does the job on a Ray cluster, with the same bytes at the end: the one at `address`, else the one that
        `RAY_ADDRESS` names, else one started on this machine.  Inputs and outputs must be on storage that all its
        machines share; `num_threads` is then what a task uses, 1 by default.

    Raises MissingFileError, InputError (bad arguments, bad lines, damaged or changed inputs, outputs that are there,
    another process at work on them), MissingDependencyError for formats whose library is not installed, and OSError
    where the system refuses.

    >>> import numpy, tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> with open(directory.name + "/a.txt", "w") as file:
    ...     _ = file.write("hello world")
    >>> summary = tokenize_files(directory.name + "/a.txt", directory.name + "/a.npy", eot="append")
    >>> summary.documents, summary.tokens, numpy.load(directory.name + "/a.npy").tolist()
    (1, 3, [31373, 995, 50256])
    >>> directory.cleanup()
    """
    start = time.perf_counter()
    one_of("engine", engine, ("local", "ray"))
    restart, overwrite = flag("restart", restart), flag("overwrite", overwrite)
    if address is not None and engine != "ray":
        raise InputError(f"address is {address!r}, but the engine is {engine!r}; say engine='ray'")
    options = CorpusOptions(field, separator, eot, val_fraction, seed, shard_tokens, on_error, allow_special)
    num_threads_here = resolve_num_threads(num_threads)
    real_number("checkpoint_seconds", checkpoint_seconds, least=0)
    if max_shards is not None:
        whole_number("max_shards", max_shards, least=1)
    target = Target.of(out, format)
    from gpt2fast.tokenizer.encoding import Tokenizer, get_encoding

    if tokenizer is None:
        tokenizer = get_encoding()
    elif not isinstance(tokenizer, Tokenizer):
        raise InputTypeError(f"tokenizer is of type {type(tokenizer).__name__}; expected gpt2fast.Tokenizer")
    on_note = on_note or warn
    how = Reading(options, num_threads_here, on_skip or (lambda message: None), tokenizer, on_note)
    plan = JobPlan(find_inputs(inputs, input_format, on_note), target, tokenizer, options, max_shards)
    check_shards(plan)
    if engine == "ray" and not all(source.is_file for source in plan.inputs):
        raise InputError("standard input and pipes are not there on the machines of a cluster; use engine='local'")
    more = {"engine": engine, "unit_bytes": cluster.UNIT_BYTES if engine == "ray" else 0}
    try:
        with opened(plan, restart=restart, overwrite=overwrite, more=more) as job:
            bytes_before, tokens_before = job.counts.text_bytes, job.outputs.tokens
            if not job.finished:
                if engine == "ray":
                    cluster.run(job, how, address=address, num_threads=num_threads, progress=progress)
                else:
                    local.run(job, how, progress=progress, checkpoint_seconds=checkpoint_seconds)
                job.save(None, finished=True)
            files = job.publish()
    except OSError as error:
        if error.errno in NO_ROOM:
            message = f"{error.strerror}; {WorkDirectory(plan.target.work).kept}"
            raise OSError(error.errno, message, error.filename or plan.target.work) from error
        raise
    return Summary(
        job.counts.documents,
        job.outputs.tokens,
        job.counts.text_bytes,
        job.counts.skipped,
        job.counts.mended,
        time.perf_counter() - start,
        job.counts.text_bytes - bytes_before,
        job.outputs.tokens - tokens_before,
        job.resumed,
        files,
    )


def check_shards(plan: JobPlan) -> None:
    """Raises TooManyShards where the inputs are so large that there would be too many files for sure, or nearly so: a
    token has about four bytes."""
    if plan.max_shards is not None and plan.options.shard_tokens is not None:
        count = sum(max(source.size, 0) for source in plan.inputs) // 4 // plan.options.shard_tokens
        if count > 2 * plan.max_shards:
            raise TooManyShards(plan.options.shard_tokens, f"about {count:,}", plan.max_shards)
