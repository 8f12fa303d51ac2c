"""Whoever leaves, and whatever fails, leaves nothing behind, and does not hold up the others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from live_server import LONG, eventually, gated, live, raw, send
from toy_model import ToyModel, hashed

from gpt2fast import LanguageModel, Tokenizer
from gpt2fast.server.sse import EventStream

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


def test_an_engine_outlives_the_failure_of_its_next_scheduler(tokenizer: Tokenizer) -> None:
    failing = threading.Event()

    class Failing(ToyModel):
        def forward(self, *arguments: Any, **keywords: Any) -> Any:
            if failing.is_set():
                raise MemoryError("no room")
            return super().forward(*arguments, **keywords)

        def new_cache(self, *arguments: Any, **keywords: Any) -> Any:
            if failing.is_set():
                raise MemoryError("no room for a cache")
            return super().new_cache(*arguments, **keywords)

    with live(LanguageModel(Failing(), tokenizer)) as server:  # type: ignore[arg-type]
        right = server.complete("a", seed=1)["choices"]
        failing.set()
        for words in ("no room", "no room for a cache", "no room for a cache"):
            status, content = server.post("/v1/completions", prompt="a", n=2)
            assert (status, content["error"]["type"]) == (500, "server_error")
            assert content["error"]["message"].endswith(f"MemoryError: {words}")
            assert server.ask("GET", "/health")[0] == 200
        assert server.engine.inside == server.engine.running == 0
        failing.clear()
        assert server.complete("a", seed=1)["choices"] == right


def test_logits_that_are_not_finite(tokenizer: Tokenizer) -> None:
    lm = LanguageModel(ToyModel(logits=lambda ids, size: np.full(size, np.nan)), tokenizer)  # type: ignore[arg-type]
    with live(lm) as server:
        for path, fields in (("/v1/completions", {"prompt": "a"}), ("/score", {"text": "abc"})):
            status, content = server.post(path, **fields)
            assert status == 500
            assert "logits are not finite" in content["error"]["message"]


def test_one_thread_reads_texts_and_scores_together(tokenizer: Tokenizer) -> None:
    threads = set()
    all_inside = threading.Event()

    class Watched(ToyModel):
        def forward(self, *arguments: Any, **keywords: Any) -> Any:
            assert all_inside.wait(60)
            threads.add(threading.current_thread().name)
            return super().forward(*arguments, **keywords)

    model = Watched()
    with live(LanguageModel(model, tokenizer)) as server, ThreadPoolExecutor(14) as pool:  # type: ignore[arg-type]
        echoes = [{**LONG, "prompt": [7] * 40, "max_tokens": 20, "echo": True, "logprobs": 1}] * 2
        texts = [pool.submit(server.complete, **fields) for fields in ([LONG] * 4 + echoes)]
        scores = [pool.submit(server.post, "/score", text="abc" * 5) for _ in range(8)]
        eventually(lambda: server.engine.inside == 4 + 2 * 2 + 8)
        all_inside.set()
        for text in texts:
            assert text.result()
        for score in scores:
            assert score.result()[0] == 200
    assert threads == {"gpt2fast-engine"}  # one, so no two passes at the same time
    size = tokenizer.count("abc" * 5)
    assert any(call.count(1) >= 4 and size in call for call in model.calls)
