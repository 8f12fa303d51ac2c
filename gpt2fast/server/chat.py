"""POST /v1/chat/completions: messages become a prompt by a template, of a fine-tune that was trained on those."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from gpt2fast.errors import InputError, MissingDependencyError
from gpt2fast.language_model import LanguageModel
from gpt2fast.model.pairing import beginning, ends
from gpt2fast.safetensors.files import open_file
from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.foreign_fields import take_foreign
from gpt2fast.server.limits import Limits
from gpt2fast.server.protocol import (
    Completion,
    CompletionPrompt,
    check_context,
    check_model,
    parse_counts,
    parse_max_tokens,
    parse_settings,
    parse_stream,
)
from gpt2fast.server.request_body import RequestBody, checked_text, refused, wrong_type

__all__ = ["ChatTemplate", "parse_chat"]

_MOST_MESSAGES, _MOST_TOP = 1000, 20
# Fields that ask for what a GPT-2 does not do; an empty one asks for nothing.
_NO_TOOLS = ("tools", "functions", "tool_choice", "function_call", "audio", "modalities", "prediction")


class ChatTemplate:
    """A template in Jinja, as Hugging Face's chat templates are, run in a sandbox.

    >>> import gpt2fast
    >>> lm = gpt2fast.load("demo")
    >>> template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}", lm)
    >>> template.prompt([{"role": "user", "content": "Hi"}]).text
    'user: Hi<|endoftext|>'
    """

    def __init__(self, source: str, lm: LanguageModel, name: str = "the chat template") -> None:
        try:
            import jinja2
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ModuleNotFoundError:
            raise MissingDependencyError(
                "a chat template needs jinja2, which is not installed: pip install 'gpt2fast[chat]'"
            ) from None
        self.source = source
        self._tokenizer = lm.tokenizer
        self._specials = sorted(lm.tokenizer.special_tokens_set, key=len, reverse=True)
        begin, end = beginning(lm.model, lm.tokenizer), min(ends(lm.model, lm.tokenizer), default=None)
        self._begin = "" if begin is None else lm.tokenizer.decode([begin])
        self._end = "" if end is None else lm.tokenizer.decode([end])
        # As transformers sets it up, so that templates give the same prompts.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._trouble: type[Exception] = jinja2.TemplateError
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(f"{name}, line {error.lineno}: {error.message}") from None

    @classmethod
    def from_file(cls, path: str | Path, lm: LanguageModel) -> ChatTemplate:
        """The template in a file: Jinja, or a tokenizer_config.json with a `chat_template`.

        Raises MissingFileError, and InputError where the file holds no template.
        """
        try:
            with open_file(path, "a chat template") as file:
                source = file.readall().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
        if Path(path).suffix == ".json":
            try:
                value = json.loads(source)
            except ValueError as error:
                raise InputError(f"{path} is not valid JSON: {error}") from None
            found = value.get("chat_template") if isinstance(value, dict) else None
            if isinstance(found, list):  # several, by their names
                found = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}.get(
                    "default"
                )
            if not isinstance(found, str):
                raise InputError(f"{path} has no chat_template, which should be a string")
            source = found
        return cls(source, lm, str(path))

    def prompt(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> CompletionPrompt:
        """The prompt for the messages, and with `add_generation_prompt` what comes before an answer; `variables` are
        the template's own.  Raises an ApiError where the template cannot do it.

        Special tokens that the template writes are tokens, those in the messages are text.
        """
        marks = {special: f"\ue000{secrets.token_hex(8)}\ue001" for special in self._specials}

        def hidden(value: Any) -> Any:
            if isinstance(value, str):
                for special, mark in marks.items():
                    value = value.replace(special, mark)
                return value
            if isinstance(value, dict):
                return {key: hidden(item) for key, item in value.items()}
            return [hidden(item) for item in value] if isinstance(value, list) else value

        try:
            text = self._template.render(
                {
                    **(variables or {}),
                    "messages": hidden(list(messages)),
                    "add_generation_prompt": add_generation_prompt,
                    "bos_token": self._begin,
                    "eos_token": self._end,
                }
            )
        except ApiError:
            raise
        except (self._trouble, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ApiError(f"the chat template does not take these messages: {error}", param="messages") from None
        ids: list[int] = []
        parts = re.split("(" + "|".join(map(re.escape, self._specials)) + ")", text) if self._specials else [text]
        for i, part in enumerate(parts):
            if i % 2:
                ids += self._tokenizer.encode(part, allowed_special="all")
                continue
            for special, mark in marks.items():
                part = part.replace(mark, special)
            ids += self._tokenizer.encode_ordinary(checked_text("messages", part))
        for special, mark in marks.items():
            text = text.replace(mark, special)
        return CompletionPrompt(ids, text)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise ApiError(str(message), param="messages")


def parse_chat(body: RequestBody, lm: LanguageModel, name: str, limits: Limits, template: ChatTemplate) -> Completion:
    """The request for the next message of a chat.  Raises an ApiError that names the field."""
    check_model(body, name)
    n, best_of = parse_counts(body)
    stream = parse_stream(body, best_of > n)
    if best_of > limits.places:
        raise ApiError(f"n or best_of is {best_of}; expected at most the {limits.places} texts taken on", param="n")
    for tool in _NO_TOOLS:
        if body.take(tool) not in (None, [], "none", "auto", ["text"]):
            raise refused(tool, "is not supported")
    for unused in ("parallel_tool_calls", "reasoning_effort", "verbosity", "web_search_options"):
        body.take(unused)
    messages = _messages(body.take("messages"))
    variables = body.take("chat_template_kwargs")
    if variables is not None and not isinstance(variables, dict):
        raise wrong_type("chat_template_kwargs", variables, "an object")
    generation = body.flag("add_generation_prompt", True)
    if body.has("chat_template"):
        raise refused("chat_template", "is the server's to choose, by --chat-template")
    body.take("chat_template")
    prompt = template.prompt(messages, add_generation_prompt=generation, variables=variables)
    room = lm.model.config.n_ctx - max(len(prompt.ids), 1) + 1
    max_tokens = parse_max_tokens(body, ("max_completion_tokens", "max_tokens", "n_predict"))
    if max_tokens == 0:
        raise ApiError("max_tokens is 0; expected 1 or more", param="max_tokens")
    wanted = max(room, 1) if max_tokens is None else max_tokens
    check_context(prompt, "messages", wanted, lm)
    with_logprobs = body.flag("logprobs")
    top = body.whole("top_logprobs", 0, most=_MOST_TOP)
    if top and not with_logprobs:
        raise ApiError("top_logprobs is only for logprobs true", param="top_logprobs")
    logprobs = top if with_logprobs else None
    token_ids = body.flag("return_token_ids") | body.flag("return_tokens")
    tokens_as_ids = body.flag("return_tokens_as_token_ids")
    settings = parse_settings(body, lm, wanted, logprobs, best_of > n)
    take_foreign(body)
    body.end()
    return Completion(
        [prompt],
        settings,
        n,
        best_of,
        stream,
        wanted,
        logprobs,
        token_ids=token_ids,
        tokens_as_ids=tokens_as_ids,
        chat=True,
    )


def _messages(value: Any) -> list[dict[str, Any]]:
    """The messages; contents that come in parts are joined."""
    if not isinstance(value, list):
        raise wrong_type("messages", value, "an array of messages")
    if not 0 < len(value) <= _MOST_MESSAGES:
        raise refused("messages", f"has {len(value)} messages; expected 1 to {_MOST_MESSAGES}")
    found = []
    for i, message in enumerate(value):
        name = f"messages[{i}]"
        if not isinstance(message, dict):
            raise wrong_type(name, message, "an object with role and content")
        role = checked_text(f"{name}.role", message.get("role"))
        found.append({**message, "role": role, "content": _content(f"{name}.content", message.get("content"))})
    return found


def _content(name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, list):
        return checked_text(name, value)
    texts = []
    for i, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise refused(f"{name}[{i}]", "is no part of type text; others are not supported")
        texts.append(checked_text(f"{name}[{i}].text", part.get("text")))
    return "\n".join(texts)
