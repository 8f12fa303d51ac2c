"""The description of the addresses is true: of every field and address there is, and of every value that is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import Live, live
from starlette.routing import Route

import gpt2fast
from gpt2fast import LanguageModel
from gpt2fast.server import ChatTemplate, Limits, create_app
from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.chat import parse_chat
from gpt2fast.server.openapi import openapi
from gpt2fast.server.protocol import parse_completion, parse_embedding, parse_scoring
from gpt2fast.server.request_body import RequestBody
from gpt2fast.server.token_routes import parse_detokenize, parse_tokenize

PATHS = openapi()["paths"]
# What is taken and not described, as nobody is to use it.
UNDOCUMENTED = {
    *("tools", "functions", "tool_choice", "function_call", "audio", "modalities", "prediction", "chat_template"),
    *("parallel_tool_calls", "reasoning_effort", "verbosity", "web_search_options"),
}


def fields_of(path: str) -> dict[str, Any]:
    found: dict[str, Any] = PATHS[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    return found


@pytest.fixture(scope="module")
def demo() -> LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def parsers(demo: LanguageModel) -> dict[str, tuple[Callable[[RequestBody], Any], dict[str, Any]]]:
    """For each address what parses its requests, and the fields that it needs."""
    template = ChatTemplate("{{ messages[0].content }}", demo)
    limits = Limits()
    message = [{"role": "user", "content": "a"}]
    return {
        "/v1/completions": (lambda body: parse_completion(body, demo, "demo", limits), {}),
        "/v1/chat/completions": (lambda body: parse_chat(body, demo, "demo", limits, template), {"messages": message}),
        "/v1/embeddings": (lambda body: parse_embedding(body, demo, "demo"), {"input": "a"}),
        "/score": (lambda body: parse_scoring(body, demo, "demo"), {"text": "a"}),
        "/tokenize": (lambda body: parse_tokenize(body, "demo"), {"text": "a"}),
        "/detokenize": (lambda body: parse_detokenize(body, demo, "demo"), {"ids": [1]}),
    }


def test_every_address_is_described(toy: LanguageModel) -> None:
    app = create_app(toy)
    routes = {
        (route.path.replace(":path", ""), method)
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    described = {(path, method.upper()) for path, methods in PATHS.items() for method in methods}
    pages = {("/", "GET"), ("/base.css", "GET"), ("/page.css", "GET"), ("/page.js", "GET")}
    assert {route for route in routes if route[1] != "HEAD"} == described | pages


@pytest.mark.parametrize("path", [path for path in PATHS if "post" in PATHS[path]])
def test_every_field_is_described(parsers: dict[str, Any], path: str) -> None:
    parse, needed = parsers[path]
    body = RequestBody(needed)
    parse(body)
    assert set(body.known) - UNDOCUMENTED == set(fields_of(path))


def plain_values(schema: dict[str, Any]) -> Iterator[Any]:
    """Values at the borders of what a schema of a number, a flag or a choice allows, and the default."""
    yield from (schema[name] for name in ("default", "minimum", "maximum") if name in schema)
    if schema.get("type") == "boolean":
        yield from (False, True)
    yield from schema.get("enum", ())


# What goes with a value, without which it makes no sense.
WITH: dict[str, dict[str, Any]] = {
    "best_of": {"n": 1},
    "top_logprobs": {"logprobs": True},
    "n": {"best_of": None},
}


@pytest.mark.parametrize("path", [path for path in PATHS if "post" in PATHS[path]])
def test_what_is_described_is_taken_and_no_more(parsers: dict[str, Any], path: str) -> None:
    parse, needed = parsers[path]
    for name, schema in fields_of(path).items():
        others = {**needed, **WITH.get(name, {})}
        for value in plain_values(schema):
            if (name, value) in (
                ("max_tokens", 0),
                ("max_completion_tokens", 0),
                ("n_predict", 0),
                ("truncate_prompt_tokens", 0),
            ):
                continue
            if name == "dimensions":
                continue  # one value only, the model's
            try:
                parse(RequestBody({**others, name: value}))
            except ApiError as error:
                raise AssertionError(f"{name} {value}: {error}") from error
        for bound, step in (("minimum", -1), ("maximum", 1)):
            if bound in schema:
                with pytest.raises(ApiError, match=f"^{name} is "):
                    parse(RequestBody({**others, name: schema[bound] + step}))


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema describes, more or less."""
    if "anyOf" in schema:
        return st.one_of([values_of(form) for form in schema["anyOf"]])
    kind = schema.get("type")
    if kind == "array":
        return st.lists(values_of(schema["items"]), max_size=3)
    if kind == "object":
        return st.fixed_dictionaries(
            {}, optional={name: values_of(value) for name, value in schema.get("properties", {}).items()}
        )
    if kind == "integer":
        return st.integers(schema.get("minimum", -5) - 1, min(schema.get("maximum", 40), 40) + 1)
    if kind == "number":
        return st.floats(schema["minimum"] - 1, min(schema["maximum"], 40) + 1, allow_nan=False)
    return st.booleans() if kind == "boolean" else st.none() if kind == "null" else st.text(max_size=5)


@given(data=st.data())
def test_any_body_is_a_request_or_refused(parsers: dict[str, Any], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(parsers)))
    parse, needed = parsers[path]
    fields = {name: values_of(schema) | JSON for name, schema in fields_of(path).items()}
    drawn = data.draw(st.dictionaries(st.sampled_from(sorted(fields)), st.none(), max_size=6))
    body = {**needed, **{name: data.draw(fields[name], label=name) for name in drawn}}
    refusal: ApiError | None = None
    try:
        parse(RequestBody(body))
    except ApiError as error:
        refusal = error
    assert refusal is None or (refusal.status in (400, 404) and refusal.param)


@pytest.fixture(scope="module")
def server(demo: LanguageModel) -> Iterator[Live]:
    with live(demo, chat_template=ChatTemplate("{{ messages[0].content }}", demo)) as running:
        yield running


@given(data=st.data())
def test_no_body_is_an_error_of_the_server(server: Live, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([path for path in PATHS if "post" in PATHS[path]]))
    fields = {name: values_of(schema) | JSON.filter(lambda v: v == v) for name, schema in fields_of(path).items()}
    names = data.draw(st.sets(st.sampled_from(sorted(fields)), max_size=6))
    body = {name: data.draw(fields[name], label=name) for name in names}
    body = {name: value for name, value in body.items() if value not in (float("inf"), -float("inf"))}
    status, _, content = server.ask("POST", path, body)
    assert status in (200, 400, 404, 429), content


class Links(HTMLParser):
    """Everything that a page loads or points to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value or "" for name, value in attrs if name in ("href", "src", "style", "action")]


def test_the_page_tells_all_and_loads_nothing_from_elsewhere(toy: LanguageModel) -> None:
    with live(toy, key="secret") as server:
        status, headers, content = server.ask("GET", "/docs")
        assert (status, headers["content-type"].split(";")[0]) == (200, "text/html")
        assert "default-src 'none'" in headers["content-security-policy"]
        page = Links()
        page.feed(content.decode())
        assert not {"script", "iframe", "img", "style"} & page.tags
        assert set(page.found) <= {"/page.css", "/openapi.json", "/"}
        for path in PATHS:
            assert path in content.decode()
        for name in fields_of("/v1/completions"):
            assert f"<code>{name}</code>" in content.decode()
        status, _, found = server.ask("GET", "/openapi.json")
        assert (status, found) == (200, openapi())
        assert found["openapi"].startswith("3.1")
