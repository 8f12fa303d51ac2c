"""The command `gpt2fast`.

Bytes are exact: files and standard input are read, and text is written, without any translation of newlines, byte order
marks or encodings, whatever the locale.  Each command has a module with its options and what it does; what a command
works with is imported when it runs, so that counting tokens never loads an engine.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from gpt2fast.cli import (
    activating,
    bench,
    checkpoints,
    compress,
    generate,
    harness,
    look,
    score,
    serve,
    tokenize,
    tokens,
)
from gpt2fast.cli.common import UsageError, stdout
from gpt2fast.cli.parser import Parser
from gpt2fast.errors import Error

__all__ = ["main"]

_INTERRUPTED = 128 + 2  # what a shell reports of a process that SIGINT ended
_READER_GONE = 128 + 13  # … SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's own) and return the exit status.

    0 is success, 1 an error that one line on standard error explains, 130 an interrupt, 141 a reader that went away.
    2 is a command line that cannot be understood or whose values make no sense: raised as SystemExit by the parser, as
    is status 0 after --help or --version, and returned where a command finds it.
    """
    try:
        options = _parser().parse_args(arguments)
        for name, value in vars(options).items():
            # argparse of Python 3.10 to 3.12 makes [] of the -- in --prompt=--.
            if value == [] and name != "files":
                setattr(options, name, "--")
            elif isinstance(value, list):  # of an option that may be repeated
                setattr(options, name, ["--" if item == [] else item for item in value])
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            options.run(options)
        stdout().flush()
    except UsageError as error:
        _tell(str(error))
        return 2
    except Error as error:
        return _failed(str(error))
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print("gpt2fast: warning:", " ".join(str(message).split()), file=sys.stderr)


def _failed(message: str) -> int:
    _tell(message)
    return 1


def _tell(message: str) -> None:
    print("gpt2fast:", " ".join(message.split()), file=sys.stderr)


class _Version(argparse.Action):
    """Prints the version; asks for it only then, which takes as long as all else."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import PackageNotFoundError

        import gpt2fast

        try:
            stdout().write(f"gpt2fast {gpt2fast.__version__}\n".encode())
        except PackageNotFoundError:  # run from a source tree
            stdout().write(b"gpt2fast, not installed\n")
        parser.exit()


class _Completion(argparse.Action):
    """Prints what makes a shell complete commands, options and files."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, __: Any = None) -> None:
        try:
            import shtab
        except ImportError:
            parser.exit(_failed("completion takes shtab: pip install 'gpt2fast[completion]'"))
        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        for command in commands.choices.values():
            for action in command._actions:
                if action.metavar in ("FILE", "OUT", "DIRECTORY") or action.dest in ("model", "tokenizer"):
                    action.complete = shtab.FILE  # where shtab looks for it
        stdout().write(f"{shtab.complete(parser, shell)}\n".encode())
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpt2fast",
        description="GPT-2 on the machine you have: text generation, an exact tokenizer, no PyTorch.",
        epilog="gpt2fast COMMAND --help explains a command.  Try: gpt2fast generate 'Once upon a time'",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument(
        "--completion",
        action=_Completion,
        choices=["bash", "zsh", "fish"],
        help="print what makes this shell complete commands and options, for its start-up file",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    for module in (generate, serve, tokens, tokenize, score, harness, look, activating, compress, checkpoints, bench):
        module.add_to(commands)
    return parser
