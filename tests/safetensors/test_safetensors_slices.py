"""Single tensors and slices: equal to NumPy's, read without the rest of the file."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra import numpy as some_numpy

import gpt2fast
from gpt2fast import safetensors as st
from gpt2fast.safetensors import files, lazy


def same(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, np.shape(expected))
    np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def tensors():
    random = np.random.default_rng(3)
    shapes = [(), (7,), (4, 6), (3, 5, 4), (2, 3, 2, 4), (0,), (3, 0, 2), (1, 1)]
    found = {f"f{i}": random.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    found |= {f"b{i}": random.random(shape) < 0.5 for i, shape in enumerate(shapes)}
    return found


@pytest.fixture(scope="module")
def path(tensors, tmp_path_factory):
    path = tmp_path_factory.mktemp("slices") / "m.safetensors"
    st.save_file(tensors, path, {"k": "v"})
    return path


@pytest.fixture(params=[4 << 20, 64, 1], ids=["block", "small_blocks", "row_by_row"])
def block(request, monkeypatch):
    monkeypatch.setattr(lazy, "_BLOCK", request.param)


@pytest.mark.usefixtures("block")
def test_any_index_equals_numpys(tensors, path):
    @given(some.data())
    def check(data):
        name = data.draw(some.sampled_from(sorted(tensors)))
        expected = tensors[name]
        index = data.draw(some_numpy.basic_indices(expected.shape, allow_newaxis=False))
        found = file.get_slice(name)[index]
        assert isinstance(found, np.ndarray)
        same(found, expected[index])
        found[...] = 0  # ours alone

    with st.safe_open(path) as file:
        check()
        for name, expected in tensors.items():
            same(file.get_tensor(name), expected)


@pytest.mark.usefixtures("block")
def test_named_indices(tensors, path):
    with st.safe_open(path) as file:
        part, expected = file.get_slice("f3"), tensors["f3"]
        for index in [
            np.s_[:],
            np.s_[...],
            np.s_[1:3],
            np.s_[::2],
            np.s_[::-1],
            np.s_[2:0:-2],
            np.s_[-1],
            np.s_[1:1],
            np.s_[5:100],
            np.s_[:, 2],
            np.s_[:, ::-2, 1:],
            np.s_[..., -1],
            np.s_[0, ..., 0],
            np.s_[np.int64(1), :, np.uint8(2)],
            (),
        ]:
            same(part[index], expected[index])
        assert len(part) == 3
        np.testing.assert_array_equal(list(part), expected)


@pytest.mark.parametrize(
    ("name", "index", "kind", "text"),
    [
        ("f3", 3, ValueError, "index 3 is out of range for a dimension of 3"),
        ("f3", -4, ValueError, "index -4 is out of range"),
        ("f3", (0, 5), ValueError, "index 5 is out of range for a dimension of 5"),
        ("f3", (0, 0, 0, 0), ValueError, "too many parts for shape"),
        ("f3", (..., 0, ...), ValueError, "too many parts"),
        ("f0", 0, ValueError, "too many parts for shape"),
        ("f5", 0, ValueError, "out of range for a dimension of 0"),
        ("f3", None, TypeError, "of type NoneType"),
        ("f3", True, TypeError, "of type bool"),
        ("f3", np.bool_(True), TypeError, "of type bool"),
        ("f3", 1.0, TypeError, "of type float"),
        ("f3", [0, 1], TypeError, "of type list"),
        ("f3", np.arange(2), TypeError, "of type ndarray"),
        ("f3", "0", TypeError, "of type str"),
        ("f3", slice(None, None, 0), TypeError, "not an index"),
        ("f3", slice(1.5), TypeError, "not an index"),
        ("f3", slice("a", None), TypeError, "not an index"),
    ],
)
def test_indices_that_are_refused(path, name, index, kind, text):
    with st.safe_open(path) as file, pytest.raises(gpt2fast.Error, match=text) as caught:
        file.get_slice(name)[index]
    assert isinstance(caught.value, kind)
    assert f"tensor '{name}'" in str(caught.value)


def test_no_dimensions(path):
    with st.safe_open(path) as file:
        for use in (len, iter):
            with pytest.raises(gpt2fast.InputTypeError, match="no dimensions"):
                use(file.get_slice("f0"))


def test_keys_entries_metadata(tensors, path):
    with st.safe_open(path) as file:
        assert sorted(file.keys()) == sorted(tensors)
        assert file.metadata() == {"k": "v"}
        for name, entry in file.entries.items():
            assert entry.shape == tensors[name].shape == tuple(file.get_slice(name).get_shape())
            assert entry.dtype == file.get_slice(name).get_dtype()
            start = file.data_start
            assert path.read_bytes()[start + entry.begin : start + entry.end] == tensors[name].tobytes()
        file.metadata()["k"] = "changed"
        assert file.metadata() == {"k": "v"}
        with pytest.raises(TypeError):
            file.entries["f0"] = None
        with pytest.raises(gpt2fast.InputError, match="there is no tensor 'w'"):
            file.get_tensor("w")


def test_closed(path):
    with st.safe_open(path) as file:
        part = file.get_slice("f2")
        kept = file.get_tensor("f2")
    for read in (lambda: part[0], lambda: file.get_tensor("f2"), lambda: part[...]):
        with pytest.raises(gpt2fast.InputError, match="has been closed"):
            read()
    assert kept.shape == (4, 6)
    file.close()


@pytest.mark.parametrize("framework", ["pt", "tf", "", None])
def test_framework(path, framework):
    with pytest.raises(gpt2fast.InputError, match="framework"):
        st.safe_open(path, framework)


@pytest.fixture
def large(tmp_path):
    st.save_file(
        {"w": np.arange(3_000_000.0).reshape(3, 1000, 1000), "z": np.zeros(1_000_000)}, tmp_path / "m.safetensors"
    )
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize(
    ("index", "most"),
    [
        (np.s_[1], 8_000_000),
        (np.s_[1, 3:5], 16_000),
        (np.s_[1:2, 3], 8_000),
        (np.s_[:, 7, :2], 48),
        (np.s_[2, ::500, 1], 16_000),
        (np.s_[1, 5, 6], 8),
        (np.s_[2:2], 0),
    ],
)
def test_no_more_is_read_than_has_to_be(large, monkeypatch, index, most):
    read = []
    real = os.preadv

    def count(descriptor, buffers, offset):
        read.append(sum(map(len, buffers)))
        return real(descriptor, buffers, offset)

    with st.safe_open(large) as file:
        monkeypatch.setattr(files.os, "preadv", count)
        found = file.get_slice("w")[index]
    assert sum(read) <= most
    np.testing.assert_array_equal(found, np.arange(3_000_000.0).reshape(3, 1000, 1000)[index])


def test_a_file_that_becomes_shorter_while_it_is_open(large):
    with st.safe_open(large) as file:
        os.truncate(large, 1000)
        with pytest.raises(gpt2fast.InputError, match="became shorter"):
            file.get_tensor("z")


def test_one_file_read_by_several_threads(tensors, path):
    wrong = []
    with st.safe_open(path) as file:

        def read():
            for _ in range(50):
                wrong.extend(name for name in tensors if not np.array_equal(file.get_tensor(name), tensors[name]))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
