"""The engine for a Ray cluster: tasks make parts of the outputs, and this process puts them together in order.

A task reads one unit, a file or a range of whole lines or rows of it, and writes its tokens to files that only this
attempt at it uses, beside the job's other files; a note with the unit's name, which appears whole or not at all, then
says which attempt it was.  So a task that is run again after its worker died, or twice at once, doubles nothing.  Parts
are appended in the order of the inputs, by the code that the engine for one machine writes with.

Ray is imported by nothing else here, and only when the job runs.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gpt2fast._internal.atomic import atomic_write
from gpt2fast.corpus.batches import Cursor, DocumentBatch, merge_small
from gpt2fast.corpus.dependencies import missing, pyarrow_parquet
from gpt2fast.corpus.documents import Reading, read_batches
from gpt2fast.corpus.encoding import Encoder
from gpt2fast.corpus.formats import PART, PART_OF_ROWS, mapped
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.job import Counts, Job
from gpt2fast.corpus.lines import begins_array
from gpt2fast.corpus.options import CorpusOptions
from gpt2fast.corpus.progress import Progress
from gpt2fast.corpus.series import Series
from gpt2fast.errors import Error, InputError

__all__ = ["UNIT_BYTES", "Unit", "UnitTask", "absolute", "in_order", "on_cluster", "pass_on", "plan_units"]
__all__ += ["read_unit", "remove_part", "remove_parts", "run"]

#: Bytes of a file that make a task of their own, where it can be cut.
UNIT_BYTES = 1 << 26
#: Tokens of a part that are in memory at once.
_BLOCK = 1 << 22
#: How often a task is tried again whose worker died.
_RETRIES = 5
#: Bad lines of a unit that are told of; all are counted.
_TOLD = 10


@dataclass(frozen=True)
class Unit:
    """What one task reads: the documents of a file from `start` on, up to the position `end` where there is one."""

    source: Input
    start: int = 0
    end: int | None = None

    @property
    def size(self) -> int:
        """About how many bytes of the file it is."""
        return self.source.size - self.start if self.end is None else self.end - self.start


def plan_units(inputs: Sequence[Input], separator: str | None, unit_bytes: int | None = None) -> Iterator[Unit]:
    """The units of the inputs, in order, of about `unit_bytes` or UNIT_BYTES.

    JSON lines are cut at lines, Parquet at row groups, text at separators; where there are none a text file is one
    document, and what is compressed can be read from its beginning only.
    """
    size = UNIT_BYTES if unit_bytes is None else unit_bytes
    for source in inputs:
        borders: list[int] = []
        if not source.compression and source.size > size:
            if source.kind == "parquet":
                borders = list(_row_groups(source, size))
            elif source.kind == "jsonl" and not _is_array(source):
                borders = list(_after(source, re.compile(rb"\n"), 1, size))
            elif source.kind == "txt" and separator is not None:
                line = separator.encode()
                borders = list(
                    _after(source, re.compile(rb"(?<=\n)" + re.escape(line) + rb"\r?\n"), len(line) + 3, size)
                )
        for start, end in zip([0, *borders], [*borders, None], strict=True):
            yield Unit(source, start, end)


def _is_array(source: Input) -> bool:
    with open(source.path, "rb") as file:
        return begins_array(file.read(1 << 12))


def _after(source: Input, border: re.Pattern[bytes], most: int, size: int) -> Iterator[int]:
    """The ends of the first matches after each `size` bytes of the file; a match looks at `most` bytes at most."""
    with open(source.path, "rb") as file:
        at = size
        while at < source.size:
            file.seek(max(at - most, 0))
            held = b""
            while block := file.read(1 << 20):
                held = held[-most:] + block
                start = file.tell() - len(held)
                found = border.search(held, max(at - 1 - start, 0))
                if found:
                    at = start + found.end()
                    break
            else:
                return
            if at < source.size:
                yield at
            at += size


def _row_groups(source: Input, size: int) -> Iterator[int]:
    """The first rows of groups, every `size` bytes or more."""
    _, parquet = pyarrow_parquet("reading .parquet")
    try:
        metadata = parquet.read_metadata(source.path)
    except Exception:  # the task that reads it says what is wrong with it
        return
    row = held = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if held >= size:
            yield row
            held = 0
        row += group.num_rows
        held += sum(group.column(i).total_compressed_size for i in range(group.num_columns))


# A task, on some machine of the cluster


@dataclass(frozen=True)
class UnitTask(ABC):
    """What every task has to know: where parts are put, and how many threads it may use."""

    directory: str
    num_threads: int

    def note(self, number: int) -> str:
        """The file that says that the unit of this number is done."""
        return os.path.join(self.directory, f"part-{number:06d}.json")

    def prefix(self, number: int, attempt: str) -> str:
        """How the names of the files begin that an attempt at a unit writes."""
        return os.path.join(self.directory, f"part-{number:06d}-{attempt}-")

    def run(self, number: int, unit: Unit) -> tuple[str, Any] | None:
        """Do a unit; None, or the error there was: "input" and its message, or "system" and its arguments."""
        if not os.path.isdir(self.directory):
            return (
                "input",
                f"{self.directory}: is not there on every machine; inputs and outputs must be on shared storage",
            )
        try:
            self._run(number, unit)
        except Error as error:
            return "input", str(error)
        except OSError as error:
            return "system", (error.errno, error.strerror or str(error), error.filename)
        return None

    def write_note(self, number: int, content: dict[str, Any], told: list[str], notes: list[str]) -> None:
        """Say that the unit is done, with what is to be told of it."""
        with atomic_write(self.note(number)) as file:
            file.write(json.dumps({**content, "told": told[:_TOLD], "notes": notes}).encode())

    @abstractmethod
    def _run(self, number: int, unit: Unit) -> None:
        """Do a unit and write its note."""


@dataclass(frozen=True)
class Task(UnitTask):
    """Units to tokens."""

    tokenizer: Any
    options: CorpusOptions
    dtype: str
    by_document: bool

    def series(self, number: int, attempt: str) -> dict[str, Series]:
        """The files that an attempt at a unit writes."""
        prefix = self.prefix(number, attempt)
        format = PART_OF_ROWS if self.by_document else PART
        return {split: Series(f"{prefix}{split}_", format, np.dtype(self.dtype), None) for split in self.options.splits}

    def _run(self, number: int, unit: Unit) -> None:
        told: list[str] = []
        notes: list[str] = []
        how = Reading(self.options, self.num_threads, told.append, self.tokenizer, notes.append)
        start = Cursor(position=unit.start)
        encoder = Encoder(self.tokenizer, self.options, np.dtype(self.dtype), self.num_threads)
        series = self.series(number, attempt := secrets.token_hex(8))
        counts = Counts()
        try:
            with closing(encoder.encode_all(merge_small(read_unit(unit, start, how)), start)) as encoded:
                for batch in encoded:
                    counts.add(batch)
                    for split, part in batch.parts.items():
                        series[split].append(part.ids, part.lengths, continues=part.continues, is_open=part.is_open)
            for one in series.values():
                one.finish()
            self.write_note(number, {"attempt": attempt, "counts": asdict(counts)}, told, notes)
        except BaseException:
            for one in series.values():
                one.remove()
            raise


def read_unit(unit: Unit, start: Cursor, how: Reading) -> Generator[DocumentBatch, None, None]:
    """The batches of a unit.  Lines are numbered from the file's beginning, read only if there are bad ones."""
    base: int | None = 0 if unit.source.kind == "parquet" or not unit.start else None

    def first_line() -> int:
        nonlocal base
        if base is None:
            base = _count_lines(unit.source.path, unit.start)
        return base

    def on_skip(message: str) -> None:
        how.on_skip(_renumber(message, unit.source.name, first_line))

    try:
        yield from read_batches(unit.source, start, replace(how, on_skip=on_skip), unit.end)
    except InputError as error:
        raise InputError(_renumber(str(error), unit.source.name, first_line)) from None


def _renumber(message: str, name: str, first_line: Callable[[], int]) -> str:
    """The message with its line counted from the beginning of the file."""
    place, _, rest = message.removeprefix(f"{name}:").partition(":")
    return f"{name}:{int(place) + first_line()}:{rest}" if place.isdecimal() else message


def _count_lines(path: str, end: int) -> int:
    count = 0
    with open(path, "rb", 0) as file:
        while end > 0 and (block := file.read(min(end, 1 << 24))):
            count += block.count(b"\n")
            end -= len(block)
    return count


# The process that has the job


def run(job: Job, how: Reading, *, address: str | None, num_threads: int | None, progress: bool | None) -> None:
    """Do what is left of the job on the cluster at `address` (or a local one that is started for it).

    Errors come through, and leave the job to be gone on with.
    """
    units = absolute(plan_units(job.plan.inputs, job.plan.options.separator))
    task = Task(
        os.path.abspath(job.work.path),
        num_threads or 1,
        job.plan.tokenizer,
        job.plan.options,
        job.plan.dtype.str,
        job.plan.target.format.by_document,
    )
    with on_cluster(address) as ray:
        if job.cursor is None:
            job.save({"unit": 0})  # parts that are made from here on are kept, whatever comes
        first = job.cursor["unit"]
        remove_parts(task, first)
        done = sum(unit.size for unit in units[:first])
        with Progress(sum(unit.size for unit in units), done, progress) as bar:
            for number in in_order(ray, task, units, first):
                before = job.outputs.tokens
                _append(job, task, number, how)
                done += units[number].size
                bar.update(done, job.outputs.tokens - before)


def absolute(units: Iterable[Unit]) -> list[Unit]:
    """The units, by paths that mean the same to every process of a machine."""
    return [replace(unit, source=unit.source._replace(path=os.path.abspath(unit.source.path))) for unit in units]


@contextmanager
def on_cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected to the cluster at `address`, or to one that is started here and ends with the block.

    Raises MissingDependencyError where Ray is missing, and Error where the cluster fails within the block.
    """
    try:
        import ray
    except ImportError:
        raise missing("the engine ray", "ray", "ray") from None
    begun = not ray.is_initialized()
    if begun:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise Error(f"the Ray cluster failed: {' '.join(str(error).split())[:500]}") from error
    finally:
        if begun:
            ray.shutdown()


def in_order(ray: Any, task: UnitTask, units: Sequence[Unit], first: int) -> Iterator[int]:
    """The numbers of the units, each when it is done; a few more than there are processors are under way."""
    remote = ray.remote(num_cpus=task.num_threads, max_retries=_RETRIES)(_run_task)
    shared = ray.put(task)
    room = max(2, 2 * int(ray.cluster_resources().get("CPU", 1)) // task.num_threads)
    running: dict[Any, int] = {}
    done = {number for number in range(first, len(units)) if os.path.exists(task.note(number))}
    waiting = iter(number for number in range(first, len(units)) if number not in done)
    try:
        for number in range(first, len(units)):
            while number not in done:
                # Not far ahead of what is appended, or all parts would lie about where the first takes long.
                while len(running) < room and (new := next(waiting, None)) is not None:
                    running[remote.remote(shared, new, units[new])] = new
                ready, _ = ray.wait(list(running), num_returns=1)
                for reference in ready:
                    _raise(ray.get(reference))
                    done.add(running.pop(reference))
            yield number
    finally:
        for reference in running:
            with suppress(Exception):
                ray.cancel(reference, force=True)


def _run_task(task: UnitTask, number: int, unit: Unit) -> tuple[str, Any] | None:
    return task.run(number, unit)


def _raise(error: tuple[str, Any] | None) -> None:
    """Raise what a task came back with: its own exceptions would come wrapped into Ray's."""
    if error is not None:
        kind, content = error
        raise InputError(content) if kind == "input" else OSError(*content)


def _append(job: Job, task: Task, number: int, how: Reading) -> None:
    """Append a part to the outputs, note that, and remove it."""
    with open(task.note(number), "rb") as file:
        note = json.load(file)
    for split, series in task.series(number, note["attempt"]).items():
        lengths = mapped(series.lengths_path, np.dtype("<i8")) if task.by_document else np.empty(0, np.int64)
        tokens = mapped(series.path(0), np.dtype(task.dtype))
        output = job.outputs.series[split]
        for start in range(0, len(lengths), _BLOCK):
            output.append(tokens[:0], lengths[start : start + _BLOCK])
        for start in range(0, len(tokens), _BLOCK):
            output.append(tokens[start : start + _BLOCK], lengths[:0])
    job.counts.add(Counts(**note["counts"]))
    pass_on(note, how)
    job.save({"unit": number + 1})
    remove_part(task, number)


def pass_on(note: dict[str, Any], how: Reading) -> None:
    """Tell what is to be told of a unit, by its note."""
    for message in note["told"]:
        how.on_skip(message)
    for message in note.get("notes", []):  # parts that an older version made have none
        how.on_note(message)


def remove_part(task: UnitTask, number: int) -> None:
    """The note first: without it the rest is nothing."""
    with suppress(FileNotFoundError):
        os.unlink(task.note(number))
    for path in glob.glob(os.path.join(glob.escape(task.directory), f"part-{number:06d}-*")):
        with suppress(FileNotFoundError):
            os.unlink(path)


def remove_parts(task: UnitTask, before: int) -> None:
    """Parts that were appended, where the process was killed before they were removed."""
    for path in glob.glob(os.path.join(glob.escape(task.directory), "part-*")):
        number = int(os.path.basename(path)[5:].split("-")[0].split(".")[0])
        if number < before:
            remove_part(task, number)
