"""Outputs: nothing is replaced unasked, two jobs never write one file, scoring goes on where it was stopped."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import corpora
import numpy as np
import pytest

import gpt2fast
from gpt2fast._internal.atomic import put_in_place
from gpt2fast.cli import main
from gpt2fast.corpus import documents, groups, job, score_files, score_job, tokenize_files
from gpt2fast.corpus.workdir import locked
from gpt2fast.errors import InputError, MissingFileError

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(gpt2fast.__file__).parents[1])}


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


# Names that are taken


def test_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = str(tmp_path / "made"), str(tmp_path / "name")

    def made(content: str = "made") -> None:
        Path(source).write_text(content)

    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    for link in (os.link, no_links):
        monkeypatch.setattr(os, "link", link)
        made()
        put_in_place(source, target, overwrite=False)
        assert os.listdir(tmp_path) == ["name"]
        made("other")
        with pytest.raises(InputError, match="name: is there already; to replace it, say --overwrite"):
            put_in_place(source, target, overwrite=False)
        assert Path(target).read_text() == "made"
        put_in_place(source, target, overwrite=True)
        assert Path(target).read_text() == "other"
        os.unlink(target)
    monkeypatch.undo()
    made()
    Path(target).write_text("made")
    put_in_place(source, target, overwrite=False)  # it was put there before
    assert os.listdir(tmp_path) == ["name"]
    os.unlink(target)
    os.symlink(tmp_path / "nowhere", target)
    made()
    with pytest.raises(InputError, match="is there already"):
        put_in_place(source, target, overwrite=False)
    os.unlink(target)
    os.mkfifo(target)
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"is there already|not a regular file"):
            put_in_place(source, target, overwrite=overwrite)


@pytest.mark.parametrize("format", ["llmc", "parquet"])
def test_a_file_that_appears_while_a_job_runs_is_kept(tmp_path: Path, format: str) -> None:
    corpora.write(tmp_path / "a.jsonl", corpora.DOCUMENTS * 4)
    arguments: dict[str, Any] = {"inputs": tmp_path / "a.jsonl", "out": tmp_path / "out", "format": format}
    arguments |= {"shard_tokens": 100}
    suffix = "bin" if format == "llmc" else "parquet"
    taken = tmp_path / "out" / f"train_000001.{suffix}"
    publish = job.Job.publish

    def appearing(self: job.Job) -> Any:
        taken.write_text("precious")
        return publish(self)

    with (
        mock.patch.object(job.Job, "publish", appearing),
        pytest.raises(InputError, match="train_000001.* is there already; to replace it, say --overwrite"),
    ):
        tokenize_files(**arguments)
    assert taken.read_text() == "precious"
    with pytest.raises(InputError, match="train_000001.* is there already"):
        tokenize_files(**arguments)  # the finished job looks again
    assert taken.read_text() == "precious"
    taken.unlink()
    summary = tokenize_files(**arguments)
    assert summary.resumed
    found = [i for path, _ in summary.files for i in corpora.read(Path(path), format).tolist()]
    assert found == corpora.stream(corpora.DOCUMENTS * 4)
    assert not list((tmp_path / "out").glob("*.partial"))


def test_outputs_of_a_finished_job_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with mock.patch.object(job.WorkDirectory, "clear"):
        tokenize_files(tmp_path / "a.txt", tmp_path / "a.npy")
    (tmp_path / "a.npy").unlink()
    with pytest.raises(MissingFileError, match="a.npy: was finished, and is gone; start anew with --restart"):
        tokenize_files(tmp_path / "a.txt", tmp_path / "a.npy")
    tokenize_files(tmp_path / "a.txt", tmp_path / "a.npy", restart=True)
    assert np.load(tmp_path / "a.npy").tolist() == [64]


@pytest.mark.parametrize(
    ("held", "out", "options"),
    [
        ("train.bin.partial", "", {"format": "nanogpt"}),
        ("tokenize.bin.partial", "", {"format": "nanogpt"}),
        ("val.bin.partial", "", {"format": "nanogpt", "val_fraction": 0.5}),
        ("a_val.npy.partial", "a.npy", {"val_fraction": 0.5}),
        ("train.bin.partial", "train.bin", {}),
    ],
)
def test_two_jobs_for_one_file(tmp_path: Path, held: str, out: str, options: dict[str, Any]) -> None:
    (tmp_path / "in.txt").write_text("a")
    target = f"{tmp_path}/{out}"
    with (
        locked(str(tmp_path / held)),
        pytest.raises(InputError, match=f"{held}: another process is at work on the same output"),
    ):
        tokenize_files(tmp_path / "in.txt", target, **options)
    assert os.listdir(tmp_path) == ["in.txt"]
    tokenize_files(tmp_path / "in.txt", target, **options)


# How many files


def test_many_shards_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("word " * 50_000)
    command = ["tokenize", str(tmp_path / "a.txt"), "-o", str(tmp_path / "a.npy"), "--shard-tokens", "1"]
    with mock.patch("sys.stdin", None):
        assert main(command) == 1
    message = capsys.readouterr().err
    assert "shard_tokens is 1: about 62,500 files would be made, and max_shards is 10,000" in message
    assert "--max-shards" in message
    assert os.listdir(tmp_path) == ["a.txt"]
    # What the size did not tell is noticed on the way, and the job goes on where it is allowed.
    with pytest.raises(InputError, match="shard_tokens is 400: 126 or more files would be made"):
        tokenize_files(tmp_path / "a.txt", tmp_path / "a.npy", shard_tokens=400, max_shards=99)
    with mock.patch("gpt2fast.cli.common.confirm", return_value=True):
        assert main([*command[:-1], "400", "--max-shards", "100"]) == 0
    assert len(os.listdir(tmp_path)) == 1 + 126
    (tmp_path / "b.txt").write_text("a\nx\n" * 9)
    with pytest.raises(InputError, match="9 or more files would be made"):
        tokenize_files(tmp_path / "b.txt", tmp_path / "b.parquet", shard_tokens=1, max_shards=5, separator="x")


# What a full disk leaves


def test_what_is_kept_on_a_full_disk_is_said(tmp_path: Path) -> None:
    corpora.write(tmp_path / "a.jsonl", corpora.DOCUMENTS * 40)

    real = job.Job._save

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for after, words in (
        (0, "nothing of this job is kept: make room and run it again"),
        (2, "documents that are done"),
    ):
        calls = 0

        def save(self: job.Job, cursor: Any, finished: bool, after: int = after) -> None:
            nonlocal calls
            calls += 1
            full() if calls > after else real(self, cursor, finished)

        with (
            mock.patch.object(documents, "BATCH_BYTES", 600),
            mock.patch("gpt2fast.corpus.batches.BATCH_BYTES", 600),
            mock.patch.object(job.Job, "_save", save),
            pytest.raises(OSError, match=words),
        ):
            tokenize_files(tmp_path / "a.jsonl", tmp_path / "a.npy", checkpoint_seconds=0)
        assert (tmp_path / "a.npy.partial").exists() == bool(after)
    assert tokenize_files(tmp_path / "a.jsonl", tmp_path / "a.npy").resumed


# Scores


TEXTS = [f"Document {i}: {'the old man went home. ' * (i % 4)}\n" for i in range(30)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    corpora.write(tmp_path / "in" / "a.jsonl", [*TEXTS[:12], ""])
    with open(tmp_path / "in" / "a.jsonl", "a") as file:
        file.write('{"text": 5}\n')
    corpora.write(tmp_path / "in" / "b.txt", TEXTS[12:20])
    corpora.write(tmp_path / "in" / "c.parquet", TEXTS[20:])
    return tmp_path / "in"


def small() -> Any:
    stack = __import__("contextlib").ExitStack()
    for module, name, value in (
        (documents, "BATCH_BYTES", 300),
        (documents, "PART_BYTES", 100),
        (documents, "HASHED_BYTES", 0),
        (groups, "GROUP_BYTES", 120),
    ):
        stack.enter_context(mock.patch.object(module, name, value))
    return stack


@pytest.mark.parametrize("out", ["s.jsonl", "s.parquet", "s.csv"])
def test_scoring_goes_on_where_it_was_stopped(
    tmp_path: Path, lm: gpt2fast.LanguageModel, corpus: Path, out: str
) -> None:
    options: dict[str, Any] = {"separator": corpora.SEPARATOR, "on_error": "skip", "text": True}
    whole = score_files(corpus, tmp_path / f"whole-{out}", lm, **options)
    assert (whole.documents, whole.skipped, whole.resumed) == (31, 1, False)
    append = score_job.ScoreJob.append
    with small():
        for stop in range(1, 40, 3):
            calls = 0

            def stopping(self: Any, rows: Any, stop: int = stop) -> None:
                nonlocal calls
                calls += 1
                if calls > stop:
                    if stop % 2:  # as a kill: what was noted last is what there is
                        append(self, rows[:1])
                        self.save = lambda **_: None
                    raise KeyboardInterrupt
                append(self, rows)

            with mock.patch.object(score_job.ScoreJob, "append", stopping):
                try:
                    found = score_files(corpus, tmp_path / out, lm, checkpoint_seconds=0, **options)
                    break
                except KeyboardInterrupt:
                    assert not (tmp_path / out).exists()
        else:
            found = score_files(corpus, tmp_path / out, lm, **options)
    assert found.resumed
    assert (found.documents, found.tokens, found.text_bytes, found.skipped) == (
        *(whole.documents, whole.tokens, whole.text_bytes, whole.skipped),
    )
    assert found.log_likelihood == whole.log_likelihood
    assert (tmp_path / out).read_bytes() == (tmp_path / f"whole-{out}").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_a_table_that_is_there(tmp_path: Path, lm: gpt2fast.LanguageModel, corpus: Path) -> None:
    options: dict[str, Any] = {"separator": corpora.SEPARATOR, "on_error": "skip"}
    out = tmp_path / "s.tsv"
    out.write_text("precious")
    with pytest.raises(InputError, match="s.tsv: is there already; to replace it, say --overwrite"):
        score_files(corpus, out, lm, **options)
    assert out.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["in", "s.tsv"]
    score_files(corpus, out, lm, overwrite=True, **options)
    assert out.read_text().count("\n") == 32
    out.unlink()
    publish = score_job.ScoreJob.publish

    def appearing(self: Any, path: str, **options: Any) -> None:
        out.write_text("precious")
        publish(self, path, **options)

    with (
        mock.patch.object(score_job.ScoreJob, "publish", appearing),
        pytest.raises(InputError, match="is there already"),
    ):
        score_files(corpus, out, lm, **options)
    assert out.read_text() == "precious"
    out.unlink()
    assert score_files(corpus, out, lm, **options).resumed


def test_another_job_of_scores_does_not_go_on(tmp_path: Path, lm: gpt2fast.LanguageModel, corpus: Path) -> None:
    options: dict[str, Any] = {"separator": corpora.SEPARATOR, "on_error": "skip"}
    with (
        mock.patch.object(score_job.ScoreJob, "publish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)),
        pytest.raises(KeyboardInterrupt),
    ):
        score_files(corpus, tmp_path / "s.jsonl", lm, **options)
    other = gpt2fast.load("demo", dtype="int8")
    for change, message in (
        ({"lm": other}, "a job was begun here with model"),
        ({"context": "The"}, "a job was begun here with context ''"),
        ({"text": True}, "a job was begun here with columns"),
        ({"inputs": corpus / "b.txt"}, "3 inputs, not 1|with the input"),
        ({"on_error": "replace"}, "begun here with on-error 'skip'"),
    ):
        arguments: dict[str, Any] = {"inputs": corpus, "out": tmp_path / "s.jsonl", "lm": lm, **options, **change}
        with pytest.raises(InputError, match=message):
            score_files(**arguments)
    with locked(str(tmp_path / "s.jsonl.partial")), pytest.raises(InputError, match="another process is at work"):
        score_files(corpus, tmp_path / "s.jsonl", lm, **options)
    assert score_files(corpus, tmp_path / "s.jsonl", other, restart=True, **options).documents == 31


# Standard output


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is always full is Linux's")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command",
    [
        ["decode", "ids.txt"],
        ["encode", "in.txt"],
        ["count", "in.txt"],
        ["score", "--quiet", "--text", "Once"],
        ["generate", "--quiet", "--tokens", "2", "Once"],
        ["inspect", "model"],
        ["--help"],
        ["tokenize", "--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_a_full_standard_output_is_an_error(tmp_path: Path, command: list[str], unbuffered: str) -> None:
    (tmp_path / "ids.txt").write_text("31373 " * 50_000)
    (tmp_path / "in.txt").write_text("hello " * 50_000)
    (tmp_path / "model").symlink_to(Path(gpt2fast.__file__).parent / "data" / "demo")
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpt2fast", *command],
            *(),
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert os.strerror(errno.ENOSPC).encode() in done.stderr


@pytest.mark.parametrize("command", [["decode", "ids.txt"], ["score", "--json", "--quiet", "text.txt"]], ids=" ".join)
def test_a_limit_on_the_size_of_files(tmp_path: Path, command: list[str]) -> None:
    """One write takes less than it is given, and only the next one fails."""
    (tmp_path / "ids.txt").write_text("31373 " * 5000)
    (tmp_path / "text.txt").write_text("hello there " * 60)
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run(
            ["sh", "-c", 'ulimit -f 4; exec "$@"', "sh", sys.executable, "-m", "gpt2fast", *command],
            stdout=out,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
            check=False,
            preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        )
    assert done.returncode == 1
    assert os.strerror(errno.EFBIG).encode() in done.stderr


def test_a_pipe_that_does_not_block_gets_everything(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("31373 " * 100_000)
    read, write = os.pipe()
    os.set_blocking(write, False)
    command = [sys.executable, "-m", "gpt2fast", "decode", str(tmp_path / "ids.txt")]
    with subprocess.Popen(command, stdout=write, env=ENVIRONMENT) as process:
        os.close(write)
        with open(read, "rb") as file:
            assert len(file.read()) == 500_000
    assert process.returncode == 0


# Counting


def test_count_counts_what_tokenize_would(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    texts = list(corpora.DOCUMENTS)
    total = len(corpora.stream(texts))
    for name in ("a.jsonl.gz", "b.parquet", "c.jsonl", "d.txt.zst"):
        path = corpora.write(tmp_path / name, texts)
        more = ["--separator", corpora.SEPARATOR] if "txt" in name else []
        assert main(["count", str(path), *more]) == 0
        assert capsysbinary.readouterr().out == b"%d\n" % total, name
    assert main(["count", str(tmp_path / "c.jsonl"), "--allow-special"]) == 0
    special = gpt2fast.get_encoding()
    assert capsysbinary.readouterr().out == b"%d\n" % sum(len(special.encode(t, allowed_special="all")) for t in texts)
    assert main(["count", str(tmp_path / "c.jsonl"), "--input-format", "txt"]) == 0
    raw = (tmp_path / "c.jsonl").read_bytes()
    assert capsysbinary.readouterr().out == b"%d\n" % special.count(raw)
    (tmp_path / "e.txt.gz").write_bytes(corpora.compress(b"\xff" * 99 + "é".encode() * 99, "gz"))
    assert main(["count", str(tmp_path / "e.txt.gz"), str(tmp_path / "c.jsonl")]) == 0
    first, second, last = capsysbinary.readouterr().out.splitlines()
    assert int(first.split(b"\t")[0]) == special.count(b"\xff" * 99 + "é".encode() * 99)
    assert (second.split(b"\t")[0], last.split(b"\t")[1]) == (b"%d" % total, b"total")
    (tmp_path / "config.json").write_text('{"n_layer": 2}')
    assert main(["count", str(tmp_path / "config.json")]) == 1
    assert b"--input-format txt counts the file's own text" in capsysbinary.readouterr().err
