"""Connections: accepted up to a cap, and closed where the client neither sends its request nor reads its answer."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpt2fast._internal.system import open_files_limit
from gpt2fast.server.turns import Share

__all__ = ["Connection", "Listener", "close_late", "most_connections"]

_log = logging.getLogger("gpt2fast.server")

# Bytes of an answer that wait in a connection's buffer before its next part has to wait, too.
_UNSENT = 1 << 14
# Bytes that are taken from a connection at once, and lines of a request's head: each line takes some 4 us to parse.
_RECEIVED = 1 << 14
_MOST_LINES = 200
# Connections that the kernel holds until they are accepted.
_BACKLOG = 1024
# Descriptors for files, the event loop and the next client.
_OTHER_FILES = 48
# What accept fails with where the process, or the system, has no room for one more.
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# Seconds without accepting after that, and between two lines of log about it.
_BACK_OFF, _SAID_AGAIN = 0.1, 60.0


class Connection(H11Protocol):
    """uvicorn's protocol, which knows since when it waits for its client, and parses within the `share` of the event
    loop's time that all connections have together."""

    transport: asyncio.Transport

    def __init__(self, *args: Any, share: Share, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Shared(share, self._go_on_later)
        self._share = share
        #: Since when the head of a request is awaited, by `time.monotonic`; None where none has begun.
        self.head_since: float | None = None
        #: Since when bytes of an answer wait that the client does not read; None where none do.
        self.unread_since: float | None = None
        self._idle_since = time.monotonic()

    @property
    def waiting_since(self) -> float | None:
        """Since when the connection waits for its client; None while the client waits for it."""
        if self._between_requests:
            return self.head_since or self.unread_since or self._idle_since
        return self.unread_since

    @property
    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client is there; the head of its first request is due."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_UNSENT)
        if hasattr(transport, "max_size"):  # not so with TLS
            transport.max_size = _RECEIVED
        self.flow = self._flow = _Flow(transport)
        self.head_since = time.monotonic()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request arrive."""
        if self._between_requests and self.head_since is None:
            self.head_since = time.monotonic()
        super().data_received(data)
        self._note_head()

    def _go_on_later(self) -> None:
        if not self._flow.held:
            self._flow.hold()
            self._share.later(self._go_on)

    def _go_on(self) -> None:
        if self.transport.is_closing():
            return
        self._flow.release()
        self.handle_events()
        self._note_head()

    def _note_head(self) -> None:
        if not self._between_requests:
            self.head_since = None

    def on_response_complete(self) -> None:
        """The answer is written, if not read."""
        self._idle_since = time.monotonic()
        if self.unread_since is None and self.transport.get_write_buffer_size():
            self.unread_since = self._idle_since
        super().on_response_complete()
        self._note_head()

    def shutdown(self) -> None:
        """The server ends: an idle connection is closed at once, which in TLS would wait for the client."""
        idle = self._between_requests
        super().shutdown()
        if idle and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def pause_writing(self) -> None:
        """The client does not read as fast as the answer comes."""
        super().pause_writing()
        if self.unread_since is None:
            self.unread_since = time.monotonic()

    def resume_writing(self) -> None:
        """The client has read most of what was there."""
        super().resume_writing()
        self.unread_since = None


class _Shared(h11.Connection):
    """A parser that tells no more events when its share of time is used up: then it calls `later`, and has nothing for
    now.  A request may be of a million pieces, each of which takes some 20 us, be it a single byte."""

    def __init__(self, share: Share, later: Callable[[], None]) -> None:
        super().__init__(h11.SERVER)
        self._share = share
        self._later = later

    def next_event(self) -> Any:
        """The next event; NEED_DATA where there is none, or no time."""
        if not self._share.left():
            self._later()
            return h11.NEED_DATA
        if self.their_state is h11.IDLE:
            self._check_head()
        return super().next_event()

    def _check_head(self) -> None:
        """Refuse a head of too many lines, before any is parsed."""
        head, _, _ = self.trailing_data[0].partition(b"\r\n\r\n")
        if head.count(b"\n") > _MOST_LINES or len(head) > 2 * _RECEIVED:
            raise h11.RemoteProtocolError(f"a head of more than {_MOST_LINES} lines, or of too many bytes", 431)


class _Flow(FlowControl):
    """uvicorn's, which reads nothing while what was read has not had its turn."""

    #: Whether it is held.
    held = False

    def hold(self) -> None:
        """Read nothing until `release`."""
        self.held = True
        self.pause_reading()

    def release(self) -> None:
        """Read again."""
        self.held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        """Read again, unless held."""
        if not self.held:
            super().resume_reading()


def close_late(connections: Iterable[Connection], head_timeout: float, write_timeout: float) -> None:
    """Close the connections whose client has not sent a head, or not read what it was sent, within these seconds."""
    now = time.monotonic()
    for connection in list(connections):
        if connection.unread_since is not None and not connection.transport.get_write_buffer_size():
            connection.unread_since = None
        head, unread = connection.head_since, connection.unread_since
        if (head is not None and now - head > head_timeout) or (unread is not None and now - unread > write_timeout):
            connection.transport.abort()


def most_connections(most: int) -> int:
    """How many connections a process can have, at most `most`: its limit of open files leaves no more."""
    files = open_files_limit()
    return most if files is None else max(min(most, files - _OTHER_FILES), 1)


class Listener:
    """Accepts connections, at most `most` at a time: for another one it closes that which has waited longest for its
    client, and where none waits, it accepts no more until there is room.

    As asyncio's servers it has `close` and `wait_closed`.
    """

    def __init__(
        self,
        bound: socket.socket,
        protocol: Callable[[], Connection],
        *,
        connections: set[Connection],
        most: int,
        context: ssl.SSLContext | None,
        handshake_timeout: float,
    ) -> None:
        self._socket = bound
        self._protocol = protocol
        self._connections = connections
        self._most = most
        self._context = context
        self._handshake_timeout = handshake_timeout if context else None
        self._opening: dict[asyncio.Task[None], Connection] = {}
        self._said = -_SAID_AGAIN
        bound.setblocking(False)
        bound.listen(_BACKLOG)
        self._loop = asyncio.get_running_loop()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more."""
        self._accepting.cancel()
        self._loop.remove_reader(self._socket)

    async def wait_closed(self) -> None:
        """Wait until nothing is accepted any more."""
        await asyncio.wait({self._accepting, *self._opening})

    async def _accept(self) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._say(error.strerror or str(error))
                    self._close_one()
                    await asyncio.sleep(_BACK_OFF)
                continue  # the client left before it was accepted
            try:
                await self._make_room()
            except asyncio.CancelledError:
                accepted.close()
                raise
            connection = self._protocol()
            task = self._loop.create_task(self._open(accepted, connection))
            self._opening[task] = connection
            task.add_done_callback(self._opening.__delitem__)

    @property
    def _handshakes(self) -> int:
        """How many are not among the connections yet; a task may last a little longer than that."""
        return sum(connection.transport is None for connection in self._opening.values())

    async def _make_room(self) -> None:
        while len(self._connections) + self._handshakes >= self._most:
            self._say(f"there are {self._most} connections")
            if not self._close_one():
                await asyncio.sleep(_BACK_OFF)

    async def _open(self, accepted: socket.socket, connection: Connection) -> None:
        # A client that fails the handshake of TLS is no trouble of the server's.
        with suppress(OSError, asyncio.TimeoutError):
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=self._handshake_timeout
            )

    def _close_one(self) -> bool:
        """Close the connection that has waited longest for its client; whether one waits."""
        waiting = [(c.waiting_since, id(c), c) for c in self._connections if c.waiting_since is not None]
        if waiting:
            *_, connection = min(waiting)
            connection.transport.abort()
            self._connections.discard(connection)  # as it does itself, in the next turn of the event loop
        return bool(waiting)

    def _say(self, why: str) -> None:
        now = time.monotonic()
        if now - self._said >= _SAID_AGAIN:
            self._said = now
            _log.warning("no room for a further connection: %s; those that wait for their clients are closed", why)
