"""`gpt2fast generate`: continue a text."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpt2fast._internal.arguments import real_number
from gpt2fast.cli import common
from gpt2fast.cli.common import UsageError

if TYPE_CHECKING:
    from gpt2fast.generation import Generation, Settings
    from gpt2fast.generation.beam import Beam
    from gpt2fast.language_model import LanguageModel
    from gpt2fast.model.hooks import Steering

#: Options that choose tokens by chance, and what they are where nothing is said; a beam search takes none of them.
_CHANCE = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    generate = common.add_command(
        commands,
        "generate",
        _generate,
        "continue a text",
        "Continue PROMPT.  The new text goes to standard output as it comes, the rate to standard error.",
        "An empty prompt starts a new text.  Examples:\n"
        "  gpt2fast generate 'Once upon a time' --temperature 0 --stop .\n"
        "  gpt2fast generate -n 3 --json --logprobs 2 'The king said'\n"
        "  gpt2fast generate --prompt-file story.txt --echo\n"
        "  gpt2fast generate 'Who came?' --choices 'the king' 'the fox'\n"
        "  gpt2fast generate --prompt='-1 is a prompt with a dash'",
    )
    prompt = generate.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "prompt_argument", metavar="PROMPT", nargs="?", help="the text to continue; - is standard input"
    )
    prompt.add_argument("--prompt", metavar="PROMPT", help="the same, for prompts that begin with a dash")
    prompt.add_argument("--prompt-file", metavar="FILE", help="the text of this file, byte for byte")
    common.add_model(generate)
    _add_length(generate.add_argument_group("how long"))
    _add_choice(generate.add_argument_group("how tokens are chosen"))
    _add_grammar(generate.add_argument_group("what the text is like (pip install 'gpt2fast[grammar]')"))
    _add_steer(generate.add_argument_group("what is added to activations"))
    common.add_speculate(generate)
    common.add_allow_special(generate)
    output = generate.add_argument_group("what is written")
    output.add_argument(
        "-n", type=common.positive, default=1, metavar="N", help="N texts, a line '--- 2 of N ---' before each"
    )
    output.add_argument("--json", action="store_true", help="a JSON object a text, with ids, reason and seed")
    output.add_argument(
        "--logprobs", type=int, metavar="K", help="with --json: each token's log-probability, and the K likeliest"
    )
    output.add_argument("--echo", action="store_true", help="write the prompt, too")
    output.add_argument("--quiet", action="store_true", help="no rate on standard error")


def _add_length(group: Any) -> None:
    group.add_argument(
        "--tokens", type=common.positive, default=60, metavar="N", help="new tokens at most (default: 60)"
    )
    group.add_argument(
        "--min-tokens", type=int, default=0, metavar="N", help="no end-of-text before N new tokens (default: 0)"
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    group.add_argument(
        "--overflow",
        choices=["stop", "error", "slide"],
        default="stop",
        help="at the end of the model's context: stop, refuse beforehand, or forget the older half (default: stop)",
    )


def _add_choice(group: Any) -> None:
    group.add_argument(
        "--temperature", type=float, metavar="T", help="0 always takes the likeliest token (default: 0.8)"
    )
    group.add_argument(
        "--top-k", type=int, metavar="K", help="choose among the K likeliest; 0: among all (default: 40)"
    )
    group.add_argument(
        "--top-p", type=float, metavar="P", help="choose among the likeliest that make up P (default: 1)"
    )
    group.add_argument("--min-p", type=float, metavar="P", help="drop what is less likely than P times the likeliest")
    group.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="R", help="over 1 avoids what was said (default: 1)"
    )
    group.add_argument("--presence-penalty", type=float, metavar="A", help="over 0 avoids what the new text has said")
    group.add_argument("--frequency-penalty", type=float, metavar="A", help="the same, for every time that it was said")
    group.add_argument(
        "--no-repeat-ngram-size", type=int, default=0, metavar="N", help="no run of N tokens comes twice (default: off)"
    )
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text (default: drawn)")
    group.add_argument(
        "--beams", type=common.positive, metavar="B", help="search for the most probable text with B beams instead"
    )


def _add_grammar(group: Any) -> None:
    group = group.add_mutually_exclusive_group()
    group.add_argument("--regex", metavar="R", help="the whole text matches this regular expression")
    group.add_argument("--json-schema", metavar="FILE", help="the text is JSON that the schema in FILE describes")
    group.add_argument("--choices", metavar="TEXT", nargs="+", help="the text is one of these")
    group.add_argument("--grammar", metavar="FILE", help="the text is of the grammar in FILE, llama.cpp's GBNF or Lark")


def _grammar(options: argparse.Namespace) -> dict[str, Any]:
    """The setting that says what the text is like."""
    files = {"json_schema": options.json_schema, "grammar": options.grammar}
    read = {name: common.read(file).decode() for name, file in files.items() if file is not None}
    return read or {name: getattr(options, name) for name in ("regex", "choices") if getattr(options, name) is not None}


def _add_steer(group: Any) -> None:
    group.add_argument(
        "--steer",
        action="append",
        metavar="FILE",
        help="add the steering vectors of this .safetensors file; may be repeated",
    )
    group.add_argument(
        "--steer-strength",
        type=float,
        metavar="X",
        help="times the strength that each file says; below 0 it steers the other way (default: 1)",
    )


def _generate(options: argparse.Namespace) -> None:
    prompt = _prompt(options)
    from gpt2fast.generation import Settings

    if options.steer_strength is not None and options.steer is None:
        raise UsageError("--steer-strength is for the vectors of --steer FILE; without them, it has no use")

    if options.logprobs is not None and not options.json:
        raise UsageError("--logprobs is written with --json only")
    beams = options.beams is not None
    for name, default in _CHANCE.items():
        if getattr(options, name) is None:
            setattr(options, name, 0.0 if beams and name == "temperature" else default)
        elif beams:
            raise UsageError(f"--{name.replace('_', '-')} is for sampling; a beam search draws nothing")
    if beams and (options.seed is not None or options.logprobs is not None or options.overflow == "slide"):
        raise UsageError("--beams goes with neither --seed, --logprobs nor --overflow slide")
    if beams and options.n > options.beams:
        raise UsageError(f"-n is {options.n}; there are only {options.beams} beams")
    with common.usage():
        settings = Settings(
            max_new_tokens=options.tokens,
            min_new_tokens=options.min_tokens,
            repetition_penalty=options.repetition_penalty,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            stop=options.stop,
            seed=_drawn_seed() if options.seed is None else options.seed,
            logprobs=options.logprobs,
            overflow=options.overflow,
            **_grammar(options),
            **{name: getattr(options, name) for name in _CHANCE},
        )
    steer = _steering(options)
    lm = common.load(options)
    ids = common.encode(lm.tokenizer, prompt, options)
    write = _search if beams else _sample
    with _steered(lm, steer):
        told = write(lm, ids, settings, options, prompt if options.echo else b"")
    if not options.quiet:
        print(f"[{told}]", file=sys.stderr)


def _steering(options: argparse.Namespace) -> list[Steering]:
    """The vectors of the files of --steer, as strong as they are to be."""
    if options.steer is None:
        return []
    from gpt2fast.interpretability import load_steering

    factor = 1.0 if options.steer_strength is None else options.steer_strength
    with common.usage():
        real_number("--steer-strength", factor)
    return [one.scaled(factor) for path in options.steer for one in load_steering(path)]


@contextmanager
def _steered(lm: LanguageModel, steer: Sequence[Steering]) -> Iterator[None]:
    """Whatever is generated in the block, by a beam search as well, is steered."""
    if steer:
        from gpt2fast.model.hooks.steering import checked_steer

        checked_steer("--steer", steer, lm.model.config)
        with lm.model.hooks([(one.name, one) for one in steer]):
            yield
    else:
        yield


def _sample(lm: LanguageModel, ids: list[int], settings: Settings, options: argparse.Namespace, echo: bytes) -> str:
    """Write the drawn texts; of one text, its pieces as they come.  Returns what there is to say of it."""
    from gpt2fast.generation import Step
    from gpt2fast.generation.generate import generate

    out = common.stdout()
    in_pieces = options.n == 1 and not options.json
    if in_pieces:
        out.write(echo)
        out.flush()
    start = time.perf_counter()
    count = 0
    first = start

    def step(step: Step) -> None:
        nonlocal count, first
        count += 1
        if count == 1:
            first = time.perf_counter()
        if in_pieces and step.text:
            out.write(step.text.encode())
            out.flush()

    drafter = lm.drafter(speculate=options.speculate, size=min(options.n, settings.batch_size))
    [found] = generate(lm.model, lm.tokenizer, [ids], settings, n=options.n, on_token=step, drafter=drafter)
    end = time.perf_counter()
    if in_pieces:
        out.write(b"\n")
    else:
        _write_all(found, options, echo)
    out.flush()
    drafted, accepted = (sum(getattr(text, name) for text in found) for name in ("drafted", "accepted"))
    proposals = f"; {accepted} of {drafted} proposals accepted" if options.speculate and drafted else ""
    rate = f", {(count - 1) / (end - first):.1f} tokens/s" if count > 1 else ""
    return (
        f"{count} tokens in {end - start:.2f} s{rate}; first after {first - start:.2f} s{proposals}; "
        f"seed {settings.seed}"
    )


def _search(lm: LanguageModel, ids: list[int], settings: Settings, options: argparse.Namespace, echo: bytes) -> str:
    """Write the texts that a beam search finds, best first.  Returns what there is to say of them."""
    from gpt2fast.generation.beam import beam_searches

    start = time.perf_counter()
    search = {"num_beams": options.beams, "num_return_sequences": options.n}
    (found,) = beam_searches(lm.model, lm.tokenizer, [ids], settings, **search)
    seconds = time.perf_counter() - start
    _write_all(found, options, echo)
    common.stdout().flush()
    return f"{options.beams} beams in {seconds:.2f} s; log-likelihood {found[0].log_likelihood:.2f}"


def _write_all(found: Sequence[Generation | Beam], options: argparse.Namespace, echo: bytes) -> None:
    """The texts, each under a line that numbers it where there are several, or as JSON lines."""
    out = common.stdout()
    for number, text in enumerate(found, 1):
        if options.json:
            fields = {"prompt": echo.decode("utf-8", "backslashreplace")} if options.echo else {}
            out.write((json.dumps(fields | _fields(text), ensure_ascii=False) + "\n").encode())
        else:
            if len(found) > 1:
                out.write(f"--- {number} of {len(found)} ---\n".encode())
            out.write(echo + text.text.encode() + b"\n")


def _fields(text: Generation | Beam) -> dict[str, Any]:
    """What JSON tells of a text."""
    names = ("text", "ids", "finish_reason", "seed", "logprobs", "top_logprobs", "score", "log_likelihood")
    return {name: getattr(text, name) for name in names if getattr(text, name, None) is not None}


def _prompt(options: argparse.Namespace) -> bytes:
    """The prompt's bytes.  Those of an argument are as the shell passed them, whatever the locale."""
    if options.prompt_file is not None:
        return common.read(options.prompt_file)
    if options.prompt is not None:
        return os.fsencode(options.prompt)
    return common.read("-") if options.prompt_argument == "-" else os.fsencode(options.prompt_argument)


def _drawn_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")
