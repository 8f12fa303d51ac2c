"""`gpt2fast score`: how probable a text is, token by token."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from gpt2fast.cli import common
from gpt2fast.cli.common import UsageError

if TYPE_CHECKING:
    from gpt2fast.corpus import ScoreSummary

#: Options that have a use with --text-column only.
_OF_ITEMS = ("regions", "frequencies", "layers")
#: Options that have a use with -o only.
_OF_DOCUMENTS = (
    *("field", "separator", "input_format", "on_error", "tokens", "with_text"),
    *("detect", "observer", "keep", "progress", "overwrite", "restart"),
    *("engine", "address"),
)


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    score = common.add_command(
        commands,
        "score",
        _score_command,
        "how probable texts are, token by token or document by document",
        "Write a table with the log-probability, surprisal in bits, rank and entropy in bits of each token of a text; "
        "the perplexity goes to standard error.  With -o, write a table of documents instead: of text files, JSON "
        "lines and arrays, CSV, Parquet and Arrow, each also with .gz, .zst, .xz or .bz2, the tokens, log-likelihood, "
        "perplexity and bits per byte of each document; a job that was stopped goes on when the same command is given "
        "again.  The first token comes after end-of-text, or after the context.",
        "Examples:\n"
        "  gpt2fast score --html story.txt > story.html\n"
        "  gpt2fast score --by-word --text 'The horse raced past the barn fell.'\n"
        "  gpt2fast score --by-word items.csv --text-column sentence --csv\n"
        "  gpt2fast score corpus.jsonl.gz -o scores.parquet --model gpt2 --on-error skip\n"
        "  gpt2fast score corpus.jsonl.gz -o kept.jsonl.gz --keep 'perplexity < 200 and bits_per_byte < 1.2'",
    )
    form = score.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a JSON object a line instead of a table")
    form.add_argument("--csv", action="store_true", help="commas between the columns, for spreadsheets")
    form.add_argument("--html", action="store_true", help="a page that shows the text, coloured by surprisal")
    form.add_argument(
        "-o", "--output", metavar="OUT", help="a row for each document: a .parquet, .arrow, .jsonl, .csv or .tsv file"
    )
    score.add_argument(
        "--by-word", action="store_true", help="a row for each word, punctuation attached, instead of each token"
    )
    score.add_argument(
        "--bow-correction",
        action="store_true",
        help="with --by-word: the probabilities of words, not of their tokens, which say where a word begins but not "
        "where it ends (Pimentel & Meister 2024)",
    )
    items = score.add_argument_group("with --by-word, for the items of an experiment")
    items.add_argument(
        "--text-column",
        metavar="NAME",
        help="FILE is a table (.csv, .tsv, .jsonl, .parquet, .arrow) whose column of that name holds the texts; the "
        "others are kept",
    )
    items.add_argument(
        "--regions", metavar="SEPARATOR", help="a row for each region instead of each word: what stands between, as |"
    )
    items.add_argument(
        "--frequencies", metavar="FILE", help="add log_frequency: a table of words and how often each occurs"
    )
    items.add_argument(
        "--layers",
        action="store_true",
        default=None,
        help="a row for each layer, too: what the model would say after it, by the logit lens",
    )
    score.add_argument("--context", default="", metavar="TEXT", help="a text that is read before, and not scored")
    score.add_argument(
        "--stride",
        type=common.positive,
        metavar="N",
        help="a text beyond the model's context is read in windows, each N tokens on (default: half the context)",
    )
    score.add_argument(
        "--no-bos", action="store_true", help="nothing comes before the text, not even the token that texts begin with"
    )
    common.add_allow_special(score)
    common.add_model(score)
    common.add_text(score).add_argument(
        "files", nargs="*", default=["-"], metavar="FILE", help="- is standard input (default); several only with -o"
    )
    documents = score.add_argument_group("with -o")
    common.add_documents(documents)
    documents.add_argument(
        "--tokens", action="store_true", help="lists of ids, log-probabilities, ranks, entropies, too"
    )
    documents.add_argument("--with-text", action="store_true", help="the text, too")
    documents.add_argument(
        "--detect",
        action="store_true",
        help="what tells of a text's author, as far as that can be told: the variance of log-probabilities and the "
        "curvature (Fast-DetectGPT), and the shares of tokens among the 10, 100 and 1000 likeliest (GLTR)",
    )
    documents.add_argument(
        "--observer", metavar="MODEL", help="a second model of the same vocabulary: add the Binoculars score"
    )
    documents.add_argument(
        "--keep",
        metavar="CONDITION",
        help="OUT is no table, but holds the documents that meet this, in their files' format: a condition on bytes, "
        "tokens, log_likelihood, perplexity, bits_per_byte and what --detect adds, as 'perplexity < 200 and not tokens "
        "/ bytes > 0.5'",
    )
    common.add_kept(documents)
    common.add_engine(documents)
    common.add_progress(score)


def _score_command(options: argparse.Namespace) -> None:
    if options.bow_correction and not options.by_word:
        raise UsageError("--bow-correction is for words: it needs --by-word")
    if options.text_column is not None:
        _score_items(options)
        return
    for name in _OF_ITEMS:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is for items, whose texts --text-column names; without it, it has no use")
    if options.output is not None:
        _score_documents(options)
        return
    for name in _OF_DOCUMENTS:
        if getattr(options, name):
            raise UsageError(
                f"--{name.replace('_', '-')} is for documents, which -o OUT scores; without it, it has no use"
            )
    if options.html and options.by_word:
        raise UsageError("--html shows tokens; --by-word is for a table or --json")
    if len(options.files) > 1:
        raise UsageError(f"there are {len(options.files)} files; one is scored by token, several with -o OUT")
    (file,) = options.files
    text = common.text(options, file)
    from gpt2fast.scoring import report

    lm = common.load(options)
    if options.stride is not None and options.stride > lm.model.config.n_ctx:
        raise UsageError(f"--stride is {options.stride}; the model's context is {lm.model.config.n_ctx} tokens")
    score = lm.score(
        _as_str(text),
        context=os.fsencode(options.context),
        stride=options.stride,
        bos=not options.no_bos,
        allow_special=options.allow_special,
    )
    name = "standard input" if file == "-" else file
    if options.html:
        page = report.render_html(score, f"{'text' if options.text is not None else name} under {options.model}")
    else:
        page = (
            report.render_json_lines(score, by_word=options.by_word, bow_correction=options.bow_correction)
            if options.json
            else report.render_delimited(
                score,
                by_word=options.by_word,
                bow_correction=options.bow_correction,
                delimiter="," if options.csv else "\t",
            )
        )
    common.stdout().write(page.encode("utf-8", "surrogateescape"))
    if not options.quiet:
        common.stdout().flush()
        print(f"[{report.render_summary(score)}]", file=sys.stderr)


def _score_items(options: argparse.Namespace) -> None:
    if not options.by_word or options.html:
        raise UsageError("--text-column is for a table of items by word: it needs --by-word, and no --html")
    if options.text is not None or len(options.files) != 1:
        raise UsageError("--text-column is a column of one file")
    for name in _OF_DOCUMENTS:
        if getattr(options, name) and name != "overwrite":
            raise UsageError(
                f"--{name.replace('_', '-')} is for documents; --text-column makes a table of items by word"
            )
    from gpt2fast.corpus import score_items

    count = score_items(
        options.files[0],
        common.stdout() if options.output is None else options.output,
        common.load(options),
        text=options.text_column,
        separator=options.regions,
        frequencies=options.frequencies,
        bow_correction=options.bow_correction,
        layers=bool(options.layers),
        out_format="jsonl" if options.json else "csv" if options.csv else "tsv",
        overwrite=options.overwrite,
        context=os.fsdecode(options.context),
        stride=options.stride,
        bos=not options.no_bos,
        allow_special=options.allow_special,
    )
    if not options.quiet:
        common.stdout().flush()
        print(f"[{count:,} rows]", file=sys.stderr)


def _score_documents(options: argparse.Namespace) -> None:
    if options.by_word:
        raise UsageError("--by-word is for one text; -o OUT writes a row for each document")
    if options.text is not None:
        raise UsageError("--text is one text; -o OUT scores the documents of files")
    if options.keep is not None and (options.tokens or options.with_text):
        raise UsageError("--tokens and --with-text are columns of a table; with --keep, OUT holds documents, and none")
    with common.resumable(options):
        summary = _score_files(options)
    if not options.quiet:
        rate = summary.tokens / max(summary.seconds, 1e-9)
        skipped = f", {summary.skipped:,} bad lines or documents skipped" if summary.skipped else ""
        resumed = ", after what earlier runs had done" if summary.resumed else ""
        kept = "" if options.keep is None else f", {summary.kept:,} kept"
        print(
            f"[{summary.documents:,} documents{kept}, {summary.tokens:,} tokens in {summary.seconds:.1f} s, "
            f"{rate:,.0f} tokens/s{skipped}{resumed}]\n"
            f"[perplexity {summary.perplexity:.2f}, {summary.bits_per_byte:.3f} bits per byte over all]",
            file=sys.stderr,
        )


def _score_files(options: argparse.Namespace) -> ScoreSummary:
    from gpt2fast.corpus import score_files

    return score_files(
        options.files,
        options.output,
        common.load(options),
        field=options.field or "text",
        input_format=options.input_format,
        separator=options.separator,
        context=os.fsencode(options.context),
        stride=options.stride,
        bos=not options.no_bos,
        allow_special=options.allow_special,
        tokens=options.tokens,
        text=options.with_text,
        detect=options.detect,
        observer=None if options.observer is None else common.load(options, options.observer),
        keep=options.keep,
        on_error=options.on_error or "error",
        on_skip=None if options.quiet else common.tell_skipped(),
        on_note=common.tell_note,
        progress=False if options.quiet else options.progress,
        overwrite=options.overwrite,
        restart=options.restart,
        engine=options.engine or "local",
        address=options.address,
    )


def _as_str(text: bytes) -> str | bytes:
    """The text where it is UTF-8, for spans in characters; else its bytes."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text
