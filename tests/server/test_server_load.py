"""Many clients at once: no error, nobody gets another's text, and memory does not grow.

GPT2FAST_LOAD_SECONDS says for how long, 5 where it is not set; `pytest -s` shows what was measured.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from live_server import command

import gpt2fast
from gpt2fast import LanguageModel

SECONDS = float(os.environ.get("GPT2FAST_LOAD_SECONDS", "5"))
CLIENTS = 64
PROMPTS = [
    "Once upon a time",
    "The old king",
    "",
    "In the middle of the night " * 12,
    '"Where are you going?" said',
    "A",
]


@dataclass
class Record:
    """What the clients have seen."""

    answers: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


def requests(lm: LanguageModel) -> list[tuple[str, dict[str, Any], Any]]:
    """Requests of many kinds: path, fields, and what has to come."""
    found: list[tuple[str, dict[str, Any], Any]] = []
    draw = random.Random(7)
    for seed in range(48):
        prompt, n = draw.choice(PROMPTS), draw.choice([1, 1, 1, 2])
        fields: dict[str, Any] = {"prompt": prompt, "n": n, "seed": seed, "max_tokens": draw.randint(1, 60)}
        fields |= {"temperature": draw.choice([0, 0.7, 1.0]), "stop": draw.choice([None, ".", "the old"])}
        options = {"temperature": fields["temperature"], "stop": fields["stop"], "seed": seed, "top_k": 0}
        texts = lm.generate(prompt, n=n, max_new_tokens=fields["max_tokens"], **options)  # type: ignore[call-overload]
        right = [text.text for text in texts] if n > 1 else [texts.text]
        found += [("/v1/completions", {**fields, "stream": stream}, right) for stream in (False, True)]
        if n == 1 and prompt:
            found.append(("/v1/completions", {**fields, "echo": True, "logprobs": 1}, [prompt + right[0]]))
    for prompt in PROMPTS:
        found.append(("/score", {"text": prompt * 3}, [lm.score(prompt * 3).log_likelihood]))
    return found


def client(port: int, todo: list[Any], end: float, record: Record, seed: int) -> None:
    """A client from beginning to end."""
    try:
        ask(port, todo, end, record, random.Random(seed))
    except Exception as error:
        record.trouble.append(repr(error))


def ask(port: int, todo: list[Any], end: float, record: Record, draw: random.Random) -> None:
    """Ask one thing after the other over one connection, and now and then leave in the middle of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < end and not record.trouble:
        path, fields, right = draw.choice(todo)
        start = time.monotonic()
        connection.request("POST", path, json.dumps(fields))
        answer = connection.getresponse()
        if fields.get("stream") and draw.random() < 0.2:
            answer.read(draw.randrange(300))
            answer.close()
            connection.close()
            record.answers["left"] += 1
            continue
        content = answer.read()
        if answer.status != 200:
            record.trouble.append(f"{fields}: {answer.status} {content!r}")
        elif (found := texts_of(path, fields, content)) != right:
            record.trouble.append(f"{fields}: {found} is not {right}")
        record.seconds.append(time.monotonic() - start)
        record.answers["stream" if fields.get("stream") else path] += 1
    connection.close()


def texts_of(path: str, fields: dict[str, Any], content: bytes) -> Any:
    """What an answer says."""
    if path == "/score":
        return [score["log_likelihood"] for score in json.loads(content)["data"]]
    if not fields.get("stream"):
        return [choice["text"] for choice in json.loads(content)["choices"]]
    *events, last, nothing = content.decode().split("\n\n")
    assert (last, nothing) == ("data: [DONE]", "")
    pieces = [""] * fields["n"]
    for event in events:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            pieces[choice["index"]] += choice["text"]
    return pieces


def measured(port: int) -> dict[str, float]:
    """The server's own figures."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


@pytest.mark.slow
def test_many_clients_at_once() -> None:
    todo = requests(gpt2fast.load("demo"))
    record = Record()
    with command("--quiet") as (process, url):
        port = int(url.rpartition(":")[2])
        end = time.monotonic() + SECONDS
        clients = [
            threading.Thread(target=client, args=(port, todo, end, record, seed), daemon=True)
            for seed in range(CLIENTS)
        ]
        for thread in clients:
            thread.start()
        memory = []
        while any(thread.is_alive() for thread in clients):
            time.sleep(SECONDS / 20)
            assert process.poll() is None, "the server died"
            memory.append(measured(port).get("process_resident_memory_bytes", 0) / 1e6)
        figures = measured(port)
        process.terminate()
        assert process.wait(30) == 0
    tokens = figures['gpt2fast_tokens_total{kind="completion"}']
    record.seconds.sort()
    middle, late = (record.seconds[int(len(record.seconds) * share)] for share in (0.5, 0.99))
    print(
        f"\n{dict(record.answers)} in {SECONDS:g} s, {tokens / SECONDS:.0f} new tokens/s; answers took {middle:.2f} s"
    )
    print(f"in the middle, {late:.2f} s at the 99th percentile; memory in MB: {[round(value) for value in memory]}")
    assert not record.trouble, record.trouble[:3]
    assert record.answers["/v1/completions"] > CLIENTS
    assert figures["gpt2fast_places_taken"] == 0
    # The cache grows to what the rows hold at most; after half of the time that has happened.
    assert max(memory[len(memory) // 2 :]) < 1.1 * max(memory[: len(memory) // 2])
