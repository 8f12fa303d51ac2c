"""How far a loop is, on standard error: tqdm's bar, or a line now and then where tqdm is not installed."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Bar"]

# Between two plain lines; a terminal keeps them all.
_SECONDS = 10.0


class Bar:
    """So many of `total` are done.  `show` None means where standard error is a terminal."""

    def __init__(self, total: int, unit: str, show: bool | None) -> None:
        self._total, self._unit, self._done = total, unit, 0
        self._shown = sys.stderr is not None and (sys.stderr.isatty() if show is None else show)
        self._told = time.monotonic()
        self._bar: Any = None
        if self._shown:
            try:
                import tqdm
            except ImportError:
                return
            self._bar = tqdm.tqdm(total=total, unit=unit, dynamic_ncols=True)

    def __enter__(self) -> Bar:
        return self

    def update(self, count: int) -> None:
        """`count` more are done."""
        self._done += count
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(count)
        elif self._shown and (now - self._told >= _SECONDS or self._done == self._total):
            self._told = now
            print(f"[{self._done:,} of {self._total:,} {self._unit}]", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
