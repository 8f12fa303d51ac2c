"""Sharded checkpoints: names and index as Hugging Face writes them, checked on reading, changed as one."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import gpt2fast
from gpt2fast import safetensors as st

both_modes = pytest.mark.parametrize("mmap", [False, True], ids=["copied", "mapped"])


@pytest.fixture
def tensors():
    return {f"h.{i}.w": np.full((10, i + 1), i, np.float32) for i in range(6)}  # 40, 80, 120, 160, 200, 240 bytes


def index_of(directory):
    return json.loads((directory / st.INDEX_NAME).read_text())


def edit_index(directory, **change):
    index = index_of(directory)
    for name, file in change.items():
        if file is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = file
    (directory / st.INDEX_NAME).write_text(json.dumps(index))


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert (left[name].dtype, left[name].shape) == (right[name].dtype, right[name].shape)
        np.testing.assert_array_equal(left[name], right[name])


@both_modes
def test_round_trip(tmp_path, tensors, mmap):
    written = st.save_sharded(tensors, tmp_path / "new" / "model", {"format": "pt"}, max_shard_size=250)
    folder = tmp_path / "new" / "model"
    names = [f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)]
    assert written == [folder / name for name in [*names, st.INDEX_NAME]]
    assert sorted(os.listdir(folder)) == sorted([*names, st.INDEX_NAME])
    same(st.load_sharded(folder, mmap=mmap), tensors)
    index = index_of(folder)
    assert index["metadata"] == {"total_size": 840}
    assert list(index["weight_map"].values()) == [names[i] for i in (0, 0, 0, 1, 2, 3)]
    assert st.read_index(folder) == {name: folder / file for name, file in index["weight_map"].items()}
    assert all(st.read_metadata(folder / name) == {"format": "pt"} for name in names)


def test_the_reference_and_its_index_agree(tmp_path, tensors):
    reference = pytest.importorskip("huggingface_hub")
    st.save_sharded(tensors, tmp_path, max_shard_size=250)
    split = reference.split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda array: array.nbytes,
        max_shard_size=250,
        filename_pattern="model{suffix}.safetensors",
    )
    assert index_of(tmp_path)["weight_map"] == split.tensor_to_filename
    assert index_of(tmp_path)["metadata"] == split.metadata


def test_what_fits_in_one_is_one_file(tmp_path, tensors):
    assert st.save_sharded(tensors, tmp_path) == [tmp_path / "model.safetensors"]
    assert os.listdir(tmp_path) == ["model.safetensors"]
    same(st.load_sharded(tmp_path), tensors)
    st.save_sharded({}, tmp_path)
    assert st.load_sharded(tmp_path) == {}


def test_a_tensor_that_is_too_large_gets_its_own_shard(tmp_path, tensors):
    written = st.save_sharded(tensors, tmp_path, max_shard_size=1)
    assert len(written) == 7
    same(st.load_sharded(tmp_path), tensors)


def test_an_older_checkpoint_is_taken_away(tmp_path, tensors):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-special.safetensors").touch()
    one, two, six = {"max_shard_size": 10_000}, {"max_shard_size": 600}, {"max_shard_size": 1}
    for size in (one, six, two, one, two, six, one):
        same_tensors = {name: array + 1 for name, array in tensors.items()}
        written = st.save_sharded(same_tensors, tmp_path, **size)
        assert {path.name for path in written} | {"config.json", "model-special.safetensors"} == set(
            os.listdir(tmp_path)
        )
        same(st.load_sharded(tmp_path), same_tensors)
        tensors = same_tensors


def test_saving_over_the_shards_the_arrays_come_from(tmp_path, tensors):
    st.save_sharded(tensors, tmp_path, max_shard_size=250)
    mapped = st.load_sharded(tmp_path, mmap=True)
    st.save_sharded(dict(reversed(mapped.items())), tmp_path, max_shard_size=300)
    same(mapped, tensors)
    same(st.load_sharded(tmp_path), tensors)


def test_dtypes(tmp_path):
    bits = {"a": np.array([0x3F80], np.uint16), "b": np.array([1], np.uint16)}
    st.save_sharded(bits, tmp_path, max_shard_size=2, dtypes={"a": "BF16"})
    with st.safe_open(st.read_index(tmp_path)["a"]) as file:
        assert file.get_slice("a").get_dtype() == "BF16"
    assert st.load_sharded(tmp_path)["b"].tolist() == [1]


@pytest.mark.parametrize(
    ("size", "count"),
    [(840, 1), (839, 2), ("840B", 1), ("839b", 2), ("1KB", 1), ("0.5KB", None), ("1 kib", 1), ("5GB", 1), ("1TiB", 1)],
)
def test_sizes(tmp_path, tensors, size, count):
    if count is None:
        with pytest.raises(gpt2fast.InputError, match="max_shard_size"):
            st.save_sharded(tensors, tmp_path, max_shard_size=size)
    else:
        assert len(st.save_sharded(tensors, tmp_path, max_shard_size=size)) == (1 if count == 1 else count + 1)


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        (0, ValueError),
        (-1, ValueError),
        ("0MB", ValueError),
        ("", ValueError),
        ("MB", ValueError),
        ("5", ValueError),
        ("5XB", ValueError),
        ("-5MB", ValueError),
        ("٣MB", ValueError),
        ("9" * 10_000 + "MB", ValueError),
        (1.5, TypeError),
        (True, TypeError),
        (None, TypeError),
    ],
)
def test_sizes_that_are_none(tmp_path, tensors, size, kind):
    with pytest.raises(gpt2fast.Error, match="max_shard_size") as caught:
        st.save_sharded(tensors, tmp_path / "new", max_shard_size=size)
    assert isinstance(caught.value, kind)
    assert not (tmp_path / "new").exists()


def test_nothing_changes_where_a_tensor_is_refused(tmp_path, tensors):
    st.save_sharded(tensors, tmp_path, max_shard_size=250)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for wrong in ({**tensors, "z": np.array(["text"])}, {**tensors, "\ud800": np.zeros(1)}):
        with pytest.raises(gpt2fast.Error):
            st.save_sharded(wrong, tmp_path, max_shard_size=100)
    with pytest.raises(gpt2fast.Error):
        st.save_sharded(tensors, tmp_path, {"a": 1}, max_shard_size=100)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


OUTSIDE = [
    "../model-00001-of-00004.safetensors",
    "sub/../../m.safetensors",
    "/etc/m.safetensors",
    "sub/m.safetensors",
    "..\\m.safetensors",
    "C:m.safetensors",
    "./model-00001-of-00004.safetensors",
    "..",
    "",
    ".safetensors",
    "m\0.safetensors",
    "config.json",
    "pytorch_model.bin",
    "m.safetensors/",
    "m.safetensors\n",
]


@pytest.mark.parametrize("file", [*OUTSIDE, 1, 1.5, 10**30, None, True, [], {}], ids=repr)
def test_paths_that_are_refused(tmp_path, tensors, file):
    st.save_sharded(tensors, tmp_path / "model", max_shard_size=250)
    (tmp_path / "model" / "sub").mkdir()
    for place in (tmp_path / "m.safetensors", tmp_path / "model" / "sub" / "m.safetensors"):
        st.save_file({"h.0.w": tensors["h.0.w"]}, place)
    index = index_of(tmp_path / "model")
    index["weight_map"]["h.0.w"] = file
    (tmp_path / "model" / st.INDEX_NAME).write_text(json.dumps(index))
    for read in (st.read_index, st.load_sharded):
        with pytest.raises(gpt2fast.InputError, match=r"weight_map has .* for 'h\.0\.w'"):
            read(tmp_path / "model")


def test_shards_may_be_links(tmp_path, tensors):
    # As in the cache of huggingface_hub, whose snapshots are links to blobs elsewhere.
    st.save_sharded(tensors, tmp_path / "blobs", max_shard_size=250)
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    same(st.load_sharded(tmp_path / "snapshot"), tensors)


@both_modes
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"h.0.w": "model-00002-of-00004.safetensors"},
            r"lacks tensors that .* 'h\.0\.w'|does not say it has: 'h\.0\.w'",
        ),
        ({"other": "model-00002-of-00004.safetensors"}, "lacks tensors that .*: 'other'"),
        ({"h.3.w": None, "other": "model-00002-of-00004.safetensors"}, "lacks tensors"),
        ({"h.0.w": None}, r"does not say it has: 'h\.0\.w'"),
        ({f"x{i}": "model-00001-of-00004.safetensors" for i in range(20)}, "and 12 more"),
    ],
)
def test_index_that_does_not_fit_the_shards(tmp_path, tensors, change, text, mmap):
    st.save_sharded(tensors, tmp_path, max_shard_size=250)
    edit_index(tmp_path, **change)
    with pytest.raises(gpt2fast.InputError, match=text):
        st.load_sharded(tmp_path, mmap=mmap)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'"weight_map"',
        b"5",
        b'{"weight_map": null}',
        b'{"weight_map": []}',
        b'{"weight_map": "model.safetensors"}',
        b'{"weight_map": {"a": "m.safetensors", "a": "n.safetensors"}}',
        b'{"weight_map": {}, "weight_map": {}}',
        b'{"weight_map": {}',
        b'{"weight_map": {"\\ud800": "m.safetensors"}}',
        b'{"weight_map": {}, "x": NaN}',
        b"\xff",
        b"[" * 200_000,
        b'{"weight_map": ' * 100_000,
        b"version https://git-lfs.github.com/spec/v1\n",
    ],
    ids=lambda content: content[:40].decode("latin-1"),
)
def test_index_that_is_malformed(tmp_path, content):
    (tmp_path / st.INDEX_NAME).write_bytes(content)
    for read in (st.read_index, st.load_sharded):
        with pytest.raises(gpt2fast.InputError, match=st.INDEX_NAME):
            read(tmp_path)


def test_index_with_numbers_of_any_kind(tmp_path):
    # Some writers put a float there; nothing is done with it.
    (tmp_path / st.INDEX_NAME).write_text(
        '{"metadata": {"total_size": 8.4e2, "x": %s}, "weight_map": {}}' % ("9" * 10_000)
    )
    assert st.load_sharded(tmp_path) == st.read_index(tmp_path) == {}


def test_what_is_missing(tmp_path, tensors):
    with pytest.raises(gpt2fast.MissingFileError, match=r"neither model\.safetensors nor"):
        st.load_sharded(tmp_path)
    with pytest.raises(gpt2fast.MissingFileError, match="no such file"):
        st.read_index(tmp_path)
    with pytest.raises(gpt2fast.MissingFileError):
        st.load_sharded(tmp_path / "missing")
    st.save_sharded(tensors, tmp_path, max_shard_size=250)
    (tmp_path / "model-00002-of-00004.safetensors").unlink()
    for read in (st.read_index, st.load_sharded):
        with pytest.raises(gpt2fast.MissingFileError, match="model-00002-of-00004"):
            read(tmp_path)
