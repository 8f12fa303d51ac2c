"""`gpt2fast compress` and `decompress`: files and streams, what is written and what is not, and what they say."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tales import TALE

from gpt2fast.cli import main

TEXT = TALE.encode()[:700]


class Result(NamedTuple):
    status: int
    out: bytes
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs the command in this process: arguments, and what is on standard input."""

    def run(*arguments: Any, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Pipe(stdin), "ascii"))
        capsysbinary.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit:
            status = int(exit.code or 0)
        captured = capsysbinary.readouterr()
        return Result(status, captured.out, captured.err.decode())

    return run


class Pipe(io.BytesIO):
    """Standard input, which cannot seek."""

    name = "<stdin>"

    def seekable(self) -> bool:
        return False


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tale.txt"
    path.write_bytes(TEXT)
    return path


def test_a_file_and_back(run: Run, file: Path, tmp_path: Path) -> None:
    result = run("compress", file)
    packed = tmp_path / "tale.txt.g2z"
    assert (result.status, result.out) == (0, b"")
    assert result.err.startswith(f"[700 bytes, {packed.stat().st_size} compressed, ")
    assert packed.stat().st_size < 350
    file.unlink()
    assert run("decompress", packed).err.startswith(f"[700 bytes, {packed.stat().st_size} compressed, ")
    assert file.read_bytes() == TEXT
    assert sorted(tmp_path.iterdir()) == [file, packed]


def test_streams(run: Run) -> None:
    packed = run("compress", "-", "--quiet", stdin=TEXT)
    assert (packed.status, packed.err) == (0, "")
    assert run("decompress", "-", "--quiet", stdin=packed.out) == (0, TEXT, "")
    assert run("compress", "-", "--quiet") == (0, run("compress", "-", "--quiet").out, "")
    result = run("decompress", "-", "--range", "5:9", stdin=packed.out)
    assert result.status == 2
    assert "--range is for a file that can seek" in result.err


def test_pipes_of_a_shell(file: Path) -> None:
    command = [sys.executable, "-m", "gpt2fast"]
    with subprocess.Popen([*command, "compress", "--quiet", "-o", "-", file], stdout=subprocess.PIPE) as writer:
        found = subprocess.run([*command, "decompress", "-"], stdin=writer.stdout, capture_output=True, check=False)
    assert (writer.returncode, found.returncode, found.stdout) == (0, 0, TEXT)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("3:20", TEXT[3:20]),
        (":20", TEXT[:20]),
        ("690:", TEXT[690:]),
        ("690:9999", TEXT[690:]),
        ("9999:", b""),
        ("5:5", b""),
    ],
)
def test_ranges(run: Run, file: Path, asked: str, expected: bytes) -> None:
    run("compress", file)
    assert run("decompress", f"{file}.g2z", "--range", asked, "--quiet") == (0, expected, "")
    assert run("decompress", f"{file}.g2z", "--range", asked, "--quiet", "-o", f"{file}.part").out == b""
    assert Path(f"{file}.part").read_bytes() == expected


@pytest.mark.parametrize("asked", ["5", "5:3", "-1:4", "a:b", "1:2:3"])
def test_what_is_no_range(run: Run, asked: str) -> None:
    result = run("decompress", "x.g2z", f"--range={asked}")
    assert result.status == 2
    assert "is no range; expected START:END" in result.err


def test_test_and_info(run: Run, file: Path, tmp_path: Path) -> None:
    run("compress", file, "--dtype", "int8")
    packed = tmp_path / "tale.txt.g2z"
    file.unlink()
    assert run("decompress", "--test", packed).err.startswith("[700 bytes")
    info = run("decompress", "--info", packed).out.decode()
    assert "original\t700 bytes\n" in info
    assert "by the model\t700 bytes in 1 blocks\n" in info
    assert "model\tint8, cache bfloat16, SHA-256 " in info
    damaged = bytearray(packed.read_bytes())
    damaged[150] ^= 1
    packed.write_bytes(damaged)
    for option in ("--test", "--info"):
        result = run("decompress", option, packed)
        assert result == (
            1,
            b"",
            f"gpt2fast: {packed}: a block's CRC-32C is not that of its bytes: the file is damaged\n",
        )
    assert list(tmp_path.iterdir()) == [packed]


def test_the_dtype_is_the_files_own(run: Run, file: Path) -> None:
    run("compress", file, "--dtype", "bfloat16", "--cache-dtype", "bfloat16")
    assert run("decompress", f"{file}.g2z", "-o", "-", "--quiet") == (0, TEXT, "")
    result = run("decompress", f"{file}.g2z", "-o", "-", "--dtype", "float32")
    assert (result.status, result.out) == (1, b"")
    assert "written with a model kept as bfloat16" in result.err


def test_nothing_is_replaced_or_left(run: Run, file: Path, tmp_path: Path) -> None:
    packed = tmp_path / "tale.txt.g2z"
    packed.write_bytes(b"mine")
    result = run("compress", file)
    assert (result.status, packed.read_bytes()) == (1, b"mine")
    assert f"{packed}: is there already; to replace it, say --overwrite" in result.err
    assert run("compress", file, "--overwrite", "--quiet") == (0, b"", "")
    assert run("decompress", packed).status == 1
    assert file.read_bytes() == TEXT
    assert run("decompress", packed, "-o", packed, "--overwrite").status == 2
    packed.write_bytes(packed.read_bytes()[:-5])
    file.unlink()
    result = run("decompress", packed)
    assert (result.status, list(tmp_path.iterdir())) == (1, [packed])
    assert f"{packed}: the file is cut off" in result.err


def test_a_stream_that_is_cut_off_is_an_error(run: Run) -> None:
    packed = run("compress", "-", "--quiet", stdin=TEXT * 3).out
    result = run("decompress", "-", stdin=packed[:-3])
    assert result.status == 1
    assert "the compressed data: the file is cut off" in result.err


def test_mistakes(run: Run, file: Path, tmp_path: Path) -> None:
    assert "No such file" in run("compress", tmp_path / "missing").err
    assert "No such file" in run("decompress", tmp_path / "missing.g2z").err
    assert "Is a directory" in run("compress", tmp_path).err
    result = run("decompress", file)
    assert (result.status, "the name does not end with .g2z" in result.err) == (2, True)
    result = run("decompress", file, "-o", tmp_path / "out")
    assert (result.status, "the file begins with b'Once upo'" in result.err) == (1, True)
    assert run("compress", file, "--chunk", "100").status == 2
    assert run("decompress", file, "--test", "-o", "x").status == 2
    assert sorted(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_the_mode_follows_the_umask(run: Run, file: Path) -> None:
    before = os.umask(0o027)
    try:
        run("compress", file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(f"{file}.g2z").st_mode) == 0o640
