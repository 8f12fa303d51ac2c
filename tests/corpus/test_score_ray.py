"""A corpus that is scored on Ray: the rows are those of one machine, also when a worker or the driver dies."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpora
import pytest

import gpt2fast
from gpt2fast.cli import main
from gpt2fast.corpus import cluster, score_cluster, score_files
from gpt2fast.corpus.condition import Condition
from gpt2fast.corpus.inputs import find_inputs
from gpt2fast.errors import InputError

ROOT = str(Path(gpt2fast.__file__).parents[1])


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo", num_threads=1)


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    """A Ray instance on this machine with two workers."""
    ray = pytest.importorskip("ray")
    # The workers import the same package as these tests.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


def write_inputs(directory: Path) -> list[Path]:
    texts = [f"There were {i} kings. {corpora.DOCUMENTS[i % 6][:40] * (i % 3)}\n" for i in range(60)]
    for i, kind in enumerate(("jsonl", "txt", "parquet", "jsonl.gz")):
        corpora.write(directory / f"{i}.{kind}", texts[i * 15 : (i + 1) * 15])
    with open(directory / "0.jsonl", "r+") as file:  # blank lines are lines, but no documents
        lines = file.readlines()
        file.seek(0)
        file.write("\n".join(lines))
    return sorted(directory.glob("[0-9].*"))


def same(one: Any, two: Any) -> None:
    for name in ("documents", "tokens", "text_bytes", "skipped", "kept"):
        assert getattr(one, name) == getattr(two, name), name
    assert one.log_likelihood == pytest.approx(two.log_likelihood)


@pytest.mark.slow
@pytest.mark.parametrize("out", ["jsonl", "parquet"])
def test_the_rows_are_those_of_one_machine(
    tmp_path: Path, two_workers: Any, lm: gpt2fast.LanguageModel, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setattr(score_cluster, "UNIT_BYTES", 600)
    inputs = write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = [path.name for path in inputs]
    assert len(list(cluster.plan_units(find_inputs(inputs), corpora.SEPARATOR, 600))) > 4
    options: Any = {"separator": corpora.SEPARATOR, "tokens": True, "text": True, "detect": True}
    one = score_files(names, f"one.{out}", lm, **options)
    two = score_files(names, f"two.{out}", lm, **options, engine="ray")
    assert Path(f"two.{out}").read_bytes() == Path(f"one.{out}").read_bytes()
    same(one, two)
    assert not Path(f"two.{out}.partial").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "txt", "parquet", "jsonl.gz"])
def test_what_is_kept_is_what_one_machine_keeps(
    tmp_path: Path, two_workers: Any, lm: gpt2fast.LanguageModel, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(score_cluster, "UNIT_BYTES", 400)
    texts = [f"There were {i} kings. {corpora.DOCUMENTS[i % 6][:40] * (i % 3)}\n" for i in range(40)]
    for i in range(2):
        corpora.write(tmp_path / f"{i}.{kind}", texts[20 * i : 20 * i + 20])
    options: Any = {"separator": corpora.SEPARATOR, "keep": "20 < bytes < 60 or top_10 > 0.6"}
    inputs = [tmp_path / f"{i}.{kind}" for i in range(2)]
    one = score_files(inputs, tmp_path / f"one.{kind}", lm, **options)
    two = score_files(inputs, tmp_path / f"two.{kind}", lm, **options, engine="ray")
    assert 0 < one.kept < one.documents
    same(one, two)
    assert (tmp_path / f"two.{kind}").read_bytes() == (tmp_path / f"one.{kind}").read_bytes()


@pytest.mark.slow
def test_the_driver_is_killed_and_goes_on(
    tmp_path: Path, two_workers: Any, lm: gpt2fast.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_cluster, "UNIT_BYTES", 600)
    inputs = write_inputs(tmp_path)
    options: Any = {"separator": corpora.SEPARATOR}
    score_files(inputs, tmp_path / "one.jsonl", lm, **options)
    code = (
        "import os, signal, sys, gpt2fast; from gpt2fast.corpus import score_cluster, score_files\n"
        "real, calls = score_cluster.remove_part, []\n"
        "def remove(*arguments):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    real(*arguments)\n"
        "score_cluster.remove_part, score_cluster.UNIT_BYTES = remove, 600\n"
        "score_files(sys.argv[2:], sys.argv[1], gpt2fast.load('demo', num_threads=1), separator='=== next ===',"
        f" engine='ray', address={two_workers.get_runtime_context().gcs_address!r})"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "two.jsonl"), *map(str, inputs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "two.jsonl").exists()
    progress = json.loads((tmp_path / "two.jsonl.partial" / "progress.json").read_text())
    assert 0 < progress["counts"]["documents"] < 60
    with pytest.raises(InputError, match="was begun here with engine 'ray', not None"):
        score_files(inputs, tmp_path / "two.jsonl", lm, **options)
    summary = score_files(inputs, tmp_path / "two.jsonl", lm, **options, engine="ray")
    assert summary.resumed
    assert summary.documents == 60
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


@pytest.mark.slow
def test_bad_lines_by_file_and_line(
    tmp_path: Path, two_workers: Any, lm: gpt2fast.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_cluster, "UNIT_BYTES", 100)
    path = corpora.write(tmp_path / "in.jsonl", [f"text {i}" for i in range(30)])
    with open(path, "a") as file:
        file.write('{"text": 1}\n{"text": "end"}\n{}\n')
    with pytest.raises(InputError, match=rf"^{path}:31: the field"):
        score_files(path, tmp_path / "out.jsonl", lm, engine="ray")
    told: list[str] = []
    options: Any = {"on_error": "skip", "on_skip": told.append, "restart": True}
    summary = score_files(path, tmp_path / "out.jsonl", lm, engine="ray", **options)
    assert (summary.documents, summary.skipped) == (31, 2)
    assert [message.split(":")[1] for message in told] == ["31", "33"]
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["document"] for row in rows] == list(range(31))


def test_what_the_engine_refuses(
    tmp_path: Path, lm: gpt2fast.LanguageModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("a")
    for options, words in (
        ({"engine": "spark"}, "engine is 'spark'"),
        ({"address": "auto"}, "address is 'auto', but the engine is 'local'"),
        ({"engine": "ray", "inputs": "-"}, "standard input and pipes"),
    ):
        arguments: Any = {"inputs": "in.txt", "out": "out.jsonl", "lm": lm, **options}
        with pytest.raises(InputError, match=words):
            score_files(**arguments)
    assert os.listdir(tmp_path) == ["in.txt"]
    assert main(["score", "in.txt", "--engine", "ray"]) == 2
    assert "--engine is for documents" in capsys.readouterr().err


def test_a_condition_goes_to_workers() -> None:
    condition = pickle.loads(pickle.dumps(Condition("bytes < 3", ["bytes"])))
    assert condition({"bytes": 2})
    assert not condition({"bytes": 3})
