"""A server on a free port of this machine, in a thread or a process, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from toy_model import ToyModel, hashed

import gpt2fast
from gpt2fast import LanguageModel, Tokenizer
from gpt2fast.server import Limits, bind, create_app
from gpt2fast.server.engine import Engine
from gpt2fast.server.service import Service
from gpt2fast.server.serving import Server

ROOT = Path(gpt2fast.__file__).parents[1]
#: A request for a text that does not end before its 50 tokens.
LONG = {"prompt": [1, 2, 3], "max_tokens": 50, "seed": 1, "logit_bias": {"269": -100}}


class Live:
    """A running server."""

    def __init__(self, app: Starlette, port: int, server: Server) -> None:
        self.engine: Engine = app.state.engine
        self.service: Service = app.state.service
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.server = server

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and content of an answer, of JSON its value; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, content, headers or {})
            answer = connection.getresponse()
            found = answer.read()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            is_json = fields.get("content-type") == "application/json" and found
            return answer.status, fields, json.loads(found) if is_json else found

    def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        """Status and content of the answer to a JSON object."""
        status, _, content = self.ask("POST", path, fields)
        return status, content

    def complete(self, prompt: Any, **fields: Any) -> Any:
        """The answer to a request for completions that succeeds."""
        status, content = self.post("/v1/completions", prompt=prompt, **fields)
        assert status == 200, content
        return content


@contextlib.contextmanager
def live(lm: Any, *, limits: Limits | None = None, tls: Any = None, **options: Any) -> Iterator[Live]:
    """Serve `lm`; at the end the server must come to its own end, too."""
    limits = limits or Limits(grace=5)
    options.setdefault("hosts", ())
    app = create_app(lm, limits=limits, **options)
    with bind("127.0.0.1", 0) as bound:
        server = Server(app, engine=app.state.engine, limits=limits, tls=tls)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])))
        thread.start()
        try:
            while not server.started and thread.is_alive():
                thread.join(0.01)
            yield Live(app, bound.getsockname()[1], server)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@contextlib.contextmanager
def command(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command `gpt2fast serve` in a process of its own, and its address once it is there."""
    line = [sys.executable, "-m", "gpt2fast", "serve", "--port", "0", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            assert process.stderr is not None
            ready = process.stderr.readline()
            assert ready.startswith(("gpt2fast: demo at http://127.0.0.1:", "gpt2fast: demo at https://127.0.0.1:")), (
                ready + process.stderr.read()
            )
            yield process, ready.split()[3]
        finally:
            process.kill()


class Gate:
    """Logits that come only while the gate is open, so that a test decides how far texts have grown."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def __call__(self, ids: Sequence[int], size: int) -> Any:
        self.reached.set()
        assert self.opened.wait(60)
        return hashed(ids, size)


@contextlib.contextmanager
def gated(tokenizer: Tokenizer, keys: Any = (), **limits: Any) -> Iterator[tuple[Live, Gate, LanguageModel]]:
    """A server whose network stands still until the gate is opened, at the end at the latest."""
    gate = Gate()
    lm = LanguageModel(ToyModel(logits=gate), tokenizer)  # type: ignore[arg-type]
    with live(lm, limits=Limits(grace=5, **limits), keys=keys) as server:
        try:
            yield server, gate, lm
        finally:
            gate.opened.set()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def send(port: int, content: bytes) -> socket.socket:
    """A connection on which the bytes have been sent."""
    connection = socket.create_connection(("127.0.0.1", port), 30)
    connection.sendall(content)
    return connection


def raw(path: str, fields: Any) -> bytes:
    """The bytes of a request."""
    body = json.dumps(fields).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
