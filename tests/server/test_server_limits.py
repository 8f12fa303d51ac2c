"""The limits of a server: bodies that are too large or do not come, a full queue, time that is up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from live_server import LONG, Live, eventually, gated, live, send
from toy_model import ToyModel, hashed

from gpt2fast import InputError, LanguageModel, Tokenizer
from gpt2fast.server import Limits


@pytest.fixture(scope="module")
def server(toy: LanguageModel) -> Iterator[Live]:
    with live(toy, limits=Limits(body=2000, body_timeout=0.5, grace=5)) as running:
        yield running


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
    slow = ToyModel(logits=lambda ids, size: (time.sleep(0.02), hashed(ids, size) - 99 * (np.arange(size) == 269))[1])
    with live(LanguageModel(slow, tokenizer), limits=Limits(timeout=0.4, grace=5)) as server:  # type: ignore[arg-type]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            stream = client.completions.create(model="demo", prompt="a", max_tokens=60, stream=True, seed=4)
            assert next(stream).choices[0].text
            with pytest.raises(openai.APIError, match="took too long"):
                list(stream)
        assert server.engine.inside == 0


def test_limits_are_checked_by_name() -> None:
    for name in ("rows", "queue", "body", "timeout", "body_timeout", "grace"):
        with pytest.raises(InputError, match=name):
            Limits(**{name: -1})
