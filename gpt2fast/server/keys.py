"""Keys that let clients in, each with a rate and a number of requests of its own at a time."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gpt2fast._internal.arguments import real_number, whole_number
from gpt2fast.errors import Error, InputError, InputTypeError
from gpt2fast.safetensors.files import open_file
from gpt2fast.server.api_errors import ApiError

__all__ = ["Key", "KeyRing", "read_keys"]


@dataclass(frozen=True)
class Key:
    """A key, and what it allows.

    Raises InputError or InputTypeError, naming the field, where a value makes no sense.
    """

    secret: str
    #: What the log calls it.
    name: str = "default"
    #: Requests a minute; as many may come at once. None for any number.
    rate: float | None = None
    #: Requests at the same time; None for any number.
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.secret, str):
            raise InputTypeError(f"the key is of type {type(self.secret).__name__}; expected str")
        if not self.secret:
            raise InputError("the key is empty; expected one, or none to let everybody in")
        if self.rate is not None:
            real_number("rate", self.rate, least=1e-3)
        if self.concurrency is not None:
            whole_number("concurrency", self.concurrency, least=1)


def read_keys(path: str | Path) -> list[Key]:
    """The keys in a file: one a line, and after it, divided by spaces, `name=`, `rate=` and `concurrency=`.

    Empty lines, and those that begin with #, mean nothing.  Raises MissingFileError, and InputError that names the
    line.
    """
    keys: list[Key] = []
    try:
        with open_file(path, "a file of keys") as file:
            lines = file.readall().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                keys.append(_key(*line.split()))
            except (Error, ValueError) as error:
                raise InputError(f"{path}, line {number}: {error}") from None
            if keys[-1].secret in {key.secret for key in keys[:-1]}:
                raise InputError(f"{path}, line {number}: the key is there twice")
    if not keys:
        raise InputError(f"{path} has no key; expected one a line")
    return keys


def _key(secret: str, *settings: str) -> Key:
    values: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in ("name", "rate", "concurrency"):
            raise InputError(f"{setting!r} is no setting; expected name=, rate= or concurrency=")
        values[name] = value
    return Key(
        secret,
        values.get("name") or f"key-{_digest(secret.encode()).hex()[:8]}",
        _number("rate", values["rate"], float) if "rate" in values else None,
        _number("concurrency", values["concurrency"], int) if "concurrency" in values else None,  # type: ignore[arg-type]
    )


def _number(name: str, text: str, kind: Callable[[str], float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"{name} is {text!r}; expected a number") from None


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


class KeyRing:
    """The keys of a server, and what each has used."""

    def __init__(self, keys: Collection[Key], clock: Callable[[], float] = time.monotonic) -> None:
        # Looked up by their digests: how long that takes tells nothing about the keys.
        self._uses = {_digest(key.secret.encode("utf-8", "surrogateescape")): Use(key, clock) for key in keys}

    def __bool__(self) -> bool:
        return bool(self._uses)

    def find(self, secret: bytes) -> Use | None:
        """The key whose secret is this in UTF-8; None where there is none."""
        return self._uses.get(_digest(secret))


class Use:
    """What is used of one key: a context manager around a request, which raises an ApiError, 429, for one too many."""

    def __init__(self, key: Key, clock: Callable[[], float]) -> None:
        self.key = key
        self._clock = clock
        self._running = 0
        # A bucket of requests that fills at the key's rate; a minute's worth fits.
        self._most = max(key.rate or 0, 1.0)
        self._left = self._most
        self._at = clock()

    def __enter__(self) -> None:
        key = self.key
        if key.concurrency is not None and self._running >= key.concurrency:
            raise _too_many(f"this key allows {key.concurrency} requests at the same time", 1)
        if key.rate is not None:
            now = self._clock()
            self._left = min(self._left + (now - self._at) * key.rate / 60, self._most)
            self._at = now
            if self._left < 1:
                raise _too_many(
                    f"this key allows {key.rate:g} requests a minute", math.ceil((1 - self._left) * 60 / key.rate)
                )
            self._left -= 1
        self._running += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running -= 1


def _too_many(words: str, seconds: int) -> ApiError:
    return ApiError(
        f"{words}; try again in {seconds} s",
        status=429,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(seconds)},
    )
