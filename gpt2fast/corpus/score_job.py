"""A job that scores documents: its rows so far, how far it has come, and the table at the end.

Rows are kept as JSON lines, which can be cut off where a job that was killed goes on; the table is made of them at the
end.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, Protocol, TypeVar

from gpt2fast._internal.atomic import put_in_place, sync_directory
from gpt2fast.corpus.batches import Cursor
from gpt2fast.corpus.inputs import WORK_SUFFIX, Input
from gpt2fast.corpus.tables import Column, table_of
from gpt2fast.corpus.workdir import NO_ROOM, WorkDirectory, locked
from gpt2fast.errors import InputError, MissingFileError

__all__ = ["Place", "ScoreCounts", "ScoreJob", "opened_table", "score_work"]

#: Rows that are put into the table at once.
_ROWS = 1 << 10


@dataclass
class ScoreCounts:
    """What a job has done; `log_likelihood` is of all documents together."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    log_likelihood: float = 0.0
    skipped: int = 0
    #: How many met the condition, where there is one.
    kept: int = 0


@dataclass(frozen=True)
class Place:
    """A place between documents: so many of them behind the cursor, of which `number` is that of the next in its file.

    `skipped` counts the documents that were left out before the cursor: those behind it will be met again.
    """

    cursor: Cursor = field(default_factory=Cursor)
    behind: int = 0
    number: int = 0
    skipped: int = 0


def score_work(out: str) -> str:
    """The directory where a job keeps what it has done so far."""
    return out + WORK_SUFFIX


class ScoreJob:
    """The rows, counts and place of a job under way."""

    def __init__(
        self,
        work: WorkDirectory,
        resumable: bool,
        *,
        columns: Sequence[Column],
        identity: dict[str, Any],
        on_error: str,
    ) -> None:
        self.counts = ScoreCounts()
        self.place = Place()
        self.finished = False
        #: Where what is done so far is kept.
        self.work = work
        self._columns = columns
        self._resumable = resumable
        self._on_error = on_error
        self._rows = work.file("rows.jsonl")
        self._file: io.FileIO | None = None
        progress = work.begin(identity)
        self.resumed = progress is not None
        if progress is not None:
            if progress["on_error"] not in ("error", on_error):
                raise InputError(
                    f"{work.path}: a job was begun here with on-error {progress['on_error']!r}; finish that one, or "
                    "start anew with --restart"
                )
            self.counts = ScoreCounts(**progress["counts"])
            self.place = Place(**{**progress["place"], "cursor": Cursor(**progress["place"]["cursor"])})
            self.finished = progress["finished"]
        if not self.finished:
            self._file = self._opened(progress["bytes"] if progress else 0)

    def _opened(self, size: int) -> io.FileIO:
        # Unbuffered: nothing is left to fail when the file is closed.
        file = io.FileIO(self._rows, "r+" if os.path.exists(self._rows) else "x+")
        found = file.seek(0, os.SEEK_END)
        if found < size:
            file.close()
            raise InputError(f"{self._rows}: has {found:,} bytes, {size:,} were written; start anew with --restart")
        file.truncate(size)
        file.seek(size)
        return file

    def append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows of the table."""
        lines = io.BytesIO()
        with table_of(self._rows, self._columns)(lines) as write:
            write(rows)
        left = memoryview(lines.getvalue())
        while len(left) and self._file is not None:
            try:
                left = left[self._file.write(left) :]
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._rows) from None

    def save(self, *, finished: bool = False) -> None:
        """Note that everything before the place is in the rows."""
        if self._file is None or not (self._resumable or finished):
            return
        os.fsync(self._file.fileno())
        self.work.save(
            {
                "place": asdict(self.place),
                "bytes": self._file.tell(),
                "counts": asdict(self.counts),
                "on_error": self._on_error,
                "finished": finished,
            }
        )
        self.finished = finished

    def close(self) -> None:
        """Close the file as it is."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def publish(
        self, out: str, *, make: Callable[[BinaryIO, Iterator[list[list[Any]]]], None] | None, overwrite: bool
    ) -> None:
        """Have `make` write the output, from the rows, into an open file, give it its name, and remove what was kept
        for going on.  Without `make` the file of the rows is the output."""
        made = self._rows
        if os.path.exists(self._rows) and make is not None:
            made = self.work.file("made")
            with open(made, "wb") as file:
                make(file, self._read())
                file.flush()
                os.fsync(file.fileno())
        if os.path.exists(made):
            put_in_place(made, out, overwrite=overwrite)
            sync_directory(os.path.dirname(out) or ".")
        elif not os.path.exists(out):
            raise MissingFileError(f"{out}: was finished, and is gone; start anew with --restart")
        self.work.clear(done=True)

    def _read(self) -> Iterator[list[list[Any]]]:
        rows = []
        with open(self._rows, "rb") as file:
            for line in file:
                rows.append(list(json.loads(line).values()))
                if len(rows) == _ROWS:
                    yield rows
                    rows = []
        yield rows


class Closable(Protocol):
    """A job that lets go of its files."""

    def close(self) -> None: ...


J = TypeVar("J", bound=Closable)


@contextmanager
def opened_table(
    out: str,
    sources: Sequence[Input],
    make: Callable[[WorkDirectory, bool], J],
    *,
    overwrite: bool,
    restart: bool,
) -> Iterator[J]:
    """The job that makes the table `out`, for this process alone: at its beginning, or where it was left.

    `make` gives it, of its work directory and whether it can go on where it was stopped.

    Raises InputError where another process is at work on it, where another job was begun in its place, and where the
    table is there and not to be replaced.  An OSError for want of room, also in the block, says what is kept.
    """
    parent = os.path.dirname(out) or "."
    if not os.path.isdir(parent):
        raise MissingFileError(f"{out}: there is no directory {parent}")
    resumable = all(source.is_file for source in sources)
    try:
        with locked(score_work(out)) as work:
            job: J | None = None
            try:
                if restart or not resumable:
                    work.clear()
                progress = work.read()
                if os.path.lexists(out) and not overwrite and not (progress and progress.get("finished")):
                    raise InputError(f"{out}: is there already; to replace it, say --overwrite")
                job = make(work, resumable)
                yield job
            finally:
                if job is not None:
                    job.close()
                if work.read() is None:  # nothing was done that would be worth going on from
                    work.clear()
    except OSError as error:
        if error.errno in NO_ROOM:
            message = f"{error.strerror}; {WorkDirectory(score_work(out)).kept}"
            raise OSError(error.errno, message, error.filename or score_work(out)) from error
        raise
