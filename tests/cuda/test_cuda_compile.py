"""The .cu files compile for the GPUs of today, oldest to newest, as CuPy would have it compiled.

No GPU is needed: NVRTC, NVIDIA's compiler as a library, comes as a wheel.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

import gpt2fast.model.cuda

KERNELS, CHOICE = (Path(gpt2fast.model.cuda.__file__).with_name(name) for name in ("kernels.cu", "choice.cu"))
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


def compile_for(nvrtc, source, architecture, *options):
    """The compiler's messages, with what ptxas says of each kernel."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert (
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None) == 0
    )
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


def kernels_of(source):
    """The names of the kernels in a .cu file."""
    return re.findall(r"__global__ void (\w+)", source.read_text())


def check_resources(text, registers):
    """Fail where the compiler's messages tell of a spill or of more than a thread block has."""
    assert re.findall(r"(\d+) bytes spill", text)
    assert {int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill)", text)} == {0}
    assert max(int(n) for n in re.findall(r"(\d+) bytes smem", text)) <= 48 * 1024
    assert max(int(n) for n in re.findall(r"Used (\d+) registers", text)) <= registers


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
    text = compile_for(nvrtc, KERNELS, architecture or newest(nvrtc), f"-DWEIGHTS={weights}", "-DHEAD_DIM=64")
    assert "warning" not in text
    assert sorted(re.findall(r"entry function '(\w+)'", text)) == sorted(kernels_of(KERNELS))


@pytest.mark.parametrize("architecture", [75, 80, 90, None])
def test_choices_compile(nvrtc, architecture):
    """A thread block of 1,024 threads starts only where each does with 64 registers."""
    text = compile_for(nvrtc, CHOICE, architecture or newest(nvrtc))
    assert "warning" not in text
    assert re.findall(r"entry function '(\w+)'", text) == kernels_of(CHOICE) == ["choose"]
    check_resources(text, registers=64)


@pytest.mark.parametrize("head_dim", HEADS)
def test_every_width_stays_in_registers(nvrtc, head_dim):
    """A kernel that spills is slow; one that takes more than 48 KB of shared memory does not start."""
    check_resources(compile_for(nvrtc, KERNELS, 80, "-DWEIGHTS=1", f"-DHEAD_DIM={head_dim}"), registers=255)


def test_a_mistake_is_noticed(nvrtc):
    with pytest.raises(AssertionError, match="HEAD_DIM"):
        compile_for(nvrtc, KERNELS, 80, "-DWEIGHTS=0")
