"""The libraries for formats, which are optional: asked for by name where they are missing."""

from __future__ import annotations

from typing import Any

from gpt2fast.errors import MissingDependencyError

__all__ = ["missing", "pyarrow_ipc", "pyarrow_parquet", "require", "zstandard"]


def missing(what: str, package: str, extra: str) -> MissingDependencyError:
    """The error that says what to install."""
    return MissingDependencyError(f"{what} needs the package {package}: pip install 'gpt2fast[{extra}]'")


def require(what: str, kind: str) -> None:
    """Raises MissingDependencyError where the library for a kind of file is not there; of most kinds none is needed."""
    if kind == "parquet":
        pyarrow_parquet(what)
    elif kind == "arrow":
        pyarrow_ipc(what)
    elif kind == "zst":
        zstandard(what)


def pyarrow_parquet(what: str) -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet.  Raises MissingDependencyError."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing(what, "pyarrow", "corpus") from None
    return pyarrow, pyarrow.parquet


def pyarrow_ipc(what: str) -> tuple[Any, Any]:
    """pyarrow and pyarrow.ipc.  Raises MissingDependencyError."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise missing(what, "pyarrow", "corpus") from None
    return pyarrow, pyarrow.ipc


def zstandard(what: str) -> Any:
    """zstandard.  Raises MissingDependencyError."""
    try:
        import zstandard
    except ImportError:
        raise missing(what, "zstandard", "corpus") from None
    return zstandard
