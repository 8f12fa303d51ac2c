"""`gpt2fast generate`: continue a text."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from gpt2fast.cli import common


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    generate = common.add_command(
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
    common.add_model(generate)
    generate.add_argument(
        "--tokens", type=common.positive, default=60, metavar="N", help="new tokens at most (default: 60)"
    )
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
    common.add_speculate(generate)
    generate.add_argument("--echo", action="store_true", help="write the prompt, too")
    generate.add_argument("--quiet", action="store_true", help="no rate on standard error")
    common.add_allow_special(generate)


def _generate(options: argparse.Namespace) -> None:
    prompt = _prompt(options)
    from gpt2fast.generation.generate import Settings, Step, generate

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
    lm = common.load(options)
    ids = common.encode(lm.tokenizer, prompt, options)
    out = common.stdout()
    if options.echo:
        out.write(prompt)
        out.flush()
    start = time.perf_counter()
    count = 0
    first = start

    def write(step: Step) -> None:
        nonlocal count, first
        count += 1
        if count == 1:
            first = time.perf_counter()
        if step.text:
            out.write(step.text.encode())
            out.flush()

    drafter = lm.drafter(speculate=options.speculate)
    [[found]] = generate(lm.model, lm.tokenizer, [ids], settings, on_token=write, drafter=drafter)
    end = time.perf_counter()
    out.write(b"\n")
    out.flush()
    if not options.quiet:
        accepted = (
            f"; {found.accepted} of {found.drafted} proposals accepted" if options.speculate and found.drafted else ""
        )
        rate = f", {(count - 1) / (end - first):.1f} tokens/s" if count > 1 else ""
        timing = f"{count} tokens in {end - start:.2f} s{rate}; first after {first - start:.2f} s"
        print(f"[{timing}{accepted}; seed {settings.seed}]", file=sys.stderr)


def _prompt(options: argparse.Namespace) -> bytes:
    """The prompt's bytes.  Those of an argument are as the shell passed them, whatever the locale."""
    if options.prompt is not None:
        return os.fsencode(options.prompt)
    return common.read("-") if options.prompt_argument == "-" else os.fsencode(options.prompt_argument)


def _drawn_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")
