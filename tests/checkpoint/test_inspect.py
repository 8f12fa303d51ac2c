"""What `gpt2fast inspect` shows of files and directories, whole or with something wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import gpt2fast
from gpt2fast import safetensors as st
from gpt2fast.checkpoint.inspect import inspect, render_json, render_text
from gpt2fast.safetensors import files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = {"w": np.arange(1200.0).reshape(300, 4), "b": np.ones((), bool), "e": np.empty((0, 3), np.float16)}
    st.save_file(tensors, path, {"made": "here", "long": "x" * 1000})
    return path


def test_a_file(path):
    report = inspect(path)
    assert [(t.name, t.dtype, t.shape, t.size, t.nbytes, t.aligned) for t in report.tensors] == [
        ("w", "F64", (300, 4), 1200, 9600, True),
        ("e", "F16", (0, 3), 0, 0, True),
        ("b", "BOOL", (), 1, 1, True),
    ]
    content = path.read_bytes()
    w = report.tensors[0]
    assert content[w.offset : w.offset + w.nbytes] == np.arange(1200.0).tobytes()
    (file,) = report.files
    assert (file.name, file.nbytes) == ("m.safetensors", len(content))
    assert json.loads(content[8 : 8 + file.header_nbytes])["__metadata__"] == file.metadata
    assert (report.size, report.nbytes) == (1201, 9601)
    assert (report.path, report.config, report.num_parameters, report.problem) == (str(path), None, None, None)


def test_text(path):
    assert render_text(inspect(path)).splitlines() == [
        "name  dtype  shape     bytes  offset  aligned",
        "w     F64    [300, 4]  9,600   1,232  yes",
        "e     F16    [0, 3]        0  10,832  yes",
        "b     BOOL   []            1  10,832  yes",
        "",
        "3 tensors (1 F64, 1 F16, 1 BOOL), 1,201 elements, 9,601 bytes of data",
        "m.safetensors: 10,833 bytes, 1,224 of them header",
        f"metadata: long = {'x' * 160}...",
        "metadata: made = here",
    ]


def test_json(path):
    content = json.loads(render_json(inspect(path)))
    assert content["path"] == str(path)
    assert content["tensors"][0] == {
        "name": "w",
        "dtype": "F64",
        "shape": [300, 4],
        "nbytes": 9600,
        "offset": 1232,
        "aligned": True,
        "file": "m.safetensors",
    }
    assert content["files"][0]["metadata"] == {"made": "here", "long": "x" * 1000}
    assert (content["size"], content["nbytes"]) == (1201, 9601)
    assert content["config"] is content["num_parameters"] is content["problem"] is None


def test_a_gpt2(tiny):
    report = inspect(tiny / "plain")
    config = gpt2fast.Config.from_pretrained(tiny / "plain")
    assert report.problem is None
    assert report.config == config
    # The head is tied, and there are no masks: the parameters are the elements of the file.
    assert report.num_parameters == report.size
    text = render_text(report)
    assert f"n_layer={config.n_layer} n_head={config.n_head} n_embd={config.n_embd}" in text
    assert f"tied head, {report.size:,} parameters" in text
    assert json.loads(render_json(report))["config"] == config.to_dict()


def test_an_untied_head_counts(tiny):
    report = inspect(tiny / "untied")
    c = report.config
    assert report.num_parameters == inspect(tiny / "untied").size
    assert report.num_parameters > c.vocab_size * c.n_embd * 2
    assert "untied head" in render_text(report)


def test_shards(tiny, tmp_path):
    whole = inspect(tiny / "plain")
    shutil.copy(tiny / "plain" / "config.json", tmp_path)
    st.save_sharded(st.load_file(tiny / "plain" / "model.safetensors"), tmp_path, max_shard_size="100KB")
    report = inspect(tmp_path)
    assert len(report.files) > 2
    assert {t.file for t in report.tensors} == {file.name for file in report.files}
    assert {(t.name, t.shape, t.dtype) for t in report.tensors} == {(t.name, t.shape, t.dtype) for t in whole.tensors}
    assert (report.problem, report.num_parameters) == (None, whole.num_parameters)
    assert render_text(report).splitlines()[1].endswith(f"-of-{len(report.files):05d}.safetensors")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (None, "config.json: there is no such file"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"n_layer": 4}, "is missing"),
        ({"n_head": 5}, "does not divide"),
    ],
)
def test_a_directory_that_cannot_be_loaded(tiny, tmp_path, change, text):
    shutil.copy(tiny / "plain" / "model.safetensors", tmp_path)
    if change is not None:
        config = json.loads((tiny / "plain" / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | change))
    report = inspect(tmp_path)
    assert len(report.tensors) == 40
    assert text in report.problem
    assert f"cannot be loaded as a GPT-2: {report.problem}" in render_text(report)


def test_no_values_are_read(path, monkeypatch):
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\2")  # no truth value, which only reading it can find
    monkeypatch.delattr(files.mmap, "mmap")
    assert len(inspect(path).tensors) == 3
    with pytest.raises(gpt2fast.InputError):
        st.load_file(path)


def test_misaligned(data):
    report = inspect(data / "safetensors" / "st-unaligned" / "u8_then_f32_f64.safetensors")
    assert [tensor.aligned for tensor in report.tensors] == [True, True, False, True]
    assert "1 of 4 tensors not aligned: copied when mapped" in render_text(report)


def test_names_and_metadata_cannot_reach_the_terminal(tmp_path):
    st.save_file(
        {"\x1b[2J\nw": np.zeros(1), "é\U0001f600": np.zeros(1)}, tmp_path / "m", {"\x07": "\x1b]0;title\x07\r"}
    )
    text = render_text(inspect(tmp_path / "m"))
    assert all(line.isprintable() for line in text.splitlines())
    assert "\\x1b[2J\\nw" in text
    assert "é\U0001f600" in text
    assert "\\x1b]0;title\\x07\\r" in text


def test_empty(tmp_path):
    st.save_file({}, tmp_path / "m.safetensors")
    report = inspect(tmp_path / "m.safetensors")
    assert (report.tensors, report.size, report.nbytes) == ((), 0, 0)
    assert "0 tensors, 0 elements, 0 bytes of data" in render_text(report)


def test_what_is_missing_or_malformed(tmp_path):
    for missing in (tmp_path / "m.safetensors", tmp_path):
        with pytest.raises(gpt2fast.MissingFileError):
            inspect(missing)
    (tmp_path / "m.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(gpt2fast.InputError, match="Git LFS"):
        inspect(tmp_path / "m.safetensors")
    with pytest.raises(gpt2fast.InputTypeError, match="path is of type"):
        inspect(3)


def test_neither_compiled_modules_nor_scipy_are_needed():
    program = (
        "import sys, gpt2fast.inspect; found = [name for name in sys.modules if name.startswith('scipy') or "
        "name.startswith('gpt2fast.') and not sys.modules[name].__file__.endswith('.py')]; assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
