"""The figures of README and the documentation, kept as data: benchmarks/results.json.

A benchmark that is given `--record` puts what it measured there, with the machine, the date and the versions that took
part.  A later run on the same machine replaces an earlier one.  figures.py makes every table and chart from it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")


def load() -> dict[str, Any]:
    """What has been recorded: `machines`, by name, and `runs`."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def record(
    benchmark: str,
    rows: Mapping[str, Mapping[str, Sequence[float] | float]],
    *,
    versions: Mapping[str, str],
    options: str = "",
) -> None:
    """Keep what a benchmark measured on this machine: the median, the lowest and the highest of each figure's rounds.

    `rows` has them by contestant and measure; `options` are those of the command that change what is measured.
    """
    results = load()
    machine = processor()
    results["machines"].setdefault(machine, {"name": machine, "short": machine})
    kept = [run for run in results["runs"] if (run["benchmark"], run["machine"]) != (benchmark, machine)]
    run = {
        "benchmark": benchmark,
        "machine": machine,
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "options": options,
        "versions": dict(versions),
        "rows": {name: {measure: _summary(values) for measure, values in row.items()} for name, row in rows.items()},
    }
    results["runs"] = [*kept, run]
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(dumps(results), encoding="utf-8")
    temporary.replace(RESULTS)


def dumps(results: Mapping[str, Any]) -> str:
    """JSON with a line for each contestant, so that a new run is a readable change."""
    runs = []
    for run in results["runs"]:
        head = json.dumps({key: value for key, value in run.items() if key != "rows"}, ensure_ascii=False)
        rows = [f"   {json.dumps(name)}: {json.dumps(row)}" for name, row in run["rows"].items()]
        runs.append("  " + head[:-1] + ', "rows": {\n' + ",\n".join(rows) + "\n  }}")
    machines = json.dumps(results["machines"], ensure_ascii=False, indent=1).replace("\n", "\n ")
    return f'{{\n "machines": {machines},\n "runs": [\n' + ",\n".join(runs) + "\n ]\n}\n"


def environment(**more: str) -> dict[str, str]:
    """That of a contestant's process: as here, but modules stay compiled, as those of an installed package are."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | more


def processor() -> str:
    """This machine, as results are kept by: the processor's name and how many of its cores there are."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"


def _summary(values: Sequence[float] | float) -> list[float]:
    values = [values] if isinstance(values, (int, float)) else list(values)
    return [float(f"{value:.4g}") for value in (statistics.median(values), min(values), max(values))]
