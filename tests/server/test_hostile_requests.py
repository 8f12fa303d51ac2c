"""Bodies that are no sensible request: each is answered, in the documented form, and leaves nothing behind.

`tests/tools/fuzz_server.py` fuzzes what is drawn here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tiny_model import tiny_model

from gpt2fast.server import ChatTemplate, Limits, create_app
from gpt2fast.server.openapi import openapi

PATHS = {
    path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    for path, methods in openapi()["paths"].items()
    if "post" in methods
}
STATUSES = {"400", "404", "408", "413", "429", "503", "504"}  # of those that /openapi.json has: no 500 among them
# Seconds in which any of these small requests is answered, on whatever machine.
PATIENCE = 60

TEXTS = ["", "a", "a king", " ", "\u00e9\u4e16\U0001f94a", "\ud800", "\0", "<|endoftext|>", "x" * 200, "model", "text"]
NUMBERS = [
    0,
    1,
    2,
    3,
    5,
    7,
    16,
    64,
    128,
    129,
    4095,
    4096,
    -1,
    -2,
    2**31,
    2**63 - 1,
    2**64,
    10**30,
    0.5,
    -0.0,
    1e-9,
    1e308,
]


def values() -> some.SearchStrategy[Any]:
    """Any JSON, most of it of the kinds that a field here may have."""
    leaves = some.one_of(
        some.sampled_from(TEXTS), some.sampled_from(NUMBERS), some.booleans(), some.none(), some.text(max_size=8)
    )
    ids = some.lists(some.integers(-1, 4100), max_size=20)
    names = some.sampled_from(["role", "content", "user", "type", "text", "1", "4095", "4096", "include_usage"])
    return some.recursive(
        some.one_of(leaves, ids),
        lambda inner: some.one_of(
            some.lists(inner, max_size=4),
            some.dictionaries(some.one_of(names, some.text(max_size=4)), inner, max_size=4),
        ),
        max_leaves=8,
    )


def fitting(schema: Any) -> some.SearchStrategy[Any]:
    """Values of the schema, so that other fields' are looked at, too."""
    if "anyOf" in schema:
        return some.one_of(*map(fitting, schema["anyOf"]))
    if "enum" in schema:
        return some.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return some.lists(fitting(schema["items"]), max_size=3)
    if kind == "string":
        return some.sampled_from(["a", "a king", "Once upon"])
    if kind == "boolean":
        return some.booleans()
    if kind in ("integer", "number"):
        least, most = schema.get("minimum", 0), min(schema.get("maximum", 5), 5)
        return some.integers(int(least), int(most)) if kind == "integer" else some.floats(least, most)
    return values()


@some.composite
def requests(draw: Any) -> tuple[str, bytes]:
    """A path and a body: fields that may fit, with some changed, others added, and the bytes damaged."""
    path = draw(some.sampled_from(sorted(PATHS)))
    fields = PATHS[path]
    chosen = draw(some.lists(some.sampled_from(sorted(fields)), max_size=6, unique=True))
    body = {name: draw(fitting(fields[name])) for name in chosen}
    for name in draw(some.lists(some.sampled_from(sorted(fields)), max_size=2)):
        body[name] = draw(values())
    if draw(some.integers(0, 9)) == 0:
        body[draw(some.text(max_size=5))] = draw(values())
    if body.pop("model", None) is not None and draw(some.integers(0, 3)) == 0:
        body["model"] = draw(some.sampled_from(TEXTS))
    content = json.dumps(body, ensure_ascii=draw(some.booleans()))
    raw = content.encode(draw(some.sampled_from(["utf-8"] * 6 + ["utf-16", "utf-32-le"])), "surrogatepass")
    for _ in range(max(draw(some.integers(-6, 2)), 0)):
        start = draw(some.integers(0, len(raw)))
        raw = raw[:start] + draw(some.binary(max_size=4)) + raw[start + draw(some.integers(0, 4)) :]
    # Beyond 16 kB bodies take another way.
    return path, raw + b" " * draw(some.sampled_from([0, 0, 0, 17_000]))


class Attempts:
    """An app, and an event loop that runs one request after the other."""

    def __init__(self) -> None:
        lm = tiny_model(n_ctx=32)
        template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", lm)
        self.app = create_app(lm, limits=Limits(timeout=PATIENCE), chat_template=template)
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self.app.state.engine.start()

    def close(self) -> None:
        self._loop.run_until_complete(self.app.state.service.stop())
        self._loop.close()

    def attempt(self, path: str, body: bytes) -> int:
        """The status of the answer, which is in the documented form."""
        status, media_type, content = self._loop.run_until_complete(asyncio.wait_for(self._ask(path, body), PATIENCE))
        assert self.app.state.engine.inside == 0
        assert self.app.state.service.budget.taken == 0
        if media_type == "text/event-stream; charset=utf-8":
            *events, nothing = content.split(b"\n\n")
            assert nothing == b""
            assert status == 200
            assert events.pop() == b"data: [DONE]"
            for event in events:
                assert "error" not in value(event.removeprefix(b"data: "))
        elif status == 200:
            assert media_type == "application/json"
            assert isinstance(value(content), dict)
        else:
            check_error(status, value(content))
        return status

    async def _ask(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        sent: list[Any] = []
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            for message in messages:
                return message
            return await asyncio.get_running_loop().create_future()  # the client waits

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
        }
        await self.app(scope, receive, send)
        headers = dict(sent[0]["headers"])
        return sent[0]["status"], headers[b"content-type"].decode(), b"".join(part["body"] for part in sent[1:])


def value(content: bytes) -> Any:
    """The value of an answer's JSON, of which all is JSON."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(name)

    return json.loads(content, parse_constant=refuse)


def check_error(status: int, body: Any) -> None:
    """An error as /openapi.json describes it."""
    assert str(status) in STATUSES, body
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert 0 < len(body["error"]["message"]) <= 500
    assert isinstance(body["error"]["type"], str)
    assert all(isinstance(body["error"][name], str | None) for name in ("param", "code"))


@pytest.fixture(scope="module")
def attempts() -> Iterator[Attempts]:
    attempts = Attempts()
    yield attempts
    attempts.close()


@given(request=requests())
def test_any_body_is_answered_in_the_documented_form(attempts: Attempts, request: tuple[str, bytes]) -> None:
    attempts.attempt(*request)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/v1/embeddings", {"input": "a"}),
        ("/score", {"text": "a"}),
        ("/tokenize", {"text": "a"}),
        ("/detokenize", {"ids": [1]}),
    ],
)
def test_what_is_sensible_is_answered(attempts: Attempts, path: str, fields: Any) -> None:
    assert attempts.attempt(path, json.dumps(fields).encode()) == 200
