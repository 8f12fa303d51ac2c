"""From a model's name to a directory on this disk: `models` finds it, `client` downloads it, `names` are shared."""

from __future__ import annotations

from gpt2fast.hub.models import KNOWN, Published, cache_directory, download, resolve

__all__ = ["KNOWN", "Published", "cache_directory", "download", "resolve"]
