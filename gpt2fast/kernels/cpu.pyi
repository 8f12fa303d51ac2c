"""The CPU level of this process, chosen once at import, and the thread pool that every kernel shares."""

LEVELS: tuple[str, ...]

def supported_levels() -> tuple[str, ...]:
    """The names of the CPU levels that this processor can run, slowest first."""

def cpu_level() -> str:
    """The name of the CPU level in use: "baseline", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni" or "aarch64-dotprod"."""

def use_level(name: str) -> None:
    """Run all kernels of this process at another of `supported_levels` from now on: for tests, which compare levels."""

def squares(count: int, grain: int, num_threads: int) -> list[float]:
    """The squares of 0..count-1 as a list, each added once by the thread pool: for tests of the pool alone."""
