"""Requests that make no sense: what the server refuses, with which status and in which words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import Live, live

from gpt2fast import LanguageModel
from gpt2fast.server import Limits
from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.protocol import parse_completion
from gpt2fast.server.request_body import RequestBody


@pytest.fixture(scope="module")
def server(toy: LanguageModel) -> Iterator[Live]:
    with live(toy, limits=Limits(rows=2, queue=3, grace=5)) as running:
        yield running


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": 1}, "prompt", "prompt is of type number; expected a string, an array of strings"),
        ({"prompt": []}, "prompt", "prompt is an empty array"),
        ({"prompt": ["a", 1]}, "prompt", "prompt[1] is of type number; expected a string"),
        ({"prompt": [1, "a"]}, "prompt", "prompt[1] is 'a'; expected a token id"),
        ({"prompt": [[1], [True]]}, "prompt", "prompt[1][0] is True; expected a token id"),
        ({"prompt": [270]}, "prompt", "prompt[0] is 270; expected a token id from 0 to 269"),
        ({"prompt": "\ud800x"}, "prompt", "prompt has a lone surrogate at 0"),
        ({"prompt": [1] * 64, "max_tokens": 2}, "prompt", "takes a context of 65; the model's limit is 64"),
        ({"prompt": ["a", [1]]}, "prompt", "prompt[1] is of type array; expected a string"),
        ({"prompt": ["a"] * 6}, "prompt", "prompt is an array of 6; expected 5 or less"),
        ({"n": 6}, "n", "1 prompts and n 6 are more texts than the 5 taken on"),
        ({"n": 0}, "n", "n is 0; expected 1 or more"),
        ({"n": 1.0}, "n", "n is 1.0; expected a whole number"),
        ({"n": 10**30}, "n", "expected 128 or less"),
        ({"n": 2, "best_of": 1}, "best_of", "best_of is 1; expected at least n, which is 2"),
        ({"best_of": 2, "stream": True}, "best_of", "best_of above n is not for streams"),
        ({"best_of": 6}, "n", "1 prompts and best_of 6 are more texts than the 5 taken on"),
        ({"suffix": "x"}, "suffix", "suffix is not supported"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, and echo is not asked for"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens is -1; expected 0 or more"),
        ({"max_tokens": 10**9}, "prompt", "the model's limit is 64"),
        ({"temperature": -0.1}, "temperature", "temperature is -0.1; expected a finite number from 0"),
        ({"temperature": "hot"}, "temperature", "temperature is 'hot'; expected a number"),
        ({"temperature": True}, "temperature", "temperature is True"),
        ({"top_p": 1.5}, "top_p", "top_p is 1.5; expected a finite number from 0 to 1"),
        ({"top_k": -2}, "top_k", "top_k is -2; expected -1 or more"),
        ({"presence_penalty": 3}, "presence_penalty", "from -2 to 2"),
        ({"frequency_penalty": 10**400}, "frequency_penalty", "from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty is 0"),
        ({"seed": -2}, "seed", "seed is -2; expected -1 or more"),
        ({"seed": 2**64}, "seed", "seed is a number of 20 digits; expected 18446744073709551615 or less"),
        ({"logprobs": 6}, "logprobs", "logprobs is 6; expected 5 or less"),
        ({"logprobs": True}, "logprobs", "logprobs is True; expected a whole number"),
        ({"logit_bias": {"270": 1}}, "logit_bias", "logit_bias has '270'; expected token ids under 270"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "logit_bias has 'a'"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "from -100 to 100"),
        ({"logit_bias": [1]}, "logit_bias", "logit_bias is of type array"),
        ({"stop": ""}, "stop", "stop has a string of 0 characters"),
        ({"stop": [1]}, "stop", "stop is of type number"),
        ({"stop": ["a"] * 17}, "stop", "stop has 17 strings"),
        ({"stop": "a" * 257}, "stop", "stop has a string of 257 characters"),
        ({"stream": "yes"}, "stream", "stream is of type string; expected true or false"),
        ({"stream_options": {}}, "stream_options", "stream_options is only for stream true"),
        ({"stream": True, "stream_options": {"usage": True}}, "usage", "there is no field 'usage' here"),
        ({"echo": 1}, "echo", "echo is of type number"),
        ({"max_token": 1}, "max_token", "there is no field 'max_token' here; did you mean max_tokens?"),
        ({"messages": []}, "messages", "there is no field 'messages' here"),
        ({"model": 1}, "model", "model is of type number"),
    ],
)
def test_fields_that_make_no_sense(server: Live, fields: dict[str, Any], param: str, words: str) -> None:
    status, content = server.post("/v1/completions", **fields)
    assert status == 400
    assert words in content["error"]["message"]
    assert (content["error"]["param"], content["error"]["type"]) == (param, "invalid_request_error")


def test_fields_that_change_nothing_are_ignored(server: Live) -> None:
    extras = {"user": "x", "metadata": {}, "best_of": 1, "suffix": None, "stop": None, "logit_bias": None, "n": None}
    assert server.complete([1], seed=1, **extras)["choices"] == server.complete([1], seed=1)["choices"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "JSON of type array; expected an object"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"temperature": NaN}', "NaN is no JSON number"),
        (b'{"temperature": -Infinity}', "Infinity is no JSON number"),
        (b'{"temperature": 1e999}', "temperature is inf; expected a finite number"),
        (b'{"user": ' + b"[" * 1900, "JSON"),
        (b'{"seed": ' + b"9" * 1900 + b', "n": 0}', "n is 0"),
        (b'{"' + b"a" * 1900 + b'": 1}', "there is no field 'aaa"),
        (b'{"\\ud800": 1}', "there is no field"),
    ],
)
def test_bodies_that_are_no_request(server: Live, body: bytes, words: str) -> None:
    status, _, content = server.ask("POST", "/v1/completions", body)
    assert (status, words in content["error"]["message"]) == (400, True), content
    assert len(content["error"]["message"]) <= 500


@pytest.mark.parametrize("body", [b"[" * 500_000, b'{"a":' * 200_000, b'{"seed": ' + b"9" * 900_000 + b"}"])
def test_large_bodies_that_are_no_request(toy: LanguageModel, body: bytes) -> None:
    with live(toy) as server:
        assert server.ask("POST", "/v1/completions", body)[0] == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = ["model", "prompt", "n", "best_of", "suffix", "echo", "max_tokens", "stream", "stream_options", "logprobs"]
NAMES += ["temperature", "top_k", "top_p", "seed", "stop", "logit_bias", "presence_penalty", "user"]


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_any_json_is_a_request_or_refused(toy: LanguageModel, values: dict[str, Any]) -> None:
    refusal: ApiError | None = None
    try:
        asked = parse_completion(RequestBody(values), toy, "demo", Limits())
    except ApiError as error:
        refusal = error
    else:
        assert asked.prompts
    assert refusal is None or (refusal.status in (400, 404) and refusal.param)


def test_addresses_and_methods(server: Live) -> None:
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/completions/", 405),
        ("POST", "/", 405),
        ("GET", "/score", 405),
        ("DELETE", "/v1/models", 405),
        ("PUT", "/health", 405),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/page.html", 404),
    ):
        found, headers, content = server.ask(method, path)
        assert (found, headers["content-type"]) == (status, "application/json"), path
        assert content["error"]["message"]
        assert ("allow" in headers) == (status == 405)
    for path in ("/tokenize", "/detokenize", "/score"):
        status, content = server.post(path)
        assert (status, "missing" in content["error"]["message"] or "null" in content["error"]["message"]) == (
            400,
            True,
        )
        assert server.post(path, text="a", ids=[1], sense="none")[0] == 400
