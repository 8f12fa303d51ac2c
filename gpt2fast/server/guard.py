"""Who may ask: the right host, no page of another site, and the key.

A server on the loopback address is within reach of every page that the user's browser shows.  A page of another site
can send it requests, though not read the answers: its Origin tells on it.  And by letting its own name point to
127.0.0.1 (DNS rebinding) it would be of the same origin: there the Host header tells.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpt2fast.server.api_errors import ApiError

__all__ = ["Guard", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """An app behind a check of Host (where `hosts` are given), Origin and key (where there is one).

    `origins` are those of other sites that may ask, `*` stands for all; the paths in `open_paths` need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] | None = None,
        origins: Collection[str] = (),
        key: str | None = None,
        open_paths: Collection[str] = (),
    ) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._origins = set(origins)
        self._key = None if key is None else key.encode()
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse to."""
        if scope["type"] == "http":
            error = self._error(scope["path"], Headers(scope=scope))
            if error is not None:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _error(self, path: str, headers: Headers) -> ApiError | None:
        host = _host("//" + headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts and not is_loopback(host):
            return ApiError(
                f"this server does not go by the name {host!r}; --allow-host lets it", status=403, code="wrong_host"
            )
        origin = headers.get("origin")
        # Behind a proxy with TLS the schemes differ; the names do not.
        if origin is not None and not self._origins & {"*", origin} and _netloc(origin) != headers.get("host"):
            return ApiError(
                f"pages of {origin!r} may not ask here; --allow-origin lets them", status=403, code="wrong_origin"
            )
        if self._key is not None and path not in self._open_paths:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key):
                return ApiError(
                    "a key is needed: the header Authorization: Bearer KEY, with the right one",
                    status=401,
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        return None


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""
