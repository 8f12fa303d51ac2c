"""Files go both ways between this package and the reference package, for every dtype, and are the same bytes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy as reference

import gpt2fast
from gpt2fast import safetensors as st
from gpt2fast.safetensors.dtypes import ITEM_SIZES

BITS = np.random.default_rng(7).integers(0, 256, 48, dtype=np.uint8)
NUMPY = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "U64": np.uint64,
    "I32": np.int32,
    "U32": np.uint32,
    "I16": np.int16,
    "U16": np.uint16,
    "I8": np.int8,
    "U8": np.uint8,
    "C64": np.complex64,
    "BOOL": np.bool_,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
both_modes = pytest.mark.parametrize("mmap", [False, True], ids=["copied", "mapped"])


def arrays(name):
    """Arrays of one dtype that hold any bits: a matrix, a vector, a scalar, and empty ones."""
    bits = BITS % 2 if name == "BOOL" else BITS
    values = bits.view(NUMPY[name])
    return {
        "matrix": values.reshape(2, -1),
        "vector": values[1:],
        "scalar": values[:1].reshape(()),
        "empty": values[:0],
        "empty_matrix": values[:0].reshape(3, 0, 2),
    }


def same(left, right):
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    assert left.tobytes() == right.tobytes()


def test_every_dtype_is_here():
    assert set(NUMPY) == set(ITEM_SIZES)


@both_modes
@pytest.mark.parametrize("name", NUMPY)
def test_read_what_we_write(tmp_path, name, mmap):
    tensors = arrays(name)
    st.save_file(tensors, tmp_path / "m.safetensors", {"dtype": name})
    file = st.read_file(tmp_path / "m.safetensors", mmap=mmap)
    assert file.metadata == {"dtype": name}
    assert set(file.dtypes.values()) == {name}
    assert file.tensors.keys() == tensors.keys()
    for key, value in tensors.items():
        same(file.tensors[key], value)


@contextmanager
def reference_of_any_age():
    """Older versions of the reference package do not have every dtype of the format."""
    try:
        yield
    except safetensors.SafetensorError as error:
        if hasattr(safetensors, "TensorSpec"):
            raise
        pytest.skip(f"this version of the reference package has not got the dtype: {error}")


def spec(array):
    if hasattr(safetensors, "TensorSpec"):  # since 0.8
        return safetensors.TensorSpec(
            dtype=array.dtype.name, shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes
        )
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": array.tobytes()}


def reference_bytes(tensors, metadata=None):
    specs = {key: spec(value) for key, value in tensors.items()}
    with reference_of_any_age():
        return bytes(safetensors.serialize(specs, metadata=metadata))


@both_modes
@pytest.mark.parametrize("name", NUMPY)
def test_read_what_the_reference_writes(tmp_path, name, mmap):
    tensors = arrays(name)
    (tmp_path / "m.safetensors").write_bytes(reference_bytes(tensors))
    file = st.read_file(tmp_path / "m.safetensors", mmap=mmap)
    assert set(file.dtypes.values()) == {name}
    for key, value in tensors.items():
        same(file.tensors[key], value)


@pytest.mark.parametrize("name", NUMPY)
def test_the_reference_reads_what_we_write(tmp_path, name):
    tensors = arrays(name)
    st.save_file(tensors, tmp_path / "m.safetensors", {"é": "ü\n\U0001f600"})
    with reference_of_any_age():
        content = dict(safetensors.deserialize((tmp_path / "m.safetensors").read_bytes()))
    assert content.keys() == tensors.keys()
    for key, value in tensors.items():
        assert (content[key]["dtype"], content[key]["shape"]) == (name, list(value.shape))
        assert bytes(content[key]["data"]) == value.tobytes()
    with safetensors.safe_open(tmp_path / "m.safetensors", "np") as file:
        assert file.metadata() == {"é": "ü\n\U0001f600"}


@pytest.mark.parametrize("name", NUMPY)
def test_same_bytes_as_the_reference(tmp_path, name):
    tensors = {**arrays(name), 'Z "\\\n\x7f é \U0001f600': np.zeros(3, np.uint8), "double": np.zeros(1)}
    st.save_file(tensors, tmp_path / "m.safetensors", {"k": "v"})
    assert (tmp_path / "m.safetensors").read_bytes() == reference_bytes(tensors, {"k": "v"})


def test_same_order_of_mixed_dtypes_as_the_reference(tmp_path):
    tensors = {f"{i}{name}": value for i in range(2) for name in NUMPY for value in [arrays(name)["matrix"]]}
    st.save_file(tensors, tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes() == reference_bytes(tensors)


def test_reference_functions_over_our_files(tmp_path):
    plain = {name: arrays(name)["matrix"] for name in NUMPY if not name.startswith(("BF16", "F8"))}
    st.save_file(plain, tmp_path / "ours.safetensors")
    with reference_of_any_age():
        reference.save_file(plain, tmp_path / "theirs.safetensors")
    for left, right in [
        (reference.load_file(tmp_path / "ours.safetensors"), plain),
        (st.load_file(tmp_path / "theirs.safetensors"), plain),
    ]:
        assert left.keys() == right.keys()
        for key in left:
            same(left[key], right[key])


def test_slices_like_the_reference(tmp_path):
    path = tmp_path / "m.safetensors"
    st.save_file({"w": np.arange(60.0).reshape(4, 3, 5)}, path)
    with st.safe_open(path, framework="np") as ours, safetensors.safe_open(path, "np") as theirs:
        assert ours.keys() == list(theirs.keys())
        left, right = ours.get_slice("w"), theirs.get_slice("w")
        assert (left.get_shape(), left.get_dtype()) == (right.get_shape(), right.get_dtype())
        for index in [np.s_[1:3], np.s_[:, 1:], np.s_[2], np.s_[1:2, :, 4]]:
            same(left[index], np.asarray(right[index]))
        same(ours.get_tensor("w"), theirs.get_tensor("w"))
        assert ours.metadata() == {}


WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np
from gpt2fast import safetensors as st
path, copy = sys.argv[1:]
file = st.read_file(path)
assert file.dtypes == {"b": "BF16", "e": "F8_E5M2"}, file.dtypes
assert file.tensors["b"].dtype == np.uint16 and file.tensors["e"].dtype == np.uint8
assert st.as_float32(file.tensors["b"], "BF16").tolist() == [1.0, -2.0]
st.save_file(file.tensors, copy, dtypes=file.dtypes)
with st.safe_open(copy) as opened:
    assert opened.get_slice("b").get_dtype() == "BF16"
    assert opened.get_tensor("b").dtype == np.uint16
"""


def test_without_ml_dtypes_the_bits_are_read_and_written(tmp_path):
    path, copy = tmp_path / "m.safetensors", tmp_path / "copy.safetensors"
    tensors = {"b": np.array([1, -2], ml_dtypes.bfloat16), "e": np.array([0.5], ml_dtypes.float8_e5m2)}
    st.save_file(tensors, path)
    subprocess.run([sys.executable, "-c", WITHOUT_ML_DTYPES, path, copy], check=True)
    assert path.read_bytes() == copy.read_bytes()


def test_importing_brings_neither_the_reference_nor_compiled_modules():
    program = (
        "import sys, gpt2fast.safetensors; "
        "found = [name for name in sys.modules if name.startswith(('ml_dtypes', 'safetensors', 'scipy', 'torch'))"
        " or name.startswith('gpt2fast.') and not sys.modules[name].__file__.endswith('.py')]; "
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("dtypes", "kind", "text"),
    [
        ({"w": "F16"}, TypeError, "dtype uint16 cannot be written as F16"),
        ({"w": "F8_E5M2"}, TypeError, "dtype uint16 cannot be written as F8_E5M2"),
        ({"w": "bf16"}, TypeError, "unknown dtype 'bf16'"),
        ({"v": "BF16"}, ValueError, "tensors that are not there: 'v'"),
    ],
)
def test_dtypes_that_do_not_fit(tmp_path, dtypes, kind, text):
    with pytest.raises(gpt2fast.Error, match=text) as caught:
        st.save_file({"w": np.zeros(2, np.uint16)}, tmp_path / "m.safetensors", dtypes=dtypes)
    assert isinstance(caught.value, kind)
    assert not list(tmp_path.iterdir())
