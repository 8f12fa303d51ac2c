"""What the server refuses, and with which status; that whoever leaves or fails leaves nothing behind; and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import ROOT, Live, command, live
from toy_model import ToyModel, hashed

import gpt2fast
from gpt2fast import InputError, LanguageModel, Tokenizer
from gpt2fast.server import Limits
from gpt2fast.server.events import EventStream
from gpt2fast.server.fields import Fields
from gpt2fast.server.protocol import parse_completion
from gpt2fast.server.refusals import Refusal

FILES = Path(__file__).parent / "data" / "generation"
LONG = {"prompt": [1, 2, 3], "max_tokens": 50, "seed": 1, "logit_bias": {"269": -100}}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The 256 bytes, a few merges, and end-of-text, 269."""
    return Tokenizer.from_pretrained(FILES / "g-stop-strings" / "model")


@pytest.fixture(scope="module")
def toy(tokenizer: Tokenizer) -> LanguageModel:
    return LanguageModel(ToyModel(), tokenizer)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(toy: LanguageModel) -> Iterator[Live]:
    with live(toy, limits=Limits(rows=2, queue=3, body=2000, body_timeout=0.5, grace=5)) as running:
        yield running


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
def gated(tokenizer: Tokenizer, **limits: Any) -> Iterator[tuple[Live, Gate, LanguageModel]]:
    """A server whose network stands still until the gate is opened, at the end at the latest."""
    gate = Gate()
    lm = LanguageModel(ToyModel(logits=gate), tokenizer)  # type: ignore[arg-type]
    with live(lm, limits=Limits(grace=5, **limits)) as server:
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


# Requests that make no sense


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": 1}, "prompt", "prompt is of type number; expected a string, an array of strings"),
        ({"prompt": []}, "prompt", "prompt is an empty array"),
        ({"prompt": ["a", 1]}, "prompt", "prompt[1] is of type number; expected a string"),
        ({"prompt": [1, "a"]}, "prompt", "prompt[1] is 'a'; expected a token id"),
        ({"prompt": [[1], [True]]}, "prompt", "prompt[1][0] is True; expected a token id"),
        ({"prompt": [270]}, "prompt", "prompt[0] is 270; expected a token id from 0 to 269"),
        ({"prompt": "\ud800x"}, "prompt", "prompt has a lone surrogate at 0"),
        ({"prompt": [1] * 64, "max_tokens": 2}, "prompt", "takes a context of 65; the model's limit is 64"),
        ({"prompt": ["a", [1]]}, "prompt", "prompt[1] is of type array; expected a string"),
        ({"prompt": ["a"] * 6}, "prompt", "prompt is an array of 6; expected 5 or less"),
        ({"n": 6}, "n", "1 prompts and n 6 are more texts than the 5 taken on"),
        ({"n": 0}, "n", "n is 0; expected 1 or more"),
        ({"n": 1.0}, "n", "n is 1.0; expected a whole number"),
        ({"n": 10**30}, "n", "expected 128 or less"),
        ({"best_of": 2}, "best_of", "best_of is not supported unless it equals n, which is 1"),
        ({"suffix": "x"}, "suffix", "suffix is not supported"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, and echo is not asked for"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens is -1; expected 0 or more"),
        ({"max_tokens": 10**9}, "prompt", "the model's limit is 64"),
        ({"temperature": -0.1}, "temperature", "temperature is -0.1; expected a finite number from 0"),
        ({"temperature": "hot"}, "temperature", "temperature is 'hot'; expected a number"),
        ({"temperature": True}, "temperature", "temperature is True"),
        ({"top_p": 1.5}, "top_p", "top_p is 1.5; expected a finite number from 0 to 1"),
        ({"top_k": -1}, "top_k", "top_k is -1"),
        ({"presence_penalty": 3}, "presence_penalty", "from -2 to 2"),
        ({"frequency_penalty": 10**400}, "frequency_penalty", "from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty is 0"),
        ({"seed": -1}, "seed", "seed is -1; expected 0 or more"),
        ({"logprobs": 6}, "logprobs", "logprobs is 6; expected 5 or less"),
        ({"logprobs": True}, "logprobs", "logprobs is True; expected a whole number"),
        ({"logit_bias": {"270": 1}}, "logit_bias", "logit_bias has '270'; expected token ids under 270"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "logit_bias has 'a'"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "from -100 to 100"),
        ({"logit_bias": [1]}, "logit_bias", "logit_bias is of type array"),
        ({"stop": ""}, "stop", "stop has a string of 0 characters"),
        ({"stop": [1]}, "stop", "stop is of type number"),
        ({"stop": ["a"] * 17}, "stop", "stop has 17 strings"),
        ({"stop": "a" * 257}, "stop", "stop has a string of 257 characters"),
        ({"stream": "yes"}, "stream", "stream is of type string; expected true or false"),
        ({"stream_options": {}}, "stream_options", "stream_options is only for stream true"),
        ({"stream": True, "stream_options": {"usage": True}}, "usage", "there is no field 'usage' here"),
        ({"echo": 1}, "echo", "echo is of type number"),
        ({"max_token": 1}, "max_token", "there is no field 'max_token' here; did you mean max_tokens?"),
        ({"messages": []}, "messages", "there is no field 'messages' here"),
        ({"model": 1}, "model", "model is of type number"),
    ],
)
def test_fields_that_make_no_sense(server: Live, fields: dict[str, Any], param: str, words: str) -> None:
    status, content = server.post("/v1/completions", **fields)
    assert status == 400
    assert words in content["error"]["message"]
    assert (content["error"]["param"], content["error"]["type"]) == (param, "invalid_request_error")


def test_fields_that_change_nothing_are_ignored(server: Live) -> None:
    extras = {"user": "x", "metadata": {}, "best_of": 1, "suffix": None, "stop": None, "logit_bias": None, "n": None}
    assert server.complete([1], seed=1, **extras)["choices"] == server.complete([1], seed=1)["choices"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "JSON of type array; expected an object"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"temperature": NaN}', "NaN is no JSON number"),
        (b'{"temperature": -Infinity}', "Infinity is no JSON number"),
        (b'{"temperature": 1e999}', "temperature is inf; expected a finite number"),
        (b'{"user": ' + b"[" * 1900, "JSON"),
        (b'{"seed": ' + b"9" * 1900 + b', "n": 0}', "n is 0"),
        (b'{"' + b"a" * 1900 + b'": 1}', "there is no field 'aaa"),
        (b'{"\\ud800": 1}', "there is no field"),
    ],
)
def test_bodies_that_are_no_request(server: Live, body: bytes, words: str) -> None:
    status, _, content = server.ask("POST", "/v1/completions", body)
    assert (status, words in content["error"]["message"]) == (400, True), content
    assert len(content["error"]["message"]) <= 500


@pytest.mark.parametrize("body", [b"[" * 500_000, b'{"a":' * 200_000, b'{"seed": ' + b"9" * 900_000 + b"}"])
def test_large_bodies_that_are_no_request(toy: LanguageModel, body: bytes) -> None:
    with live(toy) as server:
        assert server.ask("POST", "/v1/completions", body)[0] == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = ["model", "prompt", "n", "best_of", "suffix", "echo", "max_tokens", "stream", "stream_options", "logprobs"]
NAMES += ["temperature", "top_k", "top_p", "seed", "stop", "logit_bias", "presence_penalty", "user"]


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_any_json_is_a_request_or_refused(toy: LanguageModel, values: dict[str, Any]) -> None:
    refusal: Refusal | None = None
    try:
        asked = parse_completion(Fields(values), toy, "demo", Limits())
    except Refusal as error:
        refusal = error
    else:
        assert asked.prompts
    assert refusal is None or (refusal.status in (400, 404) and refusal.param)


def test_addresses_and_methods(server: Live) -> None:
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/completions/", 404),
        ("POST", "/", 405),
        ("GET", "/score", 405),
        ("DELETE", "/v1/models", 405),
        ("PUT", "/health", 405),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/page.html", 404),
    ):
        found, headers, content = server.ask(method, path)
        assert (found, headers["content-type"]) == (status, "application/json"), path
        assert content["error"]["message"]
        assert ("allow" in headers) == (status == 405)
    for path in ("/tokenize", "/detokenize", "/score"):
        status, content = server.post(path)
        assert (status, "missing" in content["error"]["message"] or "null" in content["error"]["message"]) == (
            400,
            True,
        )
        assert server.post(path, text="a", ids=[1], sense="none")[0] == 400


# Limits


def test_bodies_that_are_too_large(server: Live) -> None:
    status, _, content = server.ask("POST", "/v1/completions", b"x" * 2001)
    assert (status, content["error"]["code"]) == (413, "body_too_large")
    # Refused by its announced length, before the body is sent.
    with send(
        server.port, b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
    ) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    # Without a length, by what has come.
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    head = b"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with send(server.port, head + 2 * chunk) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    # A client that writes all before it reads gets to see it, too.
    assert server.ask("POST", "/score", b"x" * 5_000_000)[0] == 413


def test_bodies_that_do_not_come(server: Live) -> None:
    with send(
        server.port, b'POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"text"'
    ) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_a_full_queue(tokenizer: Tokenizer) -> None:
    with gated(tokenizer, rows=1, queue=2) as (server, gate, lm), ThreadPoolExecutor(4) as pool:
        first = pool.submit(server.complete, n=2, **LONG)
        eventually(lambda: server.engine.inside == 2)
        second = pool.submit(server.post, "/score", text="abc")
        eventually(lambda: server.engine.inside == 3)
        status, headers, content = server.ask("POST", "/v1/completions", {"prompt": "a"})
        assert (status, headers["retry-after"], content["error"]["code"]) == (429, "1", "queue_full")
        assert "3 of 3 places are taken" in content["error"]["message"]
        assert server.post("/score", text="a")[0] == 429
        assert server.ask("GET", "/health")[0] == 200
        gate.opened.set()
        right = lm.generate([1, 2, 3], n=2, seed=1, max_new_tokens=50, temperature=1, top_k=0, logit_bias={269: -100})
        assert [choice["text"] for choice in first.result()["choices"]] == [text.text for text in right]  # type: ignore[union-attr]
        assert second.result()[0] == 200
        assert server.complete("a")
        assert server.engine.inside == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/score", "stream"])
def test_time_that_is_up(tokenizer: Tokenizer, path: str) -> None:
    with gated(tokenizer, timeout=0.2) as (server, gate, _):
        fields = {"text": "abc"} if path == "/score" else {**LONG, "stream": path == "stream"}
        status, content = server.post("/score" if path == "/score" else "/v1/completions", **fields)
        assert (status, content["error"]["code"]) == (504, "timeout")
        assert server.engine.inside == 0
        gate.opened.set()
        assert server.complete([1], max_tokens=2)


def test_time_that_is_up_in_a_stream(tokenizer: Tokenizer) -> None:
    slow = ToyModel(logits=lambda ids, size: (time.sleep(0.02), hashed(ids, size))[1])
    with live(LanguageModel(slow, tokenizer), limits=Limits(timeout=0.4, grace=5)) as server:  # type: ignore[arg-type]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            stream = client.completions.create(model="demo", prompt="a", max_tokens=60, stream=True, seed=4)
            assert next(stream).choices[0].text
            with pytest.raises(openai.APIError, match="took too long"):
                list(stream)
        assert server.engine.inside == 0


# Clients that leave


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/score", "echo"])
def test_whoever_leaves_gives_up_his_place_at_once(tokenizer: Tokenizer, path: str, stream: bool) -> None:
    with gated(tokenizer, rows=1) as (server, gate, lm):
        fields: Any = {"text": "abc"} if path == "/score" else {**LONG, "n": 3, "stream": stream}
        if path == "echo":
            fields.update(echo=True, logprobs=1)
        connections = [
            send(server.port, raw("/score" if path == "/score" else "/v1/completions", fields)) for _ in range(3)
        ]
        expected = {"/v1/completions": 9, "/score": 3, "echo": 12}[path]
        eventually(lambda: server.engine.inside == expected)
        assert gate.reached.wait(30)
        for connection in connections:
            connection.close()
        # The network stands still all the time.
        eventually(lambda: server.engine.inside == 0)
        gate.opened.set()
        right = lm.generate([5], seed=1, max_new_tokens=9, temperature=1, top_k=0).text
        assert server.complete([5], seed=1, max_tokens=9)["choices"][0]["text"] == right
        eventually(lambda: server.engine.running == 0)
        eventually(lambda: b'status="499"' in server.ask("GET", "/metrics")[2])


def test_whoever_leaves_in_the_middle_of_a_stream(toy: LanguageModel) -> None:
    steps = 0

    def logits(ids: Sequence[int], size: int) -> Any:
        nonlocal steps
        steps += 1
        time.sleep(0.005)
        return hashed(ids, size) - 99 * (np.arange(size) == 269)

    lm = LanguageModel(ToyModel(n_ctx=10_000, logits=logits), toy.tokenizer)  # type: ignore[arg-type]
    with live(lm) as server:
        connection = send(server.port, raw("/v1/completions", {**LONG, "max_tokens": 9000, "stream": True}))
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()
        eventually(lambda: server.engine.inside == 0 and server.engine.running == 0)
        assert steps < 1000


def test_a_reader_that_does_not_read_is_not_waited_for() -> None:
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # as when the network's buffers are full

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def work(tell: Any) -> None:
        await tell("first")

    asyncio.run(EventStream(work, 0.05)({}, receive, send))
    assert [message.get("body", b"")[:20] for message in sent] == [b"", b'data: "first"\n\n', b'data: {"error":{"mes']


# Networks that fail


def test_an_engine_that_died_is_not_healthy(tokenizer: Tokenizer) -> None:
    with live(LanguageModel(ToyModel(), tokenizer)) as server:  # type: ignore[arg-type]
        server.engine._orders.put(server.engine._die)
        eventually(lambda: server.ask("GET", "/health")[0] == 503)
        assert server.ask("GET", "/health")[2] == {"status": "the engine has stopped"}


def test_a_network_that_fails_and_recovers(tokenizer: Tokenizer) -> None:
    failing = threading.Event()

    def logits(ids: Sequence[int], size: int) -> Any:
        if failing.is_set():
            raise MemoryError("no room")
        return hashed(ids, size)

    lm = LanguageModel(ToyModel(logits=logits), tokenizer)  # type: ignore[arg-type]
    with live(lm) as server:
        failing.set()
        for path, fields in (("/v1/completions", {"prompt": "a", "n": 3}), ("/v1/completions", {"stream": True})):
            status, content = server.post(path, **fields)
            assert (status, content["error"]["type"]) == (500, "server_error")
            assert "MemoryError: no room" in content["error"]["message"]
        assert server.engine.inside == 0
        failing.clear()
        assert server.complete("a")


def test_logits_that_are_not_finite(tokenizer: Tokenizer) -> None:
    lm = LanguageModel(ToyModel(logits=lambda ids, size: np.full(size, np.nan)), tokenizer)  # type: ignore[arg-type]
    with live(lm) as server:
        for path, fields in (("/v1/completions", {"prompt": "a"}), ("/score", {"text": "abc"})):
            status, content = server.post(path, **fields)
            assert status == 500
            assert "logits are not finite" in content["error"]["message"]


def test_passes_run_on_one_thread_and_none_starves(tokenizer: Tokenizer) -> None:
    order = []
    all_inside = threading.Event()

    class Watched(ToyModel):
        def note(self, kind: str) -> None:
            assert all_inside.wait(60)
            order.append((kind, threading.current_thread().name))
            time.sleep(0.001)

        def extend(self, cache: Any, rows: Any, ids: Any, wanted: Any = None) -> Any:
            self.note("text" if cache is self.caches[0] else "score")
            return super().extend(cache, rows, ids, wanted)

        def __call__(self, ids: Any, cache: Any = None, last_only: bool = False) -> Any:
            if np.ndim(ids) == 2:  # which calls this again, row by row
                self.note("score")
            return super().__call__(ids, None, last_only)

    lm = LanguageModel(Watched(), tokenizer)  # type: ignore[arg-type]
    with live(lm) as server, ThreadPoolExecutor(14) as pool:
        echoes = [{**LONG, "prompt": [7] * 40, "max_tokens": 20, "echo": True, "logprobs": 1}] * 2
        texts = [pool.submit(server.complete, **fields) for fields in ([LONG] * 4 + echoes)]
        scores = [pool.submit(server.post, "/score", text="abc" * 5) for _ in range(8)]
        eventually(lambda: server.engine.inside == 4 + 2 * 2 + 8)
        all_inside.set()
        for text in texts:
            assert text.result()
        for score in scores:
            assert score.result()[0] == 200
    # One thread, so no two at the same time.
    assert set(order) == {("text", "gpt2fast-engine"), ("score", "gpt2fast-engine")}
    kinds = "".join(kind[0] for kind, _ in order).strip("s")
    assert "tst" in kinds
    assert "ss" not in kinds


# Who may ask


def test_keys(toy: LanguageModel) -> None:
    with live(toy, key="right") as server:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "right"},
            {"Authorization": "Bearer é"},
        ):
            encoded = {name: value.encode().decode("latin-1") for name, value in headers.items()}
            for method, path in (
                ("POST", "/v1/completions"),
                ("GET", "/metrics"),
                ("GET", "/v1/models"),
                ("GET", "/x"),
            ):
                status, found, content = server.ask(method, path, {} if method == "POST" else None, encoded)
                assert (status, content["error"]["code"]) == (401, "invalid_api_key")
                assert found["www-authenticate"] == "Bearer"
        assert server.ask("GET", "/health")[0] == 200
        assert server.ask("GET", "/")[0] == 200
        right = {"Authorization": "Bearer right"}
        assert server.ask("POST", "/v1/completions", {"prompt": "a"}, right)[0] == 200
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="right") as client:
            assert client.completions.create(model="demo", prompt="a").choices
        wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong")
        with wrong, pytest.raises(openai.AuthenticationError, match="a key is needed"):
            wrong.models.list()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:9"}, 200),
        ({"Host": "127.0.0.1:80"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "model.example"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost@evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "localhost:80", "Origin": "https://localhost:80"}, 200),
        ({"Host": "localhost", "Origin": "http://localhost:3000"}, 403),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Host": "localhost", "Origin": "https://friend.example"}, 200),
    ],
)
def test_hosts_and_origins(toy: LanguageModel, headers: dict[str, str], status: int) -> None:
    with live(toy, hosts=["Model.example"], origins=["https://friend.example"]) as server:
        found = server.ask("POST", "/v1/completions", {"prompt": "a"}, headers)
        assert found[0] == status, found
        friendly = headers.get("Origin") == "https://friend.example"
        assert ("access-control-allow-origin" in found[1]) == friendly


def test_preflights(toy: LanguageModel) -> None:
    asked = {"Origin": "https://friend.example", "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization"
    with live(toy, origins=["https://friend.example"], key="right") as server:
        status, headers, _ = server.ask("OPTIONS", "/v1/completions", headers=asked)
        assert (status, headers["access-control-allow-origin"]) == (200, "https://friend.example")
        status, headers, _ = server.ask("OPTIONS", "/v1/completions", headers={**asked, "Origin": "https://x.example"})
        assert (status, "access-control-allow-origin" in headers) == (400, False)
    with live(toy) as server:
        assert server.ask("OPTIONS", "/v1/completions", headers=asked)[0] == 403


# The end


def test_draining_finishes_what_runs_and_refuses_what_comes(tokenizer: Tokenizer) -> None:
    with gated(tokenizer) as (server, gate, lm), ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.complete, **LONG)
        stream = send(server.port, raw("/v1/completions", {**LONG, "stream": True}))
        eventually(lambda: server.engine.inside == 2)
        server.server.handle_exit(signal.SIGTERM, None)
        eventually(lambda: server.engine.draining)
        status, headers, content = server.ask("POST", "/v1/completions", {"prompt": "a"})
        assert (status, content["error"]["code"], "retry-after" in headers) == (503, "shutting_down", True)
        assert server.ask("GET", "/health")[::2] == (503, {"status": "shutting down"})
        gate.opened.set()
        right = lm.generate([1, 2, 3], seed=1, max_new_tokens=50, temperature=1, top_k=0, logit_bias={269: -100}).text
        assert first.result()["choices"][0]["text"] == right
        received = b"".join(iter(lambda: stream.recv(4096), b""))
        stream.close()
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_draining_has_an_end(tokenizer: Tokenizer) -> None:
    slow = ToyModel(n_ctx=10_000, logits=lambda ids, size: (time.sleep(0.001), hashed(ids, size))[1])
    lm = LanguageModel(slow, tokenizer)  # type: ignore[arg-type]
    with live(lm, limits=Limits(grace=0.3)) as server, ThreadPoolExecutor(2) as pool:
        endless = {**LONG, "max_tokens": 9000}
        first = pool.submit(server.post, "/v1/completions", **endless)
        stream = send(server.port, raw("/v1/completions", {**endless, "stream": True}))
        score = pool.submit(server.post, "/score", text=["abc"] * 2000)
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
        eventually(lambda: server.engine.inside == 3)
        server.server.handle_exit(signal.SIGTERM, None)
        for request in (first, score):
            status, content = request.result()
            assert (status, content["error"]["code"]) == (503, "shutting_down")
        received = b"".join(iter(lambda: stream.recv(4096), b""))
        stream.close()
        assert b'"code":"shutting_down"' in received
        assert b"[DONE]" not in received


def test_a_second_signal_ends_it_at_once(tokenizer: Tokenizer) -> None:
    slow = ToyModel(n_ctx=10_000, logits=lambda ids, size: (time.sleep(0.001), hashed(ids, size))[1])
    lm = LanguageModel(slow, tokenizer)  # type: ignore[arg-type]
    with live(lm, limits=Limits(grace=600)) as server:
        stream = send(server.port, raw("/v1/completions", {**LONG, "max_tokens": 9000, "stream": True}))
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
        server.server.handle_exit(signal.SIGINT, None)
        eventually(lambda: server.engine.draining)
        server.server.handle_exit(signal.SIGINT, None)
        assert b"[DONE]" not in b"".join(iter(lambda: stream.recv(4096), b""))
        stream.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_in_peace(number: int) -> None:
    with command(GPT2FAST_API_KEY="k") as (process, url):
        assert process.stderr is not None
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            lm = gpt2fast.load("demo")
            stream = client.completions.create(model="demo", prompt="Once", max_tokens=400, seed=3, stream=True)
            pieces = [next(stream).choices[0].text]
            process.send_signal(number)
            pieces += [chunk.choices[0].text for chunk in stream]
            right = lm.generate("Once", max_new_tokens=400, seed=3, temperature=1, top_k=0).text
            assert "".join(pieces) == right
        assert process.wait(30) == 0
        log = process.stderr.read()
    assert len(log.splitlines()) == 1  # one for the request, which holds no text of anybody's
    assert "POST /v1/completions 200" in log


def test_the_command_says_what_is_wrong() -> None:
    def error(*arguments: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "gpt2fast", "serve", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            timeout=60,
        )
        return done.returncode, done.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert error("--port", str(port)) == (1, f"gpt2fast: 127.0.0.1:{port}: Address already in use\n")
    assert error("--port", "0", GPT2FAST_API_KEY="") == (
        1,
        "gpt2fast: the key is empty; expected one, or none to let everybody in\n",
    )
    assert error("--queue", "-1") == (1, "gpt2fast: queue is -1; expected 0 or more\n")
    assert error("--port", "65536")[0] == 2
    status, text = error("--host", "no host", "--port", "0")
    assert (status, text.startswith("gpt2fast: host is 'no host'")) == (1, True)


@pytest.mark.parametrize("name", ["starlette", "uvicorn", "prometheus_client"])
def test_what_is_missing_is_asked_for_by_name(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None\nfrom gpt2fast.cli import main\nsys.exit(main(['serve']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    expected = f"gpt2fast: serving needs {name}, which is not installed: pip install 'gpt2fast[serve]'\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_limits_are_checked_by_name() -> None:
    for name in ("rows", "queue", "body", "timeout", "body_timeout", "grace"):
        with pytest.raises(InputError, match=name):
            Limits(**{name: -1})
