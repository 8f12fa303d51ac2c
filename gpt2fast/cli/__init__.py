"""The door from the shell: the command `gpt2fast`.

Bytes are exact: files and standard input are read, and text is written, without any translation of newlines, byte order
marks or encodings, whatever the locale.  Each command has a module with its options and what it does; what a command
works with is imported when it runs, so that counting tokens never loads an engine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from gpt2fast.cli import bench, checkpoints, generate, score, serve, tokenize, tokens
from gpt2fast.cli.common import stdout
from gpt2fast.errors import Error

__all__ = ["main"]

_INTERRUPTED = 128 + 2  # what a shell reports of a process that SIGINT ended
_READER_GONE = 128 + 13  # … SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's own) and return the exit status.

    0 is success, 1 an error that one line on standard error explains, 130 an interrupt, 141 a reader that went away.
    Raises SystemExit, status 2, where the command line cannot be understood, and status 0 after --help or --version.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        # argparse of Python 3.10 to 3.12 makes [] of the -- in --prompt=--.
        if value == [] and name != "files":
            setattr(options, name, "--")
        elif name == "stop" and value:
            options.stop = ["--" if text == [] else text for text in value]
    try:
        options.run(options)
        stdout().flush()
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


def _failed(message: str) -> int:
    print("gpt2fast:", " ".join(message.split()), file=sys.stderr)
    return 1


class _Version(argparse.Action):
    """Prints the version; asks for it only then, which takes as long as all else."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import PackageNotFoundError

        import gpt2fast

        try:
            print("gpt2fast", gpt2fast.__version__)
        except PackageNotFoundError:  # run from a source tree
            print("gpt2fast, not installed")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpt2fast",
        allow_abbrev=False,
        description="GPT-2 on the machine you have: text generation, an exact tokenizer, no PyTorch.",
        epilog="gpt2fast COMMAND --help explains a command.  Try: gpt2fast generate 'Once upon a time'",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    for module in (generate, serve, tokens, tokenize, score, checkpoints, bench):
        module.add_to(commands)
    return parser
