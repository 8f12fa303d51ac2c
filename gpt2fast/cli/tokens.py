"""`gpt2fast encode`, `decode` and `count`: text to token ids and back."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

from gpt2fast.cli import common
from gpt2fast.errors import InputError

_PART = 1 << 16  # ids that are written at once


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
        "Write the number of tokens; of several files, of each and all.",
    )
    common.add_tokenizer(count)
    common.add_allow_special(count)
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
    counts = []
    for file in options.files:
        text = common.text(options, file)
        counts.append(tokenizer.count(text, allowed_special="all" if options.allow_special else frozenset()))
        if len(options.files) > 1:
            out.write(b"%d\t%s\n" % (counts[-1], os.fsencode(file)))
    out.write(b"%d%s\n" % (sum(counts), b"\ttotal" if len(counts) > 1 else b""))
