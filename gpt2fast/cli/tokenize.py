"""`gpt2fast tokenize`: corpora to token files."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from gpt2fast.cli import common

if TYPE_CHECKING:
    from gpt2fast.corpus import Summary


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = common.add_command(
        commands,
        "tokenize",
        _tokenize,
        "corpora to token files",
        "Tokenize text files (a document a file, or between separators), JSON lines and arrays, CSV, Parquet and "
        "Arrow, each also with .gz, .zst, .xz or .bz2, into the token files that nanoGPT, llm.c, NumPy and Arrow read. "
        "A job that was stopped goes on when the same command is given again.",
        "Examples:\n"
        "  gpt2fast tokenize corpus/ -o data/ --format nanogpt --append-eot --val-fraction 0.0005\n"
        "  gpt2fast tokenize 'fineweb/*.parquet' -o fineweb.bin --eot prepend --shard-tokens 100000000",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="files, directories, globs; - is standard input")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="a file whose suffix tells the format (.bin, .npy, .parquet), or a directory for train and val",
    )
    parser.add_argument(
        "--format",
        choices=["nanogpt", "llmc", "npy", "parquet"],
        help="what to write; .bin is nanogpt where nothing is said",
    )
    common.add_documents(parser)
    parser.set_defaults(field="text", on_error="error")
    eot = parser.add_mutually_exclusive_group()
    eot.add_argument(
        "--append-eot", dest="eot", action="store_const", const="append", help="end-of-text after each document"
    )
    eot.add_argument(
        "--eot",
        choices=["none", "append", "prepend"],
        help="where to put end-of-text, or the tokenizer's eos_token: nanoGPT's files have it after each document, "
        "llm.c's before (default: none)",
    )
    parser.add_argument(
        "--val-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="put this fraction of the documents, chosen by their hash, into files of their own (default: 0)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, another choice (default: 0)")
    parser.add_argument(
        "--shard-tokens", type=common.positive, metavar="N", help="numbered files of N tokens instead of one file"
    )
    parser.add_argument(
        "--max-shards",
        type=common.positive,
        default=10_000,
        metavar="N",
        help="more files than this are made only after a question on a terminal (default: 10000)",
    )
    common.add_tokenizer(parser)
    common.add_allow_special(parser)
    parser.add_argument(
        "--threads", type=common.positive, metavar="N", help="threads (default: the processors there are)"
    )
    common.add_engine(parser)
    common.add_kept(parser)
    common.add_progress(parser)


def _tokenize(options: argparse.Namespace) -> None:
    from gpt2fast.corpus.job import TooManyShards

    with common.resumable(options):
        try:
            summary = _run(options)
        except TooManyShards as error:
            if not common.confirm(f"{error.count} files would be made.  Go on?"):
                raise
            options.max_shards = sys.maxsize
            summary = _run(options)
    if not options.quiet:
        print(_render(summary), file=sys.stderr)


def _run(options: argparse.Namespace) -> Summary:
    from gpt2fast.corpus import tokenize_files

    return tokenize_files(
        options.files,
        options.output,
        tokenizer=common.tokenizer(options.tokenizer),
        format=options.format,
        input_format=options.input_format,
        field=options.field,
        separator=options.separator,
        eot=options.eot or "none",
        allow_special=options.allow_special,
        val_fraction=options.val_fraction,
        seed=options.seed,
        shard_tokens=options.shard_tokens,
        max_shards=options.max_shards,
        on_error=options.on_error,
        on_skip=None if options.quiet else common.tell_skipped(),
        on_note=common.tell_note,
        num_threads=options.threads,
        progress=False if options.quiet else options.progress,
        overwrite=options.overwrite,
        restart=options.restart,
        engine=options.engine or "local",
        address=options.address,
    )


def _render(summary: Summary) -> str:
    """The summary, in a few lines for people."""
    rate = max(summary.seconds, 1e-9)
    lines = [
        f"{summary.documents:,} documents, {summary.tokens:,} tokens from {summary.text_bytes:,} bytes of text",
        f"{summary.seconds:.1f} s, {summary.run_bytes / rate / 1e6:.1f} MB/s, {summary.run_tokens / rate / 1e6:.2f} "
        "million tokens/s" + (", after what earlier runs had done" if summary.resumed else ""),
    ]
    if summary.skipped:
        lines.append(f"{summary.skipped:,} bad lines or documents skipped")
    if summary.mended:
        lines.append(f"{summary.mended:,} documents or lines with bytes replaced by U+FFFD")
    shown = summary.files if len(summary.files) <= 8 else [*summary.files[:3], *summary.files[-3:]]
    lines += [f"{path}: {tokens:,} tokens{'' if tokens else ' (nothing fell to it)'}" for path, tokens in shown]
    if len(shown) < len(summary.files):
        lines.insert(-3, f"... {len(summary.files) - 6:,} more ...")
    return "\n".join(f"[{line}]" for line in lines)
