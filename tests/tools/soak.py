"""Everything at once for minutes or hours: at the end all is back where it was, and every answer was right.

`make soak` runs it for SOAK_MINUTES, 5 where nothing is said::

    python tests/tools/soak.py --minutes 60

In a process of its own runs a server of the demo model, with clients that compare each answer with what `lm.generate`
gives, that read slowly, that leave in the middle, and that send what no server wants.  In this process threads encode
texts and lists that other threads change meanwhile, and a model is loaded, used and dropped again and again.  Jobs that
tokenize a corpus are killed at random and begun again, until they have made the very bytes of one that nobody killed.

After a fifth of the time everything pauses, and what both processes hold at rest is noted: by then caches, pools of
threads and modules that are loaded when they are first used are there.  At the end descriptors and threads must be as
many, the server's places and bytes free, and resident memory at most a tenth and 48 MB above: the heap of C is in
pieces then, which `free` does not give back, and how many depends on what was asked for last.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import gc
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "support"), str(TESTS / "server")]
from live_server import command, raw  # noqa: E402
from test_server_load import measured, requests, texts_of  # noqa: E402

import gpt2fast  # noqa: E402

# Resident memory at rest may be a tenth and this much, in bytes, above what it was.
ALLOWANCE = 48 << 20
TEXT = "Once upon a time there was a king's daughter, \u00e9 \u4e16\u754c \U0001f98a and nothing else.\n" * 40
Work = Callable[[], None]


class Soak:
    """What runs, what it has done, and what went wrong."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.troubles: list[str] = []
        self.end = 0.0

    @property
    def going(self) -> bool:
        return time.monotonic() < self.end and not self.troubles

    def run(self, seconds: float, works: dict[str, Work]) -> None:
        """Do each of the works over and over, for so long."""
        self.end = time.monotonic() + seconds

        def over_and_over(name: str, work: Work) -> None:
            while self.going:
                try:
                    work()
                    self.counts[name.rstrip("0123456789 ")] += 1
                except Exception as error:
                    self.troubles.append(f"{name}: {type(error).__name__}: {error}"[:2000])

        threads = [threading.Thread(target=over_and_over, args=item) for item in works.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.troubles:
            sys.exit("\n".join(["soak: trouble", *self.troubles[:5]]))


# The server's clients


def good_client(port: int, todo: list[Any], draw: random.Random) -> None:
    """Ask a few things, each of which must be answered as `lm` does it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    with contextlib.closing(connection):
        for _ in range(5):
            path, fields, right = draw.choice(todo)
            connection.request("POST", path, json.dumps(fields))
            answer = connection.getresponse()
            content = answer.read()
            if answer.status == 429:  # the others have taken all there is
                time.sleep(0.2)
                continue
            assert answer.status == 200, f"{path} {fields}: {answer.status} {content!r}"
            found = texts_of(path, fields, content)
            assert found == right, f"{path} {fields}: {found} is not {right}"


def slow_client(port: int, draw: random.Random) -> None:
    """Read a stream, and a large answer, a few bytes at a time."""
    fields = {"prompt": "A", "max_tokens": 40, "stream": True, "logprobs": 5}
    large = raw("/tokenize", {"text": TEXT * 40})
    for content in (raw("/v1/completions", fields), large):
        content = content.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)  # so that the answer has an end
        with socket.create_connection(("127.0.0.1", port), 60) as connection:
            connection.sendall(content)
            for _ in range(20):
                if not connection.recv(draw.randrange(1, 3000)):
                    break
                time.sleep(0.02)


def leaving_client(port: int, draw: random.Random) -> None:
    """Leave in the middle of sending, of waiting, or of reading."""
    content = raw(
        *draw.choice([("/v1/completions", {"prompt": "A", "n": 4, "stream": True}), ("/score", {"text": TEXT * 9})])
    )
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(content[: draw.choice([20, len(content) - 1, len(content)])])
        time.sleep(draw.random() * 0.1)
        if draw.random() < 0.5:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.recv(100)


def hostile_client(port: int, draw: random.Random) -> None:
    """Send what no server wants."""
    noise = bytes(draw.randrange(256) for _ in range(50))
    bodies = [
        {"ids": [draw.randrange(4096)] * 150_000},
        {"text": "x y " * 200_000},
        {"x" * 1_000_000: 1},
        {"prompt": [1] * 200_000},
        {"text": [[]] * 9_000},
        {"logit_bias": {str(i): 1 for i in range(50_000)}},
    ]
    path = draw.choice(["/tokenize", "/detokenize", "/score", "/v1/completions", "/v1/embeddings", "/nowhere"])
    request = raw(path, draw.choice(bodies))
    place = draw.randrange(len(request))
    content = draw.choice([request, request, noise, request[:place] + noise + request[place:]])
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.settimeout(draw.choice([0.05, 0.5, 5]))
        with contextlib.suppress(OSError):
            connection.sendall(content)
            answer = connection.recv(1 << 16)
            assert not answer.startswith(b"HTTP/1.1 500"), answer


# This process


def changed_inputs(enc: gpt2fast.Tokenizer, draw: random.Random) -> None:
    """Encode what another thread changes: each call gives ids, or an error of ours, and what is left alone is right."""
    content, texts, ids = bytearray(TEXT.encode()), [TEXT[:200]] * 50, [1] * 5000
    right = enc.encode_ordinary(TEXT)
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            with contextlib.suppress(BufferError):  # while it is read
                content.append(draw.randrange(256))
                del content[: draw.randrange(3)]
            texts.append("a")
            del texts[draw.randrange(len(texts))]
            ids[draw.randrange(len(ids))] = draw.randrange(4096)
            ids.append(2)
            ids.pop(draw.randrange(len(ids)))

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(20):
            with contextlib.suppress(gpt2fast.Error):
                enc.encode_ordinary(content)
                enc.count(memoryview(content))
                enc.encode_batch_flat(texts)
                enc.encode_ordinary_batch(texts)
                enc.decode_bytes(ids)
                enc.decode_batch([ids])
            assert enc.encode_ordinary(TEXT) == right
    finally:
        done.set()
        changer.join()


class Models:
    """A model that is loaded, used and dropped."""

    def __init__(self) -> None:
        self.loaded = 0
        self.text = self._text()

    def _text(self) -> str:
        lm = gpt2fast.load("demo", dtype=["float32", "int8", "bfloat16", "int4"][self.loaded % 4])
        text = lm.generate("Once upon a time", max_new_tokens=12, temperature=0).text
        lm.score("The king")
        return text if self.loaded % 4 == 0 else ""

    def load(self) -> None:
        self.loaded += 1
        text = self._text()
        assert text in ("", self.text), text


# Jobs that are killed


class Jobs:
    """A corpus, what comes of it, and jobs that make the same however often they are killed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.inputs = home / "inputs"
        self.inputs.mkdir()
        for i in range(6):
            lines = [json.dumps({"text": TEXT[: 40 * (j % 50)] + str(i * j)}) for j in range(8000)]
            (self.inputs / f"{i}.jsonl").write_text("\n".join(lines))
        self.right = home / "right.npy"
        subprocess.run(self._line(self.right), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _line(self, out: Path) -> list[str]:
        return [sys.executable, "-m", "gpt2fast", "tokenize", str(self.inputs), "-o", str(out), "--eot", "append"]

    def killed(self, draw: random.Random) -> None:
        """Kill it at random, and begin again, until it has ended."""
        out = self.home / "out.npy"
        kills = 0
        while True:
            job = subprocess.Popen(self._line(out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                _, said = job.communicate(timeout=draw.uniform(0.1, 2.5) if kills < 8 else None)
            except subprocess.TimeoutExpired:
                job.send_signal(signal.SIGKILL)
                job.communicate()
                kills += 1
                if out.exists():  # all that was left was to end
                    break
                continue
            assert job.returncode == 0, said
            break
        assert filecmp.cmp(out, self.right, shallow=False), "not the bytes of a job that was not killed"
        for path in self.home.glob("out.*"):  # the job's folder is left where it was killed at the very end
            shutil.rmtree(path) if path.is_dir() else path.unlink()


# What is held


def held(pid: int) -> dict[str, int]:
    """Resident memory, in bytes, descriptors and threads of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "memory": int(status["VmRSS"].split()[0]) << 10,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
    }


def at_rest(port: int, pid: int) -> dict[str, dict[str, int]]:
    """What both processes hold when nothing is asked of them."""
    end = time.monotonic() + 120
    while True:
        figures = measured(port)
        taken = {name: int(figures[f"gpt2fast_{name}"]) for name in ("places_taken", "texts_running", "held_bytes")}
        if not any(taken.values()):
            break
        if time.monotonic() > end:
            sys.exit(f"soak: two minutes after the last client the server still holds {taken}")
        time.sleep(0.2)
    time.sleep(1)  # connections that are closed
    gc.collect()
    return {"server": held(pid), "this process": held(os.getpid())}


def compare(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> list[str]:
    """What is not back where it was."""
    found = []
    for process, held_before in before.items():
        for name, count in held_before.items():
            limit = count * 1.1 + ALLOWANCE if name == "memory" else count
            if after[process][name] > limit:
                found.append(f"{process} holds {after[process][name]:,} of {name}, at first {count:,}")
    return found


@contextlib.contextmanager
def everything(soak: Soak, home: Path) -> Iterator[tuple[int, int, dict[str, Work], Models]]:
    """The server's port and process, and all works."""
    draw, lm = random.Random(1), gpt2fast.load("demo")
    todo, jobs, models = requests(lm), Jobs(home), Models()
    with command("--quiet") as (process, url):
        port = int(url.rpartition(":")[2])
        works: dict[str, Work] = {
            **{f"good client {i}": lambda: good_client(port, todo, draw) for i in range(8)},
            **{f"slow client {i}": lambda: slow_client(port, draw) for i in range(4)},
            **{f"leaving client {i}": lambda: leaving_client(port, draw) for i in range(4)},
            **{f"hostile client {i}": lambda: hostile_client(port, draw) for i in range(4)},
            **{f"changed inputs {i}": lambda: changed_inputs(lm.tokenizer, draw) for i in range(2)},
            "model": models.load,
            "killed job": lambda: jobs.killed(draw),
        }
        yield port, process.pid, works, models
        assert process.poll() is None, "the server died"
        process.terminate()
        assert process.wait(60) == 0, "the server did not end in peace"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    minutes = parser.parse_args().minutes
    soak = Soak()
    with tempfile.TemporaryDirectory() as home, everything(soak, Path(home)) as (port, pid, works, models):
        soak.run(minutes * 60 / 5, works)
        before = at_rest(port, pid)
        soak.run(minutes * 60 * 4 / 5, works)
        while models.loaded < min(200, 40 * minutes):
            models.load()
        after = at_rest(port, pid)
    for name, count in sorted(soak.counts.items()):
        print(f"{count:8,} {name}")
    for process in before:
        for name in before[process]:
            print(f"{process}: {name} {before[process][name]:,} at first, {after[process][name]:,} at the end")
    problems = compare(before, after)
    sys.exit("\n".join(["soak: not back where it was", *problems]) if problems else None)


if __name__ == "__main__":
    main()
