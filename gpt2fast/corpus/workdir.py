"""The directory in which a job keeps what it has done so far: for one process at a time, and to go on from."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpt2fast._internal import system
from gpt2fast._internal.atomic import atomic_write
from gpt2fast.errors import Error, InputError

__all__ = ["NO_ROOM", "WorkDirectory", "locked", "warn"]

#: The disk is full, or as much of it as this user or process may have.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_LOCK, _JOB, _PROGRESS = "lock", "job.json", "progress.json"


class WorkDirectory:
    """What the job is (job.json, written once) and how far it has come (progress.json, written again and again).

    Progress is written only after the outputs that it tells of are on the disk; where both files are there, a job can
    go on.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def file(self, name: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.path, name)

    def read(self, name: str = _PROGRESS) -> Any:
        """What was written, None where nothing was."""
        try:
            with open(self.file(name), "rb") as file:
                return json.load(file)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InputError(f"{self.file(name)}: damaged: {error}; start anew with --restart") from None

    @property
    def kept(self) -> str:
        """What of the job is kept after it failed, and what to do: part of a message."""
        try:
            progress = self.read()
        except (Error, OSError):
            progress = None
        counts = (progress or {}).get("counts", {})
        if not counts.get("documents"):
            return "nothing of this job is kept: make room and run it again"
        return f"{counts['documents']:,} documents that are done are kept: make room and run the same again"

    def begin(self, job: dict[str, Any]) -> Any:
        """Begin this job, or go on with it: the progress that was made, None where there was none.

        Raises InputError where another job was begun here, naming the difference.
        """
        known, progress = self.read(_JOB), self.read()
        if known is None or progress is None:
            self.clear()
            self._write(_JOB, job)
            return None
        job = json.loads(json.dumps(job))
        for name in sorted(known.keys() | job.keys()):
            if known.get(name) != job.get(name):
                raise InputError(
                    f"{self.path}: a job was begun here with {_difference(name, known.get(name), job.get(name))}; "
                    "finish that one, or start anew with --restart"
                )
        return progress

    def save(self, progress: dict[str, Any]) -> None:
        """Write how far the job has come."""
        self._write(_PROGRESS, progress)

    def clear(self, *, done: bool = False) -> None:
        """Remove everything but the lock: first the progress, without which nothing goes on; last, when all is done."""
        rank = {_PROGRESS: 1 if done else -1, _JOB: 2}
        for name in sorted(os.listdir(self.path), key=lambda name: (rank.get(name, 0), name)):
            if name != _LOCK:
                path = self.file(name)
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    def _write(self, name: str, content: Any) -> None:
        with atomic_write(self.file(name)) as file:
            file.write(json.dumps(content).encode())


def _difference(name: str, known: Any, now: Any) -> str:
    if name != "inputs":
        return f"{name.replace('_', '-')} {known!r}, not {now!r}"
    known, now = known or [], now or []
    for before, after in zip(known, now, strict=False):
        if before != after:
            same = before[0] == after[0]
            return (
                f"{before[0]!r} as it was before it changed" if same else f"the input {before[0]!r}, not {after[0]!r}"
            )
    return f"{len(known):,} inputs, not {len(now):,}"


@contextmanager
def locked(path: str) -> Iterator[WorkDirectory]:
    """The directory `path`, made where there is none, for this process alone; removed at the end where it is empty.

    The system lets go of the lock when the process ends, however it ends.  Raises InputError where another process
    holds it.
    """
    lock = os.path.join(path, _LOCK)
    while True:
        os.makedirs(path, exist_ok=True)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # another process has just finished and removed it
        try:
            system.lock(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(f"{path}: another process is at work on the same output") from None
        try:
            if os.stat(lock).st_ino == os.fstat(descriptor).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(descriptor)
    try:
        yield WorkDirectory(path)
    finally:
        if os.listdir(path) == [_LOCK]:
            system.close_and_unlink(descriptor, lock)
            with suppress(OSError):  # another process may have begun here
                os.rmdir(path)
        else:
            os.close(descriptor)


def warn(message: str) -> None:
    """Say it as Python says warnings."""
    warnings.warn(message, stacklevel=3)
