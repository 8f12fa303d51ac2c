"""What a text is to be like, asked for in the words of several clients; hostile grammars keep nobody waiting."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from live_server import Live, live

import gpt2fast

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LETTERS = 'root ::= [a-c] [a-c] "!"'


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def server(lm: gpt2fast.LanguageModel) -> Iterator[Live]:
    with live(lm) as running:
        yield running


def text(server: Live, **fields: Any) -> str:
    status, content = server.post("/v1/completions", prompt="It is ", max_tokens=60, seed=2, **fields)
    assert status == 200, content
    assert content["choices"][0]["finish_reason"] == "stop"
    return str(content["choices"][0]["text"])


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"guided_json": SCHEMA, "guided_decoding_backend": "xgrammar"},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": SCHEMA},
        {"structured_outputs": {"json": SCHEMA, "disable_fallback": True}},
    ],
)
def test_json(server: Live, lm: gpt2fast.LanguageModel, fields: dict[str, Any]) -> None:
    found = text(server, **fields)
    assert json.loads(found).keys() == {"name", "age"}
    expected = lm.generate("It is ", json_schema=SCHEMA, max_new_tokens=60, seed=2, temperature=1, top_k=0)
    assert found == expected.text


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"choice": ["yes", "no"]}, "guided_json": None}, "yes|no"),
        ({"grammar": LETTERS}, "[abc]{2}!"),
        ({"ebnf": LETTERS}, "[abc]{2}!"),
        ({"guided_grammar": LETTERS, "json_schema": {}}, "[abc]{2}!"),
    ],
)
def test_other_grammars(server: Live, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, text(server, **fields))


def test_any_json_object(server: Live) -> None:
    fields = {"response_format": {"type": "json_object"}, "temperature": 0}
    status, content = server.post("/v1/completions", prompt="{", max_tokens=100, **fields)
    assert status == 200
    (choice,) = content["choices"]
    assert choice["text"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["text"]), dict)


def test_openais_client(server: Live) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is needed", max_retries=0) as client:
        parts = client.completions.create(
            model="demo", prompt="It is ", max_tokens=60, stream=True, extra_body={"response_format": format}
        )
        assert json.loads("".join(part.choices[0].text for part in parts)).keys() == {"name", "age"}


def test_openais_client_parses_chats(lm: gpt2fast.LanguageModel) -> None:
    pydantic = pytest.importorskip("pydantic")
    pytest.importorskip("jinja2")
    from gpt2fast.server.chat import ChatTemplate

    name = pydantic.Field(max_length=6)
    age = pydantic.Field(ge=0, le=99)
    person = pydantic.create_model("Person", name=(str, name), age=(int, age))
    template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:", lm)
    with (
        live(lm, chat_template=template) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is needed", max_retries=0) as client,
    ):
        found = client.chat.completions.parse(
            model="demo",
            messages=[{"role": "user", "content": "Who was it?"}],
            response_format=person,
            max_tokens=60,
            seed=1,
        )
    parsed = found.choices[0].message.parsed
    assert isinstance(parsed, person)
    assert 0 <= parsed.model_dump()["age"] <= 99


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type is 'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": {"type": "nonsense"}}, "json_schema is not acceptable"),
        ({"guided_json": "{"}, "json_schema is not valid JSON"),
        ({"guided_regex": "("}, "regex is not acceptable"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": "ab"}, "guided_choice"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice has 1025 texts"),
        ({"guided_choice": ["a", 5]}, r"guided_choice\[1\]"),
        ({"guided_regex": "a", "guided_json": SCHEMA}, "guided_regex and guided_json were given"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs has 2"),
        ({"structured_outputs": {"nonsense": 1}}, "nonsense"),
        ({"guided_regex": "a" * 70_000}, "regex has 70000 characters; expected 65536 or less"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos is set"),
    ],
)
def test_what_is_refused(server: Live, fields: dict[str, Any], message: str) -> None:
    status, content = server.post("/v1/completions", prompt="a", max_tokens=2, **fields)
    assert status == 400, content
    assert re.search(message, content["error"]["message"]), content


def test_hostile_grammars_are_answered_and_keep_nobody_waiting(server: Live) -> None:
    hostile: list[dict[str, Any]] = [
        {"guided_regex": "((a{1,50}){1,50}){1,50}"},
        {"guided_regex": "(a|b)*" * 3000 + "c"},
        {"guided_json": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
        {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1500)}}},
        {"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000},
        {"guided_choice": [f"choice {i}" for i in range(1024)]},
        {"grammar": "\n" * 65_000 + 'root ::= "a"'},
        {"grammar": "root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(2500)) + '\nr2500 ::= "x"'},
    ]
    statuses: list[int] = []

    def ask(fields: dict[str, Any]) -> None:
        statuses.append(server.post("/v1/completions", prompt="a", max_tokens=4, **fields)[0])

    threads = [threading.Thread(target=ask, args=(fields,)) for fields in hostile * 2]
    for thread in threads:
        thread.start()
    for _ in range(10):
        assert server.ask("GET", "/health")[0] == 200
    for thread in threads:
        thread.join()
    assert len(statuses) == 16
    assert set(statuses) <= {200, 400}


def test_without_the_package(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    status, content = server.post("/v1/completions", prompt="a", max_tokens=2, guided_regex="a")
    assert status == 400
    assert "pip install 'gpt2fast[grammar]'" in content["error"]["message"]
