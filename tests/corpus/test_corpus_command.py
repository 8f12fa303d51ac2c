"""`gpt2fast tokenize`: its options reach the job, what it says, and its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import corpora
import numpy as np
import pytest

import gpt2fast
from gpt2fast.cli import main

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(gpt2fast.__file__).parents[1])}


def test_the_recipe_of_nanogpt(tmp_path, capsys):
    path = corpora.write(tmp_path / "in.jsonl", corpora.DOCUMENTS * 40)
    out = str(tmp_path / "data")
    command = ["tokenize", str(path), "-o", out, "--format", "nanogpt", "--append-eot", "--val-fraction", "0.5"]
    assert main([*command, "--seed", "1"]) == 0
    train, val = (np.fromfile(tmp_path / "data" / f"{split}.bin", np.uint16) for split in ("train", "val"))
    assert sorted(np.concatenate([train, val])) == sorted(corpora.stream(corpora.DOCUMENTS * 40, "append"))
    assert len(train) > 0 < len(val)
    said = capsys.readouterr()
    assert said.out == ""
    assert f"[240 documents, {len(train) + len(val):,} tokens from" in said.err
    assert f"train.bin: {len(train):,} tokens" in said.err
    assert main([*command, "--seed", "1"]) == 1
    assert "train.bin: is there already; to replace it, say --overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_the_recipe_of_llmc(tmp_path, capsys):
    corpora.write(tmp_path / "b.txt", corpora.DOCUMENTS)
    corpora.write(tmp_path / "a.txt", corpora.DOCUMENTS)
    command = ["tokenize", str(tmp_path / "*.txt"), "-o", str(tmp_path / "fox.bin"), "--format", "llmc"]
    assert main([*command, "--eot", "prepend", "--separator", corpora.SEPARATOR, "--shard-tokens", "50"]) == 0
    shards = sorted(tmp_path.glob("fox_0*.bin"))
    ids = [i for shard in shards for i in corpora.read(shard, "llmc").tolist()]
    assert ids == corpora.stream(corpora.DOCUMENTS * 2, "prepend")
    assert f"fox_{len(shards) - 1:06d}.bin" in capsys.readouterr().err


def test_bad_lines(tmp_path, capsys):
    path = tmp_path / "in.jsonl"
    path.write_text('{"body": "a"}\n' + "{}\n" * 8)
    command = ["tokenize", str(path), "-o", str(tmp_path / "out.npy"), "--field", "body"]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert error == f'gpt2fast: {path}:2: there is no field "body", nor any other\n'
    assert main([*command, "--on-error", "skip"]) == 0
    error = capsys.readouterr().err
    assert error.count("skipped: ") == 5
    assert "[8 bad lines or documents skipped]" in error


def test_another_tokenizer_and_no_documents(tmp_path, capsys):
    (tmp_path / "in.txt").write_text("Once upon a time")
    command = ["tokenize", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.npy")]
    assert main([*command, "--tokenizer", "demo", "--threads", "1", "--val-fraction", "1"]) == 0
    demo = gpt2fast.load("demo").tokenizer
    assert np.load(tmp_path / "out_val.npy").tolist() == demo.encode("Once upon a time")
    assert "out_train.npy: 0 tokens (nothing fell to it)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["in.txt"],
        ["in.txt", "-o"],
        ["in.txt", "-o", "out.npy", "--eot", "both"],
        ["in.txt", "-o", "out.npy", "--eot", "none", "--append-eot"],
        ["in.txt", "-o", "out.npy", "--format", "csv"],
        ["in.txt", "-o", "out.npy", "--shard-tokens", "0"],
        ["in.txt", "-o", "out.npy", "--quiet", "--progress"],
        ["in.txt", "-o", "out.npy", "--val", "0.1"],
    ],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_understood(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["tokenize", *arguments])
    assert caught.value.code == 2
    assert "usage: gpt2fast" in capsys.readouterr().err


def test_the_progress_bar_shows_bytes_and_tokens(tmp_path):
    path = corpora.write(tmp_path / "in.jsonl.gz", corpora.DOCUMENTS)
    command = [sys.executable, "-m", "gpt2fast", "tokenize", str(path), "-o", str(tmp_path / "out.npy")]
    done = subprocess.run([*command, "--progress"], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert f"{path.stat().st_size}/{path.stat().st_size}" in done.stderr
    assert "%|" in done.stderr
    done = subprocess.run([*command, "--overwrite"], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert "%|" not in done.stderr  # there is no terminal


def test_progress_without_tqdm_is_a_plain_line(tmp_path, monkeypatch, capsys):
    path = corpora.write(tmp_path / "in.jsonl", corpora.DOCUMENTS)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr("gpt2fast.corpus.progress._SECONDS", 0.0)
    assert main(["tokenize", str(path), "-o", str(tmp_path / "out.npy"), "--progress"]) == 0
    lines = capsys.readouterr().err.splitlines()
    megabytes = path.stat().st_size / 1e6
    assert lines[0].startswith(f"[{megabytes:,.1f} of {megabytes:,.1f} MB, ")


def test_an_interrupt_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpt2fast.corpus.tokenize_files", interrupted)
    assert main(["tokenize", "in.txt", "-o", str(tmp_path / "out.npy")]) == 130
    assert capsys.readouterr().err == "[stopped; the same command goes on from here]\n"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read from Linux")
@pytest.mark.parametrize("kind", ["one document", "words without end", "lines", "parquet", "zst"])
def test_memory_is_bounded(tmp_path, kind):
    """150 MB in, under 230 MB of memory, some 60 of it Python with its modules; of a Parquet file, 300 and 300."""
    words = ("The quick brown fox — 一二三，四 — jumps over the lazy dog.\n" * 17_000).encode()  # a megabyte
    name = {"lines": "in.jsonl", "parquet": "in.parquet", "zst": "in.txt.zst"}.get(kind, "in.txt")
    with open(tmp_path / name, "wb") as file:
        if kind == "lines":
            for i in range(150):
                file.write(b'{"text": "%s"}\n' % (words.replace(b"\n", b"\\n") if i % 2 else b"x"))
                file.write(b'{"text": "short"}\n' * 10_000)
        elif kind == "parquet":
            import pyarrow as pa
            import pyarrow.parquet

            table = pa.table({"text": [words.decode()] * 30})
            with pyarrow.parquet.ParquetWriter(file, table.schema, compression="none", use_dictionary=False) as writer:
                for _ in range(10):
                    writer.write_table(table)
        elif kind == "zst":
            import zstandard

            with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as writer:
                for _ in range(150):
                    writer.write(words)
        else:
            for _ in range(150):
                file.write(words.replace(b" ", b"").replace(b"\n", b"") if kind == "words without end" else words)
    code = (
        "import sys; from gpt2fast.corpus import tokenize_files;"
        "s = tokenize_files(sys.argv[1], sys.argv[2], eot='append', val_fraction=0.1);"
        "peak = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')];"
        "print(s.text_bytes, *peak)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / name), str(tmp_path / "out.bin")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    text_bytes, peak = map(int, done.stdout.split())
    assert text_bytes > 75e6
    assert peak * 1024 < (300e6 if kind == "parquet" else 230e6)
