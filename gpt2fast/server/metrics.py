"""What the server counts: for Prometheus at /metrics, and a line for each request on standard error."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["JsonLines", "Metrics", "Observed"]

_log = logging.getLogger("gpt2fast.server")

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """The counters of one server; nothing is shared with others in the process."""

    def __init__(self, *, inside: Callable[[], int], running: Callable[[], int], held: Callable[[], int]) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory and processor time, where the system tells
        self.requests = Counter("gpt2fast_requests", "Requests", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "gpt2fast_request_seconds", "Time to the end of the answer", ["path"], buckets=_SECONDS, registry=registry
        )
        self.first_token = Histogram(
            "gpt2fast_first_token_seconds", "Time to the first new token", buckets=_SECONDS, registry=registry
        )
        self.tokens = Counter(
            "gpt2fast_tokens", "Tokens read, written, scored or embedded", ["kind"], registry=registry
        )
        Gauge("gpt2fast_places_taken", "Texts and other work, running or waiting", registry=registry).set_function(
            inside
        )
        Gauge("gpt2fast_texts_running", "Texts that grow or are read", registry=registry).set_function(running)
        Gauge("gpt2fast_held_bytes", "Bytes that larger requests and answers hold", registry=registry).set_function(
            held
        )

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class Observed:
    """An app whose requests are counted, and logged without anything that they hold but method and path."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 499  # nginx's for a client that left before the answer

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            status = 500
            raise
        finally:
            seconds = time.perf_counter() - start
            # Known paths only: whoever asks for others does not fill the memory with their names.
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(seconds)
            _log.info(
                "%s %s %d %.3f s",
                scope["method"],
                quote(scope["path"])[:200],
                status,
                seconds,
                extra={"request": _facts(scope, status, seconds)},
            )


def _facts(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    """What a log in JSON tells of a request."""
    usage = scope["usage"]() if "usage" in scope else {}
    client = scope.get("client")
    return {
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": status,
        "seconds": round(seconds, 6),
        "client": client[0] if client else None,
        "key": scope.get("key"),
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
    }


class JsonLines(logging.Formatter):
    """A line of JSON for each record: `time`, `level` and `message`, or what is known of a request."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        facts = getattr(record, "request", None)
        if facts is None:
            text = super().format(record)
            facts = {"message": text}
        return json.dumps({"time": when, "level": record.levelname.lower(), **facts}, ensure_ascii=False)
