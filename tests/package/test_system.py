"""What Windows does otherwise: its half of `_internal/system.py`, run here beside a made-up msvcrt."""

import errno
import os
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gpt2fast._internal import system


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module as Windows has it, where one descriptor at a time can lock."""
    holders: set[int] = set()

    def locking(descriptor: int, mode: int, count: int) -> None:
        found = os.fstat(descriptor).st_ino
        if found in holders:
            raise PermissionError(errno.EACCES, "Permission denied")
        holders.add(found)

    for name in ("pread", "preadv", "fchmod"):
        monkeypatch.delattr(os, name)
    for name in ("fcntl", "resource"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    monkeypatch.setattr(sys, "platform", "win32")
    found = runpy.run_path(system.__file__)
    # pytest and pathlib ask for the platform, too.
    monkeypatch.setattr(sys, "platform", "linux")
    return SimpleNamespace(**found)


def test_both_systems_have_every_name(windows: SimpleNamespace) -> None:
    assert windows.__all__ == system.__all__
    assert all(callable(getattr(half, name)) for half in (windows, system) for name in system.__all__)


def test_threads_that_share_a_descriptor_read_what_they_asked_for(windows: SimpleNamespace, tmp_path) -> None:
    content = bytes(range(256)) * 64
    (tmp_path / "file").write_bytes(content)
    with open(tmp_path / "file", "rb", buffering=0) as file, ThreadPoolExecutor(8) as pool:

        def read(offset: int) -> None:
            assert windows.read_at(file.fileno(), 300, offset) == content[offset : offset + 300]
            first, second = bytearray(7), bytearray(300)
            count = windows.read_into(file.fileno(), [memoryview(first), memoryview(second)], offset)
            assert (bytes(first) + bytes(second))[:count] == content[offset : offset + 307]

        for _ in pool.map(read, range(0, len(content) + 64, 13)):
            pass
        assert windows.read_into(file.fileno(), [memoryview(bytearray(1))], len(content)) == 0


def test_a_lock_that_is_held_is_the_error_that_posix_has(windows: SimpleNamespace, tmp_path) -> None:
    path = str(tmp_path / "lock")
    for half in (windows, system):
        first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
        half.lock(first)
        with pytest.raises(BlockingIOError):
            half.lock(second)
        os.close(second)
        half.close_and_unlink(first, path)
        assert not os.path.exists(path)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(first)


def test_a_file_that_another_process_has_open_stays(windows: SimpleNamespace, tmp_path, monkeypatch) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "in use by another process")

    monkeypatch.setattr(os, "unlink", refuse)
    windows.close_and_unlink(descriptor, str(tmp_path / "lock"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_peak_memory_is_in_bytes() -> None:
    assert 4 << 20 < system.peak_memory() < 1 << 44
