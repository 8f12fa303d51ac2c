"""The end of a server: what runs finishes, what comes is refused, and all of it has an end."""

from __future__ import annotations

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from live_server import LONG, command, eventually, gated, live, raw, send
from toy_model import ToyModel, hashed

import gpt2fast
from gpt2fast import LanguageModel, Tokenizer
from gpt2fast.server import Limits


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
