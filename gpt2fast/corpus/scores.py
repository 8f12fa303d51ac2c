"""Corpora to scores: a line or row for each document, with how probable it is under a model."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from gpt2fast._internal.arguments import flag, one_of, real_number, whole_number
from gpt2fast._internal.numerics import numerics_version
from gpt2fast.corpus import score_cluster
from gpt2fast.corpus.batches import Cursor
from gpt2fast.corpus.documents import Reading, read_batches
from gpt2fast.corpus.groups import groups, model_identity
from gpt2fast.corpus.inputs import Input, find_inputs, path_of
from gpt2fast.corpus.keep import Picks, check_keeping, write_kept
from gpt2fast.corpus.options import CorpusOptions
from gpt2fast.corpus.progress import Progress
from gpt2fast.corpus.score_job import Place, ScoreJob, opened_table
from gpt2fast.corpus.score_rows import KEPT_COLUMNS, Scoring, columns_of, condition_of
from gpt2fast.corpus.tables import VERSION, Column, Write, has_metadata, table_of
from gpt2fast.corpus.workdir import NO_ROOM, warn
from gpt2fast.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel

__all__ = ["ScoreSummary", "score_files"]

Rows: TypeAlias = "Iterator[list[list[Any]]]"
Make: TypeAlias = "Callable[[BinaryIO, Rows], None]"


@dataclass(frozen=True)
class ScoreSummary:
    """What `score_files` did."""

    documents: int
    tokens: int
    #: The length of all documents together, in bytes.
    text_bytes: int
    #: The natural logarithm of the probability of all documents together.
    log_likelihood: float
    #: Documents that were left out because they were bad.
    skipped: int
    #: How long this run took.
    seconds: float
    #: Whether it went on with what an earlier run had done, which is counted, too.
    resumed: bool = False
    #: How many documents met the condition, where there was one.
    kept: int = 0

    @property
    def perplexity(self) -> float:
        """e to the mean negative log-probability of all tokens; NaN where there are none."""
        try:
            return math.exp(-self.log_likelihood / self.tokens) if self.tokens else math.nan
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float:
        """The surprisal of all documents over their bytes; NaN where there are none."""
        return -self.log_likelihood / math.log(2) / self.text_bytes if self.text_bytes else math.nan


def score_files(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    lm: LanguageModel,
    *,
    field: str = "text",
    input_format: str | None = None,
    separator: str | None = None,
    context: str | bytes = "",
    stride: int | None = None,
    bos: bool = True,
    allow_special: bool = False,
    tokens: bool = False,
    text: bool = False,
    detect: bool = False,
    observer: LanguageModel | None = None,
    keep: str | None = None,
    on_error: str = "error",
    on_skip: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    progress: bool | None = False,
    overwrite: bool = False,
    restart: bool = False,
    checkpoint_seconds: float = 10.0,
    engine: str = "local",
    address: str | None = None,
) -> ScoreSummary:
    """Score every document of files, write a table with a row for each, and return what they amount to.

    The columns are `file`, `document` (its number in the file, from 0; documents that were skipped are not counted),
    `bytes`, `tokens`, `log_likelihood` (natural logarithm), `perplexity` and `bits_per_byte`; with `text` also `text`;
    with `tokens` also lists with a value for each token: `ids`, `log_probabilities`, `ranks` and `entropies`, as in
    `Score`.  The table appears whole or not at all, and memory stays bounded whatever the size of the inputs.  A job
    that was stopped goes on when the same call is made again; until it is done there is a directory `out` + ".partial".

    inputs
        Files, directories, globs, or "-" for standard input: text (a document a file, or separated by the line
        `separator`), JSON lines or an array, CSV, Parquet and Arrow IPC, whose `field` holds the text, each also with
        .gz, .zst, .xz or .bz2.  Known by their suffix, or by `input_format` ("jsonl", "txt.gz").
    out
        A .parquet, .arrow, .jsonl, .csv or .tsv file.  What is no number, as the perplexity of an empty document, is
        null in Parquet, Arrow and JSON and empty in CSV and TSV, which have no `tokens`; their texts are quoted as RFC
        4180 has it.  Where the model's numbers are the same on every machine, on a CPU with `gemm="panel"`, the schema
        of Parquet and Arrow has `gpt2fast.numerics_version` in its metadata; the other formats have no place for it but
        the rows, and have it as their last column, `numerics_version`.
    context, stride, bos, allow_special
        As in `LanguageModel.score`.
    detect
        Add what tells of a text's author, as far as that can be told: `variance`, the mean of `Score.variances`;
        `curvature`, Fast-DetectGPT's statistic (see `Score.curvature`); `top_10`, `top_100` and `top_1000`, GLTR's
        shares of tokens that were among so many likeliest (see `Score.share_within`).  With `tokens` also the list
        `variances`.
    observer
        A second model of the same vocabulary: add `binoculars`, the ratio that `gpt2fast.scoring.binoculars` explains;
        `lm` is the performer.
    keep
        A condition on the numbers of such a table, those of `detect` included: "perplexity < 200 and bits_per_byte <
        1.2" (see `gpt2fast.corpus.condition`).  Then `out` is no table: it holds the documents that meet the condition,
        in the order and the format of the inputs, which are all of one kind; its name says that kind, and how it is
        compressed ("kept.jsonl.zst").  Lines, elements and rows are copied with all their fields, JSON lines and CSV
        byte for byte; documents of text files have the line `separator` between them.  The inputs are read twice, so
        they are files.
    on_error
        What to do with a bad line (no JSON, no such field, no string, no UTF-8): "error" refuses it and names file and
        line; "skip" leaves the document out, counts it, and calls `on_skip` with the message; "replace" first makes
        U+FFFD of bytes that are not UTF-8.
    on_note
        Called with a sentence about what is not as it may seem, as in `tokenize_files`.  By default these are warnings.
    progress
        Whether to show a progress bar; None means on a terminal.
    overwrite, restart
        Replace a table that is there.  Forget what an interrupted job has done.
    checkpoint_seconds
        How often progress is saved.
    engine, address
        "ray" does the job on a Ray cluster, with the same rows at the end: the one at `address`, else the one that
        `RAY_ADDRESS` names, else one started on this machine.  Its workers load the model from where it was loaded
        here, and each uses one thread.  Models, inputs and output must be on storage that all machines share.

    Raises MissingFileError, InputError (bad arguments, bad lines, damaged or changed inputs, logits that are not
    finite, a table that is there, another process at work on it), MissingDependencyError for formats whose library is
    not installed, and OSError where the system refuses.

    >>> import gpt2fast, json, tempfile
    >>> from gpt2fast.corpus import score_files
    >>> directory = tempfile.TemporaryDirectory()
    >>> with open(directory.name + "/a.jsonl", "w") as file:
    ...     _ = file.write('{"text": "Once upon a time"}\\n{"text": "time a upon Once"}\\n')
    >>> summary = score_files(directory.name + "/a.jsonl", directory.name + "/b.jsonl", gpt2fast.load("demo"))
    >>> summary.documents, summary.tokens
    (2, 9)
    >>> with open(directory.name + "/b.jsonl") as file:
    ...     [round(json.loads(line)["perplexity"]) for line in file]
    [7, 3371]
    >>> directory.cleanup()
    """
    start = time.perf_counter()
    one_of("engine", engine, ("local", "ray"))
    if address is not None and engine != "ray":
        raise InputError(f"address is {address!r}, but the engine is {engine!r}; say engine='ray'")
    on_note = on_note or warn
    restart, overwrite = flag("restart", restart), flag("overwrite", overwrite)
    tokens, text = flag("tokens", tokens), flag("text", text)
    detect, observed = flag("detect", detect), observer is not None
    if observer is not None:
        from gpt2fast.scoring.detection import check_observer  # where corpora are tokenized, no engine is loaded

        check_observer(lm, observer)
    condition = None if keep is None else condition_of(keep, observed=observed)
    if condition is not None and (tokens or text):
        raise InputError("tokens and text are columns of a table, and with keep the documents are written, and none")
    options = CorpusOptions(field, separator, on_error=on_error)
    sources = find_inputs(inputs, input_format, on_note)
    how = Reading(
        options, lm.model.num_threads, on_skip or (lambda message: None), lm.tokenizer, on_note, condition is not None
    )
    if engine == "ray" and not all(source.is_file for source in sources):
        raise InputError("standard input and pipes are not there on the machines of a cluster; use engine='local'")
    if not isinstance(context, (str, bytes)):
        raise InputTypeError(f"context is of type {type(context).__name__}; expected str or bytes")
    if stride is not None and whole_number("stride", stride, least=1) > lm.model.config.n_ctx:
        raise InputError(f"stride is {stride}; the model's context is {lm.model.config.n_ctx} tokens")
    real_number("checkpoint_seconds", checkpoint_seconds, least=0)
    path = path_of("out", out)
    make: Make | None
    if condition is not None:
        columns = KEPT_COLUMNS
        check_keeping(path, sources, how)
        make = partial(_write_kept, path, sources, how)
    else:
        columns = columns_of(detect=detect, observed=observed, text=text, tokens=tokens)
        if lm.model.same_bits and not has_metadata(path):
            columns = [*columns, Column(VERSION, int)]
        metadata = {"gpt2fast.numerics_version": str(numerics_version)} if lm.model.same_bits else None
        table = table_of(path, columns, metadata)
        make = None if path.lower().endswith(".jsonl") else partial(_write_table, table)
    if any(source.is_file and os.path.exists(path) and os.path.samefile(source.path, path) for source in sources):
        raise InputError(f"{os.fspath(out)}: both an input and the output")
    identity = {
        "columns": [column.name for column in columns],
        "field": field,
        "separator": separator,
        "context": context if isinstance(context, str) else context.decode("utf-8", "backslashreplace"),
        "stride": stride,
        "bos": bos,
        "allow_special": allow_special,
        **({} if keep is None else {"keep": keep}),
        **({} if observer is None else {"observer": model_identity(observer)}),
        **({} if engine == "local" else {"engine": engine, "unit_bytes": score_cluster.UNIT_BYTES}),
        "model": model_identity(lm),
        "inputs": [[source.path, source.size, source.mtime_ns] for source in sources],
    }
    scoring = Scoring(
        lm,
        observer,
        columns if condition is None else condition,
        {"context": context, "stride": stride, "bos": flag("bos", bos), "allow_special": allow_special},
    )
    job_of = partial(ScoreJob, columns=columns, identity=identity, on_error=on_error)
    with opened_table(path, sources, job_of, overwrite=overwrite, restart=restart) as job:
        if not job.finished and engine == "ray":
            score_cluster.run(job, sources, how, scoring, address=address, progress=progress)
        elif not job.finished:
            _run(job, sources, how, scoring, progress, checkpoint_seconds)
        job.publish(path, make=make, overwrite=overwrite)
    return ScoreSummary(**asdict(job.counts), seconds=time.perf_counter() - start, resumed=job.resumed)


def _run(
    job: ScoreJob,
    sources: Sequence[Input],
    how: Reading,
    scoring: Scoring,
    progress: bool | None,
    checkpoint_seconds: float,
) -> None:
    """Score what is left.  Errors come through, and leave the job to be gone on with."""
    sizes = [max(source.size, 0) for source in sources]
    total = sum(sizes) if all(source.is_file for source in sources) else None
    first = job.place.cursor.file
    saved = time.monotonic()
    whole = True  # the rows, the counts and the place are of one moment
    with Progress(total, sum(sizes[:first]), progress) as bar:
        try:
            for number in range(first, len(sources)):
                if number > first:
                    job.place = Place(Cursor(number), skipped=job.counts.skipped)
                for group in groups(read_batches(sources[number], job.place.cursor, how), job.place):
                    counts = replace(job.counts, skipped=group.skipped)
                    rows = scoring.rows(sources[number], number, group, counts)
                    whole = False
                    job.append(rows)
                    new, job.counts, job.place = counts.tokens - job.counts.tokens, counts, group.after
                    whole = True
                    bar.update(sum(sizes[:number]) + group.raw, new)
                    if time.monotonic() - saved >= checkpoint_seconds:
                        job.save()
                        saved = time.monotonic()
            job.save(finished=True)
        except BaseException:
            if whole and job.counts.documents and not job.finished:
                try:
                    job.save()
                except OSError as error:  # the one that comes through is the one to tell of
                    if error.errno not in NO_ROOM:
                        raise
            raise


# What is made of the rows at the end


def _write_table(table: Callable[[BinaryIO], AbstractContextManager[Write]], file: BinaryIO, rows: Rows) -> None:
    with table(file) as write:
        for some in rows:
            write(some)


def _write_kept(out: str, sources: Sequence[Input], how: Reading, file: BinaryIO, rows: Rows) -> None:
    write_kept(out, sources, how, Picks((number, record) for some in rows for number, record in some), file)
