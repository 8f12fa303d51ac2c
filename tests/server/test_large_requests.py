"""Large requests and answers: bounded in what they hold, and nobody else waits for them."""

from __future__ import annotations

import json
import math
import re
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import eventually, live, raw, send

import gpt2fast
from gpt2fast import LanguageModel, Tokenizer
from gpt2fast.scoring import score
from gpt2fast.server import Limits, json_decoder, request_body, service
from gpt2fast.server.parts import Items, Pieces, json_parts
from gpt2fast.server.request_body import LARGE, parse_body
from gpt2fast.server.token_routes import TokenRoutes


def test_the_budget_is_for_all_together(toy: LanguageModel) -> None:
    with live(toy, limits=Limits(memory=150_000, grace=5)) as server:
        budget = server.service.budget
        body = raw("/score", {"text": "x" * 90_000})
        # Bodies count as they arrive.
        with send(server.port, body[:-100]):
            eventually(lambda: budget.taken > 60_000)
            status, headers, content = server.ask("POST", "/tokenize", {"text": "x" * 90_000})
            assert (status, content["error"]["code"], headers["retry-after"]) == (429, "queue_full", "1")
            assert "more are needed" in content["error"]["message"]
            # Small ones go on.
            assert server.post("/tokenize", text="abc")[0] == 200
        eventually(lambda: budget.taken == 0)
        # Whoever is alone may hold more than there is.
        assert server.post("/tokenize", text="x" * 90_000)[1]["count"] == 90_000
        assert budget.taken == 0


def test_answers_count_before_the_work_begins(toy: LanguageModel) -> None:
    with live(toy, limits=Limits(memory=200_000, grace=5)) as server:
        body = raw("/score", {"text": "x" * 60_000})
        with send(server.port, body[:-100]):
            eventually(lambda: server.service.budget.taken > 0)
            asked: Any = {"prompt": [1] * 10, "max_tokens": 50, "n": 8, "logprobs": 5}
            assert server.post("/v1/completions", **asked)[0] == 429
        assert server.engine.inside == 0


def test_a_context_is_not_read_any_number_of_times(toy: LanguageModel) -> None:
    with live(toy) as server:
        status, content = server.post("/score", text=["a"] * 2000, context="x" * 600)
        assert (status, content["error"]["param"]) == (400, "context")
        assert "has 600 characters, to be read before each of 2000 texts" in content["error"]["message"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/score", "/v1/completions", "/v1/embeddings"])
def test_large_bodies_are_parsed_on_other_threads(
    toy: LanguageModel, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads = []

    def noting(body: bytes) -> Any:
        threads.append(threading.current_thread().name.rpartition("_")[0])
        return parse_body(body)

    monkeypatch.setattr(service, "parse_body", noting)
    with live(toy) as server:
        server.post(path, nothing="x" * LARGE)
        server.post(path, nothing="x")
    assert threads[0] == "gpt2fast-help"
    assert threads[1] != "gpt2fast-help"


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2.5, -3e2, "\\u00e9\\n", null, true, {"b": []}]%s}', '{"a": "\\ud83e\\udd4a"%s}']
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "utf-8-sig"])
def test_large_bodies_are_read_as_small_ones(text: str, encoding: str) -> None:
    small, large = text % "", text % (', "c": "' + "x" * LARGE + '"')
    body = parse_body(large.encode(encoding))
    assert body.take("c") == "x" * LARGE
    assert body.take("a") == parse_body(small.encode(encoding)).take("a") == json.loads(small)["a"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f'{{"a": [{",".join(["[]"] * 10_000)}]}}', "more than 10,000 arrays, objects and strings"),
        ("[" * 20_000, "nested too deeply|more than 10,000"),
        ('{"a":' * 9_000, "nested too deeply"),
        ('{"a": NaN, "b": "%s"}' % ("x" * LARGE), "NaN is no JSON number"),
        ('{"a": %s}' % ("9" * LARGE), "digits"),
        ('{"a": "%s"} 1' % ("x" * LARGE), "not valid JSON: Extra data"),
        ('["%s"]' % ("x" * LARGE), "JSON of type array"),
        ('"%s' % ("x" * LARGE), "Unterminated string"),
    ],
)
def test_large_bodies_that_are_no_request(content: str, words: str) -> None:
    with pytest.raises(request_body.ApiError, match=words) as caught:
        parse_body(content.encode())
    assert caught.value.status == 400
    assert len(caught.value.message) <= 500


def test_messages_quote_little(toy: LanguageModel) -> None:
    huge = "max_token" + "x" * 500_000
    with live(toy) as server:
        for fields in (
            {huge: 1},
            {"model": huge},
            {"logit_bias": {huge: 1}},
            {"temperature": huge},
            {"n": huge},
            {"prompt": [huge, 1]},
            {"prompt": [1, huge]},
            {"stop": huge},
            {"top_k": [huge]},
            {"seed": {huge: 1}},
        ):
            status, headers, content = server.ask("POST", "/v1/completions", fields)
            assert status in (400, 404)
            assert int(headers["content-length"]) < 1000, content


NUMBERS = st.lists(
    st.sampled_from(["0", "-1", "2.5", "-3e-2", "1E+5", "12345678901234567890", "1" * 40, "0.1", "[2]", '"3"', "null"])
)
SPACE = st.sampled_from(["", "", "", " ", "\n\t ", " " * 20])


@given(NUMBERS, SPACE, SPACE, st.integers(1, 3))
def test_arrays_of_numbers_are_read_as_any(items: list[str], before: str, after: str, times: int) -> None:
    text = "[" + f"{before},{after}".join(items * 1000 ** (times == 3)) + "]"
    assert json_decoder.decode(text) == json.loads(text)
    for wrong in (text[:-1], text.replace("]", ",]"), text.replace(",", ",,", 1), text.replace("-", "--", 1)):
        try:
            right = json.loads(wrong)
        except ValueError as error:
            with pytest.raises(ValueError, match=re.escape(str(error))):
                json_decoder.decode(wrong)
        else:
            assert json_decoder.decode(wrong) == right


def test_half_a_million_numbers_are_not_read_at_once_nor_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def noting(text: str) -> Any:
        sizes.append(len(text))
        return json.loads(text)

    monkeypatch.setattr(
        json_decoder,
        "json",
        SimpleNamespace(loads=noting, JSONDecoder=json.JSONDecoder, decoder=json.decoder, scanner=json.scanner),
    )
    assert parse_body(b'{"ids":[%s]}' % b",".join([b"7"] * 500_000)).take("ids") == [7] * 500_000
    assert len(sizes) < 500
    assert max(sizes) < 10_000


def test_what_is_summed_over_a_long_text_is_summed_on_other_threads(
    toy: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def noting(values: Any) -> float:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return math.fsum(values)

    monkeypatch.setattr(score, "math", SimpleNamespace(fsum=noting, nan=math.nan))
    with live(toy) as server:
        assert server.post("/score", text=["abc", "d" * 100])[0] == 200
    assert threads == {"gpt2fast-help"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


@given(st.lists(st.lists(JSON, max_size=4), max_size=4), st.lists(st.text(), max_size=4))
def test_parts_make_the_whole(lists: list[list[Any]], strings: list[str]) -> None:
    parts = json_parts(
        {"items": Items(lists), "text": Pieces(strings), "nested": {"again": Items(lists)}, "plain": lists}
    )
    whole = [item for items in lists for item in items]
    expected = {"items": whole, "text": "".join(strings), "nested": {"again": whole}, "plain": lists}
    assert json.loads(b"".join(parts)) == expected


@pytest.fixture(scope="module")
def routes() -> TokenRoutes:
    lm = gpt2fast.load("demo")
    return TokenRoutes(service.Service(lm, "demo", Limits(), speculate=None, template=None, allow_special=False))


@given(text=st.text(max_size=40).flatmap(lambda text: st.integers(1, 40).map(lambda count: text * count)))
def test_texts_in_slices(routes: TokenRoutes, text: str) -> None:
    tokenizer: Tokenizer = routes._tokenizer
    ids = tokenizer.encode(text)
    assert "".join(routes._text(np.array(ids, np.int32))) == text


@given(st.lists(st.integers(0, 4095), max_size=1200))
def test_texts_of_any_ids(routes: TokenRoutes, ids: list[int]) -> None:
    assert "".join(routes._text(np.array(ids, np.int32))) == routes._tokenizer.decode(ids)
