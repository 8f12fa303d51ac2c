"""The finder that is asked for the modules of gpt2fast that no file holds.

Modules that have moved are found under their former names, so that older pickles and imports go on working.  Where the
compiled modules are missing, in a checkout that was not built, one line says so.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import NoReturn

__all__ = ["FORMER_NAMES", "install"]

#: Below `gpt2fast`: the former name of a module, and its name today.
FORMER_NAMES = {
    "arguments": "_internal.arguments",
    "arrow": "tokenizer.arrow",
    "atomic": "_internal.atomic",
    "backend": "model.backend",
    "beam": "generation.beam",
    "bench": "cli.measurement",
    "blas": "model.blas",
    "config": "checkpoint.config",
    "continuation": "generation.sequence",
    "cuda": "model.cuda",
    "decode_stream": "tokenizer.decode_stream",
    "draw": "model.draw",
    "gpt2_files": "tokenizer.gpt2_files",
    "hub_client": "hub.client",
    "hub_names": "hub.names",
    "inspect": "checkpoint.inspect",
    "nonfinite": "model.nonfinite",
    "pairing": "model.pairing",
    "parameters": "model.parameters",
    "passes": "model.forward",
    "score_report": "scoring.report",
    "settings": "generation.settings",
    "spans": "scoring.spans",
    "special_tokens": "tokenizer.special",
    "speculation": "generation.speculation",
    "stop_strings": "generation.stop_strings",
    "threads": "_internal.threads",
    "tokenizer_arguments": "tokenizer.inputs",
    "tokenizer_files": "tokenizer.files",
    "unstable": "tokenizer.unstable",
    "weights": "checkpoint.weights",
}


class _Finder:
    """Asked last: for the former names, and for what is missing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, former = name.partition(".")
        if package == "gpt2fast" and (former == "_bpe" or former.startswith("kernels.")):
            _say_not_built(name)
        if package != "gpt2fast" or former not in FORMER_NAMES:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, _Loader())  # type: ignore[arg-type]


class _Loader:
    """Loads the module of today, which then has the former name, too."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """A new module for `exec_module` to replace."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        from importlib import import_module

        former = module.__name__.partition(".")[2]
        sys.modules[module.__name__] = import_module(f"gpt2fast.{FORMER_NAMES[former]}")


def _say_not_built(name: str) -> NoReturn:
    from os.path import dirname

    from gpt2fast.errors import NotBuiltError

    folder = dirname(dirname(__file__))
    raise NotBuiltError(
        f"{folder} holds no compiled {name}: it is gpt2fast's source folder, not built for this Python. Start Python "
        "in another directory to use an installed gpt2fast, or build this one: pip install -e ."
    )


def install() -> None:
    """Let imports ask the finder, once all others have found nothing."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
