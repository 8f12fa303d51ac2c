"""/look: the page of `gpt2fast look` for texts that are typed in; the server has it where it is asked to."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import Request
from starlette.responses import Response

from gpt2fast._internal.pages import base_style
from gpt2fast.interpretability.look_page import page_file, render_data, render_shell
from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.request_body import RequestBody
from gpt2fast.server.service import Service

__all__ = ["LookRoute", "look_files"]

#: A look is made of all heads of all layers: it takes seconds, and memory that grows with the square of the text.
_MOST_TOKENS = 256
#: Bytes of an answer, at most.
_ANSWER = 3 << 20


def look_files() -> dict[str, tuple[str, str]]:
    """The contents and media types of the page and its files, by their addresses."""
    return {
        "/look": (render_shell("look/"), "text/html"),
        "/look/base.css": (base_style(), "text/css"),
        "/look/page.css": (page_file("page.css"), "text/css"),
        "/look/page.js": (page_file("page.js"), "text/javascript"),
    }


class LookRoute:
    """POST /look/data: what the page shows of a text, as JSON."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._one = asyncio.Lock()

    async def look(self, request: Request) -> Response:
        """Answer with the data of the page; one text at a time, the others wait."""
        service = self._service
        text = await service.parsed(request, self._parse)
        request.scope["charge"].take(_ANSWER)

        async def made() -> bytes:
            async with self._one:
                return await service.apart(request, lambda: self._make(text))

        return Response(await service.attended(request, made()), media_type="application/json")

    def _parse(self, body: RequestBody) -> str:
        text = body.text("text")
        body.end()
        count = self._service.lm.tokenizer.count(text)
        if count > _MOST_TOKENS:
            raise ApiError(f"text has {count} tokens; the page shows at most {_MOST_TOKENS}", param="text")
        return text

    def _make(self, text: str) -> bytes:
        found = self._service.lm.look(text)
        return json.dumps(render_data(found, "Look inside"), ensure_ascii=False).encode("utf-8", "backslashreplace")
