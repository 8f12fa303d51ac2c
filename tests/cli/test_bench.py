"""`gpt2fast bench` measures every dtype it is asked for, and tells what went wrong where it cannot."""

from __future__ import annotations

import json

import pytest

from gpt2fast.cli import main
from gpt2fast.cli.measurement import measure, median_seconds, render_table
from gpt2fast.hub.models import resolve


def test_figures_of_the_demo(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json", "--rounds", "1", "--dtype", "int8", "--dtype", "int4", "--threads", "1"]) == 0
    out, told = capfd.readouterr()
    report = json.loads(out)
    assert (report["model"], report["threads"]) == ("demo", 1)
    assert list(report["figures"]) == ["int8", "int4"]
    assert report["figures"]["int8"].keys() == report["figures"]["int4"].keys()
    for figures in report["figures"].values():
        assert all(value > 0 for value in figures.values())
        assert figures["peak memory, MB"] > figures["weights, MB"]
    weights = {dtype: figures["weights, MB"] for dtype, figures in report["figures"].items()}
    assert weights["int4"] < weights["int8"] < 8
    assert told.startswith("[demo, 1 threads")
    table = render_table(report["figures"]).splitlines()
    assert table[0].split() == ["int8", "int4"]
    assert len({len(line) for line in table}) == 1


def test_a_rate_is_of_the_calls_that_count() -> None:
    calls: list[int] = []
    assert median_seconds(lambda: calls.append(1), 3) > 0
    assert len(calls) == 4


def test_what_cannot_be_measured_is_told(tmp_path: object, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--model", str(tmp_path)]) == 1
    assert "there is no" in capfd.readouterr().err
    with pytest.raises(ValueError, match="dtype is 'int2'"):
        measure(resolve("demo"), dtypes=["int2"])
