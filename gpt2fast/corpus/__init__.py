"""Corpora to token files, which nanoGPT, llm.c, NumPy and Arrow read, or to scores: text, JSON lines, Parquet in."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpt2fast._internal.arguments import real_number
from gpt2fast._internal.threads import resolve_num_threads
from gpt2fast.corpus import cluster, local
from gpt2fast.corpus.documents import Reading
from gpt2fast.corpus.inputs import find_inputs
from gpt2fast.corpus.job import JobPlan, Summary, opened
from gpt2fast.corpus.options import CorpusOptions, Target
from gpt2fast.corpus.scores import ScoreSummary, score_files
from gpt2fast.errors import InputError

if TYPE_CHECKING:
    from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["ScoreSummary", "Summary", "score_files", "tokenize_files"]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    on_error: str = "error",
    on_skip: Callable[[str], None] | None = None,
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
    the outputs, but a directory whose name ends in `.partial`.  Memory stays bounded whatever the size of the inputs.

    inputs
        Files, directories, globs, or "-" for standard input: text (a document a file), JSON lines and Parquet, each
        also with .gz or .zst.  Known by their suffix, or by `input_format` ("jsonl", "txt.gz").
    out
        A file whose suffix tells the format, or a directory for train (and val) with `format`: "nanogpt" (bare 16-bit
        ids, .bin), "llmc" (.bin), "npy", "parquet" (`input_ids`, a list for each document).
    tokenizer
        GPT-2's by default.
    field
        The field of JSON lines, the column of Parquet.
    separator
        In text files: the line that separates documents ("" for blank lines).
    eot
        "append" puts end-of-text after each document, "prepend" before, "none" nowhere.
    allow_special
        Whether special tokens in the texts, as `<|endoftext|>`, are these tokens; they are ordinary text by default.
    val_fraction, seed
        The fraction of documents that goes to val instead of train, chosen by their hash; see
        `gpt2fast.corpus.encoding.goes_to_val`.
    shard_tokens
        Tokens for each file, which are then numbered.  Of Parquet, a shard ends with the document that fills it.
    on_error
        What to do with a bad line (no JSON, no such field, no string, no UTF-8): "error" refuses it and names file and
        line; "skip" leaves the document out, counts it, and calls `on_skip` with the message; "replace" first makes
        U+FFFD of bytes that are not UTF-8.
    num_threads, progress
        Processors to use, all by default.  Whether to show a progress bar; None means on a terminal.
    overwrite, restart
        Replace outputs that are there.  Forget what an interrupted job has done.
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
    if engine not in ("local", "ray"):
        raise InputError(f"engine is {engine!r}; expected 'local' or 'ray'")
    if address is not None and engine != "ray":
        raise InputError(f"address is {address!r}, but the engine is {engine!r}; say engine='ray'")
    options = CorpusOptions(field, separator, eot, val_fraction, seed, shard_tokens, on_error, allow_special)
    real_number("checkpoint_seconds", checkpoint_seconds, least=0)
    target = Target.of(out, format)
    if tokenizer is None:
        from gpt2fast.tokenizer.encoding import get_encoding

        tokenizer = get_encoding()
    how = Reading(options, resolve_num_threads(num_threads), on_skip or (lambda message: None), tokenizer)
    patterns = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    plan = JobPlan(find_inputs(patterns, input_format), target, tokenizer, options)
    if engine == "ray" and not all(source.is_file for source in plan.inputs):
        raise InputError("standard input and pipes are not there on the machines of a cluster; use engine='local'")
    more = {"engine": engine, "unit_bytes": cluster.UNIT_BYTES if engine == "ray" else 0}
    try:
        with opened(plan, restart=restart, overwrite=overwrite, more=more) as job:
            bytes_before, tokens_before = job.counts.text_bytes, job.outputs.tokens
            if not job.finished:
                if engine == "ray":
                    cluster.run(job, address=address, num_threads=num_threads, progress=progress, on_skip=how.on_skip)
                else:
                    local.run(job, how, progress=progress, checkpoint_seconds=checkpoint_seconds)
                job.save(None, finished=True)
            files = job.publish()
    except OSError as error:
        if error.errno in _NO_ROOM:
            message = f"{error.strerror}; what is done so far is kept: make room and run the same again"
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
