"""GPT-2 on the machine you have, at the speed of its memory.

    >>> import gpt2fast
    >>> gpt2fast.get_encoding("gpt2").encode("Hello, world")
    [15496, 11, 995]
    >>> lm = gpt2fast.load("demo")
    >>> print(lm.generate("Once upon a time", max_new_tokens=40, seed=1).text)  # doctest: +SKIP

Names are loaded when they are first used, so that a program that only tokenizes never loads the engine.
"""

from __future__ import annotations

from gpt2fast._internal import finder
from gpt2fast.errors import (
    CpuLevelError,
    DeviceError,
    DeviceMemoryError,
    DownloadError,
    Error,
    GrammarError,
    InputError,
    InputTypeError,
    MissingDependencyError,
    MissingFileError,
    NonFiniteError,
    NotBuiltError,
    OutOfMemoryError,
    ProcessorError,
    UnknownTokenError,
)

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from typing import Any

    from gpt2fast import compression, safetensors
    from gpt2fast._internal.numerics import numerics_version
    from gpt2fast.checkpoint.config import Config
    from gpt2fast.generation.beam import Beam
    from gpt2fast.generation.sequence import Generation
    from gpt2fast.language_model import LanguageModel, load
    from gpt2fast.model.gpt2 import GPT2
    from gpt2fast.scoring.score import Score
    from gpt2fast.tokenizer.encoding import Tokenizer, get_encoding
    from gpt2fast.tokenizer.names import encoding_for_model, list_encoding_names

    __version__: str

__all__ = [
    "GPT2",
    "Beam",
    "Config",
    "CpuLevelError",
    "DeviceError",
    "DeviceMemoryError",
    "DownloadError",
    "Error",
    "Generation",
    "GrammarError",
    "InputError",
    "InputTypeError",
    "LanguageModel",
    "MissingDependencyError",
    "MissingFileError",
    "NonFiniteError",
    "NotBuiltError",
    "OutOfMemoryError",
    "ProcessorError",
    "Score",
    "Tokenizer",
    "UnknownTokenError",
    "__version__",
    "compression",
    "encoding_for_model",
    "get_encoding",
    "list_encoding_names",
    "load",
    "numerics_version",
    "safetensors",
]

_HOMES = {
    "Beam": "generation.beam",
    "Config": "checkpoint.config",
    "GPT2": "model",
    "Generation": "generation",
    "LanguageModel": "language_model",
    "Score": "scoring",
    "Tokenizer": "tokenizer",
    "encoding_for_model": "tokenizer",
    "get_encoding": "tokenizer",
    "list_encoding_names": "tokenizer",
    "load": "language_model",
    "numerics_version": "_internal.numerics",
}

finder.install()


def __getattr__(name: str) -> Any:
    # With a list of names `__import__` gives the module itself; importlib would take longer to load than a tokenizer.
    if name in _HOMES:
        value = getattr(__import__(f"gpt2fast.{_HOMES[name]}", fromlist=[name]), name)
    elif name in ("compression", "safetensors"):
        value = __import__(f"gpt2fast.{name}", fromlist=["__all__"])
    elif name == "__version__":
        from importlib.metadata import version

        value = version("gpt2fast")
    else:
        raise AttributeError(f"module 'gpt2fast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
