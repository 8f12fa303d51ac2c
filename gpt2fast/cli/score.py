"""`gpt2fast score`: how probable a text is, token by token."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from gpt2fast.cli import common


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    score = common.add_command(
        commands,
        "score",
        _score_command,
        "how probable a text is, token by token",
        "Write a table with the log-probability, surprisal in bits, rank and entropy in bits of each token; the "
        "perplexity goes to standard error.  The first token comes after end-of-text, or after the context.",
    )
    form = score.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a JSON object a line instead of a table")
    form.add_argument("--html", action="store_true", help="a page that shows the text, coloured by surprisal")
    score.add_argument("--context", default="", metavar="TEXT", help="a text that is read before, and not scored")
    score.add_argument(
        "--stride",
        type=common.positive,
        metavar="N",
        help="a text beyond the model's context is read in windows, each N tokens on (default: half the context)",
    )
    score.add_argument("--quiet", action="store_true", help="no perplexity on standard error")
    common.add_model(score)
    common.add_text(score).add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="- is standard input (default)"
    )


def _score_command(options: argparse.Namespace) -> None:
    text = common.text(options, options.file)
    from gpt2fast import score_report as report

    lm = common.load(options)
    score = lm.score(_as_str(text), context=os.fsencode(options.context), stride=options.stride)
    name = "standard input" if options.file == "-" else options.file
    if options.html:
        page = report.render_html(score, f"{'text' if options.text is not None else name} under {options.model}")
    else:
        page = report.render_json_lines(score) if options.json else report.render_tsv(score)
    common.stdout().write(page.encode("utf-8", "surrogateescape"))
    if not options.quiet:
        common.stdout().flush()
        print(f"[{report.render_summary(score)}]", file=sys.stderr)


def _as_str(text: bytes) -> str | bytes:
    """The text where it is UTF-8, for spans in characters; else its bytes."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text
