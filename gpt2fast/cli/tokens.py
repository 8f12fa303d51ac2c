"""`gpt2fast encode`, `decode` and `count`: text to token ids and back."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

from gpt2fast.cli import common
from gpt2fast.errors import InputError

if TYPE_CHECKING:
    from gpt2fast.tokenizer.encoding import Tokenizer

_PART = 1 << 16  # ids that are written at once

#: Names of files that hold documents rather than text.  What finds documents loads NumPy; counting a text does not.
_DOCUMENTS = re.compile(r"(?i)[.](jsonl|ndjson|json|csv|parquet|arrow|ipc|feather|gz|zst|xz|bz2)$")


def add_to(commands: Any) -> None:
    """Add the commands to the parser's."""
    encode = common.add_command(
        commands, "encode", _encode_command, "text to token ids", "Write the token ids of a text."
    )
    common.add_tokenizer(encode)
    common.add_allow_special(encode)
    common.add_text(encode).add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="- is standard input (default)"
    )

    decode = common.add_command(
        commands,
        "decode",
        _decode_command,
        "token ids to text",
        "Write the text of token ids: exactly its bytes, no newline at the end.  Ids may stand in lines, with commas "
        "or in brackets.",
    )
    common.add_tokenizer(decode)
    decode.add_argument("file", nargs="?", default="-", metavar="FILE", help="- is standard input (default)")

    count = common.add_command(
        commands,
        "count",
        _count_command,
        "count tokens",
        "Write the number of tokens; of several files, of each and all.  Of JSON lines and arrays, CSV, Parquet, Arrow "
        "and what is compressed, by its name, the documents are counted that tokenize would find.",
    )
    common.add_tokenizer(count)
    common.add_allow_special(count)
    common.add_documents(count)
    common.add_text(count).add_argument(
        "files", nargs="*", default=["-"], metavar="FILE", help="- is standard input (default)"
    )


def _encode_command(options: argparse.Namespace) -> None:
    ids = common.encode(common.tokenizer(options.tokenizer), common.text(options, options.file), options)
    out = common.stdout()
    # In parts: the ids of a large file, each a str at the same time, would take ten times their memory.
    for start in range(0, len(ids), _PART):
        out.write((" " * (start > 0) + " ".join(map(str, ids[start : start + _PART]))).encode())
    out.write(b"\n")


def _decode_command(options: argparse.Namespace) -> None:
    source = "standard input" if options.file == "-" else options.file
    # The shapes that ids are passed around in: columns, commas, a Python or JSON list.
    ids = []
    for match in re.finditer(rb"[^\s\[\](),]+", common.read(options.file)):
        word = match[0]
        if not word.isdigit():
            raise InputError(f"{source}: {word.decode(errors='replace')!r} is no token id; expected whole numbers")
        ids.append(int(word))
    common.stdout().write(common.tokenizer(options.tokenizer).decode_bytes(ids))


def _count_command(options: argparse.Namespace) -> None:
    tokenizer = common.tokenizer(options.tokenizer)
    out = common.stdout()
    asked = options.separator is not None or options.input_format is not None
    counts = []
    for named in options.files:
        if options.text is None and (asked or _DOCUMENTS.search(named) or os.path.isdir(named)):
            found = _count_documents(named, options, tokenizer)
        else:
            text = common.text(options, named)
            found = [(named, tokenizer.count(text, allowed_special="all" if options.allow_special else frozenset()))]
        counts += [count for _, count in found]
        if len(options.files) > 1 or len(found) > 1:
            for file, count in found:
                out.write(b"%d\t%s\n" % (count, os.fsencode(file)))
    out.write(b"%d%s\n" % (sum(counts), b"\ttotal" if len(counts) > 1 else b""))


def _count_documents(named: str, options: argparse.Namespace, tokenizer: Tokenizer) -> list[tuple[str, int]]:
    """The files that one argument names, each with the tokens of the documents that tokenize would find in it."""
    from gpt2fast._internal.threads import resolve_num_threads
    from gpt2fast.corpus.counts import count_tokens
    from gpt2fast.corpus.documents import Reading
    from gpt2fast.corpus.inputs import find_inputs
    from gpt2fast.corpus.options import CorpusOptions

    corpus = CorpusOptions(
        options.field or "text",
        options.separator,
        on_error=options.on_error or "error",
        allow_special=options.allow_special,
    )
    how = Reading(corpus, resolve_num_threads(None), common.tell_skipped(), tokenizer, common.tell_note)
    found = []
    for source in find_inputs(named, options.input_format, common.tell_note, otherwise="txt"):
        try:
            found.append((source.path, count_tokens(source, how, tokenizer)))
        except InputError as error:
            if source.kind != "jsonl" or options.input_format is not None:
                raise
            raise InputError(f"{error} (--input-format txt counts the file's own text)") from None
    return found
