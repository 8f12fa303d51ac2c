"""Listening, and stopping: on SIGTERM or Ctrl-C running requests finish, new ones are refused, and the process ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import sys
from collections.abc import Collection
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from gpt2fast._internal.arguments import whole_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.language_model import LanguageModel
from gpt2fast.server.app import create_app
from gpt2fast.server.chat import ChatTemplate
from gpt2fast.server.connections import Connection, Listener, close_late, most_connections
from gpt2fast.server.engine import Engine
from gpt2fast.server.guard import is_loopback
from gpt2fast.server.keys import Key
from gpt2fast.server.limits import Limits
from gpt2fast.server.turns import Share

__all__ = ["Server", "bind", "serve"]

# Longer than clients keep an idle connection, so that it is they who close it and no request meets a closed one.
_KEEP_ALIVE = 75
# Seconds for the last bytes, once all texts have ended.
_LAST_BYTES = 5


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, which does not listen yet; port 0 is any free one.

    Raises InputError where the host is unknown, OSError where the address is taken.
    """
    if not isinstance(host, str):
        raise InputTypeError(f"host is of type {type(host).__name__}; expected str")
    port = whole_number("port", port, most=65_535)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, ValueError) as error:
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
    """uvicorn, whose connections wait for no client for ever, and with an end that breaks off no text: requests that
    come during it are told to go elsewhere (503)."""

    def __init__(
        self,
        app: Any,
        *,
        engine: Engine,
        limits: Limits,
        ready: str = "",
        tls: tuple[str | Path, str | Path | None] | None = None,
    ) -> None:
        certificate, key = tls or (None, None)
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=_LAST_BYTES,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
        )
        self._engine = engine
        self._limits = limits
        self._ready = ready
        self._share = Share()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup([])  # which starts the app
        self.servers = [self._listen(bound) for bound in sockets or []]
        if self._ready:
            print(self._ready, file=sys.stderr, flush=True)

    def _listen(self, bound: socket.socket) -> Any:
        def protocol() -> Connection:
            return Connection(self.config, self.server_state, self.lifespan.state, share=self._share)

        connections: Any = self.server_state.connections
        return Listener(
            bound,
            protocol,
            connections=connections,
            most=most_connections(self._limits.connections),
            context=self.config.ssl,
            handshake_timeout=self._limits.head_timeout,
        )

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % 5 == 0:
            connections: Any = self.server_state.connections
            close_late(connections, self._limits.head_timeout, self._limits.write_timeout)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends the server in peace, the second at once."""
        # uvicorn's own would raise the signal again at the end, and the exit status with it.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs finish, then close."""
        drained = asyncio.ensure_future(self._engine.drain(self._limits.grace))
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
    keys: Collection[Key] = (),
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    speculate: str | None = None,
    chat_template: ChatTemplate | None = None,
    allow_special: bool = False,
    look: bool = False,
    tls: tuple[str | Path, str | Path | None] | None = None,
) -> None:
    """Serve `lm` under `name` on a socket from `bind` until SIGTERM or SIGINT; see `create_app` for the rest.

    On a loopback address only names of this machine, and `hosts`, are answered; elsewhere `hosts`, `*` for all names,
    and where none are given all, for which there must be a key.  `tls` is a file with a certificate, and one with its
    key, or None where the first holds both.  Raises InputError where the server would be open to everybody, and where
    there is no TLS with these files.
    """
    limits = limits or Limits()
    address, port = bound.getsockname()[:2]
    if is_loopback(address):
        hosts = hosts or ()
    elif key is None and not keys:
        if not hosts:
            raise InputError(
                f"whoever reaches {address} could use this server, under any name: set GPT2FAST_API_KEY or --api-keys, "
                "or say with --allow-host which names it answers to, '*' for all"
            )
        print(f"gpt2fast: whoever reaches {address} can use this server; --api-keys asks for keys", file=sys.stderr)
    app = create_app(
        lm,
        name=name,
        limits=limits,
        key=key,
        keys=keys,
        hosts=hosts,
        origins=origins,
        speculate=speculate,
        chat_template=chat_template,
        allow_special=allow_special,
        look=look,
    )
    shown = f"[{address}]" if ":" in address else address
    # Below that uvicorn tells of every request that is no HTTP, which is for anybody to send.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    ready = f"gpt2fast: {name} at {'https' if tls else 'http'}://{shown}:{port} (Ctrl-C ends it)"
    server = Server(app, engine=app.state.engine, limits=limits, ready=ready, tls=tls)
    try:
        server.config.load()
    except (OSError, ssl.SSLError) as error:
        files = " and ".join(str(file) for file in tls or () if file is not None)
        raise InputError(f"no TLS with {files}: {error.strerror or error}") from None
    # Threads of Python, which parse large requests, give way to the event loop and the engine after a tenth of a
    # millisecond: the loop gives up the interpreter's lock with each socket that it reads or writes, dozens in a round.
    sys.setswitchinterval(1e-4)
    gc.collect()
    gc.freeze()  # what is there now stays: collections need not look at it, which takes tens of milliseconds
    server.run([bound])
