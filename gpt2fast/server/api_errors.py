"""Requests that are not answered: each kind with its status, in the shape that OpenAI's clients understand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from starlette.responses import Response

__all__ = ["ApiError", "Closing", "Expired", "Failed", "Full", "Gone", "Json", "to_json"]

# A message may quote what was sent; this much of it is enough to find the place.
_LONGEST = 500


class Json(Response):
    """A JSON answer.  What UTF-8 has no bytes for, a lone surrogate that a request held, is escaped."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The content's bytes."""
        return to_json(content)


def to_json(content: Any) -> bytes:
    """The bytes of JSON on one line."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


class ApiError(Exception):
    """A request that is refused, with the status and the words for it."""

    status = 400
    kind = "invalid_request_error"
    code: str | None = None
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        kind: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…"
        self.param = param
        self.status = status or self.status
        self.kind = kind or self.kind
        self.code = code or self.code
        self.all_headers = {**self.headers, **(headers or {})}

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients expect it."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The answer that says so."""
        return Json(self.body, self.status, self.all_headers)


class Full(ApiError):
    """The queue is full."""

    status, kind, code = 429, "rate_limit_error", "queue_full"
    headers: ClassVar = {"Retry-After": "1"}


class Closing(ApiError):
    """The server is shutting down."""

    status, kind, code = 503, "server_error", "shutting_down"
    headers: ClassVar = {"Retry-After": "5"}

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class Expired(ApiError):
    """The request's time is up."""

    status, kind, code = 504, "server_error", "timeout"


class Failed(ApiError):
    """The network could not do it."""

    status, kind, code = 500, "server_error", "engine_error"


class Gone(ApiError):
    """The client went away; nobody will read the answer."""

    status, code = 499, "client_gone"

    def __init__(self) -> None:
        super().__init__("the client went away")
