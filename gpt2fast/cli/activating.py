"""`gpt2fast activating`: the tokens at which neurons, or features of a sparse autoencoder, are strongest."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from gpt2fast.cli import common
from gpt2fast.cli.common import UsageError

if TYPE_CHECKING:
    from gpt2fast.corpus import ActivatingSummary


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    activating = common.add_command(
        commands,
        "activating",
        _activating,
        "the tokens of a corpus at which neurons are strongest",
        "Look through documents for the tokens at which each neuron of the activation NAME, or feature of a sparse "
        "autoencoder, is strongest, and show them in their texts, marked.  With -o, write a table of them; a job that "
        "was stopped then goes on when the same command is given again.",
        "Examples:\n"
        "  gpt2fast activating corpus.jsonl --name blocks.3.mlp.hook_post --unit 791 --unit 108\n"
        "  gpt2fast activating corpus/ --name blocks.3.mlp.hook_post -k 20 -o neurons.parquet\n"
        "  gpt2fast activating corpus.txt.gz --model gpt2 --sae sae-directory -o features.jsonl",
    )
    what = activating.add_mutually_exclusive_group(required=True)
    what.add_argument("--name", metavar="NAME", help="the activation, such as blocks.3.mlp.hook_post")
    what.add_argument(
        "--sae", metavar="DIRECTORY", help="a sparse autoencoder of SAELens: cfg.json, sae_weights.safetensors"
    )
    activating.add_argument(
        "--unit",
        action="append",
        type=int,
        metavar="N",
        help="this neuron or feature only; may be repeated, and is needed without -o",
    )
    activating.add_argument("-k", type=common.positive, default=10, metavar="K", help="K tokens of each (default: 10)")
    activating.add_argument(
        "--before", type=int, default=24, metavar="N", help="tokens that are shown before each (default: 24)"
    )
    activating.add_argument(
        "--after", type=int, default=8, metavar="N", help="tokens that are shown behind it (default: 8)"
    )
    activating.add_argument(
        "-o", "--output", metavar="OUT", help="a row for each token: a .parquet, .arrow, .jsonl, .csv or .tsv file"
    )
    activating.add_argument("--no-bos", action="store_true", help="nothing comes before the texts")
    common.add_model(activating)
    activating.add_argument("files", nargs="*", default=["-"], metavar="FILE", help="- is standard input (default)")
    common.add_documents(activating)
    common.add_kept(activating)
    common.add_progress(activating)


def _activating(options: argparse.Namespace) -> None:
    for name in ("before", "after"):
        if getattr(options, name) < 0:
            raise UsageError(f"--{name} is {getattr(options, name)}; expected 0 or more")
    if options.output is not None:
        with common.resumable(options):
            summary = _search(options, options.output)
    else:
        if options.unit is None:
            raise UsageError("all units are much to read: name some with --unit N, or a file for all with -o OUT")
        if options.overwrite or options.restart:
            raise UsageError("--overwrite and --restart are for -o OUT; without it, they have no use")
        with tempfile.TemporaryDirectory() as home:
            path = os.path.join(home, "found.jsonl")
            summary = _search(options, path)
            with open(path, "rb") as file:
                _show(options.unit, [json.loads(line) for line in file])
    if not options.quiet:
        common.stdout().flush()
        skipped = f", {summary.skipped:,} bad lines or documents skipped" if summary.skipped else ""
        resumed = ", after what earlier runs had done" if summary.resumed else ""
        print(
            f"[{summary.examples:,} tokens of {summary.units:,} units; {summary.documents:,} documents, "
            f"{summary.tokens:,} tokens read in {summary.seconds:.1f} s{skipped}{resumed}]",
            file=sys.stderr,
        )


def _search(options: argparse.Namespace, out: str) -> ActivatingSummary:
    from gpt2fast.corpus import max_activating_files

    if options.sae is None:
        what = options.name
    else:
        from gpt2fast.interpretability import SparseAutoencoder

        what = SparseAutoencoder.load(options.sae)
    return max_activating_files(
        options.files,
        out,
        common.load(options),
        what,
        options.k,
        units=options.unit,
        before=options.before,
        after=options.after,
        bos=not options.no_bos,
        field=options.field or "text",
        input_format=options.input_format,
        separator=options.separator,
        on_error=options.on_error or "error",
        on_skip=None if options.quiet else common.tell_skipped(),
        on_note=common.tell_note,
        progress=False if options.quiet else options.progress,
        overwrite=options.overwrite,
        restart=options.restart,
    )


def _show(units: list[int], rows: list[dict[str, Any]]) -> None:
    """The tokens of each unit in their texts, a line for each."""
    out = common.stdout()
    for unit in dict.fromkeys(units):
        out.write(f"unit {unit}\n".encode())
        for row in rows:
            if row["unit"] == unit:
                text = _printable(f"{row['before']}«{row['token']}»{row['after']}")
                place = _printable(f"{row['file']}:{row['document']}:{row['position']}")
                out.write(f"{row['activation']:9.4f}  {place}  {text}\n".encode())


def _printable(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
