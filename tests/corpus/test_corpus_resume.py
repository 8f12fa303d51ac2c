"""Jobs that are killed, interrupted, refused or out of room: nothing half done in sight, the same bytes at the end."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import corpora
import pytest
from paths import ROOT

import gpt2fast
from gpt2fast.corpus import tokenize_files
from gpt2fast.corpus.workdir import locked

CHILD = ROOT / "tests" / "support" / "killed_job.py"
#: The same package there as here, installed or not.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(gpt2fast.__file__).parents[1])}
SEED = 20191105
WORK = {"llmc": "tokenize.bin.partial", "parquet": "tokenize.parquet.partial"}


def command(**arguments):
    return [sys.executable, str(CHILD), json.dumps(arguments)]


@pytest.fixture(scope="module", autouse=True)
def forks():
    """The process whose forks are killed."""
    with subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        forks.process = process
        yield
        process.stdin.close()


def forked(**arguments):
    """The process of a job that has just begun; `ended` waits for it."""
    print(json.dumps(arguments), file=forks.process.stdin, flush=True)
    return int(forks.process.stdout.readline())


def ended():
    """The exit status of the job that was forked last, and what it reported."""
    status, report = json.loads(forks.process.stdout.readline())
    if status not in (0, -signal.SIGKILL):
        raise AssertionError(report)
    return status, report


def run(**arguments):
    """Run a job in a process of its own: its exit status and what it reported."""
    forked(**arguments)
    return ended()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job of several inputs and outputs in many small steps, and what an uninterrupted run of it makes."""
    directory = tmp_path_factory.mktemp("job")
    drawn = random.Random(SEED)
    texts = [f"Document {i}: {drawn.choice(corpora.DOCUMENTS) * drawn.randrange(6)}\n" for i in range(120)]
    corpora.write(directory / "a.txt", texts[:30])
    corpora.write(directory / "b.jsonl.gz", texts[30:60])
    corpora.write(directory / "c.parquet", texts[60:90])
    corpora.write(directory / "d.jsonl", texts[90:])
    with open(directory / "d.jsonl", "a") as file:
        file.write('{"text": 3}\n')
    arguments = {
        "inputs": [str(directory / name) for name in ("a.txt", "b.jsonl.gz", "c.parquet", "d.jsonl")],
        "separator": corpora.SEPARATOR,
        "eot": "append",
        "val_fraction": 0.3,
        "on_error": "skip",
        "size": 700,
    }
    expected = {}
    for format in ("llmc", "parquet"):
        more = {"format": format, "out": str(directory / format), "shard_tokens": 700}
        status, report = run(**arguments, **more)
        assert status == 0
        assert report[0] == 120
        assert report[2] == 1
        expected[format] = report, content(directory / format)
    assert len(expected["llmc"][1]) > 4
    return arguments, expected


def content(directory):
    """The files in a directory, the job's own left out."""
    files = directory.iterdir() if directory.exists() else ()
    return {path.name: path.read_bytes() for path in files if path.is_file()}


def complete(directory, expected):
    """Whether nothing but whole outputs, or nothing, is there under the outputs' names."""
    found = {path.name: path for path in directory.iterdir() if path.suffix != ".partial"} if directory.exists() else {}
    return all(path.read_bytes() == expected[name] for name, path in found.items())


def finished(directory, expected, format):
    """Whether all is there and the job's work is gone: a process killed now has nothing left to do but to end."""
    work = directory / WORK[format]
    left = set(os.listdir(work)) if work.exists() else set()
    return content(directory) == expected and left <= {"job.json", "lock"}


@pytest.mark.parametrize("format", ["llmc", "parquet"])
def test_killed_at_random_moments(tmp_path, job, format):
    """Ten times, and each time the next run goes on, or begins anew where the last one was too quick to be killed."""
    arguments, expected = job
    out = tmp_path / "out"
    arguments = {**arguments, "format": format, "out": str(out), "shard_tokens": 700}
    report, files = expected[format]
    drawn = random.Random(f"{SEED} {format}")
    killed = 0
    for _ in range(60):
        process = forked(**arguments)
        time.sleep(drawn.uniform(0, 0.1))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        killed += ended()[0] == -signal.SIGKILL
        assert complete(out, files)
        if killed == 10:
            break
        if finished(out, files, format):
            shutil.rmtree(out)
    assert killed
    if not finished(out, files, format):
        assert run(**arguments)[1][:4] == report[:4]
    assert content(out) == files


@pytest.mark.parametrize("format", ["llmc", "parquet"])
@pytest.mark.parametrize("moments", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_at_every_kind_of_step(tmp_path, job, format, moments):
    """Ended between any two changes to the disk, or in the middle of a write, once and then once more."""
    arguments, expected = job
    report, files = expected[format]
    steps = report[4]
    # The beginning and the end have all kinds of steps, the middle is more of the same.
    drawn = random.Random(f"{SEED} steps {format}")
    chosen = {*drawn.sample(range(1, steps), moments // 2), *drawn.sample(range(steps - 30, steps + 1), moments // 2)}
    for step in sorted(chosen):
        out = tmp_path / str(step)
        job_arguments = {**arguments, "format": format, "out": str(out), "shard_tokens": 700}
        again = None
        for kill_at in (step, 7, None):
            if finished(out, files, format):
                break  # it was killed at its very end, when nothing was left to do
            _, again = run(**job_arguments, kill_at=kill_at)
            assert complete(out, files)
        assert again is None or again[:4] == report[:4], step
        assert content(out) == files, step
        shutil.rmtree(out)


@pytest.fixture
def interrupted(tmp_path, job):
    """A job that was killed somewhere in the middle: its arguments, with `out` and all, and the expected files."""
    arguments, expected = job
    for path in arguments["inputs"]:
        shutil.copy2(path, tmp_path)
    inputs = [str(tmp_path / Path(path).name) for path in arguments["inputs"]]
    arguments = {**arguments, "inputs": inputs, "format": "llmc", "out": str(tmp_path / "out"), "shard_tokens": 700}
    report, files = expected["llmc"]
    assert run(**arguments, kill_at=report[4] // 2)[0] == -signal.SIGKILL
    return {name: value for name, value in arguments.items() if name != "size"}, files


def test_goes_on_with_other_batches_and_threads(tmp_path, interrupted):
    arguments, files = interrupted
    summary = tokenize_files(**arguments, num_threads=2)
    assert summary.resumed
    assert 0 < summary.run_tokens < summary.tokens
    assert content(tmp_path / "out") == files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eot": "prepend"}, "begun here with eot 'append', not 'prepend'"),
        ({"shard_tokens": 701}, "shard-tokens 700, not 701"),
        ({"separator": "x"}, "separator"),
        ({"seed": 1}, "seed 0, not 1"),
        ({"val_fraction": 0.31}, "val-fraction 0.3, not 0.31"),
        ({"tokenizer": None}, "tokenizer"),
        ({"inputs": slice(0, 2)}, "4 inputs, not 2"),
        ({"inputs": slice(None, None, -1)}, "the input '.*a.txt', not '.*d.jsonl'"),
    ],
)
def test_another_job_does_not_go_on(tmp_path, interrupted, data, change, message):
    arguments, files = interrupted
    changed = {**arguments, **change}
    if "inputs" in change:
        changed["inputs"] = arguments["inputs"][change["inputs"]]
    if "tokenizer" in change:
        changed["tokenizer"] = gpt2fast.Tokenizer.from_pretrained(data / "generation" / "g-stop-strings" / "model")
    with pytest.raises(gpt2fast.InputError, match=message):
        tokenize_files(**changed)
    tokenize_files(**arguments)
    assert content(tmp_path / "out") == files


def test_changed_inputs_do_not_go_on(tmp_path, interrupted):
    arguments, _ = interrupted
    os.utime(tmp_path / "c.parquet", ns=(0, 1))
    with pytest.raises(gpt2fast.InputError, match=r"c\.parquet' as it was before it changed.*--restart"):
        tokenize_files(**arguments)
    summary = tokenize_files(**arguments, restart=True)
    assert not summary.resumed
    assert summary.documents == 120


def test_damaged_work_is_refused(tmp_path, interrupted):
    arguments, files = interrupted
    (work,) = (tmp_path / "out").glob("tokenize*.partial")
    tokens = max(work.glob("train_*.tokens"))
    kept = tokens.read_bytes()
    tokens.write_bytes(kept[:1030])
    with pytest.raises(gpt2fast.InputError, match=r"train_.*has 1,030 bytes, .* were written.*--restart"):
        tokenize_files(**arguments)
    tokens.write_bytes(kept)
    progress = (work / "progress.json").read_bytes()
    (work / "progress.json").write_bytes(progress[:-9])
    with pytest.raises(gpt2fast.InputError, match=r"progress\.json: damaged"):
        tokenize_files(**arguments)
    (work / "progress.json").write_bytes(progress)
    tokenize_files(**arguments)
    assert content(tmp_path / "out") == files


def test_a_second_process_is_refused(tmp_path, job):
    arguments, expected = job
    out = tmp_path / "out"
    arguments = {**arguments, "format": "llmc", "out": str(out), "shard_tokens": 700}
    with locked(str(out / "tokenize.bin.partial")):
        done = subprocess.run(command(**arguments), capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 1
    assert "another process is at work on the same output" in done.stderr
    assert not os.listdir(out)
    assert run(**arguments)[0] == 0
    assert content(out) == expected["llmc"][1]


def test_bad_lines_can_be_skipped_from_where_they_stopped_it(tmp_path, job):
    arguments, expected = job
    out = tmp_path / "out"
    arguments = {name: value for name, value in arguments.items() if name not in ("size", "on_error")}
    arguments |= {"format": "llmc", "out": str(out), "shard_tokens": 700}
    with pytest.raises(gpt2fast.InputError, match=r"d\.jsonl:31: .*expected a string"):
        tokenize_files(**arguments, checkpoint_seconds=0)
    told = []
    summary = tokenize_files(**arguments, on_error="skip", on_skip=told.append)
    assert summary.skipped == len(told) == 1
    assert content(out) == expected["llmc"][1]


def test_outputs_that_are_there(tmp_path):
    for name, text in (("a.txt", "first"), ("b.txt", "second text")):
        (tmp_path / name).write_text(text)
    out = tmp_path / "out.npy"
    tokenize_files(tmp_path / "b.txt", out, shard_tokens=1)
    tokenize_files(tmp_path / "a.txt", tmp_path / "out_x.npy")
    for shard_tokens in (1, None):
        with pytest.raises(gpt2fast.InputError, match=r"out_000000\.npy: is there already.*--overwrite"):
            tokenize_files(tmp_path / "a.txt", out, shard_tokens=shard_tokens)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt", "out_000000.npy", "out_000001.npy", "out_x.npy"]
    tokenize_files(tmp_path / "a.txt", out, shard_tokens=1, overwrite=True)
    # None of the old shards stays behind, where a glob would find it.
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt", "out_000000.npy", "out_x.npy"]
    assert corpora.read(tmp_path / "out_000000.npy", "npy").tolist() == corpora.tokens("first")
    corpora.write(tmp_path / "in.parquet", ["x"])
    with pytest.raises(gpt2fast.InputError, match="is input and output"):
        tokenize_files(tmp_path / "in.parquet", tmp_path / "in.parquet", overwrite=True)
    assert len(os.listdir(tmp_path)) == 5


def test_no_room_on_the_disk(tmp_path, job):
    """As on a full disk, a write fails; the message says what to do, and doing it works."""
    arguments, expected = job
    out = tmp_path / "out"
    arguments = {**arguments, "format": "llmc", "out": str(out), "shard_tokens": 700}
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 4; exec "$@"', "sh", *command(**arguments)],  # 4 times 512 bytes
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 1
    assert "documents that are done are kept: make room and run the same again" in done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr
    assert complete(out, {})
    assert run(**arguments)[0] == 0
    assert content(out) == expected["llmc"][1]


def test_an_interrupt(tmp_path, job):
    arguments, expected = job
    out = tmp_path / "out"
    arguments = {**arguments, "format": "llmc", "out": str(out), "shard_tokens": 700}
    report, files = expected["llmc"]
    for step in (1, report[4] // 2, report[4] - 10):
        interrupted = command(**arguments, kill_at=step, signal=signal.SIGINT)
        done = subprocess.run(interrupted, capture_output=True, text=True, check=False, env=ENVIRONMENT)
        assert done.returncode == -signal.SIGINT
        assert done.stderr.endswith("KeyboardInterrupt\n")
        assert complete(out, files)
        assert run(**arguments)[1][:4] == report[:4]
        assert content(out) == files
        shutil.rmtree(out)
