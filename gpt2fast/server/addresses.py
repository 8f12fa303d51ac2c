"""Addresses as clients put them together: slashes at the end, or two in a row, mean nothing."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Tidied"]


class Tidied:
    """An app that gets to see `/v1/completions` where a client asks for `//v1/completions/`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] == "http" and ("//" in scope["path"] or scope["path"].endswith("/")):
            path = re.sub("/+", "/", scope["path"]).rstrip("/") or "/"
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(scope, receive, send)
