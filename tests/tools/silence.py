"""A stream's longest silence while others post what is hard to deal with, and how long an honest request takes then.

It starts a server of the demo model, and for each attack as many clients, in a process of their own::

    python tests/tools/silence.py [--seconds 5] [ATTACK ...]

No test fails for it, as the figures are those of a machine, which should do nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from live_server import command, raw


def body(path: str, **fields: object) -> bytes:
    """The bytes of a request that is just under the limit."""
    return raw(path, fields)


def chunked(size: int) -> bytes:
    """A body of single bytes."""
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"text":"' + b"x" * size + b'"}') + b"0\r\n\r\n"


def heads(count: int) -> bytes:
    """A request of many headers."""
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * count + b"\r\n"


def deep(count: int) -> bytes:
    content = b'{"text":[' + b",".join([b"[]"] * count) + b"]}"
    return b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)


#: For each attack how many clients there are, what each sends again and again, and whether it waits for answers, leaves
#: at once, or stays without reading.
ATTACKS: dict[str, tuple[int, bytes, str]] = {
    "none": (0, b"", "wait"),
    "tokenize 1 MB": (16, body("/tokenize", text="x y" * 340_000), "wait"),
    "detokenize 1 MB": (64, body("/detokenize", ids=[1] * 349_000), "wait"),
    "detokenize 1 MB, leaving": (64, body("/detokenize", ids=[1] * 349_000), "leave"),
    "detokenize 1 MB, unread": (100, body("/detokenize", ids=[300] * 209_000), "stay"),
    "detokenize 15 kB": (300, body("/detokenize", ids=[1] * 5_000), "wait"),
    "field name 1 MB": (32, body("/v1/completions", **{"x" * 1_048_000: 1}), "wait"),
    "100,000 fields": (32, body("/v1/completions", **{f"{i}": None for i in range(70_000)}), "wait"),
    "arrays 1 MB": (32, deep(340_000), "wait"),
    "score 1 MB": (4, body("/score", text="x y " * 260_000), "wait"),
    "score 1 MB, leaving": (16, body("/score", text="x y " * 260_000), "leave"),
    "score 2,048 texts": (16, body("/score", text=["x y z"] * 2048, context="x" * 500), "wait"),
    "embeddings 2,048": (16, body("/v1/embeddings", input=["x y z"] * 2048), "wait"),
    "prompt 1 MB": (32, body("/v1/completions", prompt="x y " * 260_000), "wait"),
    "prompt of ids 1 MB": (32, body("/v1/completions", prompt=[1] * 349_000), "wait"),
    "echo, logprobs": (64, body("/v1/completions", prompt=[1] * 500, max_tokens=1, n=8, echo=True, logprobs=5), "wait"),
    "single bytes": (64, chunked(100_000), "wait"),
    "4,000 headers": (100, heads(3_900), "wait"),
    "health": (500, heads(0) * 20, "wait"),
    "metrics": (100, heads(0).replace(b"/health", b"/metrics"), "wait"),
}


def attack(port: int, content: bytes, manner: str, count: int, end: float) -> None:
    """Clients that send again and again, all in one thread that leaves the processor to others."""
    os.nice(15)

    async def client() -> None:
        while time.time() < end:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                with contextlib.closing(writer):
                    while time.time() < end:
                        writer.write(content)
                        await asyncio.wait_for(writer.drain(), 10)
                        if manner == "stay":
                            await asyncio.sleep(max(end - time.time(), 0))
                        if manner != "wait" or not await asyncio.wait_for(reader.read(1 << 16), 20):
                            break
                    if manner == "leave":
                        await asyncio.sleep(0.05)
            await asyncio.sleep(0.01)

    async def clients() -> None:
        await asyncio.wait([asyncio.ensure_future(client()) for _ in range(count)], timeout=end - time.time())

    if count:
        asyncio.run(clients())


def stream(port: int, seconds: float) -> list[float]:
    """When the events of a text came, after its first."""
    times: list[float] = []
    fields = {"prompt": "Once", "max_tokens": 500, "stream": True, "ignore_eos": True, "seed": 1}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(fields))
        answer = connection.getresponse()
        if answer.status != 200:
            answer.read()
            time.sleep(0.05)
            continue
        before = None
        while line := answer.readline():
            now = time.perf_counter()
            if line.startswith(b"data:"):
                if before is not None:
                    times.append(now - before)
                before = now
            if now > end:
                break
        connection.close()
    return times


def ask(port: int, seconds: float) -> list[float]:
    """How long small requests take."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            connection.request("POST", "/tokenize", b'{"text": "a king"}')
            connection.getresponse().read()
            times.append(time.perf_counter() - start)
        except OSError:
            times.append(float("nan"))
        connection.close()
        time.sleep(0.05)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS))
    arguments = parser.parse_args()
    print(
        "| others | longest silence, ms | 99 % | median | tokens/s | an honest request, ms: median | longest |\n|---|"
    )
    for name in arguments.attacks:
        count, content, manner = ATTACKS[name]
        with command("--quiet") as (_, url), multiprocessing.Pool(2) as pool:
            port = int(url.rpartition(":")[2])
            silences = pool.apply_async(stream, (port, arguments.seconds + 1))
            asked = pool.apply_async(ask, (port, arguments.seconds + 1))
            time.sleep(0.5)
            end = time.time() + arguments.seconds
            attacker = multiprocessing.Process(target=attack, args=(port, content, manner, count, end), daemon=True)
            attacker.start()
            found, honest = sorted(silences.get()), sorted(asked.get())
            attacker.kill()
        print(
            f"| {name} | {found[-1] * 1e3:.0f} | {found[int(len(found) * 0.99)] * 1e3:.0f} | "
            f"{statistics.median(found) * 1e3:.1f} | {len(found) / (arguments.seconds + 1):.0f} | "
            f"{statistics.median(honest) * 1e3:.1f} | {honest[-1] * 1e3:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
