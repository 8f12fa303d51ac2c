"""A job: from inputs to token files, in one go or several, with the same bytes at the end.

The outputs grow in a directory of their own beside the place where they will be.  Every few seconds they are put on the
disk, and after that a note of how far they and the inputs have come; a job that was killed goes back to the last note.
What follows from a cursor on does not depend on how the way to it was cut into batches, so the outputs are those of an
uninterrupted run.  When all is done, files get their final names.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.atomic import put_in_place, sync_directory
from gpt2fast.corpus.dependencies import require
from gpt2fast.corpus.formats import mapped, write_parquet
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.options import CorpusOptions, Target
from gpt2fast.corpus.series import Series
from gpt2fast.corpus.workdir import WorkDirectory, locked
from gpt2fast.errors import InputError, MissingFileError
from gpt2fast.tokenizer.special import END_OF_TEXT

if TYPE_CHECKING:
    from gpt2fast.corpus.encoding import Encoded
    from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["Job", "JobPlan", "Outputs", "Summary", "TooManyShards", "opened"]


@dataclass(frozen=True)
class JobPlan:
    """All that says what a job's outputs will be."""

    inputs: Sequence[Input]
    target: Target
    tokenizer: Tokenizer
    options: CorpusOptions
    #: More files than this are refused.
    max_shards: int | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens.  Raises InputError where the format has none for this vocabulary."""
        return self.target.format.dtype(self.tokenizer.n_vocab)

    def check(self) -> None:
        """Raises MissingDependencyError for a library that will be needed, InputError for a vocabulary too large."""
        for kind in {kind for source in self.inputs for kind in (source.kind, source.compression)}:
            require(f"reading .{kind}", kind)
        require(f"writing {self.target.format.suffix}", self.target.format.name)
        self.target.format.dtype(self.tokenizer.n_vocab)

    def as_json(self) -> dict[str, Any]:
        """What must be the same for one run to go on where another stopped."""
        options = asdict(self.options)
        # Once bad lines are refused there were none so far, and they may be skipped from here on.
        del options["on_error"]
        if not options["allow_special"]:  # older jobs do not say so
            del options["allow_special"]
        if self.options.separator == END_OF_TEXT:
            options["end_of_text_separates"] = "within lines, too"
        return {
            **options,
            "format": self.target.format.name,
            "tokenizer": hashlib.blake2b(pickle.dumps(self.tokenizer, 4), digest_size=16).hexdigest(),
            "inputs": [[source.path, source.size, source.mtime_ns] for source in self.inputs],
        }


@dataclass
class Counts:
    """What a job has done."""

    documents: int = 0
    text_bytes: int = 0
    skipped: int = 0
    mended: int = 0

    def add(self, encoded: Encoded | Counts) -> None:
        """Count these as well."""
        self.documents += encoded.documents
        self.text_bytes += encoded.text_bytes
        self.skipped += encoded.skipped
        self.mended += encoded.mended


@dataclass(frozen=True)
class Summary:
    """What a job did: counts of the whole job, and what this run of it took.

    `text_bytes` are the documents' bytes of UTF-8; `run_bytes` and `run_tokens` are of this run, which took `seconds`.
    `files` are the outputs with their numbers of tokens.
    """

    documents: int
    tokens: int
    text_bytes: int
    skipped: int
    mended: int
    seconds: float
    run_bytes: int
    run_tokens: int
    resumed: bool
    files: list[tuple[str, int]] = field(default_factory=list)


class Outputs:
    """The outputs of a plan, growing in a work directory."""

    def __init__(self, plan: JobPlan, work: WorkDirectory) -> None:
        self._plan = plan
        self._work = work
        self.series = {
            split: Series(work.file(f"{split}_"), plan.target.format, plan.dtype, plan.options.shard_tokens)
            for split in plan.options.splits
        }

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return sum(series.state.total for series in self.series.values())

    def append(self, encoded: Encoded) -> None:
        """Add what a batch became."""
        for split, part in encoded.parts.items():
            self.series[split].append(part.ids, part.lengths, continues=part.continues, is_open=part.is_open)
        self._check_shards(sum(series.state.shard + 1 for series in self.series.values()))

    def _check_shards(self, count: int) -> None:
        most = self._plan.max_shards
        if most is not None and count > most:
            raise TooManyShards(self._plan.options.shard_tokens, f"{count:,} or more", most)

    def sync(self) -> None:
        """Have the system put on the disk what was written."""
        for series in self.series.values():
            series.sync()

    def as_json(self) -> dict[str, Any]:
        return {split: series.as_json() for split, series in self.series.items()}

    def restore(self, state: dict[str, Any], *, finished: bool) -> None:
        """Go back to an earlier state; of outputs that are finished, files may already have their final names."""
        for split, series in self.series.items():
            series.restore(state[split], finished=finished)

    def finish(self) -> None:
        """Put everything on the disk."""
        for series in self.series.values():
            series.finish()

    def abandon(self) -> None:
        """Close the files as they are."""
        for series in self.series.values():
            series.abandon()

    def publish(self, *, overwrite: bool) -> list[tuple[str, int]]:
        """Give the files their final form and names; those that have them already are left as they are.

        Raises InputError where something else has such a name, and is not to be replaced.
        """
        files: list[tuple[str, int]] = []
        for split, series in self.series.items():
            make = self._publish_rows if self._plan.target.format.by_document else self._publish_shards
            files += make(split, series, overwrite)
        return files

    def _name(self, split: str, shard: int, count: int) -> str:
        numbered = self._plan.options.shard_tokens is not None or count > 1
        return self._plan.target.path(split, shard if numbered else None)

    def _publish_shards(self, split: str, series: Series, overwrite: bool) -> Iterator[tuple[str, int]]:
        count = series.state.shard + 1
        for shard in range(count):
            work, path, tokens = series.path(shard), self._name(split, shard, count), series.tokens_of(shard)
            if os.path.exists(work):
                with open(work, "r+b") as file:
                    file.write(self._plan.target.format.header(tokens, self._plan.dtype))
                    file.flush()
                    os.fsync(file.fileno())
                put_in_place(work, path, overwrite=overwrite)
            elif not os.path.exists(path):
                raise gone(path)
            yield path, tokens

    def _publish_rows(self, split: str, series: Series, overwrite: bool) -> Iterator[tuple[str, int]]:
        """Made from the work files, which stay until all is made: a second time gives the same."""
        tokens = mapped(series.path(0), self._plan.dtype)
        lengths = mapped(series.lengths_path, np.dtype("<i8"))
        shards = list(row_shards(lengths, self._plan.options.shard_tokens))
        self._check_shards(len(shards))
        token = 0
        for shard, rows in enumerate(shards):
            path, count = self._name(split, shard, len(shards)), int(lengths[rows].sum())
            made = self._work.file("made.parquet")
            write_parquet(made, tokens[token : token + count], lengths[rows])
            put_in_place(made, path, overwrite=overwrite)
            token += count
            yield path, count


def gone(path: str) -> MissingFileError:
    """The error where a file of a finished job is no longer there."""
    return MissingFileError(f"{path}: was finished, and is gone; start anew with --restart")


class TooManyShards(InputError):
    """More files would be written than is likely to be meant."""

    def __init__(self, shard_tokens: int | None, count: str, most: int) -> None:
        self.count = count
        super().__init__(
            f"shard_tokens is {shard_tokens}: {count} files would be made, and max_shards is {most:,}; choose larger "
            "shards, or allow as many with --max-shards"
        )


def row_shards(lengths: npt.NDArray[np.int64], shard_tokens: int | None) -> Iterator[slice]:
    """The rows of each shard, which ends with the document that makes it `shard_tokens` long; one for no rows."""
    first, tokens = 0, 0
    # In pieces, as there may be a billion rows.
    for start in range(0, len(lengths) if shard_tokens else 0, 1 << 20):
        ends = np.cumsum(lengths[start : start + (1 << 20)])
        while True:
            full = int(np.searchsorted(ends, (shard_tokens or 0) - tokens, "left"))
            if full == len(ends):
                break
            yield slice(first, start + full + 1)
            first, tokens = start + full + 1, -int(ends[full])
        tokens += int(ends[-1])
    if first < len(lengths) or not first:
        yield slice(first, len(lengths))


class Job:
    """A plan under way: its work directory, outputs and counts."""

    def __init__(
        self, plan: JobPlan, work: WorkDirectory, *, restart: bool, overwrite: bool, more: dict[str, Any]
    ) -> None:
        self.plan = plan
        self.work = work
        self.outputs = Outputs(plan, work)
        self.counts = Counts()
        #: Where to go on, as the engine saved it; None at the beginning.
        self.cursor: Any = None
        self._overwrite = overwrite
        self._resumable = all(source.is_file for source in plan.inputs)
        if restart or not self._resumable:
            work.clear()
        progress = work.begin({**plan.as_json(), **more})
        self.resumed = progress is not None
        self.finished: bool = self.resumed and progress["finished"]
        if progress is not None:
            if progress["counts"]["skipped"] + progress["counts"]["mended"] and progress["on_error"] != self._on_error:
                raise InputError(
                    f"{work.path}: a job was begun here with on-error {progress['on_error']!r}, and skipped or mended "
                    "documents; finish that one, or start anew with --restart"
                )
            self.outputs.restore(progress["outputs"], finished=self.finished)
            self.counts = Counts(**progress["counts"])
            self.cursor = progress["cursor"]
        self._published = progress["published"] if self.finished else None
        self._stale: list[str] = progress["stale"] if self.finished else self._existing()

    @property
    def _on_error(self) -> str:
        return self.plan.options.on_error

    def _existing(self) -> list[str]:
        existing = list(self.plan.target.existing(self.plan.options.splits))
        if existing and not self._overwrite:
            raise InputError(f"{existing[0]}: is there already; to replace it, say --overwrite")
        inputs = {os.path.realpath(source.path) for source in self.plan.inputs if source.is_file}
        for path in existing:
            if os.path.realpath(path) in inputs:
                raise InputError(f"{path}: is input and output")
        return existing

    def save(self, cursor: Any, *, finished: bool = False) -> None:
        """Note that everything before `cursor` is in the outputs."""
        self.cursor = cursor
        if not self._resumable and not finished:
            return
        self.outputs.finish() if finished else self.outputs.sync()
        self._save(cursor, finished)

    def _save(self, cursor: Any, finished: bool) -> None:
        self.work.save(
            {
                "cursor": cursor,
                "finished": finished,
                "outputs": self.outputs.as_json(),
                "counts": asdict(self.counts),
                "on_error": self._on_error,
                "stale": self._stale,
                "published": self._published,
            }
        )

    def publish(self) -> list[tuple[str, int]]:
        """Give the outputs their final names, remove what they replace, and what was kept for going on."""
        if self._published is not None:  # by a run that ended while it cleared up
            for path, _ in self._published:
                if not os.path.exists(path):
                    raise gone(path)
            self.work.clear(done=True)
            return [(path, tokens) for path, tokens in self._published]
        if not self._overwrite:  # what is there was to be replaced by the run before this one, which said so
            for path in filter(os.path.lexists, self._stale):
                raise InputError(f"{path}: is there already; to replace it, say --overwrite")
        files = self.outputs.publish(overwrite=self._overwrite)
        sync_directory(self.plan.target.directory)
        names = {path for path, _ in files}
        for path in self._stale:
            if path not in names:
                with suppress(FileNotFoundError):
                    os.unlink(path)
        self._published = files
        self._save(None, True)
        self.work.clear(done=True)
        return files


@contextmanager
def opened(
    plan: JobPlan, *, restart: bool = False, overwrite: bool = False, more: dict[str, Any] | None = None
) -> Iterator[Job]:
    """The job of a plan, for this process alone: at its beginning, or where it was left.

    Raises InputError where another process is at work on it, where another job was begun in its place, and where
    outputs are there and not to be replaced.
    """
    parent = plan.target.directory
    if plan.target.stem and not os.path.isdir(parent):
        raise MissingFileError(f"{plan.target.path('', None)}: there is no directory {parent}")
    plan.check()
    with ExitStack() as locks:
        for path in plan.target.locks(plan.options.splits):
            locks.enter_context(locked(path))
        work = WorkDirectory(plan.target.work)
        job: Job | None = None
        try:
            job = Job(plan, work, restart=restart, overwrite=overwrite, more=more or {})
            yield job
        finally:
            if job is not None:
                job.outputs.abandon()
            if work.read() is None:  # nothing was done that would be worth going on from
                work.clear()
