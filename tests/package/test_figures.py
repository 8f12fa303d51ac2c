"""The tables and charts of README and docs are what benchmarks/results.json says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import figures
        import results

        yield figures, results
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_pages_and_charts_are_up_to_date(modules):
    figures, results = modules
    for path, text in figures.made(results.load()):
        assert path.read_text(encoding="utf-8") == text, f"{path} is not what results.json says: make figures"


def test_a_later_run_of_the_machine_replaces_the_earlier_one(modules, tmp_path, monkeypatch):
    figures, results = modules
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    results.RESULTS.write_text('{"machines": {}, "runs": []}')
    for machine, rate in (("one", 10.0), ("two", 70.0), ("one", 30.0)):
        monkeypatch.setattr(results, "processor", lambda machine=machine: machine)
        rows = {"gpt2fast": {"read 512": [rate, 2 * rate, 3 * rate]}, "other": {"at 32": 5}}
        results.record("engine", rows, versions={"other": "1.0"}, options="--size gpt2")
    found = results.load()
    runs = figures.of_benchmark(found, "engine")
    assert [run["machine"] for run in runs] == ["one", "two"]
    assert runs[0]["rows"]["gpt2fast"]["read 512"] == [60.0, 30.0, 90.0]
    assert "| gpt2fast | 60 / 140 | – / – |" in figures.engine(runs)
    assert "| other | – / – | 5 / 5 |" in figures.engine(runs)
    assert "`benchmarks/engine.py --size gpt2`; other 1.0." in figures.caption(runs, found["machines"])


def test_the_summary_has_a_column_for_each_machine(modules):
    figures, _ = modules
    row = {"at 32": [26.0]}, {"at 32": [67.0]}, {"at 32": [246.0]}
    rows = dict(zip(("transformers float32", "gpt2fast float32", "gpt2fast int8"), row, strict=True))
    found = {
        "machines": {"a": {"name": "A", "short": "a"}, "b": {"name": "B", "short": "b"}},
        "runs": [{"benchmark": "engine", "machine": machine, "rows": rows} for machine in "ba"],
    }
    lines = figures.summary(found).splitlines()
    assert lines[0] == "| two cores of | a | b |"
    assert lines[2].endswith("| – | – |")  # the tokenizer was not measured
    assert lines[3].endswith("| 26 → **67**, **246** | 26 → **67**, **246** |")
