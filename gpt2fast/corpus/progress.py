"""The progress of a job, on standard error: tqdm's bar, or a line now and then where tqdm is not installed."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Progress"]

# Between two plain lines; a terminal keeps them all.
_SECONDS = 10.0


class Progress:
    """Bytes of the inputs' files, tokens and their rate.

    `show` None means where standard error is a terminal.  `total` and `done` are bytes; a total of None is not known.
    """

    def __init__(self, total: int | None, done: int, show: bool | None) -> None:
        self._bar: Any = None
        self._shown = sys.stderr is not None and (sys.stderr.isatty() if show is None else show)
        self._total = total
        self._tokens = 0
        self._start = self._told = time.monotonic()
        if not self._shown:
            return
        try:
            import tqdm
        except ImportError:
            return
        self._bar = tqdm.tqdm(
            total=total, initial=done, unit="B", unit_scale=True, unit_divisor=1000, smoothing=0.1, dynamic_ncols=True
        )

    def __enter__(self) -> Progress:
        return self

    def update(self, done: int, new_tokens: int) -> None:
        """So many bytes of the files are done, and there are new tokens."""
        self._tokens += new_tokens
        if not self._shown:
            return
        now = time.monotonic()
        rate = self._tokens / max(now - self._start, 1e-9)
        if self._bar is not None:
            shown = self._bar.format_sizeof
            self._bar.set_postfix_str(f"{shown(self._tokens)} tokens, {shown(rate)}/s", refresh=False)
            self._bar.update(done - self._bar.n)
        elif now - self._told >= _SECONDS:
            self._told = now
            of = f" of {self._total / 1e6:,.1f}" if self._total else ""
            print(f"[{done / 1e6:,.1f}{of} MB, {self._tokens:,} tokens, {rate:,.0f}/s]", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
