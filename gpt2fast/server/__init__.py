"""The door from HTTP: `gpt2fast serve`, an OpenAI-compatible server with continuous batching.

From below: `engine` is the thread that runs the network, `work` what it does besides writing texts; `fields`,
`protocol` and `completions` are the requests and answers; `guard` and `metrics` stand around `app`, the routes;
`serving` listens, and stops without breaking off a text.  Needs the extra `gpt2fast[serve]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt2fast.server.app import create_app
    from gpt2fast.server.limits import Limits
    from gpt2fast.server.serving import bind, serve

__all__ = ["Limits", "bind", "create_app", "serve"]

_HOMES = {"Limits": "limits", "bind": "serving", "create_app": "app", "serve": "serving"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    from gpt2fast.errors import MissingDependencyError

    if name not in _HOMES:
        raise AttributeError(f"module 'gpt2fast.server' has no attribute {name!r}")
    try:
        return getattr(import_module(f"gpt2fast.server.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("starlette", "uvicorn", "prometheus_client"):
            raise
        raise MissingDependencyError(
            f"serving needs {error.name.split('.')[0]}, which is not installed: pip install 'gpt2fast[serve]'"
        ) from error
