"""The progress bar of a job."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from gpt2fast.corpus.dependencies import missing

__all__ = ["ProgressBar"]


class ProgressBar:
    """Bytes of the inputs' files, tokens and their rate, on standard error.

    `show` None means where standard error is a terminal and tqdm is installed.  Raises MissingDependencyError where the
    bar is asked for and tqdm is missing.
    """

    def __init__(self, total: int | None, done: int, show: bool | None) -> None:
        self._bar: Any = None
        if show is False or (show is None and (sys.stderr is None or not sys.stderr.isatty())):
            return
        try:
            import tqdm
        except ImportError:
            if show:
                raise missing("the progress bar", "tqdm", "corpus") from None
            return
        self._bar = tqdm.tqdm(
            total=total, initial=done, unit="B", unit_scale=True, unit_divisor=1000, smoothing=0.1, dynamic_ncols=True
        )
        self._tokens = 0

    def __enter__(self) -> ProgressBar:
        return self

    def update(self, done: int, new_tokens: int) -> None:
        """So many bytes of the files are done, and there are new tokens."""
        if self._bar is None:
            return
        self._tokens += new_tokens
        seconds = self._bar.format_dict["elapsed"]
        shown = self._bar.format_sizeof
        rate = f"{shown(self._tokens / seconds)}/s" if seconds > 0 else "?"
        self._bar.set_postfix_str(f"{shown(self._tokens)} tokens, {rate}", refresh=False)
        self._bar.update(done - self._bar.n)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
