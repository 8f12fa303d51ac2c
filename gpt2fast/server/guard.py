"""Who may ask: the right host, no page of another site, and the key.

A server on the loopback address is within reach of every page that the user's browser shows.  A page of another site
can send it requests, though not read the answers: its Origin tells on it.  And by letting its own name point to
127.0.0.1 (DNS rebinding) it would be of the same origin: there the Host header tells.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpt2fast.server.api_errors import ApiError
from gpt2fast.server.keys import Key, KeyRing, Use

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
    """An app behind a check of Host (where `hosts` are given), Origin and key (where there are any).

    `*` among `hosts` stands for every name.  `origins` are those of other sites that may ask, `*` stands for all; the
    paths in `open_paths` need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] | None = None,
        origins: Collection[str] = (),
        keys: Collection[Key] = (),
        open_paths: Collection[str] = (),
    ) -> None:
        self._app = app
        self._hosts = None if hosts is None or "*" in hosts else {host.lower() for host in hosts}
        self._origins = set(origins)
        self._keys = KeyRing(keys)
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse to."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            use = self._admitted(scope["path"], Headers(scope=scope))
            if use is not None:
                scope["key"] = use.key.name
            with use or nullcontext():
                await self._app(scope, receive, send)
        except ApiError as error:  # the app's own are answered by then
            await error.response()(scope, receive, send)

    def _admitted(self, path: str, headers: Headers) -> Use | None:
        """The use of the request's key; None where it needs none.  Raises an ApiError for a request that may not be."""
        host = _host("//" + headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts and not is_loopback(host):
            raise ApiError(
                f"this server does not go by the name {host!r}; --allow-host lets it", status=403, code="wrong_host"
            )
        origin = headers.get("origin")
        # Behind a proxy with TLS the schemes differ; the names do not.
        if origin is not None and not self._origins & {"*", origin} and _netloc(origin) != headers.get("host"):
            raise ApiError(
                f"pages of {origin!r} may not ask here; --allow-origin lets them", status=403, code="wrong_origin"
            )
        if not self._keys or path in self._open_paths:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        use = self._keys.find(given.strip().encode("latin-1")) if scheme.lower() == "bearer" else None
        if use is None:
            raise ApiError(
                "a key is needed: the header Authorization: Bearer KEY, with the right one",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return use


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
