"""A server on a free port of this machine, in a thread or a process, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

import gpt2fast
from gpt2fast.server import Limits, bind, create_app
from gpt2fast.server.engine import Engine
from gpt2fast.server.serving import Server

ROOT = Path(gpt2fast.__file__).parents[1]


class Live:
    """A running server."""

    def __init__(self, app: Starlette, port: int, server: Server) -> None:
        self.engine: Engine = app.state.engine
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
def live(lm: Any, *, limits: Limits | None = None, **options: Any) -> Iterator[Live]:
    """Serve `lm`; at the end the server must come to its own end, too."""
    limits = limits or Limits(grace=5)
    options.setdefault("hosts", ())
    app = create_app(lm, limits=limits, **options)
    with bind("127.0.0.1", 0) as bound:
        server = Server(app, engine=app.state.engine, grace=limits.grace)
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
            assert ready.startswith("gpt2fast: demo at http://127.0.0.1:"), ready + process.stderr.read()
            yield process, ready.split()[3]
        finally:
            process.kill()
