"""Files written atomically: the whole old or the whole new one, with the right mode, and nothing left beside it."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

import gpt2fast
from gpt2fast._internal import atomic
from gpt2fast._internal.atomic import atomic_write


def write(path, content=b"new"):
    with atomic_write(path) as file:
        file.write(content)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    return path


def test_new_and_replaced(tmp_path):
    for content in (b"first", b"", b"second" * 100_000):
        write(tmp_path / "file.bin", content)
        assert (tmp_path / "file.bin").read_bytes() == content
        assert os.listdir(tmp_path) == ["file.bin"]


def test_nothing_is_there_before_the_end(path):
    with atomic_write(path) as file:
        file.write(b"new" * 100_000)
        assert path.read_bytes() == b"old"
        assert len(os.listdir(path.parent)) == 2
    assert path.read_bytes() == b"new" * 100_000


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_in_the_block(path, error):
    def fail():
        nonlocal file
        with atomic_write(path) as file:
            file.write(b"new" * 100_000)
            raise error

    file = None
    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["file.bin"]
    assert file.closed


@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod", "fdopen"])
def test_an_error_of_the_system(path, monkeypatch, call):
    def fail(*arguments, **options):
        raise OSError(errno.EIO, "Input/output error")

    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    monkeypatch.setattr(atomic.os, call, fail)
    with pytest.raises(OSError, match="Input/output error"):
        write(path)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["file.bin"]
    assert not descriptors or len(os.listdir("/proc/self/fd")) == descriptors


def test_it_is_on_the_disk_before_it_has_its_name(path, monkeypatch):
    steps = []
    for call in ("fsync", "replace"):
        real = getattr(os, call)

        def note(*arguments, call=call, real=real):
            kind = stat.S_IFMT(os.fstat(arguments[0]).st_mode) if call == "fsync" else 0
            steps.append({stat.S_IFREG: "file", stat.S_IFDIR: "directory", 0: "rename"}[kind])
            return real(*arguments)

        monkeypatch.setattr(atomic.os, call, note)
    write(path)
    assert steps == ["file", "rename", "directory"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_directory_that_cannot_be_synchronised(path, monkeypatch, code):
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    if code == errno.EINVAL:  # some filesystems cannot, which is no error
        write(path)
    else:
        with pytest.raises(OSError, match=os.strerror(code)):
            write(path)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002, 0])
def test_mode_of_a_new_file_follows_umask(tmp_path, umask):
    old = os.umask(umask)
    try:
        write(tmp_path / "file.bin")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file.bin").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o666, 0o755, 0o440])
def test_mode_of_a_replaced_file_is_kept(path, mode):
    path.chmod(mode)
    with atomic_write(path) as file:
        file.write(b"new")
        # Nor can others read it while it is written, where they could not read the old one.
        assert {stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()} == {mode}
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "blobs").mkdir()
    target = tmp_path / "blobs" / "abc"
    target.write_bytes(b"old")
    link, chain = tmp_path / "link", tmp_path / "chain"
    link.symlink_to(Path("blobs", "abc"))
    chain.symlink_to("link")
    write(chain)
    assert link.is_symlink()
    assert chain.is_symlink()
    assert not target.is_symlink()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path / "blobs") == ["abc"]


def test_a_link_to_nothing_gets_its_target(tmp_path):
    (tmp_path / "link").symlink_to("target")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_link_to_itself(tmp_path):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(gpt2fast.InputError, match="not a regular file"):
        write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(gpt2fast.MissingFileError, match="there is no directory"):
        write(tmp_path / "missing" / "file.bin")
    with pytest.raises(gpt2fast.MissingFileError, match="is not a directory"):
        write(tmp_path / "file" / "file.bin")
    with pytest.raises(gpt2fast.InputError, match="written, it is a directory$"):
        write(tmp_path)
    for special in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(gpt2fast.InputError, match="not a regular file"):
            write(special)
    for name in ("a\0b", b"a\0b", "a\ud800"):
        with pytest.raises(gpt2fast.InputError, match="^(b?)'a.*not a path"):
            write(name)
    for wrong in (3, None):
        with pytest.raises(gpt2fast.InputTypeError, match="path is of type"):
            write(wrong)
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "\U0001f600" * 63, " ", "-rf", "a\nb", ".hidden"])
def test_any_name(tmp_path, name):
    write(tmp_path / name)
    assert os.listdir(tmp_path) == [name]


def test_relative_paths_and_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a.bin")
    write(b"b.bin")
    write(Path("c.bin"))
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "b.bin", "c.bin"]


def test_writers_of_the_same_file_do_not_meet(tmp_path):
    path = tmp_path / "file.bin"
    errors = []

    def work(number):
        try:
            for _ in range(20):
                write(path, bytes([number]) * 100_000)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    content = path.read_bytes()
    assert len(content) == 100_000
    assert len(set(content)) == 1
    assert os.listdir(tmp_path) == ["file.bin"]
