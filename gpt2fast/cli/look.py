"""`gpt2fast look`: a page that shows what a model does with a text."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from gpt2fast.cli import common
from gpt2fast.cli.common import UsageError


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    look = common.add_command(
        commands,
        "look",
        _look,
        "a page that shows attention, layers and heads at work on a text",
        "Write a page, one file for any browser, that shows what the model does with TEXT: where each attention head "
        "looks, the likeliest next token after each layer, and which heads made a token likely.",
        "Examples:\n"
        "  gpt2fast look 'The old king had three daughters' -o page.html\n"
        "  gpt2fast look --file story.txt --model gpt2 > story.html",
    )
    text = look.add_mutually_exclusive_group(required=True)
    text.add_argument("text_argument", metavar="TEXT", nargs="?", help="the text; - is standard input")
    text.add_argument("--text", metavar="TEXT", help="the same, for texts that begin with a dash")
    text.add_argument("--file", metavar="FILE", help="the text of this file, byte for byte")
    look.add_argument("-o", "--output", metavar="OUT", help="the page's file (default: standard output)")
    look.add_argument("--overwrite", action="store_true", help="replace OUT where it is there")
    look.add_argument("--no-bos", action="store_true", help="nothing comes before the text")
    common.add_allow_special(look)
    common.add_model(look)
    look.add_argument("--quiet", action="store_true", help="no summary on standard error")


def _look(options: argparse.Namespace) -> None:
    if options.output is None and options.overwrite:
        raise UsageError("--overwrite is for -o OUT; without it, it has no use")
    if options.output is None and sys.stdout is not None and sys.stdout.isatty():
        raise UsageError("the page would fill the terminal; -o page.html writes a file")
    if options.output is not None and not options.overwrite and os.path.lexists(options.output):
        raise UsageError(f"{options.output} is there; --overwrite replaces it")
    text = _text(options)
    found = common.load(options).look(text, bos=not options.no_bos, allow_special=options.allow_special)
    name = options.file if options.file not in (None, "-") else "a text"
    page = found.html(f"{name} under {options.model}").encode("utf-8", "surrogateescape")
    if options.output is None:
        common.stdout().write(page)
    else:
        from gpt2fast._internal.atomic import atomic_write

        with atomic_write(options.output) as file:
            file.write(page)
    if not options.quiet:
        common.stdout().flush()
        place = "" if options.output is None else f" in {options.output}"
        print(f"[{len(found):,} tokens, {len(page):,} bytes{place}]", file=sys.stderr)


def _text(options: argparse.Namespace) -> str | bytes:
    """The text, as str where it is UTF-8."""
    given = options.text if options.text is not None else options.text_argument
    if options.file is not None or (options.text is None and given == "-"):
        content = common.read(options.file or "-")
    else:
        content = os.fsencode(given)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
