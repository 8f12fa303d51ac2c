"""A writer that is killed at any moment, or runs out of disk: the file is the whole old or the whole new one.

GPT2FAST_CRASHES sets how many writers are killed, 30 where it is not set.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gpt2fast
from gpt2fast import safetensors as st

CRASHES = int(os.environ.get("GPT2FAST_CRASHES", "30"))

WRITER = """
import itertools, sys
import numpy as np
from gpt2fast import safetensors as st
path, first, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for i in itertools.count(first):
    array = np.full(200_000, i % 256, np.float32)
    tensors = {f"t{j}": array for j in range(4)}
    if mode == "sharded":
        st.save_sharded(tensors, path, {"i": str(i)}, max_shard_size=800_000)
    elif mode == "over_mapped" and i > first:
        old = st.load_file(path, mmap=True)
        for array in old.values():
            array[:] = i % 256
        st.save_file(old, path, {"i": str(i)})
    else:
        st.save_file(tensors, path, {"i": str(i)})
    print(i, flush=True)
"""


@pytest.mark.parametrize("mode", ["plain", "over_mapped"])
def test_killed(tmp_path, mode):
    """The file is whole, and not older than the last one whose saving was reported to have ended."""
    path = tmp_path / "m.safetensors"
    generator = random.Random(5)
    first = 0
    for _ in range(CRASHES // 2):
        program = [sys.executable, "-c", WRITER, path, str(first), mode]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writer:
            ended = int(writer.stdout.readline())
            time.sleep(generator.uniform(0, 0.03))
            writer.send_signal(signal.SIGKILL)
            ended = max([ended, *(int(line) for line in writer.stdout.read().split("\n")[:-1])])
        file = st.read_file(path)
        number = int(file.metadata["i"])
        assert ended <= number <= ended + 1
        for array in file.tensors.values():
            assert array.shape == (200_000,)
            assert (array == number % 256).all()
        first = number + 1
    left = [name for name in os.listdir(tmp_path) if name != path.name]
    assert len(left) <= CRASHES // 2  # one at most of each writer, none of which could take it away
    assert all(name.startswith(".m.safetensors.") and name.endswith(".tmp") for name in left)


def test_killed_while_sharding(tmp_path):
    """The shards that are read are of one generation; a kill between two renames may leave nothing that is read."""
    generator = random.Random(6)
    for first in range(0, 256, 256 // max(2, CRASHES // 5)):
        program = [sys.executable, "-c", WRITER, tmp_path, str(first), "sharded"]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writer:
            ended = int(writer.stdout.readline())
            assert ended == first  # also where the writer before left no index
            time.sleep(generator.uniform(0, 0.06))
            writer.send_signal(signal.SIGKILL)
            ended = max([ended, *(int(line) for line in writer.stdout.read().split("\n")[:-1])])
        try:
            tensors = st.load_sharded(tmp_path)
        except gpt2fast.MissingFileError:
            continue
        assert sorted(tensors) == ["t0", "t1", "t2", "t3"]
        numbers = {float(value) for array in tensors.values() for value in (array.min(), array.max())}
        assert numbers in ({ended % 256}, {(ended + 1) % 256})


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a filesystem of two megabytes."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("mounting a small filesystem takes root on Linux")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], capture_output=True)
    if made.returncode:
        pytest.skip(f"a small filesystem cannot be mounted here: {made.stderr.decode()}")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.mark.parametrize("mmap", [False, True], ids=["copied", "mapped"])
def test_full_disk(small_disk, mmap):
    path = small_disk / "m.safetensors"
    st.save_file({"w": np.arange(100_000.0)}, path, {"k": "v"})
    before = path.read_bytes()
    tensors = st.load_file(path, mmap=mmap)
    for size in (150_000, 160_000, 170_000, 10_000_000):  # with what is there: at the edge of the disk, and far over it
        with pytest.raises(OSError, match="No space left"):
            st.save_file({**tensors, "more": np.arange(float(size))}, path)
        assert path.read_bytes() == before
        assert os.listdir(small_disk) == ["m.safetensors"]
    np.testing.assert_array_equal(tensors["w"], np.arange(100_000.0))
    st.save_file({"w": np.zeros(1)}, path)
    assert st.load_file(path)["w"].tolist() == [0]


def test_full_disk_while_sharding(small_disk):
    st.save_sharded({f"t{i}": np.full(10_000, 1.0) for i in range(5)}, small_disk, max_shard_size=100_000)
    before = {path.name: path.read_bytes() for path in small_disk.iterdir()}
    with pytest.raises(OSError, match="No space left"):
        st.save_sharded({f"t{i}": np.full(50_000, 2.0) for i in range(5)}, small_disk, max_shard_size=500_000)
    assert {path.name: path.read_bytes() for path in small_disk.iterdir()} == before
    assert all((array == 1).all() for array in st.load_sharded(small_disk).values())
