"""GET /openapi.json and /docs: what the addresses take, for programs and for people.

Written by hand; a test holds it against what the requests' parsers ask for, so that no field is missing or made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any

__all__ = ["docs_page", "openapi"]

Schema = dict[str, Any]


def _whole(about: str, default: int | None = None, least: int | None = 0, most: int | None = None) -> Schema:
    return _number("integer", about, default, least, most)


def _real(about: str, default: float, least: float, most: float) -> Schema:
    return _number("number", about, default, least, most)


def _number(kind: str, about: str, default: float | None, least: float | None, most: float | None) -> Schema:
    bounds = {"default": default, "minimum": least, "maximum": most}
    return {"type": kind, "description": about, **{name: value for name, value in bounds.items() if value is not None}}


def _flag(about: str, default: bool = False) -> Schema:
    return {"type": "boolean", "description": about, "default": default}


def _text(about: str) -> Schema:
    return {"type": "string", "description": about}


def _array(items: Schema, about: str = "", most: int | None = None) -> Schema:
    return {"type": "array", "items": items, "description": about, **({} if most is None else {"maxItems": most})}


_ID: Schema = {"type": "integer", "minimum": 0}
_IDS = _array(_ID)


def _prompts(about: str) -> Schema:
    forms = [{"type": "string"}, _array({"type": "string"}), _IDS, _array(_IDS)]
    return {"description": about, "anyOf": forms}


_MODEL = {"model": _text("the name of the model, as /v1/models tells it; may be left out")}
_SPECIAL = {"allow_special": _flag("special tokens in texts are tokens (default: as the server was started)")}

_SAMPLING: dict[str, Schema] = {
    "temperature": _real("logits are divided by it; 0 is greedy", 1, 0, 1e6),
    "do_sample": _flag("false is temperature 0", True),
    "top_k": _whole("keep the k likeliest tokens; 0 and -1 keep all", 0, -1),
    "top_p": _real("keep the fewest tokens whose probabilities reach p", 1, 0, 1),
    "min_p": _real("keep tokens at least this many times as probable as the likeliest", 0, 0, 1),
    "repetition_penalty": _real("divides the logits of tokens that were there", 1, 1e-6, 1e6),
    "repeat_penalty": _real("the same under llama.cpp's name", 1, 1e-6, 1e6),
    "presence_penalty": _real("taken from the logits of new tokens that were there", 0, -2, 2),
    "frequency_penalty": _real("the same for every time that they were", 0, -2, 2),
    "no_repeat_ngram_size": _whole("no run of this many tokens comes twice; 0 allows all", 0),
    "logit_bias": {
        "type": "object",
        "description": "token ids, and what is added to their logits",
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": 1024,
    },
    "seed": _whole("the same seed gives the same text; -1 draws one", None, -1, 2**64 - 1),
}
_ENDS: dict[str, Schema] = {
    "stop": {
        "description": "strings before which a text ends, up to 16",
        "anyOf": [{"type": "string", "minLength": 1, "maxLength": 256}, _array(_text(""), most=16)],
    },
    "stop_token_ids": _array(_ID, "ids that end a text, besides end-of-text", 1024),
    "min_tokens": _whole("no end before this many tokens", 0),
    "ignore_eos": _flag("end-of-text is a token like any other"),
}
_SCHEMA: Schema = {"type": "object", "description": "the text is JSON that this schema describes"}
_REGEX = _text("the whole text matches this regular expression")
_EBNF = _text("the text is of this grammar, in llama.cpp's GBNF or Lark")
_LIKE: dict[str, Schema] = {
    "response_format": {
        "type": "object",
        "description": "type text, json_object (with an optional schema), or json_schema with json_schema.schema",
    },
    "structured_outputs": {"type": "object", "description": "vLLM's: one of json, regex, choice, grammar, json_object"},
    "guided_json": _SCHEMA,
    "json_schema": _SCHEMA,
    "guided_regex": _REGEX,
    "regex": _REGEX,
    "guided_grammar": _EBNF,
    "grammar": _EBNF,
    "ebnf": _EBNF,
    "guided_choice": _array(_text(""), "the text is one of these", 1024),
    "guided_decoding_backend": _text("ignored"),
    "guided_whitespace_pattern": _text("ignored"),
}
_STREAM: dict[str, Schema] = {
    "stream": _flag("the answer comes as server-sent events, [DONE] at the end"),
    "stream_options": {
        "type": "object",
        "description": "for streams only",
        "properties": {
            "include_usage": _flag("a chunk with the numbers of tokens at the end"),
            "continuous_usage_stats": _flag("and with every chunk"),
            "include_obfuscation": _flag("ignored"),
        },
    },
}
_OUTPUT: dict[str, Schema] = {
    "return_token_ids": _flag("ids beside the texts"),
    "return_tokens": _flag("the same under llama.cpp's name"),
    "return_tokens_as_token_ids": _flag("names of tokens are token_id:ID"),
}
_COUNTS: dict[str, Schema] = {
    "n": _whole("texts of each prompt", 1, 1, 128),
    "best_of": _whole(
        "texts that are made, of which the n likeliest by their mean log-probability are shown", 1, 1, 128
    ),
}


def _length(default: str) -> dict[str, Schema]:
    return {
        "max_tokens": _whole(f"new tokens at most (default: {default}); with the prompt they must fit the context"),
        "max_completion_tokens": _whole("the same under OpenAI's newer name"),
        "n_predict": _whole("the same under llama.cpp's name"),
    }


_COMPLETION = {
    **_MODEL,
    "prompt": _prompts("a string, an array of strings, of token ids, or of arrays of ids; empty starts a new text"),
    **_SPECIAL,
    "truncate_prompt_tokens": _whole(
        "only so many of a prompt's last tokens; -1 as many as there is room for", None, -1
    ),
    **_length("16"),
    **_COUNTS,
    **_SAMPLING,
    **_ENDS,
    **_LIKE,
    "logprobs": _whole("the likeliest tokens at each place", None, 0, 5),
    "echo": _flag("the prompt, too; with logprobs the log-probabilities of its tokens"),
    **_STREAM,
    **_OUTPUT,
    "suffix": _text("not supported"),
}
_CHAT = {
    **_MODEL,
    "messages": _array(
        {
            "type": "object",
            "required": ["role"],
            "properties": {
                "role": _text("system, user, assistant, or what the template knows"),
                "content": {"anyOf": [{"type": "string"}, {"type": "null"}, _array({"type": "object"})]},
            },
        },
        "the chat so far",
        1000,
    ),
    "add_generation_prompt": _flag("what the template writes before an answer", True),
    "chat_template_kwargs": {"type": "object", "description": "further variables of the template"},
    **_length("what the context has room for"),
    **_COUNTS,
    **_SAMPLING,
    **_ENDS,
    **_LIKE,
    "logprobs": _flag("log-probabilities of the new tokens"),
    "top_logprobs": _whole("the likeliest tokens at each place", 0, 0, 20),
    **_STREAM,
    **_OUTPUT,
}
_EMBEDDING = {
    **_MODEL,
    "input": _prompts("a string, an array of strings, of token ids, or of arrays of ids, none of them empty"),
    **_SPECIAL,
    "encoding_format": {"type": "string", "enum": ["float", "base64"], "default": "float"},
    "dimensions": _whole("the model's own, where it is given", None, 1),
}
_SCORING = {
    **_MODEL,
    "text": {"description": "a text, or several", "anyOf": [{"type": "string"}, _array({"type": "string"}, most=2048)]},
    "context": _text("what the texts come after"),
    **_SPECIAL,
    "stride": _whole("tokens from one window to the next of a text beyond the context", None, 1),
}
_TOKENIZE = {
    **_MODEL,
    "text": _text("the text; the answer has ids, and spans in characters"),
    "prompt": _text("the same as vLLM has it; the answer has tokens"),
    "content": _text("the same as llama.cpp has it; the answer has tokens"),
    **_SPECIAL,
    "parse_special": _flag("llama.cpp's name of allow_special"),
    "add_special_tokens": _flag("ignored: nothing is added"),
    "add_special": _flag("ignored: nothing is added"),
    "with_pieces": _flag("ignored"),
    "return_token_strs": _flag("ignored"),
}
_DETOKENIZE = {
    **_MODEL,
    "ids": _array(_ID, "the ids; the answer has text"),
    "tokens": _array(_ID, "the same as vLLM and llama.cpp have it; the answer has prompt and content"),
}

_POSTS: dict[str, tuple[str, dict[str, Schema], list[str]]] = {
    "/v1/completions": ("Texts that go on from prompts, as OpenAI's", _COMPLETION, []),
    "/v1/chat/completions": ("The next message of a chat; needs --chat-template", _CHAT, ["messages"]),
    "/v1/embeddings": ("The mean of the final hidden states", _EMBEDDING, ["input"]),
    "/score": ("Log-probabilities, ranks, entropies of a text's tokens", _SCORING, ["text"]),
    "/tokenize": ("Text to token ids", _TOKENIZE, []),
    "/detokenize": ("Token ids to text", _DETOKENIZE, []),
}
_GETS = {
    "/v1/models": "The one model there is",
    "/v1/models/{model}": "The model of that name",
    "/tokenizer_info": "What a client needs to know to count tokens itself",
    "/health": "200, or 503 while the server ends and where it is broken; needs no key",
    "/metrics": "Counters for Prometheus",
    "/openapi.json": "This description",
    "/docs": "This description, for people",
}
_ERRORS = {
    "400": "a field is wrong; error.param names it",
    "401": "a key is needed",
    "403": "the wrong Host or Origin",
    "404": "there is no such model",
    "408": "the body did not come in time",
    "413": "the body is too large",
    "429": "the queue is full, or a key's limit reached; Retry-After says when to try again",
    "500": "the network failed",
    "503": "the server is shutting down",
    "504": "the request's time is up",
}


@cache
def openapi() -> Schema:
    """The description of all addresses, OpenAPI 3.1.

    >>> openapi()["paths"]["/score"]["post"]["summary"]
    "Log-probabilities, ranks, entropies of a text's tokens"
    """
    failures = {status: {"$ref": "#/components/responses/Error"} for status in _ERRORS}
    paths: Schema = {}
    for path, (summary, fields, needed) in _POSTS.items():
        schema = {"type": "object", "properties": fields, **({"required": needed} if needed else {})}
        operation = {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {"200": {"description": "the answer"}, **failures},
        }
        paths[path] = {"post": operation}
    for path, summary in _GETS.items():
        names = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}] if "{" in path else []
        paths[path] = {
            "get": {"summary": summary, "parameters": names, "responses": {"200": {"description": "the answer"}}}
        }
    properties = {name: {"type": ["string", "null"]} for name in ("message", "type", "param", "code")}
    error = {"type": "object", "properties": {"error": {"type": "object", "properties": properties}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "gpt2fast serve", "version": "1", "description": "GPT-2 over HTTP, in OpenAI's forms."},
        "paths": paths,
        "components": {
            "responses": {
                "Error": {
                    "description": "; ".join(f"{status}: {words}" for status, words in _ERRORS.items()),
                    "content": {"application/json": {"schema": error}},
                }
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


@cache
def docs_page() -> str:
    """The same as a page, which loads nothing but the style of this server's other page."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>gpt2fast: the server\'s addresses</title>'
    yield '<meta name="viewport" content="width=device-width">\n<link rel="stylesheet" href="/page.css">'
    yield "<h1>The server's addresses</h1>"
    yield '<p>For programs: <a href="/openapi.json">openapi.json</a>. To try it: <a href="/">the page</a>.</p>'
    for path, (summary, fields, needed) in _POSTS.items():
        yield f"<h2>POST {path}</h2>\n<p>{escape(summary)}.</p>\n<table>"
        yield "<tr><th>field</th><th>type</th><th>default</th><th></th></tr>"
        for name, schema in fields.items():
            default = "needed" if name in needed else escape(str(schema.get("default", "")))
            about = escape(schema.get("description", ""))
            yield f"<tr><td><code>{name}</code></td><td>{_type(schema)}</td><td>{default}</td><td>{about}</td></tr>"
        yield "</table>"
    yield "<h2>GET</h2>\n<table>"
    yield from (f"<tr><td><code>{path}</code></td><td>{escape(summary)}</td></tr>" for path, summary in _GETS.items())
    yield "</table>\n<h2>Errors</h2>\n<table>"
    yield from (f"<tr><td>{status}</td><td>{escape(words)}</td></tr>" for status, words in _ERRORS.items())
    yield "</table>\n</html>"


def _type(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(form) for form in schema["anyOf"])
    kind = str(schema["type"])
    if kind == "array":
        return f"array of {_type(schema['items'])}"
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is None and most is None:
        return kind
    return f"{kind} from {least:g}" + ("" if most is None else f" to {most:g}")
