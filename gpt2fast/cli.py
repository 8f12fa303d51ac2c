"""The door from the shell: the command `gpt2fast`.

Bytes are exact: files and standard input are read, and text is written, without any translation of newlines, byte order
marks or encodings, whatever the locale.  Modules are imported by the command that needs them, so that counting tokens
never loads an engine.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from gpt2fast.errors import Error, InputError

if TYPE_CHECKING:
    from gpt2fast.language_model import LanguageModel
    from gpt2fast.tokenizer import Tokenizer

__all__ = ["main"]

_INTERRUPTED = 128 + 2  # what a shell reports of a process that SIGINT ended
_READER_GONE = 128 + 13  # … SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's own) and return the exit status.

    0 is success, 1 an error that one line on standard error explains, 130 an interrupt, 141 a reader that went away.
    Raises SystemExit, status 2, where the command line cannot be understood, and status 0 after --help or --version.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        # argparse of Python 3.10 to 3.12 makes [] of the -- in --prompt=--.
        if value == [] and name != "files":
            setattr(options, name, "--")
        elif name == "stop" and value:
            options.stop = ["--" if text == [] else text for text in value]
    try:
        options.run(options)
        _stdout().flush()
    except Error as error:
        return _failed(str(error))
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _failed(message: str) -> int:
    print("gpt2fast:", " ".join(message.split()), file=sys.stderr)
    return 1


# The commands


def _generate(options: argparse.Namespace) -> None:
    prompt = _prompt(options)
    from gpt2fast.generation import Settings, steps

    settings = Settings(
        max_new_tokens=options.tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        stop=options.stop,
        seed=_drawn_seed() if options.seed is None else options.seed,
        overflow=options.overflow,
    )
    lm = _load(options)
    ids = _encode(lm.tokenizer, prompt, options)
    out = _stdout()
    if options.echo:
        out.write(prompt)
        out.flush()
    start = time.perf_counter()
    count = 0
    first = start
    for step in steps(lm.model, lm.tokenizer, [ids], settings):
        count += 1
        if count == 1:
            first = time.perf_counter()
        if step.text:
            out.write(step.text.encode())
            out.flush()
    end = time.perf_counter()
    out.write(b"\n")
    out.flush()
    if not options.quiet:
        rate = f", {(count - 1) / (end - first):.1f} tokens/s" if count > 1 else ""
        print(
            f"[{count} tokens in {end - start:.2f} s{rate}; first after {first - start:.2f} s; seed {settings.seed}]",
            file=sys.stderr,
        )


def _encode_command(options: argparse.Namespace) -> None:
    ids = _encode(_tokenizer(options.tokenizer), _text(options, options.file), options)
    _stdout().write(" ".join(map(str, ids)).encode() + b"\n")


def _decode_command(options: argparse.Namespace) -> None:
    source = "standard input" if options.file == "-" else options.file
    # The shapes that ids are passed around in: columns, commas, a Python or JSON list.
    words = re.sub(rb"[\[\](),]", b" ", _read(options.file)).split()
    ids = []
    for word in words:
        if not word.isdigit():
            raise InputError(f"{source}: {word.decode(errors='replace')!r} is no token id; expected whole numbers")
        ids.append(int(word))
    _stdout().write(_tokenizer(options.tokenizer).decode_bytes(ids))


def _count_command(options: argparse.Namespace) -> None:
    tokenizer = _tokenizer(options.tokenizer)
    out = _stdout()
    counts = []
    for file in options.files:
        text = _text(options, file)
        counts.append(len(_encode(tokenizer, text, options)) if options.allow_special else tokenizer.count(text))
        if len(options.files) > 1:
            out.write(b"%d\t%s\n" % (counts[-1], os.fsencode(file)))
    out.write(b"%d%s\n" % (sum(counts), b"\ttotal" if len(counts) > 1 else b""))


def _score_command(options: argparse.Namespace) -> None:
    text = _text(options, options.file)
    from gpt2fast import score_report as report

    lm = _load(options)
    score = lm.score(_as_str(text), context=os.fsencode(options.context), stride=options.stride)
    name = "standard input" if options.file == "-" else options.file
    if options.html:
        page = report.render_html(score, f"{'text' if options.text is not None else name} under {options.model}")
    else:
        page = report.render_json_lines(score) if options.json else report.render_tsv(score)
    _stdout().write(page.encode("utf-8", "surrogateescape"))
    if not options.quiet:
        _stdout().flush()
        print(f"[{report.render_summary(score)}]", file=sys.stderr)


def _inspect_command(options: argparse.Namespace) -> None:
    from gpt2fast.inspect import inspect, render_json, render_text

    report = inspect(options.path)
    _stdout().write((render_json if options.json else render_text)(report).encode("utf-8", "surrogateescape"))


def _download_command(options: argparse.Namespace) -> None:
    from gpt2fast.hub import download

    _stdout().write(os.fsencode(download(options.name)) + b"\n")


# Input and output


def _stdout() -> BinaryIO:
    if sys.stdout is None:
        raise InputError("standard output is closed")
    return sys.stdout.buffer


def _read(file: str) -> bytes:
    if file == "-":
        return b"" if sys.stdin is None else sys.stdin.buffer.read()
    with open(file, "rb") as stream:
        return stream.read()


def _text(options: argparse.Namespace, file: str) -> bytes:
    return _read(file) if options.text is None else os.fsencode(options.text)


def _as_str(text: bytes) -> str | bytes:
    """The text where it is UTF-8, for spans in characters; else its bytes."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def _prompt(options: argparse.Namespace) -> bytes:
    """The prompt's bytes.  Those of an argument are as the shell passed them, whatever the locale."""
    if options.prompt is not None:
        return os.fsencode(options.prompt)
    return _read("-") if options.prompt_argument == "-" else os.fsencode(options.prompt_argument)


def _encode(tokenizer: Tokenizer, text: bytes, options: argparse.Namespace) -> list[int]:
    return tokenizer.encode(text, allowed_special="all") if options.allow_special else tokenizer.encode_ordinary(text)


def _tokenizer(name: str) -> Tokenizer:
    from gpt2fast.tokenizer import Tokenizer, get_encoding

    if name == "gpt2":  # ships with the package: no download, no engine
        return get_encoding(name)
    from gpt2fast.hub import resolve

    return Tokenizer.from_pretrained(resolve(name))


def _load(options: argparse.Namespace) -> LanguageModel:
    from gpt2fast.language_model import load

    return load(options.model, dtype=options.dtype, device=options.device, num_threads=options.threads)


def _drawn_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


# The command line


class _Version(argparse.Action):
    """Prints the version; asks for it only then, which takes as long as all else."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import PackageNotFoundError

        import gpt2fast

        try:
            print("gpt2fast", gpt2fast.__version__)
        except PackageNotFoundError:  # run from a source tree
            print("gpt2fast, not installed")
        parser.exit()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"unknown device {text!r}; expected cpu, cuda or cuda:NUMBER")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpt2fast",
        allow_abbrev=False,
        description="GPT-2 on the machine you have: text generation, an exact tokenizer, no PyTorch.",
        epilog="gpt2fast COMMAND --help explains a command.  Try: gpt2fast generate 'Once upon a time'",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    generate = _command(
        commands,
        "generate",
        _generate,
        "continue a text",
        "Continue PROMPT.  The new text goes to standard output as it comes, the rate to standard error.",
        "A prompt that begins with a dash: gpt2fast generate -- '-1 is' or --prompt='-1 is'.  An empty prompt starts a "
        "new text.",
    )
    prompt = generate.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "prompt_argument", metavar="PROMPT", nargs="?", help="the text to continue; - is standard input"
    )
    prompt.add_argument("--prompt", metavar="PROMPT", help="the same, for prompts that begin with a dash")
    _add_model(generate)
    generate.add_argument("--tokens", type=_positive, default=60, metavar="N", help="new tokens at most (default: 60)")
    generate.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0 always takes the likeliest token (default: 0.8)"
    )
    generate.add_argument(
        "--top-k", type=int, default=40, metavar="K", help="choose among the K likeliest; 0: among all (default: 40)"
    )
    generate.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="choose among the likeliest that make up P (default: 1)"
    )
    generate.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="drop what is less likely than P times the likeliest"
    )
    generate.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="R", help="over 1 avoids what was said (default: 1)"
    )
    generate.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    generate.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text (default: drawn)")
    generate.add_argument(
        "--overflow",
        choices=["stop", "error", "slide"],
        default="stop",
        help="at the end of the model's context: stop, refuse beforehand, or forget the older half (default: stop)",
    )
    generate.add_argument("--echo", action="store_true", help="write the prompt, too")
    generate.add_argument("--quiet", action="store_true", help="no rate on standard error")
    _add_allow_special(generate)

    encode = _command(commands, "encode", _encode_command, "text to token ids", "Write the token ids of a text.")
    _add_tokenizer(encode)
    _add_allow_special(encode)
    _add_text(encode).add_argument("file", nargs="?", default="-", metavar="FILE", help="- is standard input (default)")

    decode = _command(
        commands,
        "decode",
        _decode_command,
        "token ids to text",
        "Write the text of token ids: exactly its bytes, no newline at the end.  Ids may stand in lines, with commas "
        "or in brackets.",
    )
    _add_tokenizer(decode)
    decode.add_argument("file", nargs="?", default="-", metavar="FILE", help="- is standard input (default)")

    count = _command(
        commands,
        "count",
        _count_command,
        "count tokens",
        "Write the number of tokens; of several files, of each and all.",
    )
    _add_tokenizer(count)
    _add_allow_special(count)
    _add_text(count).add_argument(
        "files", nargs="*", default=["-"], metavar="FILE", help="- is standard input (default)"
    )

    score = _command(
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
        type=_positive,
        metavar="N",
        help="a text beyond the model's context is read in windows, each N tokens on (default: half the context)",
    )
    score.add_argument("--quiet", action="store_true", help="no perplexity on standard error")
    _add_model(score)
    _add_text(score).add_argument("file", nargs="?", default="-", metavar="FILE", help="- is standard input (default)")

    inspect = _command(
        commands,
        "inspect",
        _inspect_command,
        "what a safetensors file or a checkpoint holds",
        "Write the names, types, shapes and places of the tensors, without reading them.",
    )
    inspect.add_argument("--json", action="store_true", help="JSON instead of a table")
    inspect.add_argument("path", metavar="PATH", help="a safetensors file, or a directory with a model")

    download = _command(
        commands,
        "download",
        _download_command,
        "fetch a model",
        "Fetch a model into the user's cache, where it is not there yet, and write the directory's path.",
    )
    download.add_argument("name", metavar="NAME", help="gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2 or org/name")
    return parser


def _command(
    commands: Any, name: str, run: Any, summary: str, description: str, epilog: str | None = None
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=epilog, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="demo", help="demo, a directory, or a name such as gpt2 or org/name (default: demo)"
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "int8", "int4"],
        default="float32",
        help="how weights are kept: smaller is faster and less exact (default: float32)",
    )
    parser.add_argument("--device", type=_device, default="cpu", help="cpu, cuda or cuda:NUMBER (default: cpu)")
    parser.add_argument("--threads", type=_positive, metavar="N", help="threads (default: the processors there are)")


def _add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer", default="gpt2", metavar="NAME", help="gpt2, demo, a model's directory or name (default: gpt2)"
    )


def _add_allow_special(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-special",
        action="store_true",
        help="<|endoftext|> in the text is the token; without this it is text like any other",
    )


def _add_text(parser: argparse.ArgumentParser) -> Any:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--text", metavar="TEXT", help="this text instead of a file's")
    return group
