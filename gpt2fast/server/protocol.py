"""The requests: from the body of a JSON object to what the engine works with, everything checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpt2fast._internal.arguments import real_number
from gpt2fast.errors import Error
from gpt2fast.generation.generate import Settings
from gpt2fast.language_model import LanguageModel
from gpt2fast.model.pairing import shared_vocabulary
from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.limits import Limits
from gpt2fast.server.request_body import RequestBody, checked_text, refused, wrong_type

__all__ = ["Completion", "CompletionPrompt", "Embedding", "Scoring"]
__all__ += ["check_model", "parse_completion", "parse_embedding", "parse_ids", "parse_scoring"]

# RequestBody of OpenAI's that change no text: who asks, and where it is kept.
_HARMLESS = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")

_MOST_CHOICES, _MOST_INPUTS = 128, 2048
# Each stop string is looked for at every token, and each bias added.
_MOST_STOPS, _LONGEST_STOP, _MOST_BIASES = 16, 256, 1024
_MOST_LOGPROBS = 5


@dataclass(frozen=True)
class CompletionPrompt:
    """A prompt as it was given: its ids, and its text, which `echo` repeats."""

    ids: list[int]
    text: str


@dataclass(frozen=True)
class Completion:
    """A request for completions."""

    prompts: list[CompletionPrompt]
    settings: Settings
    n: int
    echo: bool
    stream: bool
    include_usage: bool
    #: New tokens at most; 0, which `settings` does not know, asks for nothing but the echo.
    max_tokens: int


@dataclass(frozen=True)
class Embedding:
    """A request for embeddings."""

    inputs: list[CompletionPrompt]
    base64: bool


@dataclass(frozen=True)
class Scoring:
    """A request for scores."""

    texts: list[str]
    context: str
    stride: int | None


def parse_completion(body: RequestBody, lm: LanguageModel, name: str, limits: Limits) -> Completion:
    """The request for completions of the model that is called `name`.  Raises a ApiError that names the field."""
    check_model(body, name)
    n = body.whole("n", 1, least=1, most=_MOST_CHOICES)
    if body.whole("best_of", n, least=1) != n:
        raise ApiError(f"best_of is not supported unless it equals n, which is {n}", param="best_of")
    if body.text("suffix", ""):
        raise ApiError("suffix is not supported: GPT-2 cannot look ahead", param="suffix")
    echo = body.flag("echo")
    max_tokens = body.whole("max_tokens", 16)
    if max_tokens == 0 and not echo:
        raise ApiError("max_tokens is 0, and echo is not asked for: there would be no answer", param="max_tokens")
    stream = body.flag("stream")
    include_usage = _include_usage(body.take("stream_options"), stream)
    prompts = _prompts(body.take("prompt"), "prompt", lm, limits.places // n)
    if len(prompts) * n > limits.places:
        raise ApiError(f"{len(prompts)} prompts and n {n} are more texts than the {limits.places} taken on", param="n")
    options: dict[str, Any] = {
        "max_new_tokens": max(max_tokens, 1),
        "temperature": body.real("temperature", 1.0, least=0, most=1e6),
        "top_k": body.whole("top_k", 0),
        "top_p": body.real("top_p", 1.0, least=0, most=1),
        "min_p": body.real("min_p", 0.0, least=0, most=1),
        "repetition_penalty": body.real("repetition_penalty", 1.0, least=1e-6, most=1e6),
        "presence_penalty": body.real("presence_penalty", 0.0, least=-2, most=2),
        "frequency_penalty": body.real("frequency_penalty", 0.0, least=-2, most=2),
        "logit_bias": _logit_bias(body.take("logit_bias"), lm),
        "stop": _stop(body.take("stop")),
        "seed": body.whole_or_none("seed"),
        "logprobs": body.whole_or_none("logprobs", most=_MOST_LOGPROBS),
        "overflow": "error",
    }
    body.end(_HARMLESS)
    for i, prompt in enumerate(prompts):
        _check_context(prompt, _numbered("prompt", i, prompts), max_tokens, lm)
    return Completion(prompts, Settings(**options), n, echo, stream, include_usage, max_tokens)


def parse_embedding(body: RequestBody, lm: LanguageModel, name: str) -> Embedding:
    """The request for embeddings.  Raises a ApiError that names the field."""
    check_model(body, name)
    value = body.take("input")
    if value is None:
        raise ApiError("input is missing", param="input")
    inputs = _prompts(value, "input", lm, _MOST_INPUTS)
    for i, text in enumerate(inputs):
        if not text.ids:
            raise ApiError(f"{_numbered('input', i, inputs)} is empty; there is nothing to embed", param="input")
        _check_context(text, _numbered("input", i, inputs), 0, lm)
    base64 = body.choice("encoding_format", ["float", "base64"]) == "base64"
    n_embd = lm.model.config.n_embd
    if body.whole("dimensions", n_embd, least=1) != n_embd:
        raise ApiError(f"dimensions is not supported: this model's embeddings have {n_embd}", param="dimensions")
    body.end(_HARMLESS)
    return Embedding(inputs, base64)


def parse_scoring(body: RequestBody, lm: LanguageModel, name: str) -> Scoring:
    """The request for scores.  Raises a ApiError that names the field."""
    check_model(body, name)
    value = body.take("text")
    if isinstance(value, list):
        if len(value) > _MOST_INPUTS:
            raise ApiError(f"text has {len(value)} texts; expected {_MOST_INPUTS} or less", param="text")
        texts = [checked_text(f"text[{i}]", text) for i, text in enumerate(value)]
    elif value is None:
        raise ApiError("text is missing", param="text")
    else:
        texts = [checked_text("text", value)]
    context = body.text("context", "")
    stride = body.whole_or_none("stride", least=1, most=lm.model.config.n_ctx)
    body.end(_HARMLESS)
    return Scoring(texts, context, stride)


def check_model(body: RequestBody, name: str) -> None:
    """Raise a ApiError, 404, where another model than that of this name is asked for."""
    wanted = body.text("model", name)
    if wanted != name:
        raise ApiError(
            f"there is no model {wanted!r} here; this server has {name!r}",
            param="model",
            status=404,
            code="model_not_found",
        )


def parse_ids(value: Any, name: str, lm: LanguageModel) -> list[int]:
    """`value` as token ids of the vocabulary.  Raises a ApiError where it is something else."""
    if not isinstance(value, list):
        raise wrong_type(name, value, "an array of token ids")
    n_vocab = shared_vocabulary(lm.model, lm.tokenizer)
    for i, item in enumerate(value):
        if type(item) is not int or not 0 <= item < n_vocab:
            raise refused(f"{name}[{i}]", f"is {item!r}; expected a token id from 0 to {n_vocab - 1}")
    return value


def _prompts(value: Any, name: str, lm: LanguageModel, most: int) -> list[CompletionPrompt]:
    """The prompts in any of the four forms that OpenAI has, at most `most`."""
    if value is None:
        return [CompletionPrompt([], "")]
    if isinstance(value, str):
        return [_text_prompt(value, name, lm)]
    if not isinstance(value, list):
        raise wrong_type(name, value, "a string, an array of strings, of token ids or of arrays of token ids")
    if not value:
        raise ApiError(f"{name} is an empty array", param=name)
    if not isinstance(value[0], (str, list)):
        return [_ids_prompt(value, name, lm)]
    if len(value) > most:
        raise ApiError(f"{name} is an array of {len(value)}; expected {most} or less", param=name)
    if isinstance(value[0], str):
        return [_text_prompt(checked_text(f"{name}[{i}]", item), name, lm) for i, item in enumerate(value)]
    return [_ids_prompt(item, f"{name}[{i}]", lm) for i, item in enumerate(value)]


def _text_prompt(text: str, name: str, lm: LanguageModel) -> CompletionPrompt:
    return CompletionPrompt(lm.tokenizer.encode_ordinary(checked_text(name, text)), text)


def _ids_prompt(value: Any, name: str, lm: LanguageModel) -> CompletionPrompt:
    ids = parse_ids(value, name, lm)
    return CompletionPrompt(ids, lm.tokenizer.decode(ids))


def _check_context(prompt: CompletionPrompt, name: str, new: int, lm: LanguageModel) -> None:
    n_ctx = lm.model.config.n_ctx
    needed = max(len(prompt.ids), 1) + max(new - 1, 0)  # nothing is computed from the last token
    if needed > n_ctx:
        wanted = f", and {new} new {'is' if new == 1 else 'are'} wanted" if new else ""
        raise ApiError(
            f"{name} has {len(prompt.ids)} tokens{wanted}: that takes a context of {needed}; the model's limit is "
            f"{n_ctx}",
            param=name.partition("[")[0],
            code="context_length_exceeded",
        )


def _numbered(name: str, i: int, all: Sequence[object]) -> str:
    return f"{name}[{i}]" if len(all) > 1 else name


def _include_usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    if not stream:
        raise ApiError("stream_options is only for stream true", param="stream_options")
    if not isinstance(options, dict):
        raise wrong_type("stream_options", options, "an object")
    body = RequestBody(options)
    include_usage = body.flag("include_usage")
    body.end(["include_obfuscation"])
    return include_usage


def _stop(value: Any) -> list[str]:
    strings = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(strings, list):
        raise wrong_type("stop", value, "a string or an array of strings")
    if len(strings) > _MOST_STOPS:
        raise ApiError(f"stop has {len(strings)} strings; expected {_MOST_STOPS} or less", param="stop")
    for string in strings:
        if not 0 < len(checked_text("stop", string)) <= _LONGEST_STOP:
            raise ApiError(
                f"stop has a string of {len(string)} characters; expected 1 to {_LONGEST_STOP}", param="stop"
            )
    return strings


def _logit_bias(value: Any, lm: LanguageModel) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", value, "an object of token ids and numbers")
    if len(value) > _MOST_BIASES:
        raise ApiError(f"logit_bias has {len(value)} ids; expected {_MOST_BIASES} or less", param="logit_bias")
    n_vocab = shared_vocabulary(lm.model, lm.tokenizer)
    biases = {}
    for key, bias in value.items():
        if not key.isascii() or not key.isdecimal() or len(key) > 9 or int(key) >= n_vocab:
            raise ApiError(f"logit_bias has {key!r}; expected token ids under {n_vocab}", param="logit_bias")
        try:
            biases[int(key)] = real_number(f"logit_bias[{key!r}]", bias, least=-100, most=100)
        except Error as error:
            raise ApiError(str(error), param="logit_bias") from None
    return biases
