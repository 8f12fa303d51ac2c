"""Mapped tensors: private, aligned, and valid whatever becomes of the dict, the file and its name."""

from __future__ import annotations

import gc
import json
import mmap
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

import gpt2fast
from gpt2fast import safetensors as st
from gpt2fast.safetensors import files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.safetensors"
    st.save_file({"w": np.arange(10_000.0), "b": np.ones(3, bool), "e": np.empty((0, 2), np.int8)}, path)
    return path


def is_mapped(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array.base, mmap.mmap) or (
        isinstance(array.base, memoryview) and isinstance(array.base.obj, mmap.mmap)
    )


def test_aligned_tensors_are_mapped(path):
    assert all(is_mapped(array) for array in st.load_file(path, mmap=True).values())
    assert not any(is_mapped(array) for array in st.load_file(path).values())


def test_writing_to_an_array_does_not_change_the_file(path):
    before = path.read_bytes()
    for mapped in (False, True):
        tensors = st.load_file(path, mmap=mapped)
        tensors["w"][:] = -1
        assert (tensors["w"] == -1).all()
        assert path.read_bytes() == before
        assert st.load_file(path, mmap=True)["w"][3] == 3


def test_arrays_outlive_the_dict(path):
    w = st.load_file(path, mmap=True)["w"]
    gc.collect()
    np.testing.assert_array_equal(w, np.arange(10_000.0))


def test_arrays_outlive_the_file(path):
    deleted = st.load_file(path, mmap=True)["w"]
    path.unlink()
    np.testing.assert_array_equal(deleted, np.arange(10_000.0))
    st.save_file({"w": np.zeros(10_000)}, path)
    replaced = st.load_file(path, mmap=True)["w"]
    st.save_file({"w": np.ones(1)}, path)
    assert (replaced == 0).all()
    assert len(replaced) == 10_000
    np.testing.assert_array_equal(deleted, np.arange(10_000.0))


def write_misaligned(path, padding):
    """A file whose header is `padding` bytes longer than a multiple of eight."""
    tensors = {"d": np.arange(3.0), "f": np.arange(5, dtype=np.float32), "h": np.arange(4, dtype=np.float16)}
    tensors["u"] = np.arange(9, dtype=np.uint8)
    header, place = {}, 0
    for name, array in tensors.items():
        dtype = {"d": "F64", "f": "F32", "h": "F16", "u": "U8"}[name]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + padding)
    content = struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(content)
    return tensors


@pytest.mark.parametrize("padding", range(8))
def test_misaligned_tensors_are_copied(tmp_path, padding):
    expected = write_misaligned(tmp_path / "m.safetensors", padding)
    tensors = st.load_file(tmp_path / "m.safetensors", mmap=True)
    for name, array in tensors.items():
        assert array.flags.aligned
        assert array.flags.writeable
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name])
        # In 36 bytes from an aligned start every tensor is aligned to its size.
        assert is_mapped(array) == (padding % array.itemsize == 0)


def test_all_misaligned(tmp_path):
    path = tmp_path / "m.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * (-len(header) % 8 + 3)
    path.write_bytes(struct.pack("<Q", len(header)) + header + np.float32([1, 2]).tobytes())
    assert st.load_file(path, mmap=True)["w"].tolist() == [1, 2]


def test_where_mapping_is_impossible_it_copies(path, monkeypatch):
    for error in (OSError(12, "Cannot allocate memory"), ValueError("mmap length is too large")):

        def refuse(*arguments, error=error, **options):
            raise error

        monkeypatch.setattr(files.mmap, "mmap", refuse)
        tensors = st.load_file(path, mmap=True)
        monkeypatch.undo()
        assert not is_mapped(tensors["w"])
        np.testing.assert_array_equal(tensors["w"], np.arange(10_000.0))


@pytest.mark.parametrize("refused", [False, True])
def test_large_tensors_that_are_copied(tmp_path, monkeypatch, refused):
    path = tmp_path / "m.safetensors"
    values = np.arange(600_000.0).reshape(2, 300_000)
    st.save_file({"w": values}, path)

    def refuse(*arguments, **options):
        raise OSError(12, "Cannot allocate memory")

    if refused:  # the pages of its own that a large array gets
        monkeypatch.setattr(files.mmap, "mmap", refuse)
    w = st.load_file(path)["w"]
    path.write_bytes(bytes(path.stat().st_size))
    gc.collect()
    np.testing.assert_array_equal(w, values)
    assert w.flags.behaved
    assert w.flags.c_contiguous
    w += 1
    np.testing.assert_array_equal(w, values + 1)


@pytest.mark.parametrize("change", [-1, -5000, 1])
def test_the_size_is_checked_again_when_it_is_mapped(path, monkeypatch, change):
    real = mmap.mmap
    size = path.stat().st_size

    def map_and_change(descriptor, length, **options):
        # As if another program did it between the check of the header and the mapping, or just after that.
        os.truncate(path, size + change)
        return real(descriptor, length, **options)

    monkeypatch.setattr(files.mmap, "mmap", map_and_change)
    with pytest.raises(gpt2fast.InputError, match="size changed from"):
        st.load_file(path, mmap=True)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_file_that_becomes_shorter_while_it_is_copied(path, monkeypatch, threads):
    monkeypatch.setattr(files, "_SHARE", 1 << 12)
    monkeypatch.setenv("GPT2FAST_THREADS", threads)
    real = files.read_into

    def cut(file, buffers, offset, name):
        os.truncate(path, 20_000)
        real(file, buffers, offset, name)

    monkeypatch.setattr("gpt2fast.safetensors.reader.read_into", cut)
    with pytest.raises(gpt2fast.InputError, match="became shorter"):
        st.load_file(path)


@pytest.mark.parametrize("threads", ["1", "2", "7"])
@pytest.mark.parametrize("most_bytes", [1 << 30, 1000])
def test_parts_read_by_threads_make_the_whole(tmp_path, monkeypatch, threads, most_bytes):
    monkeypatch.setattr(files, "_SHARE", 1 << 10)
    monkeypatch.setattr(files, "_MOST_BYTES", most_bytes)
    monkeypatch.setattr(files, "_MOST_BUFFERS", 3)
    monkeypatch.setenv("GPT2FAST_THREADS", threads)
    random = np.random.default_rng(1)
    tensors = {f"t{i}": random.standard_normal(int(random.integers(0, 3000))) for i in range(20)}
    st.save_file(tensors, tmp_path / "m.safetensors")
    for name, array in st.load_file(tmp_path / "m.safetensors").items():
        np.testing.assert_array_equal(array, tensors[name])


def test_reads_that_return_less_than_was_asked_for(tmp_path, monkeypatch):
    real = os.preadv
    monkeypatch.setattr(
        files.os, "preadv", lambda descriptor, buffers, offset: real(descriptor, [buffers[0][:7]], offset)
    )
    tensors = {"a": np.arange(50.0), "b": np.arange(3, dtype=np.int8)}
    st.save_file(tensors, tmp_path / "m.safetensors", {"k": "v" * 100})
    for name, array in st.load_file(tmp_path / "m.safetensors").items():
        np.testing.assert_array_equal(array, tensors[name])


MEMORY = """
import resource, sys
from gpt2fast import safetensors as st
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024
path, mode = sys.argv[1:]
st.read_metadata(path)
before = peak()
tensors = st.load_file(path, mmap=mode == "mapped")
print(peak() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak of memory from /proc")
@pytest.mark.parametrize(("mode", "least", "most"), [("copied", 0.99, 1.1), ("mapped", 0, 0.1)])
def test_peak_memory(tmp_path, mode, least, most):
    size = 100 << 20
    st.save_file({f"t{i}": np.ones(size // 32, np.float64) for i in range(4)}, tmp_path / "m.safetensors")
    program = [sys.executable, "-c", MEMORY, tmp_path / "m.safetensors", mode]
    used = int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    assert least * size <= used <= most * size
