"""One output while it grows: files of bare tokens in the job's directory, and the way back to an earlier state."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast.corpus.formats import MOST_TOKENS_OF_A_ROW, Format
from gpt2fast.errors import InputError

__all__ = ["Series"]


@dataclass
class State:
    """How far an output has come."""

    shard: int = 0  # the number of the last file
    tokens: int = 0  # in it
    rows: int = 0  # documents, where the format keeps them
    row_tokens: int = 0  # of the document that is still open
    total: int = 0  # tokens in all files


class Series:
    """Appends tokens to the last of a row of files, each of which has room for `shard_tokens` of them.

    Room for the format's header is left in each.  A format that keeps documents gets one file of all tokens, and one of
    how many each document has, from which its shards are made at the end.
    """

    def __init__(self, prefix: str, format: Format, dtype: np.dtype[Any], shard_tokens: int | None) -> None:
        self._prefix = prefix
        self._rows = format.by_document
        self._dtype = dtype
        self._header = len(format.header(0, dtype))
        self._limit = format.most_tokens if self._rows else min(shard_tokens or 2**62, format.most_tokens)
        self._files: dict[str, io.FileIO] = {}
        self.state = State()

    def path(self, shard: int) -> str:
        """The file of a shard."""
        return f"{self._prefix}{shard:06d}.tokens"

    @property
    def lengths_path(self) -> str:
        """The file of the documents' lengths, int64."""
        return f"{self._prefix}lengths"

    def tokens_of(self, shard: int) -> int:
        """How many tokens a shard has."""
        return self.state.tokens if shard == self.state.shard else self._limit

    def append(
        self, ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64], *, continues: bool = False, is_open: bool = False
    ) -> None:
        """Add the tokens of texts of these lengths.

        With `continues` the first text is more of the document that was left open, with `is_open` the last is left so.
        Raises InputError where a document is too long for the format, and OSError, which names the file.
        """
        state = self.state
        if self._rows:
            self._append_lengths(lengths, continues, is_open)
        state.total += len(ids)
        ids = np.ascontiguousarray(ids, self._dtype)
        while True:
            part = ids[: self._limit - state.tokens]
            self._write(self.path(state.shard), self._header, part)
            state.tokens += len(part)
            ids = ids[len(part) :]
            if not len(ids):
                break
            state.shard, state.tokens = state.shard + 1, 0
            self._close()

    def _append_lengths(self, lengths: npt.NDArray[np.int64], continues: bool, is_open: bool) -> None:
        if not len(lengths):
            return
        lengths = lengths.astype("<i8")
        if continues:
            lengths[0] += self.state.row_tokens
        if lengths.max() > MOST_TOKENS_OF_A_ROW:
            raise InputError(
                f"a document has {lengths.max():,} tokens or more, a row of Parquet holds {MOST_TOKENS_OF_A_ROW:,}; "
                "choose another format, or separate the documents"
            )
        self.state.row_tokens = int(lengths[-1]) if is_open else 0
        closed = lengths[: len(lengths) - is_open]
        self._write(self.lengths_path, 0, closed)
        self.state.rows += len(closed)

    def _write(self, path: str, start: int, values: npt.NDArray[Any]) -> None:
        file = self._files.get(path)
        if file is None:
            # Unbuffered: an array is many writes in one, and nothing is left to fail when the file is closed.
            file = self._files[path] = io.FileIO(path, "r+" if os.path.exists(path) else "x+")
            if file.seek(0, os.SEEK_END) < start:
                file.seek(start)
        view = values.data.cast("B") if len(values) else memoryview(b"")
        while len(view):
            try:
                view = view[file.write(view) :]
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from None

    # States

    def sync(self) -> None:
        """Have the system put on the disk what was written."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def restore(self, state: dict[str, int], *, finished: bool = False) -> None:
        """Go back to a state that `as_json` gave and that was on the disk then; `finished` files are left alone.

        Raises InputError where the files are not what they were.
        """
        self._close()
        self.state = State(**state)
        if finished:
            return
        self._truncate(self.path(self.state.shard), self._header + self.state.tokens * self._dtype.itemsize)
        if self._rows:
            self._truncate(self.lengths_path, 8 * self.state.rows)
        shard = self.state.shard + 1
        with suppress(FileNotFoundError):
            while True:
                os.unlink(self.path(shard))
                shard += 1

    def _truncate(self, path: str, size: int) -> None:
        try:
            found = os.path.getsize(path)
        except FileNotFoundError:
            found = 0
        if found < size and not (found == 0 and size == self._header):
            raise InputError(f"{path}: has {found:,} bytes, {size:,} were written; start anew with --restart")
        if found:
            os.truncate(path, size)

    def as_json(self) -> dict[str, int]:
        """The state, for `restore`."""
        return asdict(self.state)

    def _close(self) -> None:
        """Close the files, which are put on the disk first: `sync` will not see them again."""
        for file in self._files.values():
            os.fsync(file.fileno())
            file.close()
        self._files.clear()

    def finish(self) -> None:
        """Put everything on the disk; there is a file for every shard then, also where there was nothing to write."""
        self._write(self.path(self.state.shard), self._header, np.empty(0, self._dtype))
        if self._rows:
            self._write(self.lengths_path, 0, np.empty(0, "<i8"))
        self._close()

    def remove(self) -> None:
        """Remove the files."""
        self.abandon()
        for path in (self.lengths_path, *(self.path(shard) for shard in range(self.state.shard + 1))):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def abandon(self) -> None:
        """Close the files as they are."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()
        self._files.clear()
