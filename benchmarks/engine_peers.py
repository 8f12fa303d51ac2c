"""The contestants of benchmarks/engine.py, one class each, and the process that each of them lives in.

    python benchmarks/engine_peers.py convert NAME DIRECTORY
    python benchmarks/engine_peers.py serve NAME DIRECTORY THREADS DEVICE STARTED

The second answers lines of JSON, `["prefill", 128]` or `["decode", 32, 8]`, with seconds.  This file imports nothing
heavy: what a contestant's process takes and needs is then the contestant's own.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 50257


def some_ids(length: int, batch: int = 1) -> np.ndarray:
    """`batch` equal texts of different ids; speed does not depend on which."""
    return np.tile(np.arange(length) * 37 % VOCABULARY, (batch, 1))


def checkpoint(directory: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The weights and the configuration, for whoever converts them."""
    from gpt2fast import safetensors

    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return safetensors.load_file(directory / "model.safetensors"), config


class Contestant:
    """An engine with a checkpoint loaded.  `read` and `step` are what it brings; the rest follows from them."""

    needs: ClassVar[tuple[str, ...]] = ()  # modules
    kinds: ClassVar[tuple[str, ...]] = ()  # what its weights may be kept as
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def __init__(self, directory: Path, kind: str, threads: int, device: str) -> None:
        raise NotImplementedError

    @staticmethod
    def convert(directory: Path, kind: str) -> None:
        """Write what the engine reads, where that is not the checkpoint itself."""

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Forget everything and read texts of equal length, (B, T); the logits after each, (B, vocabulary)."""
        raise NotImplementedError

    def step(self, ids: np.ndarray) -> np.ndarray:
        """Read one more token of each text, (B,); the logits after it."""
        raise NotImplementedError

    def first(self) -> None:
        """Read a short text."""
        self.read(some_ids(5))

    def logits(self, ids: np.ndarray) -> list[np.ndarray]:
        """The logits after a text that is read at once, and after the same text with its last token from the cache."""
        whole = self.read(ids[None])[0].copy()
        self.read(ids[None, :-1])
        return [whole, self.step(ids[-1:])[0]]

    def error(self, expected: str) -> float:
        """The largest difference of these logits from those in the tests' file `expected`."""
        with np.load(expected) as file:
            return max(float(np.abs(found - file["last_logits_1"]).max()) for found in self.logits(file["ids_1"]))

    def prefill(self, length: int) -> float:
        """Seconds to read a text of that length."""
        self.first()  # wakes the threads
        return _median_seconds(lambda: self.read(some_ids(length)), max(1, 128 // length))

    def decode(self, length: int, batch: int) -> float:
        """Seconds for one more token of each of `batch` texts, after `length` tokens each."""
        self.read(some_ids(length, batch))
        for _ in range(3):
            self.step(np.full(batch, 5))
        return _median_seconds(lambda: self.step(np.full(batch, 5)), 15)

    def sustained(self, length: int, steps: int) -> float:
        """Seconds for one more token of one text, the mean of many: with every time that it had to wait."""
        self.read(some_ids(length))
        start = time.perf_counter()
        for _ in range(steps):
            self.step(np.array([5]))
        return (time.perf_counter() - start) / steps

    def peak_memory(self) -> int:
        """Bytes that the process has taken at most, so far."""
        status = Path("/proc/self/status")
        if status.exists():  # getrusage counts what the process was before exec, too: its parent's memory
            return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _median_seconds(call: Callable[[], object], times: int) -> float:
    """The median of that many calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


class Gpt2fast(Contestant):
    kinds = ("float32", "float32 blas", "bfloat16", "int8", "int4", "float16")
    devices = ("cpu", "cuda")

    def __init__(self, directory: Path, kind: str, threads: int, device: str) -> None:
        from gpt2fast.model.gpt2 import GPT2

        dtype, _, gemm = kind.partition(" ")
        self.model = GPT2.from_pretrained(
            directory, dtype=dtype, gemm=gemm or "panel", num_threads=threads, device=device
        )

    def read(self, ids: np.ndarray) -> np.ndarray:
        self._cache = self.model.new_cache(len(ids))
        return self.model(ids, self._cache, last_only=True)

    def step(self, ids: np.ndarray) -> np.ndarray:
        return self.model(ids[:, None], self._cache, last_only=True)


class Transformers(Contestant):
    needs = ("torch", "transformers")
    kinds = ("float32", "bfloat16", "float16")
    devices = ("cpu", "cuda")

    def __init__(self, directory: Path, kind: str, threads: int, device: str) -> None:
        import torch
        from transformers import GPT2LMHeadModel

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._torch, self._device = torch, device
        self._model = GPT2LMHeadModel.from_pretrained(directory, dtype=getattr(torch, kind)).eval().to(device)

    def read(self, ids: np.ndarray) -> np.ndarray:
        self._cache = None
        return self._run(ids)

    def step(self, ids: np.ndarray) -> np.ndarray:
        return self._run(ids[:, None])

    def _run(self, ids: np.ndarray) -> np.ndarray:
        given = self._torch.from_numpy(ids).to(self._device)
        out = self._model(given, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = out.past_key_values
        return out.logits[:, -1].float().cpu().numpy()


class CTranslate2(Contestant):
    """It decodes in one call, so that a token's time is that of many, less that of one."""

    needs = ("ctranslate2", "transformers")
    kinds = ("float32", "int8")

    def __init__(self, directory: Path, kind: str, threads: int, device: str) -> None:
        import ctranslate2

        path = directory / f"ct2-{kind}"
        self._model = ctranslate2.Generator(str(path), compute_type=kind, intra_threads=threads, inter_threads=1)
        self._tokens: list[str] = json.loads((path / "vocabulary.json").read_text(encoding="utf-8"))

    @staticmethod
    def convert(directory: Path, kind: str) -> None:
        import ctranslate2

        path = directory / f"ct2-{kind}"
        if not path.is_dir():
            ctranslate2.converters.TransformersConverter(str(directory)).convert(str(path), quantization=kind)

    def first(self) -> None:
        self._seconds(5, 1, 1)

    def logits(self, ids: np.ndarray) -> list[np.ndarray]:
        return [np.array(self._model.forward_batch([self._named(ids)]))[0, -1]]

    def prefill(self, length: int) -> float:
        return statistics.median(self._seconds(length, 1, 1) for _ in range(max(1, 128 // length)))

    def decode(self, length: int, batch: int) -> float:
        return self._seconds_of_steps(length, batch, 16)

    def sustained(self, length: int, steps: int) -> float:
        return self._seconds_of_steps(length, 1, steps)

    def _seconds_of_steps(self, length: int, batch: int, steps: int) -> float:
        return (self._seconds(length, batch, steps + 1) - self._seconds(length, batch, 1)) / steps

    def _seconds(self, length: int, batch: int, new: int) -> float:
        prompts = [self._named(ids) for ids in some_ids(length, batch)]
        start = time.perf_counter()
        self._model.generate_batch(
            prompts, max_length=new, min_length=new, include_prompt_in_result=False, max_batch_size=batch
        )
        return time.perf_counter() - start

    def _named(self, ids: np.ndarray) -> list[str]:
        return [self._tokens[i] for i in ids]


class Onnxruntime(Contestant):
    """The cache is given and comes back longer, as in the graphs that exporters write."""

    needs = ("onnxruntime", "onnx")
    kinds = ("float32", "int8")

    def __init__(self, directory: Path, kind: str, threads: int, device: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(directory / "onnx" / f"{kind}.onnx"), options)
        self._names = [given.name for given in self._session.get_inputs()[1:]]
        self._heads, _, self._size = self._session.get_inputs()[1].shape[1:]

    @staticmethod
    def convert(directory: Path, kind: str) -> None:
        from engine_onnx import quantise_onnx, write_onnx

        exact, quantised = directory / "onnx" / "float32.onnx", directory / "onnx" / "int8.onnx"
        if not exact.exists():
            exact.parent.mkdir(exist_ok=True)
            weights, config = checkpoint(directory)
            write_onnx(weights, config["n_head"], exact)
        if kind == "int8" and not quantised.exists():
            quantise_onnx(exact, quantised)

    def read(self, ids: np.ndarray) -> np.ndarray:
        self._cache = [np.empty((len(ids), self._heads, 0, self._size), np.float32)] * len(self._names)
        return self._run(ids)

    def step(self, ids: np.ndarray) -> np.ndarray:
        return self._run(ids[:, None])

    def _run(self, ids: np.ndarray) -> np.ndarray:
        logits, *self._cache = self._session.run(None, {"ids": ids, **dict(zip(self._names, self._cache, strict=True))})
        return logits


class OpenVINO(Contestant):
    needs = ("openvino",)
    kinds = ("float32", "bfloat16")

    def __init__(self, directory: Path, kind: str, threads: int, device: str) -> None:
        import openvino

        precision = {"float32": "f32", "bfloat16": "bf16"}[kind]
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
        settings["KV_CACHE_PRECISION"] = precision
        compiled = openvino.Core().compile_model(directory / "openvino" / "gpt2.xml", "CPU", settings)
        self._request = compiled.create_infer_request()

    @staticmethod
    def convert(directory: Path, kind: str) -> None:
        import openvino
        from engine_openvino import openvino_graph

        path = directory / "openvino" / "gpt2.xml"
        if not path.exists():
            weights, config = checkpoint(directory)
            openvino.save_model(openvino_graph(weights, config["n_head"]), path, compress_to_fp16=False)

    def read(self, ids: np.ndarray) -> np.ndarray:
        self._request.reset_state()
        self._length = 0
        return self._run(ids)

    def step(self, ids: np.ndarray) -> np.ndarray:
        return self._run(ids[:, None])

    def _run(self, ids: np.ndarray) -> np.ndarray:
        positions = np.arange(self._length, self._length + ids.shape[1])
        self._length += ids.shape[1]
        self._request.infer({"ids": ids, "positions": positions, "rows": np.arange(len(ids), dtype=np.int32)})
        return self._request.get_output_tensor(0).data


class LlamaCpp(Contestant):
    needs = ("llama_cpp", "gguf")
    kinds = ("f32", "q8_0", "q4_0")

    def __init__(self, directory: Path, kind: str, threads: int, device: str) -> None:
        import llama_cpp

        self._library = llama_cpp
        llama_cpp.llama_backend_init()
        _silence(llama_cpp)
        path = str(directory / "gguf" / f"{kind}.gguf").encode()
        self._model = llama_cpp.llama_model_load_from_file(path, llama_cpp.llama_model_default_params())
        settings = llama_cpp.llama_context_default_params()
        settings.n_threads = settings.n_threads_batch = threads
        settings.n_seq_max, settings.n_batch, settings.kv_unified = 32, 2048, True
        settings.n_ctx = 32 * 64  # a long text, or 32 short ones
        self._context = llama_cpp.llama_init_from_model(self._model, settings)

    @staticmethod
    def convert(directory: Path, kind: str) -> None:
        from engine_gguf import quantise_gguf, write_gguf

        exact, quantised = directory / "gguf" / "f32.gguf", directory / "gguf" / f"{kind}.gguf"
        if not exact.exists():
            exact.parent.mkdir(exist_ok=True)
            weights, config = checkpoint(directory)
            write_gguf(weights, config, exact)
        if not quantised.exists():
            quantise_gguf(exact, quantised, kind)

    def read(self, ids: np.ndarray) -> np.ndarray:
        memory = self._library.llama_get_memory(self._context)
        self._library.llama_memory_clear(memory, True)
        self._length = 0
        return self._run(ids)

    def step(self, ids: np.ndarray) -> np.ndarray:
        return self._run(ids[:, None])

    def _run(self, ids: np.ndarray) -> np.ndarray:
        rows, length = ids.shape
        batch = self._library.llama_batch_init(ids.size, 0, 1)
        batch.n_tokens = ids.size
        for i in range(ids.size):
            row, place = divmod(i, length)
            batch.token[i] = int(ids[row, place])
            batch.pos[i] = self._length + place
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
            batch.logits[i] = place == length - 1
        if self._library.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        self._library.llama_batch_free(batch)
        self._length += length
        pointers = [self._library.llama_get_logits_ith(self._context, (row + 1) * length - 1) for row in range(rows)]
        return np.stack([np.ctypeslib.as_array(pointer, (VOCABULARY,)) for pointer in pointers])


def _silence(llama_cpp: Any) -> None:
    """Have llama.cpp write nothing."""
    global _callback  # called for as long as the process lives
    _callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(_callback, None)


class Machine(Contestant):
    """No engine but its limits: what memory gives to a reader, and what BLAS makes of large products."""

    kinds = ("limits",)

    def __init__(self, directory: Path, kind: str, threads: int, device: str) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._parts = np.split(np.ones(1 << 28, np.float32), 32)
        self._square = np.ones((2048, 2048), np.float32)

    def first(self) -> None:
        self._square @ self._square

    def memory(self) -> float:
        """Bytes a second that the threads read."""
        return (1 << 30) / _median_seconds(lambda: list(self._pool.map(np.max, self._parts)), 3)

    def products(self) -> float:
        """Float32 operations a second."""
        return 2 * 2048**3 / _median_seconds(lambda: self._square @ self._square, 3)


ENGINES: dict[str, type[Contestant]] = {
    "gpt2fast": Gpt2fast,
    "transformers": Transformers,
    "CTranslate2": CTranslate2,
    "onnxruntime": Onnxruntime,
    "OpenVINO": OpenVINO,
    "llama.cpp": LlamaCpp,
    "machine": Machine,
}


def missing(engine: str) -> list[str]:
    """The modules that the engine needs and that are not installed."""
    return [module for module in ENGINES[engine].needs if find_spec(module) is None]


def serve(name: str, directory: Path, threads: int, device: str, started: float) -> None:
    """Load, read a short text, say what that took since `started`, then answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer

    def answer(content: object) -> None:
        print(json.dumps(content), file=answers, flush=True)

    engine, _, kind = name.partition(" ")
    contestant = ENGINES[engine](directory, kind, threads, device)
    contestant.first()
    answer([time.time() - started, contestant.peak_memory()])
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        answer(getattr(contestant, what)(*arguments))


def main() -> None:
    what, name, directory, *rest = sys.argv[1:]
    sys.path.insert(0, str(ROOT))
    if what == "convert":
        engine, _, kind = name.partition(" ")
        ENGINES[engine].convert(Path(directory), kind)
    else:
        serve(name, Path(directory), int(rest[0]), rest[1], float(rest[2]))


if __name__ == "__main__":
    main()
