"""Clients that do not send, or do not read: their connections end, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h11._readers
import pytest
from live_server import Live, command, eventually, live, raw, send
from paths import DATA

from gpt2fast import LanguageModel
from gpt2fast.server import Limits
from gpt2fast.server.connections import Connection, most_connections
from gpt2fast.server.serving import bind

CERTIFICATE, KEY = DATA / "server" / "certificate.pem", DATA / "server" / "key.pem"
HALF = b"GET /health HTTP/1.1\r\nHost: local"


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it."""
    connection.setblocking(False)
    try:
        return connection.recv(100) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def slow_reader(port: int, request: bytes) -> socket.socket:
    """A connection that sends a request, has next to no room for the answer, and does not read it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    connection.sendall(request)
    return connection


def test_heads_that_do_not_come(toy: LanguageModel) -> None:
    with live(toy, limits=Limits(head_timeout=0.3, grace=5)) as server:
        silent, half = send(server.port, b""), send(server.port, HALF)
        complete = send(server.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert complete.recv(1000).startswith(b"HTTP/1.1 200")
        eventually(lambda: is_closed(silent) and is_closed(half))
        # Between two requests there is more time, but none for half of the next head.
        time.sleep(0.6)
        assert not is_closed(complete)
        complete.setblocking(True)
        complete.sendall(HALF)
        eventually(lambda: is_closed(complete))
        for connection in (silent, half, complete):
            connection.close()


def test_answers_that_nobody_reads(toy: LanguageModel) -> None:
    """Both of one answer in many parts, and of what is left when all parts are written."""
    limits = Limits(write_timeout=0.3, grace=5)
    with live(toy, limits=limits) as server:
        service = server.service
        large = raw("/tokenize", {"text": "x" * 900_000})
        many = raw("/tokenize", {"text": "x" * 15_000}) * 40  # one after the other, until there is no room
        readers = [slow_reader(server.port, request) for request in (large, many)]
        eventually(lambda: service.budget.taken > 1_000_000)
        eventually(lambda: len(server.server.server_state.connections) == 0)
        eventually(lambda: service.budget.taken == 0)
        for reader in readers:
            reader.close()
        assert server.ask("GET", "/health")[0] == 200


def test_whoever_reads_gets_all(toy: LanguageModel) -> None:
    with live(toy, limits=Limits(write_timeout=0.5, grace=5)) as server:
        reader = slow_reader(server.port, raw("/tokenize", {"text": "x" * 30_000}))
        answer = http.client.HTTPResponse(reader)
        answer.begin()
        received = b""
        while part := answer.read(2000):
            received += part
            time.sleep(0.002)
        assert json.loads(received)["count"] == 30_000
        reader.close()


def test_a_cap_closes_whoever_waited_longest(toy: LanguageModel, caplog: pytest.LogCaptureFixture) -> None:
    with live(toy, limits=Limits(connections=5, grace=5)) as server, caplog.at_level(logging.WARNING):
        connections = []
        for count in range(1, 13):
            connections.append(send(server.port, HALF))
            eventually(lambda count=count: len(server.server.server_state.connections) == min(count, 5))  # type: ignore[misc]
        eventually(lambda: [is_closed(connection) for connection in connections] == [True] * 7 + [False] * 5)
        assert server.ask("GET", "/health")[0] == 200
        for connection in connections:
            connection.close()
    told = [record for record in caplog.records if "no room for a further connection" in record.message]
    assert len(told) == 1


def test_those_at_work_are_not_closed_for_others(toy: LanguageModel) -> None:
    with live(toy, limits=Limits(connections=3, grace=5)) as server:
        body = raw("/score", {"text": "abc"})
        working = [send(server.port, body[:-5]) for _ in range(3)]  # their bodies are not there yet
        eventually(lambda: len(server.server.server_state.tasks) == 3)
        waiting = send(server.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.3)
        for connection in working:
            connection.sendall(body[-5:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert waiting.recv(100).startswith(b"HTTP/1.1 200")
        for connection in (*working, waiting):
            connection.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a limit of POSIX")
def test_few_descriptors_and_many_halves() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
    line = f"{limit}import sys\nfrom gpt2fast.cli import main\nsys.exit(main(['serve', '--port', '0']))"
    with subprocess.Popen([sys.executable, "-c", line], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = int(process.stderr.readline().split()[3].rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(send(port, HALF))
            for _ in range(3):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request("GET", "/health")
                assert connection.getresponse().status == 200
                connection.close()
        process.terminate()
        assert process.wait(30) == 0
        log = process.stderr.read()
    assert len([line for line in log.splitlines() if "no room" in line]) == 1
    assert len(log.splitlines()) == 1 + 3, log


def test_the_cap_leaves_descriptors_for_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        assert (most_connections(1024), most_connections(10)) == (152, 10)
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
        assert most_connections(1024) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_accept_that_fails_is_tried_again(
    toy: LanguageModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with live(toy) as server, caplog.at_level(logging.WARNING):
        loop = server.engine._loop
        accept, failures = loop.sock_accept, [OSError(24, "Too many open files")] * 3 + [ConnectionAbortedError()]

        async def failing(bound: socket.socket) -> object:
            if failures:
                raise failures.pop()
            return await accept(bound)

        monkeypatch.setattr(loop, "sock_accept", failing)
        for _ in range(3):
            assert server.ask("GET", "/health")[0] == 200
        assert not failures
    assert sum("Too many open files" in record.message for record in caplog.records) == 1


def test_many_pieces_are_taken_in_turns(toy: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 50,000 chunks of one byte, which takes h11 half a second, with other requests in between."""
    turns = 0
    go_on = Connection._go_on

    def counted(self: Connection) -> None:
        nonlocal turns
        turns += 1
        go_on(self)

    monkeypatch.setattr(Connection, "_go_on", counted)
    text = b'{"text": "' + b"x" * 50_000 + b'"}'
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    with live(toy) as server, send(server.port, head + body) as connection:
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(1 << 16)
        assert received.startswith(b"HTTP/1.1 200")
        assert b'"count":50000' in received
        # And what is sent behind it is answered.
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        received = b""
        while received.count(b'{"status":"ok"}') < 3:
            received += connection.recv(1 << 16)
    assert turns > 100


# TLS


@pytest.fixture
def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


@contextlib.contextmanager
def encrypted(lm: LanguageModel, limits: Limits) -> Iterator[Live]:
    with live(lm, limits=limits, tls=(CERTIFICATE, KEY)) as server:
        yield server


def test_tls(toy: LanguageModel, trusting: ssl.SSLContext) -> None:
    with encrypted(toy, Limits(head_timeout=0.5, write_timeout=0.5, grace=5)) as server:
        silent, plain = send(server.port, b""), send(server.port, b"GET /health HTTP/1.1\r\n\r\n")
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=30, context=trusting)
        connection.request("POST", "/tokenize", json.dumps({"text": "x" * 300_000}))
        assert json.loads(connection.getresponse().read())["count"] == 300_000
        connection.close()
        # Neither a handshake that does not come nor bytes that are none hold a connection.
        eventually(lambda: is_closed(silent) and is_closed(plain))
        silent.close()
        plain.close()


def test_tls_by_the_command(tmp_path: Path, trusting: ssl.SSLContext) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(CERTIFICATE.read_bytes() + KEY.read_bytes())
    with command("--tls-cert", str(both)) as (process, url):
        assert url.startswith("https://127.0.0.1:")
        connection = http.client.HTTPSConnection(url.removeprefix("https://"), timeout=30, context=trusting)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "demo"
        process.terminate()  # an idle connection does not hold it up
        assert process.wait(30) == 0
        connection.close()


@pytest.mark.slow
def test_a_thousand_clients_that_do_not_read() -> None:
    """Memory stays under 400 MB, and others are answered."""
    requests = [
        raw("/tokenize", {"text": "x" * 1_000_000}),
        raw("/detokenize", {"ids": [5] * 300_000}),
        raw("/v1/embeddings", {"input": ["a"] * 2048}),
        raw("/v1/completions", {"prompt": "a", "n": 64, "max_tokens": 400, "logprobs": 5}),
        raw("/v1/completions", {"prompt": "a", "n": 64, "max_tokens": 400, "logprobs": 5, "stream": True}),
    ]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with command("--quiet") as (process, url), contextlib.ExitStack() as stack:
            port = int(url.rpartition(":")[2])
            status = Path(f"/proc/{process.pid}/status")
            peak = 0
            for i in range(1000):
                connection = stack.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(60)
                connection.connect(("127.0.0.1", port))
                thread = threading.Thread(target=push, args=(connection, requests[i % len(requests)]), daemon=True)
                thread.start()
                if i % 50 == 0:
                    peak = max(peak, memory(status))
            end = time.monotonic() + 20
            while time.monotonic() < end:
                peak = max(peak, memory(status))
                connection_ = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection_.request("GET", "/health")
                assert connection_.getresponse().status == 200
                connection_.close()
                time.sleep(0.2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"\nresident memory of the server, highest: {peak} MB")
    assert peak <= 400


def push(connection: socket.socket, content: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(content)


def memory(status: Path) -> int:
    """Resident memory in MB."""
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1000


def test_bind_takes_no_connection_before_it_serves() -> None:
    with bind("127.0.0.1", 0) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), 5)


@pytest.mark.parametrize("count", [1_000, 60_000])
def test_a_head_of_many_lines_is_refused_before_they_are_parsed(
    toy: LanguageModel, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    extract = h11._readers.maybe_read_from_IDLE_client

    def noting(buffer: Any) -> Any:
        parsed.append(len(buffer))
        return extract(buffer)

    with live(toy) as server:
        monkeypatch.setitem(h11._readers.READERS, (h11.CLIENT, h11.IDLE), noting)
        with send(server.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n") as connection:
            with contextlib.suppress(OSError):
                connection.sendall(b"a:\r\n" * count + b"\r\n")
            assert connection.recv(12) in (b"HTTP/1.1 400", b"")
        assert server.ask("GET", "/health")[0] == 200
        assert max(parsed) < 1_000
