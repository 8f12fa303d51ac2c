"""Tokenizers by name: those that tiktoken's callers ask for, and those of models."""

from __future__ import annotations

from gpt2fast.errors import UnknownTokenError
from gpt2fast.tokenizer.encoding import GPT2_NAMES, Tokenizer, get_encoding

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["encoding_for_model", "list_encoding_names", "named_tokenizer"]

_GPT2_MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")


def list_encoding_names() -> list[str]:
    """The names that `get_encoding` knows.

    >>> list_encoding_names()
    ['gpt2', 'r50k_base']
    """
    return list(GPT2_NAMES)


def encoding_for_model(model_name: str) -> Tokenizer:
    """The tokenizer of a model of the GPT-2 family by its name: gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2.

    Raises UnknownTokenError, a KeyError as tiktoken's, for other names; `Tokenizer.from_pretrained` reads the tokenizer
    of a model's directory.

    >>> encoding_for_model("gpt2-xl").name
    'gpt2'
    """
    if not isinstance(model_name, str) or model_name not in _GPT2_MODELS:
        raise UnknownTokenError(f"no encoding is known for the model {model_name!r}; expected one of {_GPT2_MODELS}")
    return get_encoding("gpt2")


def named_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer of that name: "gpt2", the one that ships with this package, or that of a model's directory or name,
    which is downloaded where it is not in the cache.

    Raises MissingFileError, InputError, DownloadError or MissingDependencyError.
    """
    if name == "gpt2":  # no download, and nothing of what downloads
        return get_encoding("gpt2")
    import os

    from gpt2fast.hub.models import KNOWN, resolve

    path = os.path.expanduser(name)
    # A directory may hold a tokenizer and nothing else.
    is_directory = name not in ("demo", *KNOWN) and os.path.isdir(path)
    return Tokenizer.from_pretrained(path if is_directory else resolve(name))
