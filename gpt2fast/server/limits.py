"""How much the server takes on."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2fast._internal.arguments import real_number, whole_number

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes on at the same time, and for how long.

    Raises InputError or InputTypeError, naming the field, where a value makes no sense.

    >>> Limits(rows=4).queue
    128
    """

    #: Texts that grow at the same time; each has a row of the cache, which grows with it.
    rows: int = 16
    #: Texts, scorings and embeddings that may wait besides; what comes on top is refused with 429.
    queue: int = 128
    #: The largest body of a request, in bytes; what is larger is refused with 413.
    body: int = 1 << 20
    #: Seconds from a request's arrival to its last token; then it ends with 504.
    timeout: float = 120.0
    #: Seconds for the body of a request to arrive; then 408.
    body_timeout: float = 20.0
    #: Seconds for the head of a request to arrive, from its first byte, or the connection's beginning; then the
    #: connection is closed.
    head_timeout: float = 10.0
    #: Seconds for a client to make room for the next part of an answer, or to read what is left of it; then the
    #: connection is closed.
    write_timeout: float = 20.0
    #: Connections at the same time, further below what the process may open; for more, the one is closed that has
    #: waited longest for its client.
    connections: int = 1024
    #: Bytes that the larger requests and all answers may hold together; what comes on top is refused with 429.
    memory: int = 128 << 20
    #: Seconds that running requests have to finish after SIGTERM.
    grace: float = 30.0

    def __post_init__(self) -> None:
        whole_number("rows", self.rows, least=1)
        whole_number("queue", self.queue)
        for name in ("body", "connections", "memory"):
            whole_number(name, getattr(self, name), least=1)
        for name in ("timeout", "body_timeout", "head_timeout", "write_timeout", "grace"):
            real_number(name, getattr(self, name), least=0)

    @property
    def places(self) -> int:
        """Texts and other work that may be inside, running or waiting."""
        return self.rows + self.queue
