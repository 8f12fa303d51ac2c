"""`gpt2fast bench`: how fast a model runs on this machine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gpt2fast.cli import common


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    bench = common.add_command(
        commands,
        "bench",
        _bench,
        "how fast a model runs here",
        "Measure loading, reading prompts, greedy decoding with and without the cache, batches and memory, each dtype "
        "in a process of its own, and write a table.",
    )
    bench.add_argument("--model", default="demo", help="demo, a directory, or a name (default: demo)")
    bench.add_argument(
        "--dtype",
        action="append",
        choices=["float32", "bfloat16", "int8", "int4"],
        help="measure this one; may be repeated (default: all four)",
    )
    bench.add_argument("--threads", type=common.positive, metavar="N", help="threads (default: the processors)")
    bench.add_argument("--rounds", type=common.positive, default=5, metavar="N", help="take medians of N (default: 5)")
    bench.add_argument("--json", action="store_true", help="JSON instead of a table")


def _bench(options: argparse.Namespace) -> None:
    import platform

    from gpt2fast._internal.threads import resolve_num_threads
    from gpt2fast.checkpoint.weights import DTYPES, Checkpoint
    from gpt2fast.cli import measurement
    from gpt2fast.hub.models import resolve
    from gpt2fast.kernels.cpu import cpu_level

    directory = resolve(options.model)
    with Checkpoint(directory) as checkpoint:
        dtypes = options.dtype or ([checkpoint.packed] if checkpoint.packed else DTYPES)
    threads = resolve_num_threads(options.threads)
    print(f"[{options.model}, {threads} threads, {cpu_level()}; a busy machine makes it slower]", file=sys.stderr)
    found = measurement.measure(directory, dtypes=dtypes, num_threads=threads, rounds=options.rounds)
    facts = {"model": options.model, "threads": threads, "cpu_level": cpu_level(), "machine": platform.machine()}
    text = measurement.render_json(found, facts) if options.json else measurement.render_table(found)
    common.stdout().write(text.encode())
