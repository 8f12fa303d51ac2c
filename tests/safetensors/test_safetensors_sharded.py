"""Sharded checkpoints: what is written is read back, and an index that does not fit its shards is refused."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import gpt2fast
from gpt2fast import safetensors as st

INDEX = "model.safetensors.index.json"
both_modes = pytest.mark.parametrize("mmap", [False, True], ids=["copied", "mapped"])


def files(directory):
    return sorted(os.listdir(directory))


def example():
    return {
        "b": np.arange(10, dtype=np.float32),  # 40 bytes
        "a": np.arange(12, dtype=np.int64),  # 96
        "c": np.arange(3, dtype=np.float16),  # 6
        "d": np.ones((), bool),  # 1
    }


@both_modes
def test_round_trip(tmp_path, mmap):
    tensors = example()
    paths = st.save_sharded(tensors, tmp_path, {"format": "np"}, max_shard_size=100)
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert [path.name for path in paths] == [*names, INDEX]
    assert files(tmp_path) == [*names, INDEX]
    assert [list(st.load_file(tmp_path / name)) for name in names] == [["b"], ["a"], ["c", "d"]]
    assert all(st.read_metadata(tmp_path / name) == {"format": "np"} for name in names)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 143}
    assert index["weight_map"] == {"a": names[1], "b": names[0], "c": names[2], "d": names[2]}
    loaded = st.load_sharded(tmp_path, mmap=mmap)
    assert loaded.keys() == tensors.keys()
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)


@given(
    some.dictionaries(
        some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=4), some.integers(0, 50)
    ),
    some.integers(1, 100),
)
def test_any_sizes(sizes, limit):
    tensors = {name: np.arange(size, dtype=np.uint8) for name, size in sizes.items() if name != "__metadata__"}
    with tempfile.TemporaryDirectory() as directory:
        paths = st.save_sharded(tensors, directory, max_shard_size=limit)
        assert files(directory) == sorted(path.name for path in paths)
        loaded = st.load_sharded(directory)
        assert {name: array.tolist() for name, array in loaded.items()} == {
            name: array.tolist() for name, array in tensors.items()
        }
        for path in paths:
            if path.suffix == ".safetensors":
                shard = st.load_file(path)
                assert len(shard) <= 1 or sum(array.nbytes for array in shard.values()) <= limit


def test_one_shard_has_no_index(tmp_path):
    st.save_sharded(example(), tmp_path / "new" / "folder", max_shard_size=143)
    assert files(tmp_path / "new" / "folder") == ["model.safetensors"]
    assert st.load_sharded(tmp_path / "new" / "folder").keys() == example().keys()


def test_bits_keep_their_dtype(tmp_path):
    bits = {name: np.array([0x3F80, 0xC000], np.uint16) for name in "ab"}
    st.save_sharded(bits, tmp_path, max_shard_size=4, dtypes={"a": "BF16", "b": "BF16"})
    assert st.load_sharded(tmp_path)["b"].tolist() == np.array([1, -2], ml_dtypes.bfloat16).tolist()
    assert len(files(tmp_path)) == 3


def test_what_an_older_checkpoint_left_is_removed(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-of-mine.safetensors").write_text("")
    kept = {"config.json", "model-of-mine.safetensors"}
    for limit, count in [(1, 5), (1000, 1), (100, 4), (40, 4), (1000, 1)]:
        tensors = {name: array + (limit % 2) for name, array in example().items()}
        paths = st.save_sharded(tensors, tmp_path, max_shard_size=limit)
        assert len(paths) == count
        assert set(files(tmp_path)) == kept | {path.name for path in paths}
        assert st.load_sharded(tmp_path)["a"].tolist() == tensors["a"].tolist()


@pytest.mark.parametrize(
    ("size", "shards"),
    [("96B", 3), ("0.1KB", None), ("1KB", 1), ("1 kb", 1), ("1KiB", 1), ("5GB", 1), ("2tib", 1), (96, 3), (1, 4)],
)
def test_sizes(tmp_path, size, shards):
    if shards is None:
        with pytest.raises(gpt2fast.InputError, match="max_shard_size is '0.1KB'"):
            st.save_sharded(example(), tmp_path, max_shard_size=size)
        assert not files(tmp_path)
    else:
        st.save_sharded(example(), tmp_path, max_shard_size=size)
        assert len(files(tmp_path)) == (shards + 1 if shards > 1 else 1)


def test_kilobytes_are_decimal_and_kibibytes_binary(tmp_path):
    tensors = {"a": np.zeros(1000, np.uint8), "b": np.zeros(24, np.uint8)}
    assert len(st.save_sharded(tensors, tmp_path, max_shard_size="1KB")) == 3
    assert len(st.save_sharded(tensors, tmp_path, max_shard_size="1KiB")) == 1


@pytest.mark.parametrize("size", [0, -1, "", "GB", "5", "-5GB", "5 G", "5GBB", "0MB", "٣GB", True, 1.5, None])
def test_sizes_that_are_none(tmp_path, size):
    with pytest.raises(gpt2fast.Error, match="max_shard_size is"):
        st.save_sharded(example(), tmp_path, max_shard_size=size)
    assert not files(tmp_path)


@pytest.mark.parametrize("name", ["__metadata__", "\ud800", 3])
def test_nothing_changes_where_a_tensor_is_refused(tmp_path, name):
    st.save_sharded(example(), tmp_path, max_shard_size=100)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(gpt2fast.Error):
        st.save_sharded({**example(), name: np.zeros(2)}, tmp_path, max_shard_size=100)
    with pytest.raises(gpt2fast.Error):
        st.save_sharded(example(), tmp_path, {"a": 1}, max_shard_size=100)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_writing_over_the_shards_that_are_mapped(tmp_path):
    st.save_sharded(example(), tmp_path, max_shard_size=100)
    mapped = st.load_sharded(tmp_path, mmap=True)
    st.save_sharded(dict(reversed(mapped.items())), tmp_path, max_shard_size=100)
    for tensors in (mapped, st.load_sharded(tmp_path)):
        for name, array in example().items():
            np.testing.assert_array_equal(tensors[name], array)


def test_a_failing_write_changes_nothing(tmp_path, monkeypatch):
    st.save_sharded(example(), tmp_path, max_shard_size=100)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    sync, calls = os.fsync, []

    def fail(descriptor):
        calls.append(descriptor)
        if len(calls) == 4:  # the index and three shards: the last of them
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        st.save_sharded({name: array * 0 for name, array in example().items()}, tmp_path, max_shard_size=100)
    assert len(calls) == 4
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("renames", range(6))
def test_stopping_between_the_renames_leaves_no_mixture(tmp_path, monkeypatch, renames):
    old = example()
    new = {name: array * 0 for name, array in old.items()}
    st.save_sharded(old, tmp_path, max_shard_size=100)
    rename, done = os.replace, []

    class Stopped(BaseException):
        pass

    def replace(source, target):
        if len(done) == renames:
            raise Stopped
        done.append(target)
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    try:
        st.save_sharded(new, tmp_path, max_shard_size=100)
        stopped = False
    except Stopped:
        stopped = True
    assert stopped == (renames < 4)
    try:
        found = st.load_sharded(tmp_path)
    except gpt2fast.MissingFileError:
        assert stopped
        return
    sums = {name: int(array.sum()) for name, array in found.items()}
    assert sums in [{name: int(array.sum()) for name, array in tensors.items()} for tensors in (old, new)]
    assert stopped or sums["a"] == 0


# The index that is read


def with_index(directory, index):
    st.save_sharded(example(), directory, max_shard_size=100)
    (directory / INDEX).write_text(index if isinstance(index, str) else json.dumps(index))
    return directory


def weight_map():
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    return {"a": names[1], "b": names[0], "c": names[2], "d": names[2]}


def test_the_frame_of_these_tests_is_accepted(tmp_path):
    assert st.load_sharded(with_index(tmp_path, {"weight_map": weight_map()})).keys() == example().keys()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"e": "model-00001-of-00003.safetensors"}, "lacks tensors that .* says it has: 'e'"),
        ({"a": "model-00001-of-00003.safetensors"}, "'a'"),
        ({"d": None}, "weight_map has null for 'd'"),
        ({"d": 3}, "weight_map has 3 for 'd'"),
        ({"d": "../model.safetensors"}, "expected the name of a .safetensors file"),
        ({"d": "/etc/model.safetensors"}, "expected the name of a .safetensors file"),
        ({"d": "..\\model.safetensors"}, "expected the name of a .safetensors file"),
        ({"d": "c:model.safetensors"}, "expected the name of a .safetensors file"),
        ({"d": "sub/model.safetensors"}, "expected the name of a .safetensors file"),
        ({"d": "a\0.safetensors"}, "expected the name of a .safetensors file"),
        ({"d": ".."}, "expected the name of a .safetensors file"),
        ({"d": ""}, "expected the name of a .safetensors file"),
        ({"d": "config.json"}, "expected the name of a .safetensors file"),
        ({"d": "pytorch_model.bin"}, "expected the name of a .safetensors file"),
    ],
)
@both_modes
def test_index_that_does_not_fit(tmp_path, change, text, mmap):
    with_index(tmp_path, {"weight_map": {**weight_map(), **change}})
    with pytest.raises(gpt2fast.InputError, match=text) as caught:
        st.load_sharded(tmp_path, mmap=mmap)
    assert str(tmp_path) in str(caught.value)


def test_tensor_that_the_index_does_not_have(tmp_path):
    left = weight_map()
    del left["d"]
    with pytest.raises(gpt2fast.InputError, match=r"00003-of-00003.*does not say it has: 'd'"):
        st.load_sharded(with_index(tmp_path, {"weight_map": left}))


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ("", "not JSON"),
        ("[]", "no weight_map"),
        ("{}", "no weight_map"),
        ('{"weight_map": []}', "no weight_map"),
        ('{"weight_map": {"a": "b.safetensors", "a": "b.safetensors"}}', "'a' occurs twice"),
        ('{"weight_map": NaN}', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"weight_map": {"\\ud800": "b.safetensors"}}', "surrogate"),
        ('{"weight_map": %s}' % ("9" * 100_000), "number out of range"),
        ("version https://git-lfs.github.com/spec/v1\n", "not JSON"),
    ],
)
def test_index_that_is_none(tmp_path, index, text):
    with pytest.raises(gpt2fast.InputError, match=text) as caught:
        st.load_sharded(with_index(tmp_path, index))
    assert str(tmp_path / INDEX) in str(caught.value)


def test_missing_files(tmp_path):
    with pytest.raises(gpt2fast.MissingFileError, match=r"neither model.safetensors nor"):
        st.load_sharded(tmp_path)
    with pytest.raises(gpt2fast.MissingFileError, match="neither"):
        st.load_sharded(tmp_path / "nowhere")
    with pytest.raises(gpt2fast.MissingFileError, match=r"index\.json: there is no such file"):
        st.read_index(tmp_path)
    with_index(tmp_path, {"weight_map": weight_map()})
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(gpt2fast.MissingFileError, match="00002-of-00003"):
        st.load_sharded(tmp_path)


def test_directories_that_are_none(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(gpt2fast.InputError, match="is not a directory"):
        st.save_sharded(example(), tmp_path / "file")
    with pytest.raises(gpt2fast.InputError, match="is not a directory"):
        st.save_sharded(example(), tmp_path / "file" / "below")
    for call in (st.load_sharded, st.read_index, lambda directory: st.save_sharded(example(), directory)):
        with pytest.raises(gpt2fast.InputTypeError, match="path is of type int"):
            call(3)
        with pytest.raises(gpt2fast.InputError, match="not a path"):
            call("a\0b")


def test_paths_of_the_index(tmp_path):
    st.save_sharded(example(), tmp_path, max_shard_size=100)
    assert st.read_index(str(tmp_path)) == {name: Path(tmp_path, home) for name, home in weight_map().items()}


def test_shards_are_those_of_hugging_face(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    tensors = {f"h.{i}.w": np.full((10, i + 1), i, np.float32) for i in range(6)}  # 40 to 240 bytes
    for limit in (240, 250, 400, 839):  # where a tensor is larger than a shard, the two number shards differently
        st.save_sharded(tensors, tmp_path, max_shard_size=limit)
        split = hub.split_state_dict_into_shards_factory(
            tensors,
            get_storage_size=lambda array: array.nbytes,
            max_shard_size=limit,
            filename_pattern="model{suffix}.safetensors",
        )
        index = json.loads((tmp_path / INDEX).read_text())
        assert index == {"metadata": split.metadata, "weight_map": split.tensor_to_filename}


def test_shards_may_be_links(tmp_path):
    # As in the cache of huggingface_hub, where a snapshot's files are links to blobs elsewhere.
    st.save_sharded(example(), tmp_path / "blobs", max_shard_size=100)
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert st.load_sharded(tmp_path / "snapshot").keys() == example().keys()
