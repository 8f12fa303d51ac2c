"""The routes: which address answers what, and who may ask."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpt2fast._internal.arguments import flag, listed
from gpt2fast._internal.pages import base_style
from gpt2fast.errors import Error, InputTypeError
from gpt2fast.language_model import LanguageModel
from gpt2fast.server.addresses import Tidied
from gpt2fast.server.api_errors import ApiError, Failed, Gone, Json
from gpt2fast.server.budget import Charged
from gpt2fast.server.chat import ChatTemplate
from gpt2fast.server.guard import Guard
from gpt2fast.server.keys import Key
from gpt2fast.server.limits import Limits
from gpt2fast.server.look_route import LookRoute, look_files
from gpt2fast.server.metrics import Observed
from gpt2fast.server.number_routes import NumberRoutes
from gpt2fast.server.openapi import docs_page, openapi
from gpt2fast.server.protocol import check_model
from gpt2fast.server.request_body import RequestBody
from gpt2fast.server.service import Service
from gpt2fast.server.text_routes import TextRoutes
from gpt2fast.server.token_routes import TokenRoutes
from gpt2fast.server.turns import InTurn

__all__ = ["create_app"]

_PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
#: Where the page says so it links to /look, in a server that has it.
_LOOK, _LINK = "<!-- look -->", '<a id="look" href="look">Look inside</a>'
# The pages need nothing but this server; the browser sees to it that they get nothing else.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def create_app(
    lm: LanguageModel,
    *,
    name: str = "demo",
    limits: Limits | None = None,
    key: str | None = None,
    keys: Collection[Key] = (),
    hosts: Collection[str] | None = None,
    origins: Collection[str] = (),
    speculate: str | None = None,
    chat_template: ChatTemplate | None = None,
    allow_special: bool = False,
    look: bool = False,
) -> Starlette:
    """The ASGI app that serves `lm` under `name`; its `state.engine` is the Engine.

    Requests need `key` or one of `keys` where there are any, must be sent to one of `hosts`, or a loopback name, where
    these are given, and not by pages of other origins than `origins`.  `speculate` is as for `LanguageModel.drafter`,
    which raises where it is wrong.  With `allow_special` special tokens in texts are tokens, not text.  With `look`
    there is a page at /look that shows attention, layers and heads at work on a text.
    """
    if limits is not None and not isinstance(limits, Limits):
        raise InputTypeError(f"limits is of type {type(limits).__name__}; expected Limits")
    keys, origins = listed("keys", keys, "keys"), listed("origins", origins, "origins")
    look = flag("look", look)
    hosts = None if hosts is None else listed("hosts", hosts, "names of hosts")
    service = Service(
        lm, name, limits or Limits(), speculate=speculate, template=chat_template, allow_special=allow_special
    )
    pages = _pages(look)
    routes = [*(Route(path, partial(_page, *page), methods=["GET"]) for path, page in pages.items()), *_routes(service)]
    if look:
        routes.append(Route("/look/data", LookRoute(service).look, methods=["POST"]))
    paths = {route.path for route in routes}
    middleware = [
        Middleware(InTurn, turns=service.turns),
        Middleware(Tidied),
        Middleware(Observed, metrics=service.metrics, paths=paths),
        Middleware(Charged, budget=service.budget),
    ]
    if origins:
        methods, headers = ["GET", "POST"], ["*"]
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=methods, allow_headers=headers)
        )
    everybody = [Key(key)] if key is not None else []
    open_paths = {"/health", "/docs", "/openapi.json", *pages}
    middleware.append(Middleware(Guard, hosts=hosts, origins=origins, keys=[*everybody, *keys], open_paths=open_paths))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.engine.start()
        try:
            yield
        finally:
            await service.stop()

    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={ApiError: _refused, Error: _not_acceptable, HTTPException: _not_here, Exception: _failed},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.engine = service.engine
    app.state.service = service
    return app


def _routes(service: Service) -> list[Route]:
    texts, numbers, tokens, own = TextRoutes(service), NumberRoutes(service), TokenRoutes(service), _Own(service)
    return [
        Route("/v1/completions", texts.completions, methods=["POST"]),
        Route("/v1/chat/completions", texts.chat, methods=["POST"]),
        Route("/v1/embeddings", numbers.embeddings, methods=["POST"]),
        Route("/v1/models", own.models, methods=["GET"]),
        Route("/v1/models/{model:path}", own.model, methods=["GET"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/tokenizer_info", tokens.info, methods=["GET"]),
        Route("/score", numbers.score, methods=["POST"]),
        Route("/health", own.health, methods=["GET"]),
        Route("/metrics", own.prometheus, methods=["GET"]),
        Route("/openapi.json", own.openapi, methods=["GET"]),
        Route("/docs", own.docs, methods=["GET"]),
    ]


class _Own:
    """What the server tells of itself."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = int(time.time())

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return Json({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        check_model(RequestBody({"model": request.path_params["model"]}), self._service.name)
        return Json(self._card())

    def _card(self) -> dict[str, Any]:
        n_ctx = self._service.lm.model.config.n_ctx
        return {
            "id": self._service.name,
            "object": "model",
            "created": self._started,
            "owned_by": "gpt2fast",
            "context_length": n_ctx,
            "max_model_len": n_ctx,  # as vLLM calls it
        }

    async def health(self, request: Request) -> Response:
        """GET /health: 200, or 503 while the server shuts down and where it is broken."""
        if self._service.engine.draining:
            return Json({"status": "shutting down"}, 503)
        if not self._service.engine.alive:
            return Json({"status": "the engine has stopped"}, 503)
        return Json({"status": "ok"})

    async def prometheus(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self._service.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        return Json(openapi())

    async def docs(self, request: Request) -> Response:
        """GET /docs: the same for people."""
        return Response(docs_page(), headers=_PAGE_HEADERS, media_type="text/html")


def _pages(look: bool) -> dict[str, tuple[str, str]]:
    """The contents and media types of the pages and of their files, by their addresses."""
    folder = files("gpt2fast.server") / "page"
    pages = {path: ((folder / name).read_text(encoding="utf-8"), kind) for path, (name, kind) in _PAGE.items()}
    pages["/base.css"] = (base_style(), "text/css")
    page, kind = pages["/"]
    pages["/"] = (page.replace(_LOOK, _LINK if look else ""), kind)
    return {**pages, **look_files()} if look else pages


async def _page(content: str, media_type: str, request: Request) -> Response:
    return Response(content, headers=_PAGE_HEADERS, media_type=media_type)


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
