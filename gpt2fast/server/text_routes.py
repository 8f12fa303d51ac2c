"""POST /v1/completions and /v1/chat/completions: texts, whole or as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from gpt2fast.errors import GrammarError, MissingDependencyError
from gpt2fast.generation.constraint import Matcher
from gpt2fast.generation.generate import Settings, generated_sequences, matchers_of
from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.chat import parse_chat
from gpt2fast.server.completions import Answer, Choice
from gpt2fast.server.grammar_fields import LIMITS
from gpt2fast.server.parts import JsonInParts, Pauses
from gpt2fast.server.protocol import Completion, parse_completion
from gpt2fast.server.request_body import RequestBody
from gpt2fast.server.service import Service
from gpt2fast.server.sse import EventStream, Tell
from gpt2fast.server.turns import next_turn
from gpt2fast.server.work import Measure, MeasuredPrompt

__all__ = ["TextRoutes"]

Show = Callable[[Collection[Choice]], Coroutine[Any, Any, None]]


class TextRoutes:
    """The two addresses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lm = service.lm

    async def completions(self, request: Request) -> ASGIApp:
        """POST /v1/completions."""
        service = self._service

        def parse(body: RequestBody) -> Completion:
            if body.has("messages") and not body.has("prompt"):
                raise ApiError(
                    "there is no field 'messages' here; chats are for /v1/chat/completions", param="messages"
                )
            return parse_completion(body, service.lm, service.name, service.limits, service.allow_special)

        return await self._answered(request, parse)

    async def chat(self, request: Request) -> ASGIApp:
        """POST /v1/chat/completions."""
        service, template = self._service, self._service.template
        if template is None:
            raise ApiError(
                "GPT-2 knows no conversations: send a prompt to /v1/completions; for a fine-tune that was trained on "
                "chats, start the server with --chat-template FILE",
                code="no_chat_template",
            )
        return await self._answered(
            request, lambda body: parse_chat(body, service.lm, service.name, service.limits, template)
        )

    async def _answered(self, request: Request, parse: Callable[[RequestBody], Completion]) -> ASGIApp:
        start = time.perf_counter()
        asked = await self._service.parsed(request, parse)
        request.scope["charge"].take(asked.cost)
        ids = [prompt.ids for prompt in asked.prompts]
        matchers = None
        if asked.settings.asked_grammar is not None:
            compiled = self._service.apart(request, lambda: self._matchers(asked.settings))
            matchers = await self._service.attended(request, compiled, time.perf_counter() - start)
        texts = generated_sequences(
            self._lm.model, self._lm.tokenizer, ids, asked.settings, n=asked.best_of, matchers=matchers
        )
        answer = Answer(asked, texts, self._service.name, self._lm.tokenizer)
        request.scope["usage"] = lambda: answer.usage
        spent = time.perf_counter() - start
        if asked.stream.stream:
            return EventStream(partial(self._stream, request, answer, start), self._service.limits.timeout - spent)
        await self._service.attended(request, self._write(answer, start), spent)
        return JsonInParts(answer.whole())

    def _matchers(self, settings: Settings) -> Callable[[], Matcher] | None:
        """The grammar of the request, ready for its texts."""
        try:
            return matchers_of(self._lm.model, self._lm.tokenizer, settings, LIMITS)
        except MissingDependencyError as error:
            raise ApiError(str(error), code="no_grammars") from None
        except GrammarError as error:
            raise ApiError(str(error), code="invalid_grammar") from None

    async def _stream(self, request: Request, answer: Answer, start: float, tell: Tell) -> None:
        pauses = Pauses(partial(asyncio.sleep, 0))

        async def show(choices: Collection[Choice]) -> None:
            for choice in choices:
                if not choice.new_tokens:  # the prompt, which with log-probabilities may take long
                    await next_turn(request.scope)
                await tell(answer.chunk(choice))
                await pauses.pause()

        await self._write(answer, start, show)
        if answer.request.stream.usage:
            await tell(answer.last_chunk())

    async def _write(self, answer: Answer, start: float, show: Show | None = None) -> None:
        """Write the texts of the answer, calling `show` with the choices that have something new."""
        request, metrics = answer.request, self._service.metrics
        growing = self._service.engine.enter(len(answer.choices))
        with growing if request.max_tokens else nullcontext() as texts:
            if texts is not None:
                texts.add([choice.text for choice in answer.choices], by_sequence=True)
            metrics.tokens.labels("prompt").inc(answer.usage["prompt_tokens"])
            if request.echo:
                answer.echo(await self._measures(answer) if request.logprobs is not None else None)
                if show:
                    await show(answer.choices)
            while texts is not None and not answer.finished:
                sequences = await texts.progress()
                before = answer.new_tokens
                changed = answer.take(sequences)
                if not before:
                    metrics.first_token.observe(time.perf_counter() - start)
                metrics.tokens.labels("completion").inc(answer.new_tokens - before)
                if show:
                    await show(changed)

    async def _measures(self, answer: Answer) -> list[list[Measure]]:
        top = answer.request.logprobs or 0
        sequences = [MeasuredPrompt(prompt.ids, top) for prompt in answer.request.prompts]
        with self._service.engine.enter(1) as request:
            await request.read(sequences)
        return [sequence.measures for sequence in sequences]
