"""The format in memory, and the types that NumPy has not: both ways with the reference package."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as some

import gpt2fast
from gpt2fast import safetensors as st
from gpt2fast.checkpoint.inspect import inspect
from gpt2fast.safetensors.dtypes import ITEM_SIZES, RANKS, SUB_BYTE

NUMPY_TYPES = ["?", "u1", "i1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<c8", "<f8", "<i8", "<u8"]
PACKED = {
    "four": {"dtype": "F4", "shape": [2, 3], "data": b"abc"},
    "six": {"dtype": "F6_E2M3", "shape": [4], "data": b"def"},
    "other_six": {"dtype": "F6_E3M2", "shape": [8], "data": b"ghijkl"},
    "none": {"dtype": "F4", "shape": [0], "data": b""},
    "float": {"dtype": "F32", "shape": [2], "data": np.float32([1, 2]).tobytes()},
    "brain": {"dtype": "BF16", "shape": [1], "data": b"\x80\x3f"},
    "eight": {"dtype": "F8_E4M3", "shape": [1], "data": b"\x38"},
    "flag": {"dtype": "BOOL", "shape": [], "data": b"\1"},
}


@given(
    some.dictionaries(
        some.text(max_size=8).filter(lambda name: name != "__metadata__"),
        some.tuples(some.sampled_from(NUMPY_TYPES), some.lists(some.integers(0, 4), max_size=3)),
        max_size=4,
    ),
    some.dictionaries(
        some.text(max_size=5), some.text(max_size=5), max_size=1
    ),  # the order of more is theirs by chance
)
def test_as_the_file_and_as_the_reference(tmp_path_factory, found, metadata):
    random = np.random.default_rng(1)
    tensors = {name: random.integers(0, 2, shape).astype(dtype) for name, (dtype, shape) in found.items()}
    content = st.save(tensors, metadata or None)
    assert content == safetensors.numpy.save(tensors, metadata or None)
    path = tmp_path_factory.getbasetemp() / "memory.safetensors"
    st.save_file(tensors, path, metadata or None)
    assert path.read_bytes() == content
    assert st.serialize(dict(st.deserialize(content)), metadata or None) == content
    assert dict(st.deserialize(content)) == {
        name: {**raw, "data": bytes(raw["data"])} for name, raw in safetensors.deserialize(content)
    }
    for data in (content, bytearray(content), memoryview(content)):
        loaded = st.load(data)
        assert loaded.keys() == tensors.keys()
        for name, array in loaded.items():
            np.testing.assert_array_equal(array, tensors[name])
            assert array.dtype == tensors[name].dtype
            assert array.flags.writeable
            assert array.flags.aligned


def test_loaded_arrays_are_independent():
    content = bytearray(st.save({"w": np.arange(3.0)}))
    w = st.load(content)["w"]
    content[-8:] = bytes(8)
    assert w.tolist() == [0, 1, 2]


@pytest.mark.parametrize("data", [b"", b"12345678", bytes(9), st.save({"w": np.ones(2)})[:-1], st.save({}) + b"\0"])
def test_content_that_is_none(data):
    for read in (st.load, st.deserialize):
        with pytest.raises(gpt2fast.InputError, match="^data: "):
            read(data)


@pytest.mark.parametrize("data", ["text", 5, None, [1, 2], memoryview(b"abcdef")[::2], {}])
def test_what_is_no_bytes(data):
    for read in (st.load, st.deserialize):
        with pytest.raises(gpt2fast.InputTypeError, match="data is of type"):
            read(data)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data": b"1234"}, "tensor 'w': F32 of shape .2. takes 64 bits, data has 32"),
        ({"dtype": "F4", "shape": [3], "data": b"12"}, "takes 12 bits, data has 16"),
        ({"dtype": "F12", "shape": [], "data": b""}, "unknown dtype 'F12'"),
        ({"dtype": "complex128", "shape": [], "data": b""}, "unknown dtype"),
        ({"dtype": 3, "shape": [], "data": b""}, "unknown dtype"),
        ({"dtype": "U8", "shape": [-1], "data": b""}, "a dimension is -1"),
        ({"dtype": "U8", "shape": [1.0], "data": b"1"}, "a dimension is 1.0"),
        ({"dtype": "U8", "shape": [1], "data": "1"}, "data is of type str"),
        ({"dtype": "U8", "shape": [1]}, "expected a dict of dtype, shape and data"),
        (b"1", "expected a dict"),
    ],
)
def test_bad_tensors_are_named(tensor, message):
    with pytest.raises(gpt2fast.Error, match=message):
        st.serialize({"w": tensor})


def test_bad_names():
    raw = {"dtype": "U8", "shape": [], "data": b"1"}
    for name in ("__metadata__", "\ud800", 3):
        with pytest.raises(gpt2fast.Error, match="name|called"):
            st.serialize({name: raw})
    with pytest.raises(gpt2fast.InputTypeError, match="tensors is of type list"):
        st.serialize([])


def test_names_of_numpy():
    by_numpy = st.serialize({"w": {"dtype": "float32", "shape": [1], "data": b"1234"}})
    assert by_numpy == st.serialize({"w": {"dtype": "F32", "shape": [1], "data": b"1234"}})
    assert (
        st.deserialize(st.serialize({"w": {"dtype": "bfloat16", "shape": [1], "data": b"12"}}))[0][1]["dtype"] == "BF16"
    )


def test_packed_elements(tmp_path):
    """The file opens, its other tensors are read, only those are refused."""
    content = st.serialize(PACKED, {"k": "v"})
    assert {name: bytes(raw["data"]) for name, raw in safetensors.deserialize(content)} == {
        name: raw["data"] for name, raw in PACKED.items()
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert dict(st.deserialize(content)) == PACKED
    with st.safe_open(path) as file:
        assert file.keys() == [name for name, _ in st.deserialize(content)]
        assert file.metadata() == st.read_metadata(path) == {"k": "v"}
        assert file.get_tensor("float").tolist() == [1, 2]
        assert file.get_slice("flag")[...] == np.True_
        for name, raw in PACKED.items():
            part = file.get_slice(name)
            assert (part.get_dtype(), part.get_shape()) == (raw["dtype"], raw["shape"])
            if raw["dtype"] in SUB_BYTE:
                with pytest.raises(
                    gpt2fast.InputTypeError, match=f"'{name}': elements of dtype {raw['dtype']} are no whole"
                ):
                    file.get_tensor(name)
    for read in (lambda: st.load_file(path), lambda: st.load_file(path, mmap=True), lambda: st.load(content)):
        with pytest.raises(gpt2fast.InputTypeError, match="are no whole bytes.*safe_open"):
            read()
    assert {tensor.name: tensor.dtype for tensor in inspect(path).tensors} == {
        name: raw["dtype"] for name, raw in PACKED.items()
    }


def test_every_dtype_is_known_to_both_halves():
    """The sizes of types are in Rust, which checks headers, and in Python, which makes arrays."""
    sizes = {**{name: 8 * size for name, size in ITEM_SIZES.items()}, **SUB_BYTE}
    assert sizes.keys() == RANKS.keys()
    for dtype, bits in sizes.items():
        content = st.serialize({"w": {"dtype": dtype, "shape": [8], "data": bytes(bits)}})
        assert st.deserialize(content) == safetensors_deserialized(content)
        with pytest.raises(gpt2fast.Error, match="no whole bytes|data_offsets 0 to|follow the last"):
            st.deserialize(content.replace(b'"shape":[8]', b'"shape":[7]'))


def safetensors_deserialized(content):
    return [(name, {**raw, "data": bytes(raw["data"])}) for name, raw in safetensors.deserialize(content)]


def test_without_ml_dtypes(tmp_path):
    """Types that NumPy has only with ml_dtypes come as their bits, and are written back with `dtypes`."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(st.serialize({name: raw for name, raw in PACKED.items() if raw["dtype"] not in SUB_BYTE}))
    program = f"""
import sys
sys.modules["ml_dtypes"] = None
from gpt2fast import safetensors as st
for mmap in (False, True):
    file = st.read_file({str(path)!r}, mmap=mmap)
    assert file.tensors["brain"].dtype == "uint16" and file.tensors["brain"].tolist() == [0x3F80]
    assert file.tensors["eight"].dtype == "uint8" and file.tensors["eight"].tolist() == [0x38]
    assert st.as_float32(file.tensors["brain"], file.dtypes["brain"]).tolist() == [1]
    content = open({str(path)!r}, "rb").read()
    assert st.save(file.tensors, dtypes=file.dtypes) == content
    assert st.load(content)["eight"].dtype == "uint8"
with st.safe_open({str(path)!r}) as file:
    assert file.get_tensor("eight").tolist() == file.get_slice("eight")[:].tolist() == [0x38]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("kind", ["numbers", "objects", "lists", "dimensions", "other_fields"])
def test_no_memory_for_what_is_refused(tmp_path, kind):
    """A header that names nothing takes no more than its own size, in a process of its own that may not have more."""
    count = 3_000_000
    header = {
        "numbers": '{"a":[' + "-0," * count + "-0]}",
        "objects": '{"a":[' + "{}," * count + "{}]}",
        "lists": '{"a":[' + "[]," * count + "[]]}",
        "dimensions": '{"a":{"dtype":"F32","data_offsets":[0,0],"shape":[' + "0," * count + "0]}}",
        "other_fields": '{"a":{"dtype":"F33","data_offsets":[0,0],"shape":[],"more":[' + "{}," * count + "0]}}",
    }[kind].encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    program = f"""
import resource
from gpt2fast import Error, safetensors as st
st.save({{}})
st.load(st.save({{}}))
before = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (before + {3 * len(header) + (16 << 20)},) * 2)
try:
    st.load_file({str(path)!r})
except Error as error:
    print(str(error)[:300])
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "expected" in told.stdout or "dimensions" in told.stdout
