"""The device: the GPU itself, as everything above it sees it.  The only file that knows CuPy.

Above this file arrays come from `xp` and are handled as NumPy's are.  So all of it runs on a CPU with a device whose
`xp` is NumPy; that is how it is tested where there is no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gpt2fast.errors import DeviceError, DeviceMemoryError, InputError, MissingDependencyError

__all__ = ["CupyDevice", "Device", "Kernel", "open_device", "within_memory"]

T = TypeVar("T")

#: A compiled kernel: launched with the numbers of thread blocks and of threads, and its arguments, which are arrays and
#: NumPy's numbers of the very types that the kernel takes.
Kernel = Callable[[tuple[int, ...], tuple[int, ...], tuple[Any, ...]], object]

# CUDA's numbers for what went wrong.
_NO_DEVICE, _OLD_DRIVER = 100, 35


class Device(Protocol):
    """A GPU, or what stands in for one in a test."""

    #: "cuda:0", with the model of the GPU where it is for a reader.
    name: str
    description: str
    #: Major and minor compute capability.
    capability: tuple[int, int]
    #: The array module.
    xp: Any
    #: What it raises where memory runs out.
    out_of_memory: type[MemoryError]

    def current(self) -> AbstractContextManager[object]:
        """Within it, arrays are made and kernels run on this device."""
        ...

    def compile(self, path: Path, names: list[str], options: tuple[str, ...]) -> dict[str, Kernel]:
        """The kernels of those names in a .cu file."""
        ...

    def gemm(self, *arguments: int) -> None:
        """cublasGemmEx without its handle; see `Operations.product`.  Raises DeviceError where it fails."""
        ...

    def address(self, array: Any) -> int:
        """Where an array of this device begins."""
        ...

    def upload(self, array: npt.NDArray[Any]) -> Any:
        """The array in the memory of the device, in C order."""
        ...

    def download(self, array: Any) -> npt.NDArray[Any]:
        """The array in the memory of the host, once everything before is done."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and bytes in all."""
        ...

    def release(self) -> None:
        """Give memory that is kept for later arrays back to the device."""
        ...


class CupyDevice:
    """GPU number `index`, through CuPy.  Made by `open_device`, which checks that there is one."""

    def __init__(self, cupy: Any, cublas: Any, index: int) -> None:
        self.xp = cupy
        self.out_of_memory = cupy.cuda.memory.OutOfMemoryError
        self.name = f"cuda:{index}"
        self._cublas = cublas
        self._device = cupy.cuda.Device(index)
        digits = self._device.compute_capability  # "90"
        self.capability = int(digits[:-1]), int(digits[-1])
        model = cupy.cuda.runtime.getDeviceProperties(index)["name"].decode()
        self.description = f"{self.name} ({model})"
        _ = self._device.cublas_handle  # takes memory of its own: better missed here than in the middle of a text

    def current(self) -> AbstractContextManager[object]:
        return self._device  # type: ignore[no-any-return]

    def compile(self, path: Path, names: list[str], options: tuple[str, ...]) -> dict[str, Kernel]:
        # CuPy keeps what it compiled in ~/.cupy/kernel_cache, by source, options and kind of GPU.
        module = self.xp.RawModule(code=path.read_text(encoding="ascii"), options=options)
        try:
            module.compile()
        except Exception as error:  # of NVRTC, of the driver, or of CuPy, which has no common base for them
            raise DeviceError(f"{path.name} could not be compiled for {self.description}: {error}") from error
        return {name: module.get_function(name) for name in names}

    def gemm(self, *arguments: int) -> None:
        try:
            # CuPy makes a handle for each thread, with memory that is not of its pool.
            self._cublas.gemmEx(self._device.cublas_handle, *arguments)
        except self._cublas.CUBLASError as error:
            raise DeviceError(f"cuBLAS could not multiply on {self.description}: {error}") from error

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def upload(self, array: npt.NDArray[Any]) -> Any:
        return self.xp.asarray(array, order="C")

    def download(self, array: Any) -> npt.NDArray[Any]:
        return np.asarray(self.xp.asnumpy(array))

    def memory(self) -> tuple[int, int]:
        free, total = self._device.mem_info
        return int(free), int(total)

    def release(self) -> None:
        with self._device:
            self.xp.get_default_memory_pool().free_all_blocks()


def open_device(name: str) -> Device:
    """The device of that name: "cuda", the first GPU, or "cuda:1", counted from 0.

    Raises InputError for another name, MissingDependencyError where CuPy or a library of CUDA is missing, and
    DeviceError, saying what was found, where there is no such GPU or the driver is too old.
    """
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise InputError(f"device is {name!r}; expected 'cpu', 'cuda' or 'cuda:' and a number")
    index = int(match[1] or 0)
    try:
        import cupy
        from cupy.cuda import cublas, nvrtc

        nvrtc.getVersion()
    except Exception as error:  # ImportError, or what a loader raises that finds half an installation
        raise MissingDependencyError(
            f"device is {name!r}, which takes CuPy: pip install 'gpt2fast[cuda12x]', or 'gpt2fast[cuda13x]' where the "
            f"driver is for CUDA 13 ({error})"
        ) from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"device is {name!r}; {_why_not(runtime, error)}") from error
    if index >= count:
        found = [runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
        there = ", ".join(f"cuda:{i} {model}" for i, model in enumerate(found)) or "no GPU"
        raise DeviceError(f"device is {name!r}; found {there}")
    try:
        return CupyDevice(cupy, cublas, index)
    except (runtime.CUDARuntimeError, cublas.CUBLASError) as error:
        raise DeviceError(f"device is {name!r}, which cannot be used: {error}") from error


def _why_not(runtime: Any, error: Any) -> str:
    if error.status == _NO_DEVICE:
        return "the driver found no NVIDIA GPU"
    if error.status == _OLD_DRIVER:
        needed, found = _version(runtime.runtimeGetVersion()), runtime.driverGetVersion()
        if found == 0:
            return "no NVIDIA driver was found"
        return (
            f"the NVIDIA driver is for CUDA {_version(found)}, CuPy's libraries are of {needed}: the driver is too old"
        )
    return f"CUDA does not start: {error}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def within_memory(device: Device, what: str, size: int, call: Callable[[], T]) -> T:
    """What `call` returns; where it runs out of the device's memory, DeviceMemoryError says how much it needed.

    By then everything that the call had taken is given back.  So that nothing holds it, not even the error that says
    so, this is no context manager: the traceback of an error that one raises leads to the frames of the block.
    """
    try:
        with device.current():
            return call()
    except device.out_of_memory:
        pass
    device.release()
    free, total = device.memory()
    raise DeviceMemoryError(
        f"{what} take {size / 2**20:,.1f} MiB of the memory of {device.description}; {free / 2**20:,.1f} MiB of "
        f"{total / 2**20:,.1f} are free"
    )
