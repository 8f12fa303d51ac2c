"""Corpora to scores: a line or row for each document, with how probable it is under a model."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpt2fast._internal.arguments import flag, real_number, whole_number
from gpt2fast._internal.numerics import numerics_version
from gpt2fast.corpus.batches import Cursor
from gpt2fast.corpus.documents import Reading
from gpt2fast.corpus.groups import document_groups, model_identity
from gpt2fast.corpus.inputs import Input, find_inputs, path_of
from gpt2fast.corpus.options import CorpusOptions
from gpt2fast.corpus.progress import Progress
from gpt2fast.corpus.score_job import Place, ScoreJob, opened_table, score_work
from gpt2fast.corpus.tables import VERSION, Column, has_metadata, table_of
from gpt2fast.corpus.workdir import NO_ROOM, WorkDirectory, warn
from gpt2fast.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel
    from gpt2fast.scoring.score import Score

__all__ = ["ScoreSummary", "score_files"]

_COLUMNS = [
    Column("file", str),
    Column("document", int),
    Column("bytes", int),
    Column("tokens", int),
    Column("log_likelihood", float),
    Column("perplexity", float),
    Column("bits_per_byte", float),
]
_TOKEN_COLUMNS = [
    Column("ids", int, is_list=True),
    Column("log_probabilities", float, is_list=True),
    Column("ranks", int, is_list=True),
    Column("entropies", float, is_list=True),
]


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
    on_error: str = "error",
    on_skip: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    progress: bool | None = False,
    overwrite: bool = False,
    restart: bool = False,
    checkpoint_seconds: float = 10.0,
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
    on_note = on_note or warn
    restart, overwrite = flag("restart", restart), flag("overwrite", overwrite)
    tokens, text = flag("tokens", tokens), flag("text", text)
    options = CorpusOptions(field, separator, on_error=on_error)
    sources = find_inputs(inputs, input_format, on_note)
    how = Reading(options, lm.model.num_threads, on_skip or (lambda message: None), lm.tokenizer, on_note)
    if not isinstance(context, (str, bytes)):
        raise InputTypeError(f"context is of type {type(context).__name__}; expected str or bytes")
    if stride is not None and whole_number("stride", stride, least=1) > lm.model.config.n_ctx:
        raise InputError(f"stride is {stride}; the model's context is {lm.model.config.n_ctx} tokens")
    real_number("checkpoint_seconds", checkpoint_seconds, least=0)
    columns = _COLUMNS + ([Column("text", str)] if text else []) + (_TOKEN_COLUMNS if tokens else [])
    if lm.model.same_bits and not has_metadata(out):
        columns = [*columns, Column(VERSION, int)]
    metadata = {"gpt2fast.numerics_version": str(numerics_version)} if lm.model.same_bits else None
    table_of(out, columns, metadata)
    path = path_of("out", out)
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
        "model": model_identity(lm),
        "inputs": [[source.path, source.size, source.mtime_ns] for source in sources],
    }
    score = partial(lm.score_batch, context=context, stride=stride, bos=flag("bos", bos), allow_special=allow_special)
    try:
        make = partial(ScoreJob, columns=columns, identity=identity, on_error=on_error)
        with opened_table(path, sources, make, overwrite=overwrite, restart=restart) as job:
            if not job.finished:
                _run(job, sources, how, score, columns, progress, checkpoint_seconds)
            job.publish(path, overwrite=overwrite, metadata=metadata)
    except OSError as error:
        if error.errno in NO_ROOM:
            message = f"{error.strerror}; {WorkDirectory(score_work(path)).kept}"
            raise OSError(error.errno, message, error.filename or score_work(path)) from error
        raise
    return ScoreSummary(**asdict(job.counts), seconds=time.perf_counter() - start, resumed=job.resumed)


def _run(
    job: ScoreJob,
    sources: Sequence[Input],
    how: Reading,
    score: Callable[[list[str]], list[Score]],
    columns: Sequence[Column],
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
                for group in document_groups(sources[number], job.place, how):
                    scores = score(group.texts) if group.texts else []
                    rows = [_row(sources[number], group.number + i, one, columns) for i, one in enumerate(scores)]
                    whole = False
                    job.append(rows)
                    counts, new = job.counts, sum(map(len, scores))
                    counts.documents += len(scores)
                    counts.tokens += new
                    counts.text_bytes += sum(one.num_bytes for one in scores)
                    for one in scores:
                        counts.log_likelihood += one.log_likelihood
                    counts.skipped = group.skipped
                    job.place = group.after
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


def _row(source: Input, number: int, score: Score, columns: Sequence[Column]) -> list[Any]:
    values: dict[str, Callable[[], Any]] = {
        # A name that is no UTF-8 would make a file that is none, either.
        "file": lambda: source.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "document": lambda: number,
        "bytes": lambda: score.num_bytes,
        "tokens": lambda: len(score),
        "log_likelihood": lambda: score.log_likelihood,
        "perplexity": lambda: score.perplexity,
        "bits_per_byte": lambda: score.bits_per_byte,
        "text": lambda: score.text,
        "ids": score.ids.tolist,
        "log_probabilities": score.log_probabilities.tolist,
        "ranks": score.ranks.tolist,
        "entropies": score.entropies.tolist,
        VERSION: lambda: numerics_version,
    }
    return [values[column.name]() for column in columns]
