"""What a text is to be like, in the words of OpenAI's clients, vLLM's, SGLang's and llama.cpp's."""

from __future__ import annotations

from typing import Any

from gpt2fast.generation.grammar import GrammarLimits
from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.request_body import RequestBody, checked_text, shown, wrong_type

__all__ = ["LIMITS", "parse_grammar"]

#: What a request's grammar may take: reading the largest takes some tenths of a second.
LIMITS = GrammarLimits(
    source=1 << 16,
    symbols=100_000,
    conversion=4_000_000,
    reading=500_000,
    lexing=100_000,
    parsing=20_000,
    states=50_000,
)
_MOST_CHOICES, _LONGEST_CHOICE = 1024, 1024

#: The fields whose value is the source itself, and the setting that takes it.
_PLAIN = {
    "guided_regex": "regex",
    "regex": "regex",  # SGLang's
    "guided_grammar": "grammar",
    "grammar": "grammar",  # llama.cpp's
    "ebnf": "grammar",  # SGLang's
    "guided_json": "json_schema",
    "json_schema": "json_schema",  # llama.cpp's, SGLang's
    "guided_choice": "choices",
}
#: The fields of vLLM's `structured_outputs`.
_STRUCTURED = {"regex": "regex", "grammar": "grammar", "json": "json_schema", "choice": "choices"}
# Who compiles grammars there, and how white space may be: here as json.dumps writes it.
_IGNORED = ("guided_decoding_backend", "guided_whitespace_pattern")
_IGNORED_INSIDE = ("backend", "disable_any_whitespace", "disable_fallback", "whitespace_pattern")


def parse_grammar(body: RequestBody) -> dict[str, Any]:
    """The setting, by its name, that says what the text is like; {} where nothing does.

    Raises an ApiError that names the field, also where several fields say something.
    """
    given: dict[str, tuple[str, Any]] = {}
    for field, setting in _PLAIN.items():
        value = body.take(field)
        if value not in (None, "", [], {}):
            given[field] = setting, _checked(field, setting, value)
    for field in _IGNORED:
        body.take(field)
    format = body.take("response_format")
    if format is not None and (found := _response_format(format)):
        given["response_format"] = found
    outputs = body.take("structured_outputs")
    if outputs is not None and (found := _structured_outputs(outputs)):
        given["structured_outputs"] = found
    if len(given) > 1:
        first, second, *_ = given
        raise ApiError(f"{first} and {second} were given; expected one of them", param=second)
    return dict(given.values())


def _response_format(value: Any) -> tuple[str, Any] | None:
    """OpenAI's: text, any JSON object, or what a schema describes."""
    name = "response_format"
    if not isinstance(value, dict):
        raise wrong_type(name, value, "an object")
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":  # with llama.cpp's clients it may have a schema
        return "json_schema", _checked(f"{name}.schema", "json_schema", value.get("schema") or {"type": "object"})
    if kind == "json_schema":
        inside = value.get("json_schema")
        if not isinstance(inside, dict):
            raise wrong_type(f"{name}.json_schema", inside, "an object with a schema")
        schema = inside.get("schema", value.get("schema"))
        return "json_schema", _checked(f"{name}.json_schema.schema", "json_schema", schema)
    raise ApiError(
        f"{name}.type is {shown(kind)}; expected 'text', 'json_object' or 'json_schema'", param=f"{name}.type"
    )


def _structured_outputs(value: Any) -> tuple[str, Any] | None:
    """vLLM's."""
    name = "structured_outputs"
    if not isinstance(value, dict):
        raise wrong_type(name, value, "an object")
    inside = RequestBody(dict(value))
    given = []
    for field, setting in _STRUCTURED.items():
        source = inside.take(field)
        if source not in (None, "", [], {}):
            given.append((setting, _checked(f"{name}.{field}", setting, source)))
    if inside.flag("json_object"):
        given.append(("json_schema", {"type": "object"}))
    for field in _IGNORED_INSIDE:
        inside.take(field)
    inside.end()
    if len(given) > 1:
        raise ApiError(f"{name} has {len(given)} of regex, grammar, json and choice; expected one", param=name)
    return given[0] if given else None


def _checked(field: str, setting: str, value: Any) -> Any:
    """`value` where it is of the type that the setting takes."""
    if setting == "json_schema":
        if not isinstance(value, (dict, str)):
            raise wrong_type(field, value, "a JSON schema")
        return value
    if setting == "choices":
        if not isinstance(value, list):
            raise wrong_type(field, value, "an array of texts")
        if len(value) > _MOST_CHOICES:
            raise ApiError(f"{field} has {len(value)} texts; expected {_MOST_CHOICES} or less", param=field)
        for i, choice in enumerate(value):
            if len(checked_text(f"{field}[{i}]", choice)) > _LONGEST_CHOICE:
                raise ApiError(
                    f"{field}[{i}] has {len(choice)} characters; expected {_LONGEST_CHOICE} or less", param=field
                )
        return value
    return checked_text(field, value)
