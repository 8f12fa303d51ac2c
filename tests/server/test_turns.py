"""What many send at once reaches the event loop bit by bit, so that it passes on everybody's tokens in between."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from live_server import eventually, live, raw, send

from gpt2fast import LanguageModel
from gpt2fast.server import Key, connections, create_app, parts, service, turns
from gpt2fast.server.helpers import Helpers, client_of
from gpt2fast.server.parts import Items, JsonInParts
from gpt2fast.server.request_body import LARGE, RequestBody, parse_body
from gpt2fast.server.turns import Share, Turns


class Rounds:
    """Counts how often the event loop has gone round."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.count += 1
        self._loop.call_soon(self._next)


def run(work: Callable[[Rounds], Coroutine[Any, Any, None]]) -> None:
    async def counted() -> None:
        await asyncio.wait_for(work(Rounds()), 60)

    asyncio.run(counted())


def test_one_turn_each_time_in_order_and_nobody_else_waits() -> None:
    async def work(rounds: Rounds) -> None:
        turns, order, when = Turns(), [], []

        async def one(number: int) -> None:
            await turns.next()
            order.append(number)
            when.append(rounds.count)

        tasks = [asyncio.ensure_future(one(i)) for i in range(50)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(order) <= 11, "who takes no turns does not wait for those who do"
        tasks[30].cancel()
        await asyncio.wait(tasks)
        assert order == [i for i in range(50) if i != 30]
        assert len(set(when)) == len(when)

    run(work)


def test_requests_begin_and_are_parsed_one_after_the_other(toy: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(rounds: Rounds) -> None:
        when: list[int] = []

        def noting(body: bytes) -> RequestBody:
            when.append(rounds.count)
            return parse_body(body)

        monkeypatch.setattr(service, "parse_body", noting)
        app = create_app(toy)

        async def ask() -> None:
            sent = []
            body = [{"type": "http.request", "body": b'{"text": "abc"}', "more_body": False}]

            async def receive() -> Any:
                return body.pop() if body else await asyncio.Event().wait()

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {"type": "http", "method": "POST", "path": "/tokenize", "raw_path": b"/tokenize", "headers": []}
            await app({**scope, "query_string": b"", "client": None}, receive, send)
            assert sent[0]["status"] == 200

        await asyncio.gather(*(ask() for _ in range(30)))
        assert len(when) == 30
        assert len(set(when)) == 30

    run(work)


def test_parts_of_all_answers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_WORK", 0)

    async def work(rounds: Rounds) -> None:
        when: list[int] = []
        scope = {"turns": Turns()}

        def lists() -> Iterator[list[int]]:
            for i in range(20):
                when.append(rounds.count)
                yield [i]

        async def answer() -> bytes:
            sent = bytearray()

            async def receive() -> Any:
                await asyncio.Event().wait()

            async def send(message: Any) -> None:
                sent.extend(message.get("body", b""))

            await JsonInParts({"ids": Items(lists())})(scope, receive, send)
            return bytes(sent)

        answers = await asyncio.gather(*(answer() for _ in range(10)))
        assert all(json.loads(found) == {"ids": list(range(20))} for found in answers)
        assert len(set(when)) == len(when) == 200

    run(work)


def test_connections_share_the_time_for_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9))
    monkeypatch.setattr(turns.time, "thread_time", lambda: next(clock) / 1000)  # each look at it is a millisecond

    async def work(rounds: Rounds) -> None:
        share = Share(0.01)
        events: list[int] = []
        ended: list[int] = []
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

        class Client:
            def __init__(self) -> None:
                self.parser = connections._Shared(share, self.later)
                self.parser.receive_data(head + b"1\r\nx\r\n" * 100 + b"0\r\n\r\n")
                self.done = False
                self.go_on()

            def later(self) -> None:
                share.later(self.go_on)

            def go_on(self) -> None:
                while (event := self.parser.next_event()) is not connections.h11.NEED_DATA:
                    events.append(rounds.count)
                    if type(event) is connections.h11.EndOfMessage:
                        self.done = True
                        ended.append(rounds.count)
                        return

        clients = [Client() for _ in range(5)]
        while not all(client.done for client in clients):
            await asyncio.sleep(0)
        assert len(events) == 5 * 102
        assert max(events.count(count) for count in set(events)) <= 20  # a share may begin in between
        assert max(ended) - min(ended) <= 12, "who came first did not keep the others waiting"

    run(work)


# Threads that help


def test_no_client_has_more_than_one_helper(toy: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = [], threading.Event()

    def slow(body: bytes) -> RequestBody:
        if b"slow" in body:
            begun.append(body)
            assert go_on.wait(60)
        return parse_body(body)

    monkeypatch.setattr(service, "parse_body", slow)
    with live(toy, keys=[Key("one", "one"), Key("other", "other")]) as server:

        def large(text: str, key: str) -> bytes:
            request = raw("/tokenize", {"text": text + " " * LARGE})
            return request.replace(b"\r\n", f"\r\nAuthorization: Bearer {key}\r\n".encode(), 1)

        try:
            waiting = [send(server.port, large("slow", "one")) for _ in range(4)]
            eventually(lambda: len(begun) == 1)
            with send(server.port, large("quick", "other")) as connection:
                assert connection.recv(15) == b"HTTP/1.1 200 OK"
            # What was not begun when its client left never is.
            for connection in waiting:
                connection.close()
            eventually(lambda: server.service.budget.taken == 0)
        finally:
            go_on.set()
        with send(server.port, large("quick", "one")) as connection:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert len(begun) == 1


def test_helpers_end_what_they_have_begun_before_the_client_has_another() -> None:
    helpers, running, most = Helpers(4), 0, 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.002)
        running -= 1

    async def ask() -> None:
        tasks = [asyncio.ensure_future(helpers.run("client", work)) for _ in range(20)]
        await asyncio.sleep(0.005)
        for task in tasks[::3]:  # whoever leaves does not make room for the next as long as the work goes on
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(ask())
    helpers.stop()
    assert most == 1


def test_what_a_helper_raises_comes_back_and_the_next_may_begin() -> None:
    helpers = Helpers(1)

    def fail() -> None:
        raise KeyError("x")

    async def ask() -> str:
        with pytest.raises(KeyError):
            await helpers.run("client", fail)
        return await helpers.run("client", lambda: "done")

    assert asyncio.run(ask()) == "done"
    helpers.stop()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),  # whoever has one address of these has 2**64
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_who_a_client_is(one: str, other: str, same: bool) -> None:
    found = [client_of({"client": (host, 1)}) for host in (one, other)]
    assert (found[0] == found[1]) is same
    assert client_of({"client": (one, 1), "key": "a"}) != found[0]
    assert client_of({}) == client_of({"client": None})
