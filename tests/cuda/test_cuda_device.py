"""What `device="cuda"` says where there is no GPU to use, and how CuPy is called where there is one.

CuPy is a stand-in here, which refuses what CuPy refuses; where CuPy itself is installed, the names and numbers that are
used are compared with it.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import gpt2fast
from gpt2fast import DeviceError, DeviceMemoryError, Error, InputError, MissingDependencyError
from gpt2fast.model.cuda import backend, device, operations
from gpt2fast.model.cuda.device import open_device


class CUDARuntimeError(RuntimeError):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class CUBLASError(RuntimeError):
    pass


class FakeDevice:
    """cupy.cuda.Device"""

    mem_info = (3 * 2**20, 8 * 2**20)
    compute_capability = "90"
    calls = ()

    def __init__(self, index):
        self.index = index

    @property
    def cublas_handle(self):
        return 42

    def __enter__(self):
        FakeDevice.calls = [*FakeDevice.calls, self.index]
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture
def cupy(monkeypatch):
    """A stand-in for CuPy on a machine with two GPUs."""
    FakeDevice.calls = ()
    fake = ModuleType("cupy")
    fake.freed = 0
    fake.calls = []

    def free_all_blocks():
        fake.freed += 1

    def raw_module(code, options):
        fake.calls.append(("RawModule", options))
        assert "__global__ void" in code
        return SimpleNamespace(compile=lambda: fake.calls.append("compile"), get_function=lambda name: f"<{name}>")

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=lambda: 2,
        getDeviceProperties=lambda index: {"name": [b"Quadro X", b"Tesla T4"][index]},
        runtimeGetVersion=lambda: 12090,
        driverGetVersion=lambda: 12040,
    )
    cublas = SimpleNamespace(CUBLASError=CUBLASError, gemmEx=lambda *arguments: fake.calls.append(arguments))
    cuda = ModuleType("cupy.cuda")
    cuda.runtime, cuda.cublas, cuda.Device = runtime, cublas, FakeDevice
    cuda.nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))
    cuda.memory = SimpleNamespace(OutOfMemoryError=type("OutOfMemoryError", (MemoryError,), {}))
    fake.cuda, fake.RawModule = cuda, raw_module
    fake.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=free_all_blocks)
    fake.asarray = lambda array, order: (array, order)
    fake.asnumpy = lambda array: array
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return fake


def raising(error):
    def call(*_):
        raise error

    return call


def test_without_cupy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name in ("cuda", "cuda:1"):
        with pytest.raises(MissingDependencyError, match=r"pip install 'gpt2fast\[cuda12x\]'") as caught:
            gpt2fast.load("demo", device=name)
        assert str(caught.value).startswith(f"device is '{name}', which takes CuPy")


def test_the_command_line_says_so_too():
    program = "import sys; sys.modules['cupy'] = None; from gpt2fast.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "generate", "Once", "--device", "cuda"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert "gpt2fast[cuda12x]" in run.stderr
    assert "Traceback" not in run.stderr


def test_without_the_libraries_of_cuda_the_extra_is_named(cupy):
    cupy.cuda.nvrtc.getVersion = raising(RuntimeError("libnvrtc.so.12: cannot open shared object file"))
    with pytest.raises(MissingDependencyError, match=r"gpt2fast\[cuda12x\].*libnvrtc\.so\.12: cannot open"):
        open_device("cuda")


@pytest.mark.parametrize(
    ("status", "driver", "words"),
    [
        (35, 0, "device is 'cuda'; no NVIDIA driver was found"),
        (35, 11040, "the NVIDIA driver is for CUDA 11.4, CuPy's libraries are of 12.9: the driver is too old"),
        (100, 12040, "device is 'cuda'; the driver found no NVIDIA GPU"),
        (999, 12040, "device is 'cuda'; CUDA does not start: it broke"),
    ],
)
def test_a_machine_that_has_no_gpu_to_use(cupy, status, driver, words):
    cupy.cuda.runtime.getDeviceCount = raising(CUDARuntimeError(status, "it broke"))
    cupy.cuda.runtime.driverGetVersion = lambda: driver
    with pytest.raises(DeviceError, match=words) as caught:
        gpt2fast.load("demo", device="cuda")
    assert isinstance(caught.value, Error)
    assert isinstance(caught.value, RuntimeError)


def test_a_gpu_that_is_not_there(cupy):
    with pytest.raises(DeviceError, match="device is 'cuda:2'; found cuda:0 Quadro X, cuda:1 Tesla T4"):
        open_device("cuda:2")
    cupy.cuda.runtime.getDeviceCount = lambda: 0
    with pytest.raises(DeviceError, match="device is 'cuda'; found no GPU"):
        open_device("cuda")


@pytest.mark.parametrize("error", [CUBLASError("CUBLAS_STATUS_NOT_INITIALIZED"), CUDARuntimeError(46, "busy")])
def test_a_gpu_that_does_not_start(cupy, monkeypatch, error):
    monkeypatch.setattr(FakeDevice, "cublas_handle", property(raising(error)))
    with pytest.raises(DeviceError, match=f"device is 'cuda:1', which cannot be used: {error}"):
        open_device("cuda:1")


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "cuda:-1", "cuda 1", "CUDA", "gpu", 0, None])
def test_names_that_are_no_device(name):
    with pytest.raises(InputError, match="device is "):
        gpt2fast.load("demo", device=name)


def test_what_cupy_is_asked(cupy):
    found = open_device("cuda:1")
    assert (found.name, found.description, found.capability) == ("cuda:1", "cuda:1 (Tesla T4)", (9, 0))
    assert found.memory() == FakeDevice.mem_info
    do = operations.Operations(found, "float16", 64)
    assert FakeDevice.calls == [1]  # compiled for this GPU
    assert cupy.calls == [("RawModule", ("-DWEIGHTS=1", "-DHEAD_DIM=64")), "compile", ("RawModule", ()), "compile"]
    assert (do._kernels["attend"], do._kernels["choose"]) == ("<attend>", "<choose>")
    found.gemm(0, 1, 2)
    assert cupy.calls[-1] == (42, 0, 1, 2)
    array = SimpleNamespace(data=SimpleNamespace(ptr=64))
    assert found.address(array) == 64
    assert found.upload(array) == (array, "C")
    np.testing.assert_array_equal(found.download(np.arange(3)), np.arange(3))
    found.release()
    assert cupy.freed == 1


def test_cublas_that_fails_later(cupy, monkeypatch):
    """A new thread has a handle of its own, for which there may be no memory left."""
    found = open_device("cuda")
    monkeypatch.setattr(FakeDevice, "cublas_handle", property(raising(CUBLASError("CUBLAS_STATUS_ALLOC_FAILED"))))
    with pytest.raises(
        DeviceError, match=r"cuBLAS could not multiply on cuda:0 \(Quadro X\): CUBLAS_STATUS_ALLOC_FAILED"
    ):
        found.gemm(0, 1, 2)


def test_kernels_that_do_not_compile(cupy):
    cupy.RawModule = lambda code, options: SimpleNamespace(compile=raising(ValueError("nvrtc: invalid architecture")))
    with pytest.raises(
        DeviceError, match=r"kernels.cu could not be compiled for cuda:0 \(Quadro X\): nvrtc: invalid arch"
    ):
        gpt2fast.load("demo", device="cuda")


def test_bfloat16_takes_a_gpu_that_multiplies_it(cupy, monkeypatch):
    monkeypatch.setattr(FakeDevice, "compute_capability", "75")
    message = r"dtype is 'bfloat16', which takes compute capability 8.0; cuda:1 \(Tesla T4\) has 7.5"
    with pytest.raises(DeviceError, match=message):
        gpt2fast.load("demo", device="cuda:1", dtype="bfloat16")
    assert backend.CudaBackend(open_device("cuda:1"), "float16").dtype == "float16"


def test_running_out_of_memory(cupy):
    found = open_device("cuda")
    message = r"^numbers take 5.0 MiB of the memory of cuda:0 \(Quadro X\); 3.0 MiB of 8.0 are free$"
    with pytest.raises(DeviceMemoryError, match=message) as caught:
        device.within_memory(found, "numbers", 5 * 2**20, raising(found.out_of_memory()))
    assert cupy.freed == 1
    assert caught.value.__context__ is None
    assert isinstance(caught.value, MemoryError)
    with pytest.raises(ZeroDivisionError):
        device.within_memory(found, "numbers", 5, lambda: 1 / 0)
    assert device.within_memory(found, "numbers", 5, nullcontext).enter_result is None


def test_the_installed_cupy_is_as_expected():
    """Names and numbers, not behaviour: this needs no GPU."""
    cupy = pytest.importorskip("cupy")
    from cupy.cuda import cublas, runtime

    assert (cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T) == (operations._AS_IT_IS, operations._TRANSPOSED)
    assert (cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT) == (68, -1)
    assert list(operations._TYPES.values()) == [runtime.CUDA_R_32F, runtime.CUDA_R_16F, runtime.CUDA_R_16BF]
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert issubclass(runtime.CUDARuntimeError, RuntimeError)
    assert issubclass(cublas.CUBLASError, RuntimeError)
    assert "int computeType, int algo" in cublas.gemmEx.__doc__
    assert "order" in inspect.signature(cupy.asarray).parameters
    for name in ("cublas_handle", "compute_capability", "mem_info"):
        assert hasattr(cupy.cuda.Device, name)
    module = cupy.RawModule(code="", options=("-DHEAD_DIM=64",))
    assert callable(module.compile)
    assert callable(module.get_function)
