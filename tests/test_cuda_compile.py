"""kernels.cu compiles for the GPUs of today, oldest to newest, as CuPy would have it compiled.

No GPU is needed: NVRTC, NVIDIA's compiler as a library, comes as a wheel.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

import gpt2fast.cuda

SOURCE = Path(gpt2fast.cuda.__file__).with_name("kernels.cu")
# What CuPy adds to the options of a RawModule.
CUPY = ["-std=c++17", "--device-as-default-execution-space"]
HEADS = [8, 64, 80, 128, 512]


@pytest.fixture(scope="module")
def nvrtc():
    """NVRTC's shared library."""
    spec = importlib.util.find_spec("nvidia")
    found = [
        path for root in (spec.submodule_search_locations if spec else []) for path in Path(root).rglob("libnvrtc.so*")
    ]
    if not found:
        pytest.skip("the package nvidia-cuda-nvrtc-cu12 is not installed")
    return ctypes.CDLL(str(found[0]))


def compile_for(nvrtc, architecture, *options):
    """The compiler's messages, with what ptxas says of each kernel."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.read_bytes(), b"kernels.cu", 0, None, None) == 0
    everything = [f"-arch=sm_{architecture}", "--ptxas-options=-v", *CUPY, *options]
    given = (ctypes.c_char_p * len(everything))(*(option.encode() for option in everything))
    status = nvrtc.nvrtcCompileProgram(program, len(given), given)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.value.decode()
    assert status == 0, text
    assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    assert size.value > 0  # machine code, not only PTX
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return text


def newest(nvrtc):
    """The newest architecture that this NVRTC knows."""
    count = ctypes.c_int()
    assert nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    known = (ctypes.c_int * count.value)()
    assert nvrtc.nvrtcGetSupportedArchs(known) == 0
    return max(known)


@pytest.mark.parametrize("architecture", [75, 80, 90, None])
@pytest.mark.parametrize("weights", [0, 1, 2])
def test_compiles(nvrtc, architecture, weights):
    text = compile_for(nvrtc, architecture or newest(nvrtc), f"-DWEIGHTS={weights}", "-DHEAD_DIM=64")
    assert "warning" not in text
    kernels = re.findall(r"__global__ void (\w+)", SOURCE.read_text())
    assert sorted(re.findall(r"entry function '(\w+)'", text)) == sorted(kernels)
    assert kernels


@pytest.mark.parametrize("head_dim", HEADS)
def test_every_width_stays_in_registers(nvrtc, head_dim):
    """A kernel that spills is slow; one that takes more than 48 KB of shared memory does not start."""
    text = compile_for(nvrtc, 80, "-DWEIGHTS=1", f"-DHEAD_DIM={head_dim}")
    assert re.findall(r"(\d+) bytes spill", text)
    assert {int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill)", text)} == {0}
    assert max(int(n) for n in re.findall(r"(\d+) bytes smem", text)) <= 48 * 1024
    assert max(int(n) for n in re.findall(r"Used (\d+) registers", text)) <= 255


def test_a_mistake_is_noticed(nvrtc):
    with pytest.raises(AssertionError, match="HEAD_DIM"):
        compile_for(nvrtc, 80, "-DWEIGHTS=0")
