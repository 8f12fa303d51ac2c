"""The requests: from the body of a JSON object to what the engine works with, everything checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpt2fast.errors import Error
from gpt2fast.generation.generate import Settings
from gpt2fast.language_model import LanguageModel
from gpt2fast.model.pairing import shared_vocabulary
from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.foreign_fields import take_foreign
from gpt2fast.server.grammar_fields import parse_grammar
from gpt2fast.server.limits import Limits
from gpt2fast.server.parts import slices
from gpt2fast.server.request_body import (
    LARGE,
    RequestBody,
    checked_real,
    checked_text,
    refused,
    shown,
    wrong_type,
)

__all__ = ["Completion", "CompletionPrompt", "Embedding", "Scoring", "StreamOptions"]
__all__ += ["check_context", "check_model", "parse_completion", "parse_embedding", "parse_ids", "parse_scoring"]
__all__ += ["parse_counts", "parse_max_tokens", "parse_settings", "parse_stream"]

_MOST_CHOICES, _MOST_INPUTS = 128, 2048
# Each stop string is looked for at every token, and each bias added.
_MOST_STOPS, _LONGEST_STOP, _MOST_BIASES = 16, 256, 1024
_MOST_LOGPROBS = 5
# Characters of a context, times the texts that it comes before.
_MOST_CONTEXT = 1 << 20


@dataclass(frozen=True)
class CompletionPrompt:
    """A prompt as it was given: its ids, and its text, which `echo` repeats."""

    ids: list[int]
    text: str


@dataclass(frozen=True)
class StreamOptions:
    """Whether an answer is streamed, and whether and when it tells of tokens used: in every chunk, or at the end."""

    stream: bool = False
    usage: bool = False
    continuous_usage: bool = False


@dataclass(frozen=True)
class Completion:
    """A request for completions, of a prompt or a chat."""

    prompts: list[CompletionPrompt]
    settings: Settings
    #: Texts of each prompt that are shown, and that are made.
    n: int
    best_of: int
    stream: StreamOptions
    #: New tokens at most; 0, which `settings` does not know, asks for nothing but the echo.
    max_tokens: int
    #: The likeliest tokens to report at each place; None for no log-probabilities.
    logprobs: int | None = None
    echo: bool = False
    #: Whether ids are answered beside texts, and whether the names of tokens are their ids.
    token_ids: bool = False
    tokens_as_ids: bool = False
    chat: bool = False

    @property
    def cost(self) -> int:
        """How many bytes the texts and the answer take, about."""
        lengths = sum(len(prompt.ids) * (1 + self.echo) for prompt in self.prompts)
        tokens = self.best_of * (lengths + self.max_tokens * len(self.prompts))
        return tokens * (100 if self.logprobs is None else 250 + 150 * self.logprobs)


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
    allow_special: bool


def parse_completion(
    body: RequestBody, lm: LanguageModel, name: str, limits: Limits, allow_special: bool = False
) -> Completion:
    """The request for completions of the model that is called `name`.  Raises an ApiError that names the field.

    With `allow_special` special tokens in the text of a prompt are tokens where the request does not say otherwise.
    """
    check_model(body, name)
    n, best_of = parse_counts(body)
    if body.text("suffix", ""):
        raise ApiError("suffix is not supported: GPT-2 cannot look ahead", param="suffix")
    echo = body.flag("echo")
    max_tokens = parse_max_tokens(body, ("max_tokens", "max_completion_tokens", "n_predict"))
    max_tokens = 16 if max_tokens is None else max_tokens
    if max_tokens == 0 and not echo:
        raise ApiError("max_tokens is 0, and echo is not asked for: there would be no answer", param="max_tokens")
    stream = parse_stream(body, best_of > n)
    special = body.flag("allow_special", allow_special)
    prompts = _prompts(body.take("prompt"), "prompt", lm, limits.places // best_of, special)
    if len(prompts) * best_of > limits.places:
        most = f"{len(prompts)} prompts and {'best_of' if best_of > n else 'n'} {best_of}"
        raise ApiError(f"{most} are more texts than the {limits.places} taken on", param="n")
    if body.has("truncate_prompt_tokens"):
        prompts = _truncated(prompts, body.whole("truncate_prompt_tokens", 0, least=-1), max_tokens, lm)
    else:
        body.take("truncate_prompt_tokens")
    logprobs = body.whole_or_none("logprobs", most=_MOST_LOGPROBS)
    token_ids = body.flag("return_token_ids") | body.flag("return_tokens")
    tokens_as_ids = body.flag("return_tokens_as_token_ids")
    settings = parse_settings(body, lm, max_tokens, logprobs, best_of > n)
    take_foreign(body)
    body.end()
    for i, prompt in enumerate(prompts):
        check_context(prompt, _numbered("prompt", i, prompts), max_tokens, lm)
    return Completion(prompts, settings, n, best_of, stream, max_tokens, logprobs, echo, token_ids, tokens_as_ids)


def parse_counts(body: RequestBody) -> tuple[int, int]:
    """How many texts of each prompt are shown, and how many are made to choose these from."""
    n = body.whole("n", 1, least=1, most=_MOST_CHOICES)
    best_of = body.whole("best_of", n, least=1, most=_MOST_CHOICES)
    if best_of < n:
        raise ApiError(f"best_of is {best_of}; expected at least n, which is {n}", param="best_of")
    return n, best_of


def parse_stream(body: RequestBody, ranked: bool) -> StreamOptions:
    """Whether and how the answer is streamed; not where texts are `ranked` when they have ended."""
    stream = body.flag("stream")
    if stream and ranked:
        raise ApiError("best_of above n is not for streams: which texts are best shows at their end", param="best_of")
    value = body.take("stream_options")
    if value is None:
        return StreamOptions(stream)
    if not stream:
        raise ApiError("stream_options is only for stream true", param="stream_options")
    if not isinstance(value, dict):
        raise wrong_type("stream_options", value, "an object")
    options = RequestBody(value)
    usage, continuous = options.flag("include_usage"), options.flag("continuous_usage_stats")
    options.take("include_obfuscation")
    options.end()
    return StreamOptions(stream, usage, usage and continuous)


def parse_settings(
    body: RequestBody, lm: LanguageModel, max_tokens: int, logprobs: int | None, ranked: bool
) -> Settings:
    """How texts are chosen and when they end; with `ranked` texts are compared by their log-probabilities."""
    greedy = not body.flag("do_sample", True)  # Hugging Face's word for temperature 0
    temperature = body.real("temperature", 1.0, least=0, most=1e6)
    min_tokens = body.whole("min_tokens", 0)
    if min_tokens > max_tokens:
        raise ApiError(f"min_tokens is {min_tokens}, max_tokens only {max_tokens}", param="min_tokens")
    penalty = "repeat_penalty" if body.has("repeat_penalty") else "repetition_penalty"  # llama.cpp's name
    body.take("repetition_penalty" if penalty == "repeat_penalty" else "repeat_penalty")
    seed = body.whole_or_none("seed", least=-1, most=2**64 - 1)
    options: dict[str, Any] = {
        "max_new_tokens": max(max_tokens, 1),
        "min_new_tokens": min_tokens,
        "ignore_eos": body.flag("ignore_eos"),
        "stop_token_ids": _stop_token_ids(body.take("stop_token_ids"), lm),
        "temperature": 0.0 if greedy else temperature,
        "top_k": max(body.whole("top_k", 0, least=-1), 0),  # -1 is all of them, too
        "top_p": body.real("top_p", 1.0, least=0, most=1),
        "min_p": body.real("min_p", 0.0, least=0, most=1),
        "repetition_penalty": body.real(penalty, 1.0, least=1e-6, most=1e6),
        "presence_penalty": body.real("presence_penalty", 0.0, least=-2, most=2),
        "frequency_penalty": body.real("frequency_penalty", 0.0, least=-2, most=2),
        "no_repeat_ngram_size": body.whole("no_repeat_ngram_size", 0, most=lm.model.config.n_ctx),
        "logit_bias": _logit_bias(body.take("logit_bias"), lm),
        "stop": _stop(body.take("stop")),
        "seed": None if seed == -1 else seed,  # as if there were none
        "logprobs": 0 if logprobs is None and ranked else logprobs,
        "overflow": "error",
        **parse_grammar(body),
    }
    try:
        return Settings(**options)
    except Error as error:  # of the grammar: all else is checked
        raise ApiError(str(error), code="invalid_grammar") from None


def parse_max_tokens(body: RequestBody, names: Sequence[str]) -> int | None:
    """The number under any of the names; where there are several they must agree."""
    given = {name: number for name in names if (number := body.whole_or_none(name)) is not None}
    if len(set(given.values())) > 1:
        (one, first), (other, second), *_ = given.items()
        raise ApiError(f"{one} is {first} and {other} {second}; expected one number", param=other)
    return next(iter(given.values()), None)


def _truncated(
    prompts: Sequence[CompletionPrompt], most: int, max_tokens: int, lm: LanguageModel
) -> list[CompletionPrompt]:
    """The prompts' last `most` tokens; -1 is as many as the context has room for."""
    if most == 0:
        raise ApiError("truncate_prompt_tokens is 0; expected 1 or more, or -1", param="truncate_prompt_tokens")
    most = max(lm.model.config.n_ctx - max(max_tokens - 1, 0), 1) if most == -1 else most
    return [
        prompt
        if len(prompt.ids) <= most
        else CompletionPrompt(prompt.ids[-most:], lm.tokenizer.decode(prompt.ids[-most:]))
        for prompt in prompts
    ]


def parse_embedding(body: RequestBody, lm: LanguageModel, name: str, allow_special: bool = False) -> Embedding:
    """The request for embeddings, `allow_special` as for completions.  Raises an ApiError that names the field."""
    check_model(body, name)
    value = body.take("input")
    if value is None:
        raise ApiError("input is missing", param="input")
    special = body.flag("allow_special", allow_special)
    inputs = _prompts(value, "input", lm, _MOST_INPUTS, special)
    for i, text in enumerate(inputs):
        if not text.ids:
            raise ApiError(f"{_numbered('input', i, inputs)} is empty; there is nothing to embed", param="input")
        check_context(text, _numbered("input", i, inputs), 0, lm)
    base64 = body.choice("encoding_format", ["float", "base64"]) == "base64"
    n_embd = lm.model.config.n_embd
    if body.whole("dimensions", n_embd, least=1) != n_embd:
        raise ApiError(f"dimensions is not supported: this model's embeddings have {n_embd}", param="dimensions")
    take_foreign(body)
    body.end()
    return Embedding(inputs, base64)


def parse_scoring(body: RequestBody, lm: LanguageModel, name: str, allow_special: bool = False) -> Scoring:
    """The request for scores, `allow_special` as for completions.  Raises an ApiError that names the field."""
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
    if len(texts) * len(context) > _MOST_CONTEXT:
        words = f"has {len(context)} characters, to be read before each of {len(texts)} texts"
        raise refused("context", f"{words}; expected {_MOST_CONTEXT:,} in all")
    stride = body.whole_or_none("stride", least=1, most=lm.model.config.n_ctx)
    special = body.flag("allow_special", allow_special)
    take_foreign(body)
    body.end()
    return Scoring(texts, context, stride, special)


def check_model(body: RequestBody, name: str) -> None:
    """Raise an ApiError, 404, where another model than that of this name is asked for."""
    wanted = body.text("model", name)
    if wanted != name:
        raise ApiError(
            f"there is no model {shown(wanted)} here; this server has {name!r}",
            param="model",
            status=404,
            code="model_not_found",
        )


def parse_ids(value: Any, name: str, lm: LanguageModel) -> list[int]:
    """`value` as token ids of the vocabulary.  Raises an ApiError where it is something else."""
    if not isinstance(value, list):
        raise wrong_type(name, value, "an array of token ids")
    n_vocab = shared_vocabulary(lm.model, lm.tokenizer)
    for i, item in enumerate(value):
        if type(item) is not int or not 0 <= item < n_vocab:
            raise refused(f"{name}[{i}]", f"is {shown(item)}; expected a token id from 0 to {n_vocab - 1}")
    return value


def _prompts(value: Any, name: str, lm: LanguageModel, most: int, special: bool) -> list[CompletionPrompt]:
    """The prompts in any of the four forms that OpenAI has, at most `most`."""
    if value is None:
        return [CompletionPrompt([], "")]
    if isinstance(value, str):
        return [_text_prompt(value, name, lm, special)]
    if not isinstance(value, list):
        raise wrong_type(name, value, "a string, an array of strings, of token ids or of arrays of token ids")
    if not value:
        raise ApiError(f"{name} is an empty array", param=name)
    if not isinstance(value[0], (str, list)):
        return [_ids_prompt(value, name, lm)]
    if len(value) > most:
        raise ApiError(f"{name} is an array of {len(value)}; expected {most} or less", param=name)
    if isinstance(value[0], str):
        return [_text_prompt(checked_text(f"{name}[{i}]", item), name, lm, special) for i, item in enumerate(value)]
    return [_ids_prompt(item, f"{name}[{i}]", lm) for i, item in enumerate(value)]


def _text_prompt(text: str, name: str, lm: LanguageModel, special: bool) -> CompletionPrompt:
    checked_text(name, text)
    allowed: Any = "all" if special else ()
    if len(text) <= LARGE:
        return CompletionPrompt(lm.tokenizer.encode(text, allowed_special=allowed, disallowed_special=()), text)
    # A list that is made at once keeps all other threads waiting.
    ids = lm.tokenizer.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())
    return CompletionPrompt([token for part in slices(ids) for token in part.tolist()], text)


def _ids_prompt(value: Any, name: str, lm: LanguageModel) -> CompletionPrompt:
    ids = parse_ids(value, name, lm)
    # One that is longer than the context is cut or refused: its text may be large, and is never shown.
    return CompletionPrompt(ids, lm.tokenizer.decode(ids) if len(ids) <= lm.model.config.n_ctx else "")


def check_context(prompt: CompletionPrompt, name: str, new: int, lm: LanguageModel) -> None:
    """Raise an ApiError where the model's context has no room for the prompt and so many new tokens."""
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


def _stop_token_ids(value: Any, lm: LanguageModel) -> list[int]:
    ids = [] if value is None else parse_ids(value, "stop_token_ids", lm)
    if len(ids) > _MOST_BIASES:
        raise refused("stop_token_ids", f"has {len(ids)} ids; expected {_MOST_BIASES} or less")
    return ids


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
            raise ApiError(f"logit_bias has {shown(key)}; expected token ids under {n_vocab}", param="logit_bias")
        biases[int(key)] = checked_real(f"logit_bias[{key!r}]", bias, least=-100, most=100)
    return biases
