"""Several keys, each with its own limits, and what the log tells of requests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from live_server import LONG, command, eventually, gated, live, raw, send

from gpt2fast import InputError, LanguageModel, Tokenizer
from gpt2fast.server import Key, read_keys
from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.keys import KeyRing


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\ufeff# who may ask\n\nsk-one\n  sk-two name=two rate=90 concurrency=3\nschlüssel name=drei\n")
    one, two, three = read_keys(path)
    assert (one.secret, one.rate, one.concurrency) == ("sk-one", None, None)
    assert re.fullmatch("key-[0-9a-f]{8}", one.name)
    assert two == Key("sk-two", "two", 90.0, 3)
    assert (three.secret, three.name) == ("schlüssel", "drei")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no key; expected one a line"),
        (b"# none\n", "has no key"),
        (b"a rate=fast", "line 1: rate is 'fast'; expected a number"),
        (b"a rate=0", "line 1: rate is 0"),
        (b"a rate=nan", "line 1: rate is nan"),
        (b"a concurrency=1.5", "line 1: concurrency is '1.5'"),
        (b"a concurrency=0", "line 1: concurrency is 0; expected 1 or more"),
        (b"b\na color=red", "line 2: 'color=red' is no setting"),
        (b"a b", "line 1: 'b' is no setting"),
        (b"a\nb\na", "line 3: the key is there twice"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_files_that_make_no_sense(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(words)):
        read_keys(path)


def test_a_rate_fills_up_again() -> None:
    now = 0.0
    ring = KeyRing([Key("a", rate=2), Key("b", rate=60)], lambda: now)
    use = ring.find(b"a")
    assert use is not None
    for _ in range(2):
        with use:
            pass
    with pytest.raises(ApiError, match="2 requests a minute; try again in 30 s") as caught, use:
        pass
    assert (caught.value.status, caught.value.all_headers["Retry-After"]) == (429, "30")
    now = 29.9
    with pytest.raises(ApiError), use:
        pass
    now = 31.0
    with use:
        pass
    # As many as fit in a minute at most, however long nobody asked.
    now = 10_000.0
    for _ in range(2):
        with use:
            pass
    with pytest.raises(ApiError), use:
        pass
    other = ring.find(b"b")
    assert other is not None
    with other:
        pass
    assert ring.find(b"c") is None


def test_limits_of_keys(tokenizer: Tokenizer) -> None:
    keys = [Key("one", "first", concurrency=1), Key("two", rate=1.5), Key("straße")]
    with gated(tokenizer, keys=keys) as (server, gate, _):

        def ask(secret: str) -> tuple[int, str | None, object]:
            encoded = secret.encode().decode("latin-1")
            status, headers, content = server.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {encoded}"})
            return status, headers.get("retry-after"), content

        request = raw("/v1/completions", LONG).replace(b"\r\n", b"\r\nAuthorization: Bearer one\r\n", 1)
        with send(server.port, request):
            eventually(lambda: server.engine.inside == 1)
            status, after, content = ask("one")
            assert (status, after) == (429, "1")
            assert "rate_limit_exceeded" in str(content)
            assert ask("straße")[0] == 200
            assert [ask("two")[0] for _ in range(2)] == [200, 429]
            assert ask("three")[0] == 401
        # Whoever leaves gives up what his key allows.
        eventually(lambda: ask("one")[0] == 200)
        gate.opened.set()


def test_the_log_in_json(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret-1 name=alice\n")
    with command("--log-json", "--api-keys", str(keys)) as (process, url):
        import http.client

        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        headers = {"Authorization": "Bearer secret-1"}
        for path, body, given in (
            ("/v1/completions", {"prompt": "Once upon", "max_tokens": 3, "ignore_eos": True}, headers),
            ("/tokenize", {"text": "private words"}, headers),
            ('/no"thing\u2028'.encode().decode("latin-1").replace("\u2028", ""), {}, {}),
        ):
            connection.request("POST", path.split("\u00e2")[0], json.dumps(body), given)
            connection.getresponse().read()
        connection.close()
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    lines = [json.loads(line) for line in log.splitlines()]
    assert [(line["path"], line["status"], line["key"]) for line in lines] == [
        ("/v1/completions", 200, "alice"),
        ("/tokenize", 200, "alice"),
        ('/no"thing', 401, None),
    ]
    assert (lines[0]["prompt_tokens"], lines[0]["completion_tokens"], lines[0]["client"]) == (2, 3, "127.0.0.1")
    assert all(line["method"] == "POST" and line["seconds"] > 0 and line["level"] == "info" for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", line["time"]) for line in lines)
    assert "secret-1" not in log
    assert "private" not in log


def test_all_hosts_or_none(toy: LanguageModel) -> None:
    with live(toy, hosts=["*"]) as server:
        assert server.ask("GET", "/v1/models", headers={"Host": "any.example"})[0] == 200
