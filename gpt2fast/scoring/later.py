"""What is read of texts only when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Generic, TypeVar

__all__ = ["Later"]

T = TypeVar("T")


class Later(Generic[T]):
    """Values of texts that were scored together, all of which `read` gives when the first is asked for."""

    def __init__(self, read: Callable[[], Sequence[T]]) -> None:
        self._read = read

    @cached_property
    def _all(self) -> Sequence[T]:
        return self._read()

    def of(self, number: int) -> Callable[[], T]:
        """What gives the value of a text, by its number."""
        return partial(self._value, number)

    def _value(self, number: int) -> T:
        return self._all[number]
