"""Trouble that other projects had with safetensors files: each of their files is read, or refused, as it should be."""

from __future__ import annotations

import json
import os
import resource

import numpy as np
import pytest
from paths import DATA

import gpt2fast
from gpt2fast import safetensors as st

FILES = DATA / "safetensors"
CASES = {case["id"]: case for case in json.loads((FILES / "cases.json").read_text())}

REFUSED = [
    *(FILES / "st-layout" / name for name in CASES["st-layout"]["input"]["reject"]),
    *(FILES / "st-header-types" / name for name in CASES["st-header-types"]["input"]["files"]),
    *(FILES / "st-bad-start" / name for name in CASES["st-bad-start"]["input"]["files"]),
]
ACCEPTED = [
    *((FILES / "st-layout" / name, value) for name, value in CASES["st-layout"]["expected"]["accept"].items()),
    *((FILES / "st-metadata" / name, value) for name, value in CASES["st-metadata"]["expected"]["tensors"].items()),
    *((FILES / "st-unaligned" / name, value) for name, value in CASES["st-unaligned"]["expected"]["tensors"].items()),
]
both_modes = pytest.mark.parametrize("mmap", [False, True], ids=["copied", "mapped"])


def test_no_file_is_left_out():
    listed = {*REFUSED, *(path for path, _ in ACCEPTED), FILES / "st-bf16-f16" / "values.safetensors"}
    assert listed == set(FILES.glob("st-*/*"))


@both_modes
@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path.stem)
def test_refused(path, mmap):
    for read in (lambda: st.load_file(path, mmap=mmap), lambda: st.read_metadata(path), lambda: st.safe_open(path)):
        with pytest.raises(gpt2fast.Error) as caught:
            read()
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, TypeError if "dtype" in path.stem or "lowercase" in path.stem else ValueError)


@both_modes
@pytest.mark.parametrize(("path", "expected"), ACCEPTED, ids=[path.stem for path, _ in ACCEPTED])
def test_accepted(path, expected, mmap):
    file = st.read_file(path, mmap=mmap)
    assert set(file.tensors) == set(file.dtypes) == set(expected)
    for name, value in expected.items():
        tensor = file.tensors[name]
        assert (file.dtypes[name], list(tensor.shape)) == (value["dtype"], value["shape"])
        assert tensor.tobytes().hex() == value["data_hex"]
        assert tensor.flags.aligned
        assert tensor.flags.writeable
        assert tensor.flags.c_contiguous
    wanted = CASES["st-metadata"]["expected"]["metadata"].get(path.name)
    if path.parent.name == "st-metadata" and wanted is None:
        wanted = {}
    if wanted is not None:
        assert file.metadata == st.read_metadata(path) == wanted


@both_modes
@pytest.mark.parametrize("name", ["odd_header_len", "u8_then_f32_f64"])
def test_unaligned_tensors_compute(name, mmap):
    w = st.load_file(FILES / "st-unaligned" / f"{name}.safetensors", mmap=mmap)["w"]
    assert w.sum() == -0.5
    assert w @ w == 1.5 * 1.5 + 4


def test_half_precision_values():
    expected = CASES["st-bf16-f16"]["expected"]
    with st.safe_open(FILES / "st-bf16-f16" / "values.safetensors") as file:
        for name in ("bf", "h"):
            wide = st.as_float32(file.get_tensor(name), file.get_slice(name).get_dtype())
            wanted = np.array([int(text, 16) for text in expected[f"{name}_u32_hex"]], np.uint32).view(np.float32)
            np.testing.assert_array_equal(wide, wanted)
            np.testing.assert_array_equal(np.signbit(wide), np.signbit(wanted))


def test_messages_say_what_the_file_is():
    def message(name):
        with pytest.raises(gpt2fast.InputError) as caught:
            st.load_file(FILES / "st-bad-start" / f"{name}.safetensors")
        return str(caught.value)

    assert "Git LFS pointer" in message("git_lfs_pointer")
    assert "PyTorch" in message("zip_pickle")
    assert "HTML" in message("html_error_page")
    assert "truncated" in message("length_past_eof")
    assert "big-endian" in message("length_big_endian")
    assert "zeros" in message("eight_zero_bytes")


def test_header_over_the_limit_is_refused_however_long_the_file(tmp_path):
    path = tmp_path / "long.safetensors"
    with path.open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little") + b'{"w":')
        file.truncate(300_000_000)  # sparse
    for mmap in (False, True):
        with pytest.raises(gpt2fast.InputError, match="limit is 100000000"):
            st.load_file(path, mmap=mmap)


def test_writing_only_metadata(tmp_path):
    st.save_file({}, tmp_path / "m.safetensors", {"k": "v"})
    assert st.read_file(tmp_path / "m.safetensors") == ({}, {"k": "v"}, {})


@both_modes
def test_saving_over_the_file_the_arrays_come_from(tmp_path, mmap):
    path = tmp_path / "m.safetensors"
    large = np.arange(250_000, dtype=np.float32)
    st.save_file({"w": np.float32([1, 2, 3]), "large": large}, path)
    tensors = st.load_file(path, mmap=mmap)
    st.save_file({**tensors, "c": np.float32([9])}, path)
    after = st.load_file(path)
    assert tensors["w"].tolist() == after["w"].tolist() == [1, 2, 3]
    assert after["c"].tolist() == [9]
    np.testing.assert_array_equal(tensors["large"], large)
    np.testing.assert_array_equal(after["large"], large)


@both_modes
def test_failing_half_way_over_the_file_the_arrays_come_from(tmp_path, mmap):
    path = tmp_path / "m.safetensors"
    large = np.arange(250_000, dtype=np.float32)
    st.save_file({"w": np.float32([1, 2, 3]), "large": large}, path)
    before = path.read_bytes()
    tensors = st.load_file(path, mmap=mmap)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            st.save_file({**tensors, "c": np.float32([9])}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.safetensors"]
    np.testing.assert_array_equal(tensors["large"], large)
