"""Arrays of any dtype, shape, order and stride are written by value and come back, in both modes, aligned."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra import numpy as some_numpy

import gpt2fast
from gpt2fast import safetensors as st

DTYPES = [
    np.dtype(code).newbyteorder(order)
    for code in ("f8", "f4", "f2", "i8", "u8", "i4", "u4", "i2", "u2", "c8")
    for order in "<>"
] + [np.dtype(code) for code in ("i1", "u1", "?", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]

names = some.text(some.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda name: name != "__metadata__")


@some.composite
def any_array(draw):
    """An array of any dtype and shape, then turned: reversed, transposed, strided, broadcast, or cut off its start."""
    dtype = draw(some.sampled_from(DTYPES))
    shape = draw(some_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    size = int(np.prod(shape, dtype=int))
    bits = np.frombuffer(draw(some.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize)), np.uint8)
    if dtype == np.bool_:
        bits = bits % 2
    array = bits.view(dtype).reshape(shape)
    for turn in draw(
        some.lists(some.sampled_from(["reverse", "transpose", "stride", "broadcast", "fortran"]), max_size=3)
    ):
        if turn == "reverse":
            array = array[tuple(slice(None, None, -1) for _ in array.shape)]
        elif turn == "transpose":
            array = array.transpose(draw(some.permutations(range(array.ndim))))
        elif turn == "stride":
            array = array[tuple(slice(draw(some.integers(0, 1)), None, 2) for _ in array.shape)]
        elif turn == "broadcast":
            array = np.broadcast_to(array, (draw(some.integers(0, 3)), *array.shape))
        else:
            array = np.asfortranarray(array)
    return array


def same_values(left, right):
    assert left.shape == right.shape
    assert left.dtype == right.dtype.newbyteorder("=")
    # Of the values, not of the bits in memory, which differ in byte order; NaNs keep their bits.
    assert left.tobytes() == right.astype(left.dtype, copy=False).tobytes()


@given(some.dictionaries(names, any_array(), max_size=5), some.dictionaries(names, names, max_size=3))
def test_any_arrays(tensors, metadata):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "m.safetensors")
        st.save_file(tensors, path, metadata)
        for mmap in (False, True):
            file = st.read_file(path, mmap=mmap)
            assert file.metadata == metadata
            assert file.tensors.keys() == tensors.keys()
            for name, array in tensors.items():
                same_values(file.tensors[name], array)
                assert file.tensors[name].flags.behaved
                assert file.tensors[name].flags.c_contiguous
        with st.safe_open(path) as opened:
            for name, array in tensors.items():
                same_values(opened.get_tensor(name), array)
        first = path.read_bytes()
        st.save_file(dict(reversed(tensors.items())), path, dict(reversed(metadata.items())))
        assert path.read_bytes() == first


@given(some.dictionaries(names, any_array(), max_size=8))
def test_layout_of_what_is_written(tensors):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "m.safetensors")
        st.save_file(tensors, path)
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        assert length % 8 == 0
        header = json.loads(content[8 : 8 + length])
        place = 0
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            assert begin == place
            assert begin % tensors[name].dtype.itemsize == 0
            place = end
        assert len(content) == 8 + length + place
        sizes = [tensors[name].dtype.itemsize for name in header]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", ["a\ud800", "\udfff"])
def test_text_that_is_not_unicode(tmp_path, name):
    for tensors, metadata in [({name: np.zeros(2)}, None), ({}, {name: "a"}), ({}, {"a": name})]:
        with pytest.raises(gpt2fast.InputError, match="surrogate"):
            st.save_file(tensors, tmp_path / "m.safetensors", metadata)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tensors", "metadata", "kind", "text"),
    [
        ({"__metadata__": np.zeros(2)}, None, ValueError, "cannot be called __metadata__"),
        ({1: np.zeros(2)}, None, TypeError, "name is 1, of type int"),
        ({b"w": np.zeros(2)}, None, TypeError, "of type bytes"),
        ({"w": [1.0, 2.0]}, None, TypeError, "tensor 'w': is of type list"),
        ({"w": 1.0}, None, TypeError, "tensor 'w': is of type float"),
        ({"w": None}, None, TypeError, "tensor 'w': is of type NoneType"),
        ({"w": np.zeros(2, np.complex128)}, None, TypeError, "tensor 'w': dtype complex128"),
        ({"w": np.zeros(2, np.longdouble)}, None, TypeError, "tensor 'w': dtype"),
        ({"w": np.array(["a"])}, None, TypeError, "tensor 'w': dtype <U1"),
        ({"w": np.array([None])}, None, TypeError, "tensor 'w': dtype object"),
        ({"w": np.zeros(2, "M8[s]")}, None, TypeError, "tensor 'w': dtype datetime64"),
        ({"w": np.zeros(2, "m8[s]")}, None, TypeError, "tensor 'w': dtype timedelta64"),
        ({"w": np.zeros(2, [("a", "f4")])}, None, TypeError, "tensor 'w': dtype"),
        ({"w": np.zeros(2, "V4")}, None, TypeError, "tensor 'w': dtype"),
        ({"w": np.zeros(2, ml_dtypes.int4)}, None, TypeError, "tensor 'w': dtype int4"),
        ({"w": np.ma.masked_array([1.0], [True])}, None, TypeError, "tensor 'w': is of type MaskedArray"),
        ({}, {"a": 1}, TypeError, "metadata has 1, of type int"),
        ({}, {1: "a"}, TypeError, "metadata has 1, of type int"),
        ({}, {"a": None}, TypeError, "metadata has None"),
        ({}, {"a": b"b"}, TypeError, "of type bytes"),
        ({}, "abc", TypeError, "metadata is of type str"),
        ([], None, TypeError, "tensors is of type list"),
        ({"w" * 100_000_000: np.zeros(2)}, None, ValueError, "the limit is 100000000"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 50 else "",
)
def test_refused_before_a_file_is_made(tmp_path, tensors, metadata, kind, text):
    with pytest.raises(gpt2fast.Error, match=text) as caught:
        st.save_file(tensors, tmp_path / "m.safetensors", metadata)
    assert isinstance(caught.value, kind)
    assert not list(tmp_path.iterdir())


def test_numpy_scalars_and_subclasses(tmp_path):
    class Own(np.ndarray):
        pass

    st.save_file({"s": np.float32(3), "o": np.arange(3.0).view(Own)}, tmp_path / "m.safetensors")
    tensors = st.load_file(tmp_path / "m.safetensors")
    assert tensors["s"].shape == ()
    assert tensors["s"] == 3
    assert tensors["o"].tolist() == [0, 1, 2]


def test_many_tensors(tmp_path):
    tensors = {f"t{i}": np.full(i % 4, i, np.int32) for i in range(3000)}  # more than one readv takes
    st.save_file(tensors, tmp_path / "m.safetensors")
    for mmap in (False, True):
        for name, array in st.load_file(tmp_path / "m.safetensors", mmap=mmap).items():
            np.testing.assert_array_equal(array, tensors[name])
