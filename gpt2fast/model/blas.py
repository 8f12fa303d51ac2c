"""SciPy's BLAS on one thread, for as long as our own thread pool splits the work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["one_blas_thread"]

_lock = threading.Lock()
_inside = 0
_controller: Any = None
_limiter: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread per call inside the block; the last one out restores what was set before.

    Two thread pools in one pass wait for each other: a tenth of the speed, measured on two cores.  The setting belongs
    to the process, so BLAS calls of other Python threads are slower meanwhile too.
    """
    global _inside, _controller, _limiter
    with _lock:
        if _inside == 0:
            if _controller is None:
                from threadpoolctl import ThreadpoolController

                _controller = ThreadpoolController().select(user_api="blas")
            _limiter = _controller.limit(limits=1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limiter.restore_original_limits()
