"""Corpora to the tokens at which neurons, or features of a sparse autoencoder, are strongest."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt2fast._internal.arguments import flag, real_number
from gpt2fast._internal.atomic import atomic_write, put_in_place, sync_directory
from gpt2fast.corpus.batches import Cursor
from gpt2fast.corpus.documents import Reading, read_batches
from gpt2fast.corpus.groups import groups, model_identity
from gpt2fast.corpus.inputs import Input, find_inputs, path_of
from gpt2fast.corpus.options import CorpusOptions
from gpt2fast.corpus.progress import Progress
from gpt2fast.corpus.score_job import Place, opened_table
from gpt2fast.corpus.tables import Column, table_of
from gpt2fast.corpus.workdir import NO_ROOM, WorkDirectory, warn
from gpt2fast.errors import InputError

if TYPE_CHECKING:
    from gpt2fast.interpretability.activating import Search
    from gpt2fast.interpretability.sae import SparseAutoencoder
    from gpt2fast.language_model import LanguageModel

__all__ = ["ActivatingSummary", "max_activating_files"]

_COLUMNS = [
    Column("unit", int),
    Column("rank", int),
    Column("activation", float),
    Column("file", str),
    Column("document", int),
    Column("position", int),
    Column("before", str),
    Column("token", str),
    Column("after", str),
]
# A text's number is that of its file, times this, and of the document in it.
_DOCUMENTS = 1 << 40


@dataclass(frozen=True)
class ActivatingSummary:
    """What `max_activating_files` did."""

    documents: int
    tokens: int
    #: Documents that were left out because they were bad.
    skipped: int
    #: Neurons or features that were looked for, and examples of them that the table has.
    units: int
    examples: int
    #: How long this run took.
    seconds: float
    #: Whether it went on with what an earlier run had done, which is counted, too.
    resumed: bool = False


def max_activating_files(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    lm: LanguageModel,
    name: str | SparseAutoencoder,
    k: int = 10,
    *,
    units: Sequence[int] | None = None,
    before: int = 24,
    after: int = 8,
    bos: bool = True,
    field: str = "text",
    input_format: str | None = None,
    separator: str | None = None,
    on_error: str = "error",
    on_skip: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    progress: bool | None = False,
    overwrite: bool = False,
    restart: bool = False,
    checkpoint_seconds: float = 10.0,
) -> ActivatingSummary:
    """Find the tokens of a corpus at which each neuron or feature is strongest, and write a table of them.

    What is looked for, by `lm`, `name`, `k`, `units`, `before`, `after` and `bos`, is what
    `gpt2fast.interpretability.max_activating` looks for.  The columns are `unit`, `rank` (from 1), `activation`,
    `file`, `document` (its number in the file, from 0), `position` (of the token in the document, from 0), and the text
    `before`, the `token` and the text `after`.  The table appears whole or not at all, and memory is that of the
    examples, whatever the size of the inputs.  A job that was stopped goes on when the same call is made again; until
    it is done there is a directory `out` + ".partial".

    inputs, field, input_format, separator, on_error, on_skip, on_note
        The documents, and what to do with bad ones, as in `score_files`.
    out
        A .parquet, .arrow, .jsonl, .csv or .tsv file.
    progress
        Whether to show a progress bar; None means on a terminal.
    overwrite, restart
        Replace a table that is there.  Forget what an interrupted job has done.
    checkpoint_seconds
        How often progress is saved.

    Raises what `max_activating` and `score_files` do.

    >>> import gpt2fast, json, tempfile
    >>> from gpt2fast.corpus import max_activating_files
    >>> directory = tempfile.TemporaryDirectory()
    >>> with open(directory.name + "/a.jsonl", "w") as file:
    ...     _ = file.write('{"text": "Once upon a time"}\\n{"text": "There was a king"}\\n')
    >>> lm, out = gpt2fast.load("demo"), directory.name + "/top.jsonl"
    >>> found = max_activating_files(directory.name + "/a.jsonl", out, lm, "blocks.3.mlp.hook_post", k=1, units=[5, 9])
    >>> found.documents, found.examples
    (2, 2)
    >>> directory.cleanup()
    """
    from gpt2fast.interpretability.activating import Search  # which loads the engine

    start = time.perf_counter()
    on_note = on_note or warn
    restart, overwrite = flag("restart", restart), flag("overwrite", overwrite)
    real_number("checkpoint_seconds", checkpoint_seconds, least=0)
    options = CorpusOptions(field, separator, on_error=on_error)
    search = Search(lm, name, k, units=units, before=before, after=after, bos=bos)
    path = path_of("out", out)
    table_of(path, _COLUMNS)
    sources = find_inputs(inputs, input_format, on_note)
    how = Reading(options, lm.model.num_threads, on_skip or (lambda message: None), lm.tokenizer, on_note)
    if any(source.is_file and os.path.exists(path) and os.path.samefile(source.path, path) for source in sources):
        raise InputError(f"{path}: both an input and the output")
    identity = {
        "name": search.name,
        "sae": None if search.sae is None else search.sae.sha256.hex(),
        "k": k,
        "units": None if units is None else hashlib.sha256(np.array(search.units, np.int64).tobytes()).hexdigest(),
        "before": before,
        "after": after,
        "bos": flag("bos", bos),
        "field": field,
        "separator": separator,
        "on_error": on_error,
        "model": model_identity(lm),
        "inputs": [[source.path, source.size, source.mtime_ns] for source in sources],
    }
    make = partial(_Job, search=search, identity=identity)
    with opened_table(path, sources, make, overwrite=overwrite, restart=restart) as job:
        if not job.finished:
            _run(job, sources, how, progress, checkpoint_seconds)
        examples = job.publish(path, sources, overwrite=overwrite)
    seconds = time.perf_counter() - start
    return ActivatingSummary(
        **job.counts, units=len(search.units), examples=examples, seconds=seconds, resumed=job.resumed
    )


class _Job:
    """What a search has found, and how far it has come; both are kept in the work directory."""

    def __init__(self, work: WorkDirectory, resumable: bool, *, search: Search, identity: dict[str, Any]) -> None:
        self.search = search
        self.counts = {"documents": 0, "tokens": 0, "skipped": 0}
        self.place = Place()
        self._work, self._resumable, self._saves = work, resumable, 0
        progress = work.begin(identity)
        self.resumed = progress is not None
        self.finished = progress is not None and progress["finished"]
        if progress is not None:
            self.counts = progress["counts"]
            self.place = Place(**{**progress["place"], "cursor": Cursor(**progress["place"]["cursor"])})
            self._saves = progress["saves"]
            self._restore(work.file(self._file(self._saves)))

    def save(self, *, finished: bool = False) -> None:
        """Note what was found up to the place."""
        if not self._resumable:
            return
        # The note tells of a file that is there; the one that the last note told of goes afterwards.
        state = io.BytesIO()
        np.savez(state, **self.search.state)  # type: ignore[arg-type]
        with atomic_write(self._work.file(self._file(self._saves + 1))) as file:
            file.write(state.getbuffer())
        progress = {"place": asdict(self.place), "counts": self.counts, "saves": self._saves + 1, "finished": finished}
        self._work.save(progress)
        self.finished = finished
        old = self._work.file(self._file(self._saves))
        self._saves += 1
        if os.path.exists(old):
            os.unlink(old)

    def close(self) -> None:
        """Nothing is open."""

    def publish(self, out: str, sources: Sequence[Input], *, overwrite: bool) -> int:
        """Make the table, give it its name, and remove what was kept for going on; how many rows there are."""
        made = self._work.file("made" + os.path.splitext(out)[1].lower())
        if self.resumed and self.finished and os.path.exists(out) and not (overwrite or os.path.exists(made)):
            # The run before this one had just given it its name.
            self._work.clear(done=True)
            return sum(len(list(self.search.examples(unit))) for unit in self.search.units)
        count = 0
        with open(made, "wb") as file:
            with table_of(made, _COLUMNS)(file) as write:
                for unit in self.search.units:
                    rows = list(self._rows(unit, sources))
                    write(rows)
                    count += len(rows)
            file.flush()
            os.fsync(file.fileno())
        put_in_place(made, out, overwrite=overwrite)
        sync_directory(os.path.dirname(out) or ".")
        self._work.clear(done=True)
        return count

    def _rows(self, unit: int, sources: Sequence[Input]) -> Iterator[list[Any]]:
        for rank, one in enumerate(self.search.examples(unit), 1):
            number, document = divmod(one.text, _DOCUMENTS)
            # A name that is no UTF-8 would make a file that is none, either.
            name = sources[number].name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            yield [unit, rank, one.activation, name, document, one.position, one.before, one.token, one.after]

    def _restore(self, path: str) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                self.search.restore({name: file[name] for name in file.files})
        except Exception as error:  # whatever is in it
            raise InputError(f"{path}: damaged: {error}; start anew with --restart") from None

    @staticmethod
    def _file(number: int) -> str:
        return f"found-{number}.npz"


def _run(job: _Job, sources: Sequence[Input], how: Reading, progress: bool | None, checkpoint_seconds: float) -> None:
    """Read what is left.  Errors come through, and leave the job to be gone on with."""
    sizes = [max(source.size, 0) for source in sources]
    total = sum(sizes) if all(source.is_file for source in sources) else None
    first = job.place.cursor.file
    saved = time.monotonic()
    whole = True  # what was found, the counts and the place are of one moment
    with Progress(total, sum(sizes[:first]), progress) as bar:
        try:
            for number in range(first, len(sources)):
                if number > first:
                    job.place = Place(Cursor(number), skipped=job.counts["skipped"])
                for group in groups(read_batches(sources[number], job.place.cursor, how), job.place):
                    whole = False
                    begin = number * _DOCUMENTS + group.number
                    new = job.search.add(group.texts, range(begin, begin + len(group.texts)))
                    job.counts["documents"] += len(group.texts)
                    job.counts["tokens"] += new
                    job.counts["skipped"] = group.skipped
                    job.place = group.after
                    whole = True
                    bar.update(sum(sizes[:number]) + group.raw, new)
                    if time.monotonic() - saved >= checkpoint_seconds:
                        job.save()
                        saved = time.monotonic()
            job.save(finished=True)
        except BaseException:
            if whole and job.counts["documents"] and not job.finished:
                try:
                    job.save()
                except OSError as error:  # the one that comes through is the one to tell of
                    if error.errno not in NO_ROOM:
                        raise
            raise
