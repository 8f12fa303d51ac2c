"""The parser of the command line: argparse, which also says what an unknown option may have meant."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from gpt2fast.cli.common import stdout

__all__ = ["Parser"]


class _Help(argparse.HelpFormatter):
    """Paragraphs are wrapped one by one; lines that begin with spaces, such as examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = re.split(r"\n(?= )|(?<=\S)\n(?=\S)", text)
        return "\n".join(
            indent + part if part.startswith(" ") else super(_Help, self)._fill_text(part, width, indent)
            for part in paragraphs
        )


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations, and names the near options beside an unknown one."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Help, **keywords)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """The options, and no rest: what is left over is refused here, where the command's own options are known."""
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self._refuse(rest)
        return options, rest

    def _refuse(self, rest: Sequence[str]) -> NoReturn:
        words = f"unrecognized arguments: {' '.join(rest)}"
        for argument in rest:
            if argument.startswith("--"):
                near = get_close_matches(argument.partition("=")[0], self._option_string_actions, 1)
                if near:
                    words += f"; did you mean {near[0]}?"
        self.error(words)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help is output as any other: all of it is written, or an error raised."""
        if message and file is not None and file is sys.stdout:
            stdout().write(message.encode())
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """End with status 2 and the message; of a value that is none of the choices it names the nearest."""
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        near = get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), 1) if wrong else []
        super().error(f"{message}; did you mean {near[0]}?" if near else message)
