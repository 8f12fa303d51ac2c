"""The engine that scores on a Ray cluster: tasks write the rows of units, and this process puts them together in order.

Units, notes and what happens when a worker dies are those of `gpt2fast.corpus.cluster`.  A unit's documents and lines
are counted from its own beginning, and get the numbers that they have in their file when they are put together.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from gpt2fast.corpus.batches import Cursor
from gpt2fast.corpus.cluster import (
    Unit,
    UnitTask,
    absolute,
    in_order,
    on_cluster,
    pass_on,
    plan_units,
    read_unit,
    remove_part,
    remove_parts,
)
from gpt2fast.corpus.condition import Condition
from gpt2fast.corpus.documents import Reading
from gpt2fast.corpus.groups import groups
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.options import CorpusOptions
from gpt2fast.corpus.progress import Progress
from gpt2fast.corpus.score_job import Place, ScoreCounts, ScoreJob
from gpt2fast.corpus.score_rows import Scoring, shown
from gpt2fast.corpus.tables import Column, table_of

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel

__all__ = ["UNIT_BYTES", "run"]

#: Bytes of a file that make a task of their own, where it can be cut: minutes of work for a small model.
UNIT_BYTES = 1 << 20
#: Rows of a part that are in memory at once.
_ROWS = 1 << 10


@dataclass(frozen=True)
class ScoreTask(UnitTask):
    """Units to rows."""

    options: CorpusOptions
    #: What `Scoring` wants, and how it scores.
    wanted: Sequence[Column] | Condition
    score_options: dict[str, Any]
    #: The model and the observer, pickled: by where they were loaded from.  A worker loads them once for all units.
    models: bytes

    def rows(self, number: int, attempt: str) -> str:
        """The file of rows that an attempt at a unit writes."""
        return f"{self.prefix(number, attempt)}rows.jsonl"

    def _run(self, number: int, unit: Unit) -> None:
        lm, observer = _loaded(self.models, self.num_threads)
        scoring = Scoring(lm, observer, self.wanted, self.score_options)
        told: list[str] = []
        notes: list[str] = []
        how = Reading(self.options, self.num_threads, told.append, lm.tokenizer, notes.append, scoring.keeps)
        place, counts = Place(Cursor(position=unit.start)), ScoreCounts()
        path = self.rows(number, attempt := secrets.token_hex(8))
        try:
            with open(path, "xb") as file, table_of(path, scoring.columns)(file) as write:
                for group in groups(read_unit(unit, place.cursor, how), place):
                    write(scoring.rows(unit.source, 0, group, counts))
                    counts.skipped, place = group.skipped, group.after
                file.flush()
                os.fsync(file.fileno())
            note = {"attempt": attempt, "counts": asdict(counts), "lines": place.cursor.line}
            self.write_note(number, note, told, notes)
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise


@lru_cache(maxsize=1)
def _loaded(models: bytes, num_threads: int) -> tuple[LanguageModel, LanguageModel | None]:
    lm, observer = pickle.loads(models)
    for one in (lm, observer):
        if one is not None:
            one.model.num_threads = num_threads
    return lm, observer


def run(
    job: ScoreJob,
    sources: Sequence[Input],
    how: Reading,
    scoring: Scoring,
    *,
    address: str | None,
    progress: bool | None,
) -> None:
    """Do what is left of the job on the cluster at `address` (or a local one that is started for it).

    Errors come through, and leave the job to be gone on with.
    """
    units = absolute(plan_units(sources, how.options.separator, UNIT_BYTES))
    inputs = list(accumulate((not unit.start for unit in units), initial=-1))[1:]  # the number of each unit's file
    models = pickle.dumps((scoring.lm, scoring.observer))
    task = ScoreTask(os.path.abspath(job.work.path), 1, how.options, scoring.wanted, scoring.options, models)
    with on_cluster(address) as ray:
        if not job.resumed:
            job.save()  # parts that are made from here on are kept, whatever comes
        reached = job.place.cursor.file, job.place.cursor.position
        first = sum((number, unit.start) < reached for number, unit in zip(inputs, units, strict=True))
        remove_parts(task, first)
        done = sum(unit.size for unit in units[:first])
        with Progress(sum(unit.size for unit in units), done, progress) as bar:
            for number in in_order(ray, task, units, first):
                before = job.counts.tokens
                _append(job, task, number, units[number], sources[inputs[number]], inputs[number], scoring, how)
                done += units[number].size
                bar.update(done, job.counts.tokens - before)
    job.save(finished=True)


def _append(
    job: ScoreJob,
    task: ScoreTask,
    number: int,
    unit: Unit,
    source: Input,
    of: int,
    scoring: Scoring,
    how: Reading,
) -> None:
    """Append the rows of a unit, which is a part of the input number `of`, note that, and remove the part."""
    with open(task.note(number), "rb") as file:
        note = json.load(file)
    place = job.place
    # Rows of a table are numbered by document, and records that are kept by line, document or row, the last of which
    # are known from the beginning.
    base = place.number
    if scoring.keeps:
        base = {"jsonl": place.cursor.line, "txt": place.number}.get(source.kind, 0)
    with open(task.rows(number, note["attempt"]), "rb") as file:
        while lines := list(islice(file, _ROWS)):
            rows = [list(json.loads(line).values()) for line in lines]
            job.append([[of if scoring.keeps else shown(source), row[1] + base, *row[2:]] for row in rows])
    counts = ScoreCounts(**note["counts"])
    for name in asdict(counts):
        setattr(job.counts, name, getattr(job.counts, name) + getattr(counts, name))
    if unit.end is None:
        job.place = Place(Cursor(of + 1), skipped=job.counts.skipped)
    else:
        cursor = Cursor(of, unit.end, place.cursor.line + note["lines"])
        job.place = Place(cursor, number=place.number + counts.documents, skipped=job.counts.skipped)
    pass_on(note, how)
    job.save()
    remove_part(task, number)
