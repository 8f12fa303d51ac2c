"""`gpt2fast compress` and `decompress`: files at the model's entropy."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gpt2fast.cli import common
from gpt2fast.cli.common import UsageError
from gpt2fast.errors import InputError

if TYPE_CHECKING:
    from gpt2fast.compression import ModelRecord
    from gpt2fast.corpus.progress import Progress
    from gpt2fast.language_model import LanguageModel

_SUFFIX = ".g2z"
_PART = 1 << 16  # bytes that are read and written at once


def add_to(commands: Any) -> None:
    """Add the commands to the parser's."""
    compress = common.add_command(
        commands,
        "compress",
        _compress_command,
        "text in as few bytes as the model allows",
        "Compress a file by the model: text of the kind that it was trained on to a third less than other programs do, "
        "and thousands of times slower.  Any bytes survive; what the model does not know is stored.  The same model "
        "is needed to decompress, on whatever machine.",
        "Examples:\n"
        "  gpt2fast compress tales.txt\n"
        "  gpt2fast compress --model gpt2 --dtype int8 - < letters.txt > letters.g2z",
    )
    compress.add_argument("-o", "--output", metavar="OUT", help=f"- is standard output (default: FILE{_SUFFIX})")
    compress.add_argument(
        "--chunk",
        type=common.positive,
        metavar="N",
        help="bytes that are coded by themselves, 256 to 1048576: more of them make smaller files, fewer are decoded "
        "with more side by side (default: 8192)",
    )
    _add_common(compress, "the file to compress; - is standard input")

    decompress = common.add_command(
        commands,
        "decompress",
        _decompress_command,
        "what compress was given",
        "Write what was compressed.  The model must be the one that it was compressed with; --dtype and --cache-dtype "
        "are the file's where they are not given.",
        "Examples:\n"
        f"  gpt2fast decompress tales.txt{_SUFFIX}\n"
        f"  gpt2fast decompress --range 5000000:5000400 tales.txt{_SUFFIX}",
    )
    decompress.add_argument(
        "-o", "--output", metavar="OUT", help=f"- is standard output (default: FILE without {_SUFFIX})"
    )
    what = decompress.add_mutually_exclusive_group()
    what.add_argument("--test", action="store_true", help="decompress and check, and write nothing")
    what.add_argument("--info", action="store_true", help="write what the file says of itself; takes no model")
    what.add_argument(
        "--range",
        type=_range,
        metavar="START:END",
        help="only the bytes from START to before END of the original, or to its end, on standard output by default",
    )
    decompress.add_argument(
        "--batch",
        type=common.positive,
        metavar="N",
        help="chunks that are decoded side by side: more are faster and take more memory (default: 32)",
    )
    _add_common(decompress, "the file to decompress; - is standard input")


def _add_common(parser: argparse.ArgumentParser, file: str) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace an output that is there")
    common.add_model(parser)
    common.add_progress(parser)
    parser.add_argument("file", metavar="FILE", help=file)


def _range(text: str) -> tuple[int, int | None]:
    found = re.fullmatch(r"(\d*):(\d*)", text, re.ASCII)
    start, end = (int(found[1] or 0), int(found[2]) if found[2] else None) if found else (0, -1)
    if end is not None and end < start:
        raise argparse.ArgumentTypeError(f"{text!r} is no range; expected START:END in bytes, as 1000:2000")
    return start, end


def _compress_command(options: argparse.Namespace) -> None:
    output = options.output or ("-" if options.file == "-" else options.file + _SUFFIX)
    _check_output(output, options)
    if options.chunk is not None and not 256 <= options.chunk <= 1 << 20:
        raise UsageError(f"--chunk is {options.chunk}; expected 256 to {1 << 20}")
    with _input(options.file) as source:
        from gpt2fast.compression import CHUNK, CompressedWriter

        lm = common.load(options)
        start = time.monotonic()
        target: Any = common.stdout() if output == "-" else output
        with (
            _progress(options, source) as progress,
            CompressedWriter(target, lm, chunk=options.chunk or CHUNK, progress=_tell(progress)) as file,
        ):
            while part := source.read(_PART):
                file.write(part)
        _tell_summary(options, file.bytes_in, file.bytes_out, file.tokens, time.monotonic() - start)


def _decompress_command(options: argparse.Namespace) -> None:
    if options.info:
        _info_command(options)
        return
    output = options.output or _default_output(options)
    if not options.test:
        _check_output(output, options)
    elif options.output is not None:
        raise UsageError("--test writes nothing; -o is for decompressing")
    from gpt2fast._internal.atomic import atomic_write
    from gpt2fast.compression import BATCH, CompressedReader

    def model(record: ModelRecord) -> LanguageModel:
        options.dtype = options.dtype or record.dtype
        options.cache_dtype = options.cache_dtype or record.cache_dtype
        return common.load(options)

    with _input(options.file) as source:
        begin = time.monotonic()
        start, end = options.range or (0, None)
        with (
            _progress(options, None) as progress,
            CompressedReader(source, model, batch=options.batch or BATCH, progress=_tell(progress)) as file,
        ):
            if start or end is not None:
                if not file.seekable():
                    raise UsageError("--range is for a file that can seek; standard input cannot")
                file.seek(start)
            parts = _parts(cast(BinaryIO, file), None if end is None else end - start)
            if options.test:
                written = sum(map(len, parts))
            elif output == "-":
                written = sum(common.stdout().write(part) for part in parts)
            else:
                with atomic_write(output) as target:
                    written = sum(target.write(part) for part in parts)
            compressed = None if options.range else source.tell() if source.seekable() else None
        _tell_summary(options, written, compressed, file.tokens, time.monotonic() - begin)


def _parts(file: BinaryIO, count: int | None) -> Iterator[bytes]:
    """The next bytes of the file, `count` of them or all there are."""
    while part := file.read(_PART if count is None else min(_PART, count)):
        yield part
        if count is not None:
            count -= len(part)


def _info_command(options: argparse.Namespace) -> None:
    from gpt2fast.compression import inspect

    with _input(options.file) as source:
        info = inspect(source)
    rate = f", {8 * info.compressed_size / info.size:.3f} bits per byte" if info.size else ""
    lines = [
        f"original\t{info.size:,} bytes",
        f"compressed\t{info.compressed_size:,} bytes{rate}",
        f"SHA-256\t{info.sha256}",
    ]
    names = {"text": "by the model", "deflated": "by DEFLATE", "stored": "as it was"}
    lines += [f"{names[kind]}\t{info.bytes[kind]:,} bytes in {count:,} blocks" for kind, count in info.blocks.items()]
    if info.model is not None:
        lines += [
            f"model\t{info.model.dtype}, cache {info.model.cache_dtype}, SHA-256 {info.model.model.hex()}",
            f"tokenizer\tSHA-256 {info.model.tokenizer.hex()}",
            f"arithmetic\tversion {info.model.numerics_version}",
        ]
    common.stdout().write("".join(f"{line}\n" for line in lines).encode())


def _default_output(options: argparse.Namespace) -> str:
    if options.file == "-" or options.range:
        return "-"
    if not options.file.endswith(_SUFFIX) or options.file == _SUFFIX:
        if options.test:
            return "-"
        raise UsageError(f"{options.file}: the name does not end with {_SUFFIX}; -o OUT says where to write")
    return cast(str, options.file.removesuffix(_SUFFIX))


def _check_output(output: str, options: argparse.Namespace) -> None:
    """Raise InputError where there is an output that must not be replaced, before hours of work."""
    if output == "-":
        return
    if os.path.exists(output) and os.path.exists(options.file) and os.path.samefile(output, options.file):
        raise UsageError(f"{output}: is the input, too")
    if os.path.lexists(output) and not options.overwrite:
        raise InputError(f"{output}: is there already; to replace it, say --overwrite")


@contextmanager
def _input(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed")
        yield sys.stdin.buffer
        return
    with open(file, "rb") as stream:
        yield stream


def _progress(options: argparse.Namespace, source: BinaryIO | None) -> Progress:
    """The bar; of a file whose size is known it says how much is left."""
    from gpt2fast.corpus.progress import Progress

    total = os.fstat(source.fileno()).st_size if source is not None and source.name != "<stdin>" else None
    return Progress(total, 0, False if options.quiet else options.progress)


def _tell(progress: Progress) -> Any:
    """What a writer or a reader calls with bytes and tokens so far."""
    before = 0

    def tell(done: int, tokens: int) -> None:
        nonlocal before
        progress.update(done, tokens - before)
        before = tokens

    return tell


def _tell_summary(options: argparse.Namespace, size: int, compressed: int | None, tokens: int, seconds: float) -> None:
    if options.quiet:
        return
    of = (
        ""
        if compressed is None or not size
        else f", {compressed:,} compressed, {8 * compressed / size:.3f} bits per byte"
    )
    print(f"[{size:,} bytes{of}; {tokens:,} tokens in {seconds:.1f} s]", file=sys.stderr)
