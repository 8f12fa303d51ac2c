"""The way in from HTTP: `gpt2fast serve`, an OpenAI-compatible server with continuous batching.

From below: `engine` is the thread that runs the network, `work` what it does besides writing texts; `request_body`,
`protocol` and `foreign_fields` are the requests, `chat` those that a template makes prompts of, `completions` and
`parts` the answers; `text_routes`, `number_routes` and `token_routes` are the addresses, which share a `service`, and
`openapi` describes them; `guard`, `keys`, `budget` and `metrics` stand around `app`, which puts all together;
`connections` and `serving` listen, and stop without breaking off a text.  Needs the extra `gpt2fast[serve]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt2fast.server.app import create_app
    from gpt2fast.server.chat import ChatTemplate
    from gpt2fast.server.keys import Key, read_keys
    from gpt2fast.server.limits import Limits
    from gpt2fast.server.serving import bind, serve

__all__ = ["ChatTemplate", "Key", "Limits", "bind", "create_app", "read_keys", "serve"]

_HOMES = {
    "ChatTemplate": "chat",
    "Key": "keys",
    "Limits": "limits",
    "bind": "serving",
    "create_app": "app",
    "read_keys": "keys",
    "serve": "serving",
}


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
