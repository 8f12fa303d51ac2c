"""The tables and charts of README and the documentation, made from results.json.

    python benchmarks/figures.py [--check]

In a Markdown file what stands between `<!-- figures: NAME -->` and `<!-- end of figures -->` is written anew; NAME is
one of TABLES, or "summary", a few figures of every machine.  With --check nothing is written, and what would change is
named, with status 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import results
from charts import bar_chart

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/benchmarks.md")
MARKED = re.compile(r"(<!-- figures: ([\w -]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)

#: What the tables show of a benchmark: the measure, and what stands above it or before it.
ENGINE = {
    "read 512": "prompt of 512",
    "at 32": "one text, 32 tokens before",
    "at 900": "900 before",
    "8 texts": "8 texts at once",
    "32 texts": "32 texts",
    "memory %": "% of the memory's rate",
}
TOKENIZER = {
    "English, array, fresh": "English, array, first time",
    "English, array, again": "English, array, again",
    "English, list, again": "English, list, again",
    "code, array, fresh": "code, array, first time",
    "code, array, again": "code, array, again",
    "code, list, again": "code, list, again",
    "ten languages, array, fresh": "ten languages, array, first time",
    "ten languages, array, again": "ten languages, array, again",
    "ten languages, list, again": "ten languages, list, again",
    "100,000 lines": "100,000 short lines, arrays",
    "100,000 line lists": "100,000 short lines, lists",
    "hostile, digits": "a million digits, one piece",
    "hostile, equals signs": "a million `=`, one piece",
    "11 bytes (us)": "11 bytes, a list, µs",
    "decode (M tokens/s)": "decode, million tokens a second",
    "load (ms)": "import and `get_encoding`, ms",
}
#: The summary's rows: what is done, the benchmark and its measure, whom people use for it, and ours.
SUMMARY = (
    ("tokenizing English, MB/s on one core", "tokenizer", "English, array, fresh", "tiktoken", ("gpt2fast",)),
    ("generating with GPT-2 124M, tokens/s", "engine", "at 32", "transformers float32", ("float32", "int8")),
    ("reading a prompt of 512, tokens/s", "engine", "read 512", "transformers float32", ("float32", "int8")),
)
#: The three groups of the engine's chart, and of the tokenizer's.
ENGINE_CHART = {"at 32": "One text", "8 texts": "Eight texts at once", "read 512": "Reading a prompt of 512 tokens"}
TOKENIZER_CHART = {f"{text}, array, fresh": text for text in ("English", "code", "ten languages")}

Runs = list[dict[str, Any]]


def number(value: float | None) -> str:
    """A figure as a table shows it; a dash where nothing was measured."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 20 else f"{value:.2g}"


def cell(runs: Runs, contestant: str, measure: str) -> str:
    """The medians of the machines, in the order of their runs."""
    values = [run["rows"].get(contestant, {}).get(measure, [None])[0] for run in runs]
    return " / ".join(number(value) for value in values)


def table(corner: str, columns: Mapping[str, str], rows: Mapping[str, str], look: Callable[[str, str], str]) -> str:
    """A table in Markdown: `look` gives the cell of a row and a column, both by their keys."""
    lines = [f"| {corner} | {' | '.join(columns.values())} |", "|---" * (len(columns) + 1) + "|"]
    for row, name in rows.items():
        lines.append(f"| {name} | {' | '.join(look(row, column) for column in columns)} |")
    return "\n".join(lines) + "\n"


def caption(runs: Runs, machines: Mapping[str, Any]) -> str:
    """Where and when the runs were, and with which versions."""
    lines = []
    for run in runs:
        day = date.fromisoformat(run["date"])
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        script = f"benchmarks/{run['benchmark']}.py {run['options']}".rstrip()
        lines.append(f"{machines[run['machine']]['name']}, {day.day} {day:%B %Y}: `{script}`; {versions}.")
    if len(lines) > 1:
        lines = ["In each cell the machines in this order:", *(f"{i}. {line}" for i, line in enumerate(lines, 1))]
    return "\n".join(lines) + "\n"


def contestants(runs: Runs) -> dict[str, str]:
    """All contestants of the runs, by the order of their first appearance."""
    return {name: name for run in runs for name in run["rows"]}


def engine(runs: Runs) -> str:
    """A row for each contestant."""
    return table("", ENGINE, contestants(runs), lambda name, measure: cell(runs, name, measure))


def tokenizer(runs: Runs) -> str:
    """A column for each contestant."""
    return table("", contestants(runs), TOKENIZER, lambda measure, name: cell(runs, name, measure))


def summary(found: Mapping[str, Any]) -> str:
    """A row for each task, a column for each machine that has run the benchmarks: theirs, and ours."""
    machines = {run["machine"]: found["machines"][run["machine"]]["short"] for run in of_benchmark(found, "engine")}

    def look(task: str, machine: str) -> str:
        _, benchmark, measure, theirs, ours = next(row for row in SUMMARY if row[0] == task)
        runs = [run for run in of_benchmark(found, benchmark) if run["machine"] == machine]
        named = [name if name == "gpt2fast" else f"gpt2fast {name}" for name in ours]
        mine = ", ".join(f"**{cell(runs, name, measure)}**" for name in named)
        return f"{cell(runs, theirs, measure)} → {mine}" if runs else "–"

    rows = {
        task: f"{task}: {theirs} → " + ("gpt2fast" if ours == ("gpt2fast",) else f"gpt2fast {', '.join(ours)}")
        for task, _, _, theirs, ours in SUMMARY
    }
    return table("two cores of", machines, rows, look)


TABLES: dict[str, Callable[[Runs], str]] = {"engine": engine, "tokenizer": tokenizer}


def charts(found: Mapping[str, Any], directory: Path) -> None:
    """Draw the charts, of the first machine that has run the benchmark."""
    for name, groups, title, unit in (
        ("engine", ENGINE_CHART, "Tokens per second, gpt2, two threads", ""),
        ("tokenizer", TOKENIZER_CHART, "Text not seen before to an array of ids, one processor", " MB/s"),
    ):
        run = of_benchmark(found, name)[0]
        shown = {
            group: {who: row[measure][0] for who, row in run["rows"].items() if measure in row}
            for measure, group in groups.items()
        }
        bar_chart(directory / f"{name}.svg", title, shown, unit, caption([run], found["machines"]).replace("`", ""))


def of_benchmark(found: Mapping[str, Any], name: str) -> Runs:
    """The runs of a benchmark, by the machines' order in the file."""
    machines = list(found["machines"])
    runs = [run for run in found["runs"] if run["benchmark"] == name]
    return sorted(runs, key=lambda run: machines.index(run["machine"]))


def made(found: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The files and what they should hold."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")

        def written(match: re.Match[str]) -> str:
            if match[2] == "summary":
                return f"{match[1]}{summary(found)}{match[3]}"
            runs = of_benchmark(found, match[2])
            return f"{match[1]}{caption(runs, found['machines'])}\n{TABLES[match[2]](runs)}{match[3]}"

        yield ROOT / page, MARKED.sub(written, text)
    with tempfile.TemporaryDirectory() as directory:
        charts(found, Path(directory))
        for drawn in sorted(Path(directory).iterdir()):
            yield ROOT / "docs" / drawn.name, drawn.read_text(encoding="utf-8")


def main() -> None:
    """Write, or check; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a file would change")
    options = parser.parse_args()
    stale = []
    for path, text in made(results.load()):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(ROOT)))
            if not options.check:
                path.write_text(text, encoding="utf-8", newline="\n")
    for name in stale:
        print(f"{name}: {'is not what results.json says: run make figures' if options.check else 'written'}")
    sys.exit(1 if options.check and stale else 0)


if __name__ == "__main__":
    main()
