"""The engine at another commit and here, by turns: exit status 1 where something has become more than 3 % slower.

    python benchmarks/compare.py v0.9.0
    python benchmarks/compare.py HEAD~1 --dtypes int8 --measures "read 512" "8 texts"

The commit is checked out into a temporary worktree and built there with pip; this checkout is taken as it is built.
Each has a process of its own for a dtype, and they measure in turns, so that what slows the machine down meets both.  A
figure that looks like a loss is measured again, three times as often, before it counts as one.  Have the machine to
yourself: beside other work even equal code differs by more than 3 %.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from engine import MEASURES, PEERS, Measure, Running, measure_name, prepare  # noqa: E402

#: The part of the base's rate that may be lost.
TOLERANCE = 0.03
DTYPES = ("float32", "bfloat16", "int8", "int4")
NAMES = {measure_name(measure): measure for measure in MEASURES}
Rates = dict[str, list[float]]


@contextmanager
def built(commit: str) -> Iterator[Path]:
    """A worktree of that commit with its compiled modules in place."""
    with tempfile.TemporaryDirectory() as temporary:
        tree, installed = Path(temporary) / "tree", Path(temporary) / "installed"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed)]
            subprocess.run([*pip, str(tree)], check=True)
            for module in installed.glob("gpt2fast/**/*.[sp][oy]*"):
                if module.suffix in (".so", ".pyd"):
                    shutil.copy(module, tree / module.relative_to(installed))
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def by_turns(pair: dict[str, Running], measure: Measure, rounds: int) -> Rates:
    """The tokens per second of both, a figure for each round."""
    rates: Rates = {which: [] for which in pair}
    for i in range(rounds + 1):
        for which in list(pair) if i % 2 else reversed(pair):
            seconds = pair[which].ask(*measure)
            if i > 0:  # the first time wakes threads and takes memory
                rates[which].append(measure[1 if measure[0] == "prefill" else 2] / seconds)
    return rates


def loss(rates: Rates) -> float:
    """The part of the base's median rate that is missing here; negative for a gain."""
    return 1 - statistics.median(rates["here"]) / statistics.median(rates["base"])


def compare(pair: dict[str, Running], dtype: str, measures: list[str], rounds: int) -> list[str]:
    """Measure and print a row for each measure; those that lost."""
    lost = []
    for name in measures:
        rates = by_turns(pair, NAMES[name], rounds)
        if loss(rates) > TOLERANCE:
            rates = by_turns(pair, NAMES[name], 3 * rounds)
        cells = (
            f"{statistics.median(found):10.0f} {f'({min(found):.0f} to {max(found):.0f})':>16}"
            for found in rates.values()
        )
        slower = loss(rates) > TOLERANCE
        print(f"{dtype:10}{name:>10}", *cells, f"{100 * -loss(rates):+8.1f} %{'  SLOWER' * slower}", flush=True)
        lost += [f"{dtype}, {name}"] * slower
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a commit, a tag or a branch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--measures", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--directory", type=Path, help="keep the checkpoint here (default: nowhere)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; expected at least 1")
    lost = []
    with tempfile.TemporaryDirectory() as temporary, built(options.base) as tree:
        directory = options.directory or Path(temporary)
        if not prepare(directory, "gpt2", ["gpt2fast float32"]):
            raise SystemExit("the checkpoint could not be written")
        print(f"tokens per second on {options.threads} threads: median and range; {options.base}, then here")
        for dtype in options.dtypes:
            pair = {
                which: Running(f"gpt2fast {dtype}", directory, options.threads, "cpu", peers)
                for which, peers in (("base", tree / PEERS.relative_to(ROOT)), ("here", PEERS))
            }
            lost += compare(pair, dtype, options.measures, options.rounds)
            for contestant in pair.values():
                contestant.close()
    if lost:
        raise SystemExit(f"more than {TOLERANCE:.0%} slower than {options.base}: {'; '.join(lost)}")


if __name__ == "__main__":
    main()
