"""Corpora to scores: a line or row for each document, with how probable it is under a model."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpt2fast._internal.arguments import whole_number
from gpt2fast._internal.atomic import atomic_write
from gpt2fast._internal.numerics import numerics_version
from gpt2fast.corpus.batches import Cursor
from gpt2fast.corpus.documents import Reading, read_batches
from gpt2fast.corpus.inputs import Input, find_inputs
from gpt2fast.corpus.options import CorpusOptions
from gpt2fast.corpus.progress import Progress
from gpt2fast.corpus.tables import Column, table_of
from gpt2fast.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel
    from gpt2fast.scoring.score import Score

__all__ = ["ScoreSummary", "score_files"]

#: Documents that are scored together: as many as these bytes of text have, at least one.  Enough to fill many passes of
#: the network, little enough for a bar that moves.
_GROUP_BYTES = 1 << 14

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
    seconds: float

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
    progress: bool | None = False,
) -> ScoreSummary:
    """Score every document of files, write a table with a row for each, and return what they amount to.

    The columns are `file`, `document` (its number in the file, from 0; documents that were skipped are not counted),
    `bytes`, `tokens`, `log_likelihood` (natural logarithm), `perplexity` and `bits_per_byte`; with `text` also `text`;
    with `tokens` also lists with a value for each token: `ids`, `log_probabilities`, `ranks` and `entropies`, as in
    `Score`.  The table appears whole or not at all, and memory stays bounded whatever the size of the inputs.

    inputs
        Files, directories, globs, or "-" for standard input: text (a document a file, or separated by the line
        `separator`), JSON lines and Parquet, whose `field` holds the text, each also with .gz or .zst.  Known by their
        suffix, or by `input_format` ("jsonl", "txt.gz").
    out
        A .parquet, .jsonl or .tsv file.  What is no number, as the perplexity of an empty document, is null in Parquet
        and JSON and empty in TSV, which has no `tokens`.  The schema of Parquet has `gpt2fast.numerics_version` in its
        metadata where the model's numbers are the same on every machine: on a CPU, with `gemm="panel"`.
    context, stride, bos, allow_special
        As in `LanguageModel.score`.
    on_error
        What to do with a bad line (no JSON, no such field, no string, no UTF-8): "error" refuses it and names file and
        line; "skip" leaves the document out, counts it, and calls `on_skip` with the message; "replace" first makes
        U+FFFD of bytes that are not UTF-8.
    progress
        Whether to show a progress bar; None means on a terminal.

    Raises MissingFileError, InputError (bad arguments, bad lines, damaged or changed inputs, logits that are not
    finite), MissingDependencyError for formats whose library is not installed, and OSError where the system refuses.

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
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    sources = find_inputs(inputs, input_format)
    options = CorpusOptions(field, separator, on_error=on_error)
    how = Reading(options, lm.model.num_threads, on_skip or (lambda message: None), lm.tokenizer)
    if not isinstance(context, (str, bytes)):
        raise InputTypeError(f"context is of type {type(context).__name__}; expected str or bytes")
    if stride is not None and whole_number("stride", stride, least=1) > lm.model.config.n_ctx:
        raise InputError(f"stride is {stride}; the model's context is {lm.model.config.n_ctx} tokens")
    columns = _COLUMNS + ([Column("text", str)] if text else []) + (_TOKEN_COLUMNS if tokens else [])
    same_bits = lm.model.device == "cpu" and lm.model.gemm == "panel"
    table = table_of(out, columns, {"gpt2fast.numerics_version": str(numerics_version)} if same_bits else None)
    if any(source.is_file and os.path.exists(out) and os.path.samefile(source.path, out) for source in sources):
        raise InputError(f"{os.fspath(out)}: both an input and the output")
    sizes = [max(source.size, 0) for source in sources]
    total = sum(sizes) if all(source.is_file for source in sources) else None
    documents = count = text_bytes = skipped = 0
    log_likelihood = 0.0
    with atomic_write(out) as file, table(file) as write, Progress(total, 0, progress) as bar:
        for number, source in enumerate(sources):
            scored = 0
            for group in _groups(source, how):
                scores = lm.score_batch(
                    group.texts, context=context, stride=stride, bos=bos, allow_special=allow_special
                )
                write([_row(source, scored + i, score, columns) for i, score in enumerate(scores)])
                scored += len(scores)
                new = sum(map(len, scores))
                count += new
                text_bytes += sum(score.num_bytes for score in scores)
                log_likelihood += sum(score.log_likelihood for score in scores)
                skipped += group.skipped
                bar.update(sum(sizes[:number]) + group.raw, new)
            documents += scored
    return ScoreSummary(documents, count, text_bytes, log_likelihood, skipped, time.perf_counter() - start)


@dataclass
class _Group:
    """Documents that are scored together, how far in the file they bring us, and how many were left out before."""

    texts: list[str]
    raw: int
    skipped: int


def _groups(source: Input, how: Reading) -> Iterator[_Group]:
    """The documents of a file, some at a time."""
    open_parts: list[bytes] = []
    before = 0
    for batch in read_batches(source, Cursor(), how):
        group = _Group([], before, batch.skipped)
        size = done = 0
        for i in range(len(batch.spans) - 1):
            part = bytes(batch.data[batch.spans[i] : batch.spans[i + 1]])
            done += len(part)
            open_parts.append(part)
            if batch.cursor.is_open and i == len(batch.spans) - 2:
                break
            text = b"".join(open_parts)
            open_parts = []
            group.texts.append(text.decode())
            size += len(text)
            if size >= _GROUP_BYTES:
                group.raw = before + (batch.raw - before) * done // max(batch.text_bytes, 1)
                yield group
                group, size = _Group([], before, 0), 0
        group.raw = before = batch.raw
        if group.texts or group.skipped:
            yield group


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
    }
    return [values[column.name]() for column in columns]
