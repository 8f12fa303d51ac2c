"""Listening, and stopping: on SIGTERM or Ctrl-C running requests finish, new ones are refused, and the process ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Collection
from types import FrameType
from typing import Any

import uvicorn

from gpt2fast.errors import InputError
from gpt2fast.language_model import LanguageModel
from gpt2fast.server.app import create_app
from gpt2fast.server.engine import Engine
from gpt2fast.server.guard import is_loopback
from gpt2fast.server.limits import Limits

__all__ = ["Server", "bind", "serve"]

# Longer than clients keep an idle connection, so that it is they who close it and no request meets a closed one.
_KEEP_ALIVE = 75
# Seconds for the last bytes, once all texts have ended.
_LAST_BYTES = 5


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, which does not listen yet; port 0 is any free one.

    Raises InputError where the host is unknown, OSError where the address is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"host is {host!r}: {error}") from None
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return bound


class Server(uvicorn.Server):
    """uvicorn, with an end that breaks off no text: requests that come during it are told to go elsewhere (503)."""

    def __init__(self, app: Any, *, engine: Engine, grace: float, ready: str = "") -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=_LAST_BYTES,
            )
        )
        self._engine = engine
        self._grace = grace
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self._ready:
            print(self._ready, file=sys.stderr, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends the server in peace, the second at once."""
        # uvicorn's own would raise the signal again at the end, and the exit status with it.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs finish, then close."""
        drained = asyncio.ensure_future(self._engine.drain(self._grace))
        while not drained.done() and not self.force_exit:
            await asyncio.wait({drained}, timeout=0.1)
        drained.cancel()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn skips it then; the engine's thread must end all the same
            await self._engine.stop()


def serve(
    lm: LanguageModel,
    bound: socket.socket,
    *,
    name: str = "demo",
    limits: Limits | None = None,
    key: str | None = None,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    speculate: str | None = None,
) -> None:
    """Serve `lm` under `name` on a socket from `bind` until SIGTERM or SIGINT; see `create_app` for the rest.

    On a loopback address only names of this machine, and `hosts`, are answered; elsewhere all, where none are given.
    """
    limits = limits or Limits()
    address, port = bound.getsockname()[:2]
    local = is_loopback(address)
    if local:
        hosts = hosts or ()
    elif key is None:
        print(f"gpt2fast: whoever reaches {address} can use this server; --api-key asks for a key", file=sys.stderr)
    app = create_app(lm, name=name, limits=limits, key=key, hosts=hosts, origins=origins, speculate=speculate)
    shown = f"[{address}]" if ":" in address else address
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    ready = f"gpt2fast: {name} at http://{shown}:{port} (Ctrl-C ends it)"
    Server(app, engine=app.state.engine, grace=limits.grace, ready=ready).run([bound])
