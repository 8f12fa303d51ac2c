"""How many threads to use when the caller does not say: decided here, for kernels and tokenizer alike."""

from __future__ import annotations

import os

from gpt2fast.errors import InputError

__all__ = ["default_num_threads", "resolve_num_threads"]

_MAXIMUM = 256  # more than one memory bus feeds; also the thread pool's fixed size


def default_num_threads() -> int:
    """The number of threads used by default: `GPT2FAST_THREADS`, else `OMP_NUM_THREADS`, else the processors that
    this process may run on.

    Raises InputError where a variable is set to something other than a positive whole number.
    """
    for variable in ("GPT2FAST_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(variable, "").split(",")[0].strip()  # OMP_NUM_THREADS may list nested levels
        if text:
            if not text.isdigit() or int(text) < 1:
                raise InputError(f"the environment variable {variable} is {text!r}; expected a positive whole number")
            return min(int(text), _MAXIMUM)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _MAXIMUM)
    return min(os.cpu_count() or 1, _MAXIMUM)


def resolve_num_threads(num_threads: int | None) -> int:
    """`num_threads` itself where it is given and sensible, the default where it is None.

    Raises InputError where it is not a positive whole number.
    """
    if num_threads is None:
        return default_num_threads()
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise InputError(f"num_threads is {num_threads!r}; expected a positive whole number, or None for the default")
    return min(num_threads, _MAXIMUM)
