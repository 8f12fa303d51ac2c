"""The answers to requests for completions, whole or in chunks, as OpenAI's clients expect them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from collections.abc import Sequence as List
from functools import lru_cache
from typing import Any

from gpt2fast.generation.sequence import GeneratedSequence, Step
from gpt2fast.scheduler import Sequence
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
        self._prompt_tokens = sum(text.start for text in texts[:: request.n])
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": name,
        }

    def echo(self, measures: List[List[Measure]] | None) -> None:
        """Begin with the prompts; with the measures of each where log-probabilities are asked for."""
        for i, choice in enumerate(self.choices):
            choice.echo(None if measures is None else measures[i // self.request.n])

    def take(self, texts: Iterable[Sequence]) -> list[Choice]:
        """Go on by the new tokens of the texts; the choices that have something new to show."""
        return [choice for choice in (self._by_text[text] for text in texts) if choice.take()]

    @property
    def new_tokens(self) -> int:
        """How many new tokens there are in all choices."""
        return sum(choice.new_tokens for choice in self.choices)

    @property
    def finished(self) -> bool:
        """Whether all choices have ended."""
        return all(choice.finish_reason for choice in self.choices)

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
        return {**self._head, "choices": [choice.flush() for choice in self.choices], "usage": self.usage}

    def chunk(self, choice: Choice) -> dict[str, Any]:
        """A chunk of a stream: what is new of one choice."""
        usage = {"usage": None} if self.request.include_usage else {}
        return {**self._head, "choices": [choice.flush()], **usage}

    def last_chunk(self) -> dict[str, Any]:
        """The chunk that reports the usage, after all others."""
        return {**self._head, "choices": [], "usage": self.usage}


class Choice:
    """One text of an answer: what has come since the last `flush`."""

    def __init__(self, index: int, text: GeneratedSequence, request: Completion, tokenizer: Tokenizer) -> None:
        self.text = text
        self.finish_reason: str | None = None if request.max_tokens else "length"
        self.new_tokens = 0
        self._index = index
        self._prompt = request.prompts[text.prompt]
        self._with_logprobs = request.settings.logprobs is not None
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decode_stream()
        self._offset = 0  # characters before the next token
        self._pieces: list[str] = []
        self._reports: list[tuple[str, float | None, dict[str, float] | None, int]] = []

    def echo(self, measures: List[Measure] | None) -> None:
        """Begin with the prompt."""
        self._pieces.append(self._prompt.text)
        if measures is None:
            self._offset = len(self._prompt.text)
            return
        for i, token in enumerate(self._prompt.ids):
            self._report(token, *(measures[i - 1] if i else (None, None)))

    def take(self) -> bool:
        """Go on by the text's new tokens; whether there is something new to show: text, or the end."""
        shown = [self._take(step) for step in self.text.steps[self.new_tokens :]]
        return any(shown)

    def _take(self, step: Step) -> bool:
        if self._with_logprobs:
            self._report(step.id, self.text.logprobs[self.new_tokens], self.text.top_logprobs[self.new_tokens])
        self.new_tokens += 1
        if step.text:
            self._pieces.append(step.text)
        if step.finish_reason:
            self.finish_reason = "length" if step.finish_reason == "length" else "stop"
        return bool(step.text or step.finish_reason)

    def flush(self) -> dict[str, Any]:
        """What is new."""
        text, self._pieces = "".join(self._pieces), []
        logprobs = None
        if self._with_logprobs:
            reports, self._reports = self._reports, []
            tokens, values, tops, offsets = [list(column) for column in zip(*reports, strict=True)] or ([], [], [], [])
            logprobs = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
        return {"text": text, "index": self._index, "logprobs": logprobs, "finish_reason": self.finish_reason}

    def _report(self, token: int, logprob: float | None, top: List[tuple[int, float]] | None) -> None:
        name = _spelled(self._tokenizer, token)
        likeliest: dict[str, float] | None = None
        if logprob is not None and top is not None:
            logprob = max(logprob, _IMPOSSIBLE)
            likeliest = {}
            for other, value in (*top, (token, logprob)):  # the chosen one is always there
                likeliest.setdefault(_spelled(self._tokenizer, other), max(value, _IMPOSSIBLE))
        self._reports.append((name, logprob, likeliest, self._offset))
        self._offset += len(self._decoder.feed(token))


@lru_cache(maxsize=1 << 17)
def _spelled(tokenizer: Tokenizer, token: int) -> str:
    """A token as OpenAI spells it: its text, or where it is no whole characters, its bytes."""
    content = tokenizer.decode_single_token_bytes(token)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
