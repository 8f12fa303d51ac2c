"""The answers to requests for completions, whole or in chunks, as OpenAI's clients expect them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpt2fast.generation.sequence import GeneratedSequence, Step
from gpt2fast.scheduler import Sequence
from gpt2fast.server.parts import Items
from gpt2fast.server.protocol import Completion
from gpt2fast.server.work import Measure
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["Answer", "Choice"]

# JSON has no minus infinity; OpenAI writes this.
_IMPOSSIBLE = -9999.0


class Answer:
    """The answer to one request, which grows with the steps of its `texts`, in the order of prompts and samples."""

    def __init__(self, request: Completion, texts: List[GeneratedSequence], name: str, tokenizer: Tokenizer) -> None:
        self.request = request
        self.choices = [Choice(i, text, request, tokenizer) for i, text in enumerate(texts)]
        self._by_text: dict[Sequence, Choice] = {choice.text: choice for choice in self.choices}
        self._prompt_tokens = sum(text.start for text in texts[:: request.best_of])
        self._head = {
            "id": f"{'chatcmpl' if request.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": ("chat.completion" if request.chat else "text_completion"),
            "created": int(time.time()),
            "model": name,
        }

    def echo(self, measures: List[List[Measure]] | None) -> None:
        """Begin with the prompts; with the measures of each where log-probabilities are asked for."""
        for i, choice in enumerate(self.choices):
            choice.echo(None if measures is None else measures[i // self.request.best_of])

    def take(self, texts: Iterable[Sequence]) -> list[Choice]:
        """Go on by the new tokens of the texts; the choices that have something new to show."""
        return [choice for choice in (self._by_text[text] for text in texts) if choice.take()]

    @property
    def finished(self) -> bool:
        """Whether all choices have ended."""
        return all(choice.finish_reason for choice in self.choices)

    @property
    def new_tokens(self) -> int:
        """How many tokens are new, those of choices that are not shown included."""
        return sum(choice.new_tokens for choice in self.choices)

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens: of the prompts, each counted once, and of the new texts."""
        new = self.new_tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": new,
            "total_tokens": self._prompt_tokens + new,
        }

    def whole(self) -> dict[str, Any]:
        """The answer that comes at once, after the end."""
        shape = chat_message if self.request.chat else completion_choice
        choices = ([shape(self.request, choice.news(i))] for i, choice in enumerate(self._best()))
        return {**self._head, "choices": Items(choices), "usage": self.usage}

    def _best(self) -> Iterator[Choice]:
        """The choices that are shown: of each prompt's the likeliest, by the mean of their log-probabilities."""
        count, n = self.request.best_of, self.request.n
        for start in range(0, len(self.choices), count):
            choices = self.choices[start : start + count]
            yield from choices if n == count else sorted(choices, key=lambda choice: -choice.mean_logprob)[:n]

    def chunk(self, choice: Choice) -> dict[str, Any]:
        """A chunk of a stream: what is new of one choice."""
        shape = chat_delta if self.request.chat else completion_choice
        return self._chunk([shape(self.request, choice.news(choice.index))])

    def last_chunk(self) -> dict[str, Any]:
        """The chunk that reports the usage, after all others."""
        return {**self._chunk([]), "usage": self.usage}

    def _chunk(self, choices: list[Any]) -> dict[str, Any]:
        stream = self.request.stream
        usage = {"usage": self.usage if stream.continuous_usage else None} if stream.usage else {}
        kind = {"object": "chat.completion.chunk"} if self.request.chat else {}
        return {**self._head, **kind, "choices": choices, **usage}


@dataclass(frozen=True)
class Report:
    """A token of an answer, with its log-probability and the likeliest in its place where they are known."""

    id: int
    name: str
    #: The token's bytes.
    content: bytes
    logprob: float | None
    top: list[tuple[int, str, bytes, float]]
    #: Characters of the answer before the token.
    offset: int


@dataclass(frozen=True)
class News:
    """What is new of a choice; `reports` is None where log-probabilities are not asked for."""

    index: int
    #: Whether nothing of the choice was shown before.
    first: bool
    text: str
    finish_reason: str | None
    reports: list[Report] | None
    ids: list[int]
    prompt: list[int]


class Choice:
    """One text of an answer: what has come since the last `news`."""

    def __init__(self, index: int, text: GeneratedSequence, request: Completion, tokenizer: Tokenizer) -> None:
        self.index = index
        self.text = text
        self.finish_reason: str | None = None if request.max_tokens else "length"
        self.new_tokens = 0
        self._prompt = request.prompts[text.prompt]
        self._with_logprobs = request.logprobs is not None
        self._as_ids = request.tokens_as_ids
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decode_stream()
        self._offset = 0  # characters before the next token
        self._pieces: list[str] = []
        self._measures: List[Measure] | None = None
        self._first = True
        self._shown = 0  # new tokens

    def echo(self, measures: List[Measure] | None) -> None:
        """Begin with the prompt."""
        self._pieces.append(self._prompt.text)
        self._measures = measures
        if measures is None:
            self._offset = len(self._prompt.text)

    def take(self) -> bool:
        """Go on by the text's new tokens; whether there is something new to show: text, or the end."""
        shown = [self._take(step) for step in self.text.steps[self.new_tokens :]]
        return any(shown)

    def _take(self, step: Step) -> bool:
        self.new_tokens += 1
        if step.text:
            self._pieces.append(step.text)
        if step.finish_reason:
            self.finish_reason = "length" if step.finish_reason == "length" else "stop"
        return bool(step.text or step.finish_reason)

    @property
    def mean_logprob(self) -> float:
        """The mean log-probability of a new token."""
        values = self.text.logprobs[: self.new_tokens]
        return sum(values) / max(len(values), 1)

    def news(self, index: int) -> News:
        """What is new, of the choice that is shown under this index."""
        text, self._pieces = "".join(self._pieces), []
        new = range(self._shown, self.new_tokens)
        ids = [self.text.ids[self.text.start + i] for i in new]
        reports = [*self._echoed(), *self._reports(new)] if self._with_logprobs else None
        first, self._first, self._shown = self._first, False, self.new_tokens
        return News(index, first, text, self.finish_reason, reports, ids, self._prompt.ids)

    def _echoed(self) -> Iterator[Report]:
        """The reports of the prompt's tokens; the first comes after nothing."""
        measures, self._measures = self._measures, None
        if measures is not None:
            for i, token in enumerate(self._prompt.ids):
                yield self._report(token, *(measures[i - 1] if i else (None, ())))

    def _reports(self, new: Iterable[int]) -> Iterator[Report]:
        for i in new:
            yield self._report(self.text.ids[self.text.start + i], self.text.logprobs[i], self.text.top_logprobs[i])

    def _report(self, token: int, logprob: float | None, top: Iterable[tuple[int, float]]) -> Report:
        likeliest = [] if logprob is None else [*top, (token, logprob)]  # the chosen one is always there
        named = [(other, *self._named(other), max(value, _IMPOSSIBLE)) for other, value in likeliest]
        name, content = self._named(token)
        value = None if logprob is None else max(logprob, _IMPOSSIBLE)
        report = Report(token, name, content, value, named, self._offset)
        self._offset += len(self._decoder.feed(token))
        return report

    def _named(self, token: int) -> tuple[str, bytes]:
        name, content = _spelled(self._tokenizer, token)
        return (f"token_id:{token}" if self._as_ids else name), content


def completion_choice(request: Completion, news: News) -> dict[str, Any]:
    """A choice of /v1/completions, or of a chunk of one."""
    logprobs = None
    if news.reports is not None:
        tops: list[dict[str, float] | None] = []
        for report in news.reports:
            likeliest: dict[str, float] = {}
            for _, name, _, value in report.top:
                likeliest.setdefault(name, value)
            tops.append(None if report.logprob is None else likeliest)
        logprobs = {
            "tokens": [report.name for report in news.reports],
            "token_logprobs": [report.logprob for report in news.reports],
            "top_logprobs": tops,
            "text_offset": [report.offset for report in news.reports],
        }
    choice = {"text": news.text, "index": news.index, "logprobs": logprobs, "finish_reason": news.finish_reason}
    return {**choice, **_ids(request, news)}


def chat_message(request: Completion, news: News) -> dict[str, Any]:
    """A choice of /v1/chat/completions."""
    message = {"role": "assistant", "content": news.text, "refusal": None}
    return {"index": news.index, "message": message, **_chat_end(request, news), **_ids(request, news)}


def chat_delta(request: Completion, news: News) -> dict[str, Any]:
    """A choice of a chunk of /v1/chat/completions."""
    delta = {**({"role": "assistant"} if news.first else {}), "content": news.text}
    return {"index": news.index, "delta": delta, **_chat_end(request, news), **_ids(request, news)}


def _chat_end(request: Completion, news: News) -> dict[str, Any]:
    logprobs = None
    if news.reports is not None:
        count = request.logprobs or 0
        content = [
            {
                "token": report.name,
                "logprob": report.logprob,
                "bytes": list(report.content),
                "top_logprobs": [
                    {"token": name, "logprob": value, "bytes": list(content)}
                    for _, name, content, value in report.top[:count]
                ],
            }
            for report in news.reports
        ]
        logprobs = {"content": content, "refusal": None}
    return {"logprobs": logprobs, "finish_reason": news.finish_reason}


def _ids(request: Completion, news: News) -> dict[str, Any]:
    """The ids where they are asked for: the prompt's once, the text's as they come."""
    if not request.token_ids:
        return {}
    return {"token_ids": news.ids, "prompt_token_ids": news.prompt if news.first else None}


@lru_cache(maxsize=1 << 17)
def _spelled(tokenizer: Tokenizer, token: int) -> tuple[str, bytes]:
    """A token as OpenAI spells it, its text, or where it is no whole characters, its bytes; and the bytes."""
    content = tokenizer.decode_single_token_bytes(token)
    try:
        return content.decode(), content
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content), content
