"""Malformed safetensors files: every one is refused in every way of reading, with an error that says where."""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time

import numpy as np
import pytest

import gpt2fast
from gpt2fast import safetensors as st


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def text_entry(dtype='"F32"', shape="[2]", offsets="[0,8]"):
    return f'{{"w":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}'


E8 = bytes(8)
HUGE = "9" * 10_000

# name: header (an object or its text), data
HEADERS = {
    # JSON
    "not_closed": ('{"w":', b""),
    "single_quotes": ("{'w':1}", b""),
    "trailing_comma": ('{"__metadata__":{},}', b""),
    "comment": ("{}/**/", b""),
    "two_objects": ("{}{}", b""),
    "leading_space": (" {}", b""),
    "leading_newline": ("\n{}", b""),
    "root_string": ('"w"', b""),
    "root_null": ("null", b""),
    "nul_inside": ('{"a\0b":{}}', b""),
    "control_character": ('{"a\x01":{}}', b""),
    "bad_escape": ('{"\\x":{}}', b""),
    "half_escape": ('{"\\u12', b""),
    "utf16": (text_entry().encode("utf-16-le"), E8),
    "latin1": ('{"é":1}'.encode("latin-1"), b""),
    "overlong_utf8": (b'{"\xc0\xaf":1}', b""),
    "surrogate_utf8": (b'{"\xed\xa0\x80":1}', b""),
    "surrogate_name": (text_entry().replace('"w"', '"\\ud800"'), E8),
    "surrogate_metadata": ('{"__metadata__":{"a":"\\udfff"}}', b""),
    "surrogate_metadata_key": ('{"__metadata__":{"\\udabc":"a"}}', b""),
    "nan": (text_entry(shape="[NaN]"), E8),
    "infinity": (text_entry(shape="[Infinity]"), E8),
    "nan_in_extra_field": (text_entry()[:-2] + ',"x":NaN}}', E8),
    "deep_lists": ('{"w":' + "[" * 200_000 + "]" * 200_000 + "}", b""),
    "deep_objects": ('{"w":' * 100_000 + "1" + "}" * 100_000, b""),
    "deep_extra_field": (text_entry()[:-2] + ',"x":' + "[" * 100_000 + "]" * 100_000 + "}}", E8),
    # duplicate keys
    "tensor_twice": ('{"w":%s,"w":%s}' % ((json.dumps(entry()),) * 2), E8),
    "tensor_twice_escaped": ('{"w":%s,"\\u0077":%s}' % ((json.dumps(entry()),) * 2), E8),
    "dtype_twice": (text_entry()[:-2] + ',"dtype":"F32"}}', E8),
    "shape_twice": (text_entry()[:-2] + ',"shape":[2]}}', E8),
    "metadata_twice": ('{"__metadata__":{},"__metadata__":{}}', b""),
    "metadata_key_twice": ('{"__metadata__":{"a":"b","a":"c"}}', b""),
    "extra_field_twice": (text_entry()[:-2] + ',"x":1,"x":1}}', E8),
    # metadata
    "metadata_list": ({"__metadata__": []}, b""),
    "metadata_string": ({"__metadata__": "x"}, b""),
    "metadata_number": ({"__metadata__": {"a": 1}}, b""),
    "metadata_float": ('{"__metadata__":{"a":1.5}}', b""),
    "metadata_long_number": (f'{{"__metadata__":{{"a":{HUGE}}}}}', b""),
    "metadata_null_value": ({"__metadata__": {"a": None}}, b""),
    "metadata_nested": ({"__metadata__": {"a": {}}}, b""),
    "metadata_is_a_tensor": ({"__metadata__": entry()}, E8),
    # entries
    "entry_null": ({"w": None}, b""),
    "entry_string": ({"w": "F32"}, b""),
    "entry_list": ({"w": ["F32", [2], [0, 8]]}, E8),
    "entry_empty": ({"w": {}}, b""),
    "no_dtype": ({"w": {"shape": [2], "data_offsets": [0, 8]}}, E8),
    "no_offsets": ({"w": {"dtype": "F32", "shape": [2]}}, E8),
    "dtype_number": (text_entry(dtype="32"), E8),
    "dtype_float": (text_entry(dtype="1.5"), E8),
    "dtype_null": (text_entry(dtype="null"), E8),
    "dtype_list": (text_entry(dtype='["F32"]'), E8),
    "shape_null": (text_entry(shape="null"), E8),
    "shape_number": (text_entry(shape="2"), E8),
    "shape_object": (text_entry(shape='{"0":2}'), E8),
    "shape_string": (text_entry(shape='"2"'), E8),
    "dimension_null": (text_entry(shape="[null]"), E8),
    "dimension_list": (text_entry(shape="[[2]]"), E8),
    "dimension_bool": (text_entry(shape="[2,true]"), E8),
    "dimension_negative": (text_entry(shape="[-2]"), E8),
    "dimension_negative_zero": (text_entry(shape="[-0]", offsets="[0,0]"), b""),
    "dimension_float": (text_entry(shape="[2.0]"), E8),
    "dimension_exponent": (text_entry(shape="[2E0]"), E8),
    "dimension_leading_zero": (text_entry(shape="[02]"), E8),
    "dimension_plus": (text_entry(shape="[+2]"), E8),
    "dimension_hex": (text_entry(shape="[0x2]"), E8),
    "dimension_huge": (text_entry(shape=f"[{HUGE}]"), E8),
    "dimension_huge_negative": (text_entry(shape=f"[-{HUGE}]"), E8),
    "dimension_huge_float": (text_entry(shape=f"[{HUGE}.5e{HUGE}]"), E8),
    "product_wraps_to_2": (text_entry(shape=f"[{2**63 + 1},2]"), E8),
    "product_wraps_to_0": (text_entry(shape="[4294967296,4294967296]", offsets="[0,0]"), b""),
    "bytes_wrap_to_8": (text_entry(shape=f"[{2**62 + 2}]"), E8),
    "empty_but_too_large": (text_entry(shape=f"[{2**40},{2**40},0]", offsets="[0,0]"), b""),
    "empty_first_but_too_large": (text_entry(shape=f"[0,{2**63}]", offsets="[0,0]"), b""),
    "many_dimensions": (text_entry(shape=str([1] * 65), offsets="[0,4]"), bytes(4)),
    "thousands_of_huge_dimensions": (text_entry(shape=str([2**63] * 20_000)), E8),
    # offsets
    "offsets_null": (text_entry(offsets="null"), E8),
    "offsets_string": (text_entry(offsets='"0,8"'), E8),
    "offsets_object": (text_entry(offsets='{"begin":0,"end":8}'), E8),
    "one_offset": (text_entry(offsets="[8]"), E8),
    "no_offset": (text_entry(offsets="[]"), E8),
    "offset_bool": (text_entry(offsets="[false,8]"), E8),
    "offset_float": (text_entry(offsets="[0,8.0]"), E8),
    "offset_string": (text_entry(offsets='[0,"8"]'), E8),
    "offset_null": (text_entry(offsets="[null,8]"), E8),
    "offset_negative": (text_entry(offsets="[-8,0]"), E8),
    "offset_huge": (text_entry(offsets=f"[0,{HUGE}]"), E8),
    "offsets_swapped": (text_entry(offsets="[8,0]"), E8),
    "offsets_swapped_empty": (text_entry(shape="[0]", offsets="[8,0]"), E8),
    "offsets_wrap": (text_entry(offsets=f"[{2**64 - 4},4]"), E8),
    "too_few_bytes": (text_entry(offsets="[0,4]"), bytes(4)),
    "too_many_bytes": (text_entry(offsets="[0,16]"), bytes(16)),
    "scalar_of_two": (text_entry(shape="[]"), E8),
    "empty_with_bytes": (text_entry(shape="[0]"), E8),
    # layout
    "past_the_end": (text_entry(), bytes(7)),
    "no_data": (text_entry(), b""),
    "starts_late": (text_entry(offsets="[4,12]"), bytes(12)),
    "starts_past_the_end": (text_entry(offsets="[100,108]"), E8),
    "empty_past_the_end": (text_entry(shape="[0]", offsets="[8,8]"), b""),
    "one_byte_over": (text_entry(), bytes(9)),
    "half_a_byte": ({"w": entry("F4", (3,), (0, 2))}, b"\0\0"),
    "bits_of_two_bytes": ({"w": entry("F6_E3M2", (2,), (0, 2))}, b"\0\0"),
    "data_without_tensors": ({}, b"\0"),
    "two_overlap": ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)),
    "two_gap": ({"a": entry(), "b": entry(offsets=(9, 17))}, bytes(17)),
    "same_place": ({"a": entry(), "b": entry()}, E8),
    "one_inside_the_other": ({"a": entry(shape=(4,), offsets=(0, 16)), "b": entry(offsets=(4, 12))}, bytes(16)),
    "empty_inside": ({"a": entry(), "b": entry(shape=(0,), offsets=(1, 1))}, E8),
    "metadata_tensor_hides_a_gap": ({"__metadata__": None, "b": entry(offsets=(8, 16))}, bytes(16)),
    # values
    "bool_2": ({"w": entry("BOOL", (3,), (0, 3))}, b"\0\1\2"),
    "bool_255": ({"w": entry("BOOL", (), (0, 1))}, b"\xff"),
}
TYPE_ERRORS = {
    "dtype_empty": ({"w": entry("")}, E8),
    "dtype_torch": ({"w": entry("float32")}, E8),
    "dtype_spaces": ({"w": entry(" F32")}, E8),
    "dtype_sub_byte": ({"w": entry("F4", (2,), (0, 1))}, b"\0"),
    "dtype_six_bits": ({"w": entry("F6_E2M3", (4,), (0, 3))}, b"\0" * 3),
    "dtype_long": ({"w": entry("F" * 100_000)}, E8),
}
# Of these only the values are refused: the file's other tensors can be read.
SUB_BYTE = ("dtype_sub_byte", "dtype_six_bits")
both_modes = pytest.mark.parametrize("mmap", [False, True], ids=["copied", "mapped"])


def write(path, header, data=b"", length=None):
    if isinstance(header, dict):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def refuse(path, kind, mmap):
    with pytest.raises(gpt2fast.Error) as caught:
        st.read_file(path, mmap=mmap)
    error = caught.value
    assert isinstance(error, kind)
    assert str(error).startswith(str(path))
    assert len(str(error)) < 2000 + len(str(path))
    assert str(error).isprintable()
    return str(error)


@both_modes
@pytest.mark.parametrize("name", HEADERS)
def test_content_error(tmp_path, name, mmap):
    refuse(write(tmp_path / "m.safetensors", *HEADERS[name]), ValueError, mmap)


@both_modes
@pytest.mark.parametrize("name", TYPE_ERRORS)
def test_dtype_error(tmp_path, name, mmap):
    assert "tensor 'w'" in refuse(write(tmp_path / "m.safetensors", *TYPE_ERRORS[name]), TypeError, mmap)


def test_the_frame_of_these_tests_is_accepted(tmp_path):
    # Each malformed header above is this one with one thing wrong; were the frame at fault, they would prove nothing.
    write(tmp_path / "m.safetensors", text_entry(), E8)
    assert st.load_file(tmp_path / "m.safetensors")["w"].tolist() == [0, 0]
    assert len(HEADERS) > 60


@pytest.mark.parametrize(
    "name", [name for name in (*HEADERS, *TYPE_ERRORS) if name not in ("bool_2", "bool_255", *SUB_BYTE)]
)
def test_refused_before_any_data_is_read(tmp_path, name):
    path = write(tmp_path / "m.safetensors", *{**HEADERS, **TYPE_ERRORS}[name])
    for read in (st.read_metadata, st.safe_open):
        with pytest.raises(gpt2fast.Error):
            read(path)


def test_bool_bytes_are_checked_in_slices(tmp_path):
    path = write(tmp_path / "m.safetensors", {"w": entry("BOOL", (2, 2), (0, 4))}, b"\0\1\0\3")
    with st.safe_open(path) as file:
        assert file.get_slice("w")[0].tolist() == [False, True]
        for read in (lambda: file.get_tensor("w"), lambda: file.get_slice("w")[1, 1:]):
            with pytest.raises(gpt2fast.InputError, match="byte of 3"):
                read()


@both_modes
@pytest.mark.parametrize("length", [1, 7, 53, 55, 2**31, 2**32 + 54, 2**63, 2**63 + 54, 2**64 - 8, 2**64 - 1])
def test_header_length_that_lies(tmp_path, length, mmap):
    assert len(text_entry()) == 54
    refuse(write(tmp_path / "m.safetensors", text_entry(), E8, length), ValueError, mmap)


@both_modes
def test_every_truncation_is_refused(tmp_path, mmap):
    path = tmp_path / "m.safetensors"
    st.save_file({"a": np.arange(3.0), "b": np.ones(2, bool)}, path, {"k": "v"})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        message = refuse(path, ValueError, mmap)
        if size > 8:
            assert "truncated" in message
    path.write_bytes(whole + b"\0")
    assert "1 bytes follow the last tensor" in refuse(path, ValueError, mmap)


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"PK\x03\x04\x00\x00\x08\x08archive/data.pkl", "PyTorch"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "pickle"),
        (b"<!DOCTYPE html><html>404", "HTML"),
        (b"\n\n<HTML><head>", "HTML"),
        (b'{"error":"Repository not found"}', "JSON text"),
        (b"GGUF\x03\0\0\0\0\0\0\0", "GGUF"),
        (b"\x89HDF\r\n\x1a\n\0\0\0\0", "HDF5"),
        (b"\0" * 64, "zeros"),
        (b"\0" * 7 + b"\x02{}", "big-endian"),
    ],
)
def test_message_names_other_kinds_of_files(tmp_path, start, what):
    path = tmp_path / "m.safetensors"
    path.write_bytes(start)
    assert what in refuse(path, ValueError, False)


def test_messages_name_tensor_and_numbers(tmp_path):
    def message(name):
        return refuse(write(tmp_path / "m.safetensors", *HEADERS[name]), ValueError, False)

    assert "tensor 'w': shape has -2" in message("dimension_negative")
    assert "F32 of shape [2] takes 8 bytes, data_offsets 0 to 4 hold 4" in message("too_few_bytes")
    assert "tensor 'b': starts at byte 4 of the data and overlaps" in message("two_overlap")
    assert "tensor 'b': starts at byte 9 of the data and leaves a gap" in message("two_gap")
    assert "describes 8 bytes of data, the file holds 7" in message("past_the_end")
    assert "'w' occurs twice" in message("tensor_twice_escaped")
    assert "nested too deeply" in message("deep_lists")
    assert "F4 of shape [3] takes 12 bits, which are no whole bytes" in message("half_a_byte")
    assert "overlaps" not in message("offsets_wrap")


def test_names_in_messages_are_escaped_and_short(tmp_path):
    name = "\n\x1b[31m" + "x" * 10_000
    message = refuse(write(tmp_path / "m.safetensors", {name: entry("F32", (-1,))}, E8), ValueError, False)
    assert "'\\n\\x1b[31mxxx" in message
    assert len(message) < 400


def test_long_numbers_take_no_time(tmp_path):
    digits = "9" * 10_000_000
    for text in (digits, f"-{digits}", f"{digits}.5", f"1e{digits}", f"0.{digits}"):
        path = write(tmp_path / "m.safetensors", text_entry(shape=f"[{text}]"), E8)
        start = time.perf_counter()
        refuse(path, ValueError, False)
        assert time.perf_counter() - start < 5  # int() of the first takes minutes


@pytest.mark.parametrize("mode", ["shape", "offsets"])
def test_unsafe_integer_limits_are_not_met(tmp_path, mode):
    # Python refuses to convert numbers of over 4300 digits with a ValueError of its own; with the limit off it is slow.
    limit = sys.get_int_max_str_digits() if hasattr(sys, "get_int_max_str_digits") else None
    path = write(tmp_path / "m.safetensors", text_entry(**{mode: f"[0,{HUGE}]"}), E8)
    assert "Exceeds the limit" not in refuse(path, ValueError, False)
    if limit is not None:
        sys.set_int_max_str_digits(0)
        try:
            refuse(path, ValueError, False)
        finally:
            sys.set_int_max_str_digits(limit)


def test_not_a_file(tmp_path):
    with pytest.raises(gpt2fast.MissingFileError, match="no such file"):
        st.load_file(tmp_path / "missing.safetensors")
    (tmp_path / "file").touch()
    with pytest.raises(gpt2fast.MissingFileError, match="no such file"):
        st.load_file(tmp_path / "file" / "m.safetensors")
    with pytest.raises(gpt2fast.InputError, match="is a directory"):
        st.load_file(tmp_path)
    with pytest.raises(gpt2fast.InputError, match="not a regular file"):
        st.load_file("/dev/zero")
    for name in ("a\0b", "a\ud800"):
        with pytest.raises(gpt2fast.InputError, match="^'a.*not a path"):
            st.load_file(name)
    for path in (3, None, ["m.safetensors"]):
        with pytest.raises(gpt2fast.InputTypeError, match="path is of type"):
            st.load_file(path)


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    caught = []

    def read():
        try:
            st.load_file(tmp_path / "pipe")
        except gpt2fast.InputError as error:
            caught.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert "not a regular file" in str(caught[0])


def test_no_file_stays_open_after_an_error(tmp_path):
    path = write(tmp_path / "m.safetensors", "[]")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        for read in (st.load_file, st.safe_open, st.read_metadata, lambda path: st.load_file(path, mmap=True)):
            with pytest.raises(gpt2fast.InputError):
                read(path)
    assert not before or len(os.listdir("/proc/self/fd")) == before
