"""`gpt2fast lm-eval`: lm-evaluation-harness with gpt2fast among its models."""

from __future__ import annotations

import argparse
import sys
from typing import Any

#: No argument begins with it, so all of them, options too, are handed on.
_NO_PREFIX = "\0"


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "lm-eval",
        help="EleutherAI's lm-evaluation-harness, with the model gpt2fast",
        add_help=False,
        prefix_chars=_NO_PREFIX,
    )
    parser.add_argument("arguments", nargs="*")
    parser.set_defaults(run=_harness_command)


def _harness_command(options: argparse.Namespace) -> None:
    from gpt2fast.integrations.lm_eval import register

    register()
    from lm_eval.__main__ import cli_evaluate

    before = sys.argv
    # Where the harness looks for its arguments.
    sys.argv = ["gpt2fast lm-eval", *options.arguments]
    try:
        cli_evaluate()
    finally:
        sys.argv = before
