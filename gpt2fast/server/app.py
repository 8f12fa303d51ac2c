"""The routes: what each address answers."""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gpt2fast.errors import Error
from gpt2fast.generation.generate import generated_sequences
from gpt2fast.language_model import LanguageModel
from gpt2fast.model.pairing import shared_vocabulary
from gpt2fast.scoring.score import Score, ScoredText, score_sequences
from gpt2fast.server.api_errors import ApiError, Closing, Failed, Gone, Json
from gpt2fast.server.completions import Answer, Choice
from gpt2fast.server.engine import Engine
from gpt2fast.server.guard import Guard
from gpt2fast.server.limits import Limits
from gpt2fast.server.metrics import Metrics, Observed
from gpt2fast.server.protocol import (
    check_model,
    parse_completion,
    parse_embedding,
    parse_ids,
    parse_scoring,
)
from gpt2fast.server.request_body import RequestBody, read_body
from gpt2fast.server.sse import EventStream, Tell, attended
from gpt2fast.server.work import EmbeddedSequence, Measure, MeasuredPrompt

__all__ = ["create_app"]

T = TypeVar("T")

_PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
# The page needs nothing but this server; the browser sees to it that it gets nothing else.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def create_app(
    lm: LanguageModel,
    *,
    name: str = "demo",
    limits: Limits | None = None,
    key: str | None = None,
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    speculate: str | None = None,
) -> Starlette:
    """The ASGI app that serves `lm` under `name`; its `state.engine` is the Engine.

    Requests need `key` where there is one, must be sent to one of `hosts`, or a loopback name, where these are given,
    and not by pages of other origins than `origins`.  `speculate` is as for `LanguageModel.drafter`, which raises where
    it is wrong.
    """
    server = _Server(lm, name, limits or Limits(), speculate)
    routes = server.routes()
    paths = {route.path for route in routes}
    middleware = [Middleware(Observed, metrics=server.metrics, paths=paths)]
    if origins:
        methods, headers = ["GET", "POST"], ["*"]
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=methods, allow_headers=headers)
        )
    open_paths = {"/health", *_PAGE}
    middleware.append(Middleware(Guard, hosts=hosts, origins=origins, key=key, open_paths=open_paths))
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={ApiError: _refused, Error: _not_acceptable, HTTPException: _not_here, Exception: _failed},
        lifespan=server.lifespan,
    )
    app.router.redirect_slashes = False
    app.state.engine = server.engine
    return app


class _Server:
    def __init__(self, lm: LanguageModel, name: str, limits: Limits, speculate: str | None) -> None:
        drafter = partial(lm.drafter, speculate=speculate, size=limits.rows)
        n_vocab = shared_vocabulary(lm.model, lm.tokenizer)
        self.engine = Engine(lm.model, n_vocab=n_vocab, rows=limits.rows, places=limits.places, drafter=drafter)
        self.metrics = Metrics(lambda: self.engine.inside, lambda: self.engine.running)
        self._lm = lm
        self._name = name
        self._limits = limits
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            *(Route(path, partial(_page, *file), methods=["GET"]) for path, file in _PAGE.items()),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/score", self.score, methods=["POST"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.prometheus, methods=["GET"]),
        ]

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """The engine runs while the app does."""
        self.engine.start()
        try:
            yield
        finally:
            await self.engine.stop()

    # Texts

    async def completions(self, request: Request) -> ASGIApp:
        """POST /v1/completions."""
        start = time.perf_counter()
        asked = parse_completion(await self._fields(request), self._lm, self._name, self._limits)
        ids = [prompt.ids for prompt in asked.prompts]
        texts = generated_sequences(self._lm.model, self._lm.tokenizer, ids, asked.settings, n=asked.n)
        answer = Answer(asked, texts, self._name, self._lm.tokenizer)
        seconds = self._limits.timeout - (time.perf_counter() - start)
        if asked.stream:
            return EventStream(partial(self._stream, answer, start), seconds)
        await attended(request.receive, self._write(answer, start), seconds)
        return Json(answer.whole())

    async def _stream(self, answer: Answer, start: float, tell: Tell) -> None:
        async def show(choices: Collection[Choice]) -> None:
            for choice in choices:
                await tell(answer.chunk(choice))

        await self._write(answer, start, show)
        if answer.request.include_usage:
            await tell(answer.last_chunk())

    async def _write(
        self,
        answer: Answer,
        start: float,
        show: Callable[[Collection[Choice]], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Write the texts of the answer, calling `show` with the choices that have something new."""
        request = answer.request
        growing = self.engine.enter(len(answer.choices))
        with growing if request.max_tokens else nullcontext() as texts:
            if texts is not None:
                texts.add([choice.text for choice in answer.choices], by_sequence=True)
            self.metrics.tokens.labels("prompt").inc(answer.usage["prompt_tokens"])
            if request.echo:
                answer.echo(await self._measures(answer) if request.settings.logprobs is not None else None)
                if show:
                    await show(answer.choices)
            while texts is not None and not answer.finished:
                sequences = await texts.progress()
                before = answer.new_tokens
                changed = answer.take(sequences)
                if not before:
                    self.metrics.first_token.observe(time.perf_counter() - start)
                self.metrics.tokens.labels("completion").inc(answer.new_tokens - before)
                if show:
                    await show(changed)

    async def _measures(self, answer: Answer) -> list[list[Measure]]:
        top = answer.request.settings.logprobs or 0
        sequences = [MeasuredPrompt(prompt.ids, top) for prompt in answer.request.prompts]
        with self.engine.enter(1) as request:
            await request.read(sequences)
        return [sequence.measures for sequence in sequences]

    # Numbers

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        asked = parse_embedding(await self._fields(request), self._lm, self._name)
        count = sum(len(text.ids) for text in asked.inputs)
        self.metrics.tokens.labels("embedded").inc(count)
        sequences = [EmbeddedSequence(text.ids, self._lm.model.config.n_embd) for text in asked.inputs]

        async def work() -> Response:
            with self.engine.enter(1) as request:
                await request.read(sequences)
            vectors = enumerate(sequence.embedding for sequence in sequences)
            data = [{"object": "embedding", "index": i, "embedding": _embedding(v, asked.base64)} for i, v in vectors]
            usage = {"prompt_tokens": count, "total_tokens": count}
            return Json({"object": "list", "data": data, "model": self._name, "usage": usage})

        return await attended(request.receive, work(), self._limits.timeout)

    async def score(self, request: Request) -> Response:
        """POST /score."""
        asked = parse_scoring(await self._fields(request), self._lm, self._name)
        model, tokenizer = self._lm.model, self._lm.tokenizer
        prepare = partial(score_sequences, model, tokenizer, asked.texts, context=asked.context, stride=asked.stride)

        def answer(scored: list[ScoredText]) -> Response:
            scores = [text.score() for text in scored]
            self.metrics.tokens.labels("scored").inc(sum(map(len, scores)))
            return Json({"object": "list", "data": [_score(score) for score in scores], "model": self._name})

        async def work() -> Response:
            # A megabyte takes a while, before and after: not on the thread that passes on everybody's tokens.
            with self.engine.enter(1) as request:
                scored = await asyncio.to_thread(prepare)
                await request.read([text.sequence for text in scored])
                return await asyncio.to_thread(answer, scored)

        return await attended(request.receive, work(), self._limits.timeout)

    # Tokens

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        fields = await self._fields(request)
        check_model(fields, self._name)
        text = fields.text("text")
        allow_special = fields.flag("allow_special")
        fields.end()
        tokenizer = self._lm.tokenizer

        def answer() -> Response:
            if allow_special:
                ids = tokenizer.encode(text, allowed_special="all")
                return Json({"ids": ids, "count": len(ids)})
            ids, spans = tokenizer.encode_with_offsets(text)
            return Json({"ids": ids, "count": len(ids), "spans": spans})

        # A megabyte takes a while: not on the thread that passes on everybody's tokens.
        return await asyncio.to_thread(answer)

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        fields = await self._fields(request)
        check_model(fields, self._name)
        ids = parse_ids(fields.take("ids"), "ids", self._lm)
        fields.end()
        return Json({"text": self._lm.tokenizer.decode(ids)})

    # The server itself

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return Json({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        check_model(RequestBody({"model": request.path_params["model"]}), self._name)
        return Json(self._card())

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": "model",
            "created": self._started,
            "owned_by": "gpt2fast",
            "context_length": self._lm.model.config.n_ctx,
        }

    async def health(self, request: Request) -> Response:
        """GET /health: 200, or 503 while the server shuts down and where it is broken."""
        if self.engine.draining:
            return Json({"status": "shutting down"}, 503)
        if not self.engine.alive:
            return Json({"status": "the engine has stopped"}, 503)
        return Json({"status": "ok"})

    async def prometheus(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _fields(self, request: Request) -> RequestBody:
        if self.engine.draining:
            raise Closing
        return await read_body(request, self._limits)


async def _page(name: str, media_type: str, request: Request) -> Response:
    content = await asyncio.to_thread((files("gpt2fast.server") / "page" / name).read_bytes)
    return Response(content, headers={**_PAGE_HEADERS, "X-Content-Type-Options": "nosniff"}, media_type=media_type)


def _embedding(vector: npt.NDArray[np.float32], as_base64: bool) -> str | list[float]:
    """As base64 it is little-endian float32."""
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values


def _score(score: Score) -> dict[str, Any]:
    """A score as JSON; what is not finite is null."""
    tokens = [
        {
            "id": token.id,
            "start": token.span[0],
            "end": token.span[1],
            "token": token.text,
            "log_probability": _finite(token.log_probability),
            "surprisal": _finite(token.surprisal),
            "rank": token.rank,
            "entropy": token.entropy,
        }
        for token in score.tokens
    ]
    return {
        "tokens": tokens,
        "log_likelihood": _finite(score.log_likelihood),
        "perplexity": _finite(score.perplexity),
        "bits_per_byte": _finite(score.bits_per_byte),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# What goes wrong


async def _refused(request: Request, error: Exception) -> Any:
    if isinstance(error, Gone):
        return _nobody
    return error.response() if isinstance(error, ApiError) else await _failed(request, error)


async def _nobody(scope: Any, receive: Any, send: Any) -> None:
    """The answer to a client that is gone."""


async def _not_acceptable(request: Request, error: Exception) -> Response:
    return ApiError(str(error)).response()


async def _not_here(request: Request, error: Exception) -> Response:
    """404 and 405."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict((error.headers or {}) if isinstance(error, HTTPException) else {})
    if status == 405:
        message = f"{request.url.path} does not take {request.method}; it takes {headers.get('Allow', 'others')}"
    else:
        message = f"there is nothing at {request.url.path}"
    return ApiError(message, status=status, headers=headers).response()


async def _failed(request: Request, error: Exception) -> Response:
    """An error that nobody foresaw: its traceback is for the log, not for the client."""
    return Failed("the server failed; its log says how").response()
