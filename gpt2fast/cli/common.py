"""What the commands share: exact bytes in and out, and the options that several of them have."""

from __future__ import annotations

import argparse
import io
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gpt2fast.errors import Error, InputError, InputTypeError

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel
    from gpt2fast.tokenizer.encoding import Tokenizer

#: Bad lines that are told of one by one; of more there is only the count.
_TOLD = 5

Run = Callable[[argparse.Namespace], None]


class UsageError(Error):
    """The command line can be parsed, but its values make no sense: exit status 2."""


@contextmanager
def usage() -> Iterator[None]:
    """What is refused within is the command line's fault."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        raise UsageError(str(error)) from None


def add_command(
    commands: Any, name: str, run: Run, summary: str, description: str, epilog: str | None = None
) -> argparse.ArgumentParser:
    """A new command that calls `run` with its options."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=description, epilog=epilog)
    parser.set_defaults(run=run)
    return parser


# Options


def positive(text: str) -> int:
    """The type of an option that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"unknown device {text!r}; expected cpu, cuda or cuda:NUMBER")
    return text


def add_model(parser: argparse.ArgumentParser, dtype: str | None = None) -> None:
    """--model and how it is kept and run; `load` reads them."""
    parser.add_argument(
        "--model", default="demo", help="demo, a directory, or a name such as gpt2 or org/name (default: demo)"
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16", "int8", "int4"],
        default=dtype,
        help="how weights are kept: smaller is faster and less exact; float16 on cuda only, which has neither int8 nor "
        f"int4 (default: {dtype or 'as it is packed, else float32'})",
    )
    parser.add_argument("--adapter", metavar="DIRECTORY", help="merge this LoRA adapter into the model")
    parser.add_argument(
        "--cache-dtype",
        choices=["float32", "bfloat16"],
        help="how what was read is kept: bfloat16 takes half the memory and is less exact (default: float32; "
        "bfloat16 beside int8 and int4; a GPU's as its weights)",
    )
    parser.add_argument("--device", type=_device, default="cpu", help="cpu, cuda or cuda:NUMBER (default: cpu)")
    parser.add_argument("--threads", type=positive, metavar="N", help="threads (default: the processors there are)")
    parser.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="for a checkpoint without one, or with another: gpt2, a model's directory or name (default: the model's)",
    )


def add_documents(parser: Any) -> None:
    """How documents are found in files: --field, --separator, --input-format and --on-error, None where not given."""
    parser.add_argument(
        "--field",
        metavar="NAME",
        help="the field or column that holds the text; meta.text is one within another (default: text)",
    )
    parser.add_argument(
        "--separator",
        metavar="LINE",
        help="the line between documents of a text file; '' for blank lines; '<|endoftext|>' also within lines",
    )
    parser.add_argument(
        "--input-format",
        metavar="KIND",
        help="what to read, where names don't tell: txt, jsonl, csv, parquet or arrow, also jsonl.gz and so on",
    )
    parser.add_argument(
        "--on-error",
        choices=["error", "skip", "replace"],
        help="bad lines: stop with file and line, skip and count them, or first make U+FFFD of what is no UTF-8 "
        "(default: error)",
    )


def add_engine(parser: Any) -> None:
    """--engine and --address, of a command whose work a Ray cluster may do."""
    parser.add_argument(
        "--engine", choices=["local", "ray"], help="where to do it: here (default), or on a Ray cluster"
    )
    parser.add_argument(
        "--address", metavar="ADDRESS", help="the Ray cluster's address (default: RAY_ADDRESS, else a local one)"
    )


def add_kept(parser: Any) -> None:
    """--overwrite and --restart, of a command whose work goes on where it was stopped."""
    parser.add_argument("--overwrite", action="store_true", help="replace outputs that are there")
    parser.add_argument("--restart", action="store_true", help="forget what an interrupted job has done")


@contextmanager
def resumable(options: argparse.Namespace) -> Iterator[None]:
    """An interrupt within is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if not options.quiet:
            print("[stopped; the same command goes on from here]", file=sys.stderr)
        raise


def add_progress(parser: argparse.ArgumentParser) -> None:
    """--progress, None where a terminal decides, or --quiet."""
    bar = parser.add_mutually_exclusive_group()
    bar.add_argument(
        "--progress", action="store_true", default=None, help="a progress bar also where there is no terminal"
    )
    bar.add_argument("--quiet", action="store_true", help="neither progress nor summary on standard error")


def add_speculate(parser: argparse.ArgumentParser) -> None:
    """--speculate; `LanguageModel.drafter` takes it."""
    parser.add_argument(
        "--speculate",
        choices=["int4", "int8", "lookup", "off"],
        help="who proposes tokens that the model then checks several at a time, for the same text sooner: a smaller "
        "copy of the model, or what came before in the text (default on cpu: lookup)",
    )


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    """--tokenizer; `tokenizer` reads it."""
    parser.add_argument(
        "--tokenizer", default="gpt2", metavar="NAME", help="gpt2, demo, a model's directory or name (default: gpt2)"
    )


def add_allow_special(parser: argparse.ArgumentParser) -> None:
    """--allow-special; `encode` reads it."""
    parser.add_argument(
        "--allow-special",
        action="store_true",
        help="special tokens in the text, as <|endoftext|>, are these tokens; without this they are text",
    )


def add_text(parser: argparse.ArgumentParser) -> Any:
    """--text, in a group that a file's name excludes; `text` reads it."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--text", metavar="TEXT", help="this text instead of a file's")
    return group


def load(options: argparse.Namespace, other: str | None = None) -> LanguageModel:
    """The model that the options name; or another one, by name, computed in the same way."""
    from gpt2fast.language_model import load

    return load(
        options.model if other is None else other,
        adapter=options.adapter if other is None else None,
        dtype=options.dtype,
        device=options.device,
        num_threads=options.threads,
        cache_dtype=options.cache_dtype,
        tokenizer=options.tokenizer,
    )


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name."""
    from gpt2fast.tokenizer.names import named_tokenizer

    return named_tokenizer(name)


def encode(tokenizer: Tokenizer, text: bytes, options: argparse.Namespace) -> list[int]:
    """The ids of the text, with special tokens where the options allow them."""
    return tokenizer.encode(text, allowed_special="all") if options.allow_special else tokenizer.encode_ordinary(text)


# Input and output


class _Whole:
    """Standard output where nothing buffers it, as with PYTHONUNBUFFERED: one write may take less than it is given."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw

    def write(self, content: bytes) -> int:
        left = memoryview(content)
        while len(left):
            count = self._raw.write(left)
            if count is None:  # who started this process set it not to block
                select.select([], [self._raw], [])
            else:
                left = left[count:]
        return len(content)

    def flush(self) -> None:
        self._raw.flush()


def stdout() -> BinaryIO:
    """Standard output, for bytes, of which each is written or an error raised.

    Raises InputError where the process was started without one.
    """
    if sys.stdout is None:
        raise InputError("standard output is closed")
    buffer: Any = sys.stdout.buffer
    if isinstance(buffer, io.BufferedWriter):
        sys.stdout.flush()  # what others wrote comes first
        buffer = buffer.raw
    return cast(BinaryIO, _Whole(buffer) if isinstance(buffer, io.RawIOBase) else buffer)


def read(file: str) -> bytes:
    """The bytes of a file; - is standard input."""
    if file == "-":
        return b"" if sys.stdin is None else sys.stdin.buffer.read()
    with open(file, "rb") as stream:
        return stream.read()


def text(options: argparse.Namespace, file: str) -> bytes:
    """The bytes of --text, as the shell passed them, whatever the locale; else the file's."""
    return read(file) if options.text is None else os.fsencode(options.text)


def confirm(question: str) -> bool:
    """Whether the person at the terminal says yes; where there is none, no."""
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def tell_note(message: str) -> None:
    """Tell on standard error what is not as it may seem."""
    print("note:", " ".join(message.split()), file=sys.stderr)


def tell_skipped() -> Callable[[str], None]:
    """A function that tells on standard error of bad lines that are skipped, the first few of them."""
    count = 0

    def tell(message: str) -> None:
        nonlocal count
        count += 1
        if count <= _TOLD:
            more = "; further ones are counted only" if count == _TOLD else ""
            print(f"skipped: {' '.join(message.split())}{more}", file=sys.stderr)

    return tell
