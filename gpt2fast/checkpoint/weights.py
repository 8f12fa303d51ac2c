"""Checkpoints: whether all tensors of a network are there, and what their values are.

Read are the layouts in which GPT-2 weights are published as safetensors: Hugging Face's, in one file or in shards, and
nanoGPT's, whose matrices are transposed (`torch.nn.Linear` instead of `Conv1D`); and our own packed files, which hold
the matrices as the kernels read them.  Shapes are checked before a single value is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast import safetensors as st
from gpt2fast._internal.numerics import numerics_version
from gpt2fast.checkpoint.config import Config, read_object
from gpt2fast.checkpoint.heads import head_tensors
from gpt2fast.checkpoint.names import (
    expected_shapes,
    explain_unknown,
    inputs_and_outputs,
    is_matrix,
    match_names,
    packed_names,
    settle_head,
)
from gpt2fast.errors import InputError, InputTypeError, MissingFileError
from gpt2fast.hub.names import adapter_advice

__all__ = ["DTYPES", "Arrays", "Checkpoint", "PackedArrays", "packed_metadata", "tell_extras"]

#: How the matrices of a model can be kept.
DTYPES = ("float32", "bfloat16", "int8", "int4")

_PACKED = "gpt2fast.panels"
_NUMERICS = "gpt2fast.numerics_version"
_VERSION = 1  # goes up when the bytes of panels get another meaning
_FLOATS = ("F64", "F32", "F16", "BF16")
_COMPARED = 1 << 20  # values of two tables that are read and compared at once


def packed_metadata(dtype: str) -> dict[str, str]:
    """The metadata of a file whose `packed_names` are bytes of panels; see `kernels.linear`."""
    return {_PACKED: f"{dtype}/{_VERSION}", _NUMERICS: str(numerics_version)}


def _packed_dtype(metadata: Mapping[str, str]) -> str | None:
    """The dtype of a packed file; None where the file is an ordinary one."""
    if _PACKED not in metadata:
        return None
    dtype, _, version = metadata[_PACKED].partition("/")
    if dtype not in DTYPES or version != str(_VERSION):
        raise InputError(
            f"the weights are packed as {metadata[_PACKED]!r}; this version reads "
            f"{', '.join(f'{name}/{_VERSION}' for name in DTYPES)}: pack them anew from the original"
        )
    found = metadata.get(_NUMERICS, "none")
    if found != str(numerics_version):
        raise InputError(
            f"the weights were packed with {_NUMERICS} {found}; this version has {numerics_version}, so the same "
            "weights give other values: pack them anew from the original"
        )
    return dtype


class Checkpoint:
    """A model directory, opened and checked: the configuration, and every tensor of the network on request.

    Raises MissingFileError where the directory or its files are missing, and InputError (InputTypeError for a weight
    that is not of a floating type) that lists every tensor that is missing, unknown or of another shape or type.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise MissingFileError(f"{self.directory}: there is no such directory")
        advice = adapter_advice(self.directory)
        if advice:
            raise MissingFileError(f"{self.directory}: there is no model. {advice}")
        self.config = Config.from_pretrained(self.directory)
        self._files: list[st.SafeOpen] = []
        self._file_of: dict[str, st.SafeOpen] = {}
        try:
            self._open()
            #: As what dtype the matrices are packed; None for an ordinary checkpoint.
            self.packed = _packed_dtype(self._files[0].metadata())
            self._names, extras = match_names(self._file_of)
            self.config = settle_head(self.config, self._names, self._equal)
            #: Matrices are [outputs, inputs] (torch.nn.Linear, as nanoGPT saves them) instead of [inputs, outputs].
            self.by_output = self._is_linear_layout()
            self._check()
            known = head_tensors(read_object(self.directory / "config.json"))
            tell_extras(f"{self.directory}: ", [name for name in extras if name not in known])
        except (InputError, InputTypeError) as error:
            self.close()
            message = str(error)
            raise type(error)(message if str(self.directory) in message else f"{self.directory}: {message}") from None
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Open the safetensors file of the directory, or the shards of its index."""
        single = self.directory / st.SINGLE_NAME
        index = (
            {} if single.is_file() or not (self.directory / st.INDEX_NAME).is_file() else st.read_index(self.directory)
        )
        if not index and not single.is_file():
            raise MissingFileError(_nothing_found(self.directory))
        for path in dict.fromkeys(index.values()) or [single]:
            file = st.safe_open(path)
            self._files.append(file)
            if index:
                st.check_shard(path, file.keys(), index)
            self._file_of.update(dict.fromkeys(file.keys(), file))

    @property
    def names(self) -> list[str]:
        """The bare names of the tensors, in the order of the network."""
        return list(expected_shapes(self.config))

    def _slice(self, name: str) -> st.TensorSlice:
        source = self._names[name]
        return self._file_of[source].get_slice(source)

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def _equal(self, first: str, second: str) -> bool:
        """Whether two tensors have the same values, of which no more is read than up to the first difference."""
        a, b = self._slice(first), self._slice(second)
        if a.get_shape() != b.get_shape() or not a.get_shape():
            return False
        if a.get_dtype() != b.get_dtype() and not {a.get_dtype(), b.get_dtype()} <= set(_FLOATS):
            return False
        rows = max(_COMPARED // max(prod(a.get_shape()[1:]), 1), 1)
        for i in range(0, len(a), rows):
            left, right = a[i : i + rows], b[i : i + rows]
            if a.get_dtype() != b.get_dtype():
                left, right = st.as_float32(left, a.get_dtype()), st.as_float32(right, b.get_dtype())
            if left.tobytes() != right.tobytes():
                return False
        return True

    def _is_linear_layout(self) -> bool:
        # c_attn tells: its two sides differ.  The square c_proj then follows the others.
        name = "h.0.attn.c_attn.weight"
        return name in self._names and self._shape(name) == (3 * self.config.n_embd, self.config.n_embd)

    def _check(self) -> None:
        problems = []
        types = []
        expected = dict(expected_shapes(self.config))
        panels = set(packed_names(self.config)) if self.packed else set()
        if self.packed:
            from gpt2fast.kernels.linear import packed_size  # ordinary files are looked at without compiled modules

            expected |= {name: (packed_size(*inputs_and_outputs(self.config, name), self.packed),) for name in panels}
        for name, shape in expected.items():
            if name not in self._names:
                problems.append(f"{name} {list(shape)} is missing")
                continue
            wanted = shape[::-1] if self.by_output and is_matrix(name) else shape
            found = self._shape(name)
            if found != wanted:
                problems.append(f"{self._names[name]} is {list(found)}, expected {list(wanted)}")
            dtype = self._slice(name).get_dtype()
            allowed = ("U8",) if name in panels else _FLOATS
            if dtype not in allowed:
                types.append(f"{self._names[name]} is of type {dtype}, expected one of {', '.join(allowed)}")
        unknown = [source for name, source in self._names.items() if name not in expected]
        problems += [f"{source} is not part of this model" for source in unknown]
        explanation = explain_unknown(unknown, expected)
        if explanation is not None:
            problems = [explanation, *problems]
        elif "lm_head.weight" in expected and "lm_head.weight" not in self._names and "wte.weight" in self._names:
            problems = ['the output head is not stored; is "tie_word_embeddings": true meant?', *problems]
        if self.config.bias and not any(name.endswith(".bias") for name in self._names):
            problems = ['there are no biases, as in many checkpoints of nanoGPT; is "bias": false meant?', *problems]
        if types and not problems:
            raise InputTypeError("; ".join(_shorten(types)))
        if problems or types:
            raise InputError(f"the weights do not fit config.json: {'; '.join(_shorten(problems + types))}")

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The values of one tensor, by its bare name, as C-contiguous float32; half precision is widened exactly."""
        part = self._slice(name)
        return st.as_float32(part[...], part.get_dtype())

    def rows(self, name: str, first: int, last: int) -> npt.NDArray[np.float32]:
        """The rows `first` to `last` of one tensor, likewise; the others are not read."""
        part = self._slice(name)
        return st.as_float32(part[first:last], part.get_dtype())

    def panels(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of one packed tensor."""
        return self._slice(name)[...]

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _shorten(problems: list[str], limit: int = 12) -> list[str]:
    return problems if len(problems) <= limit else [*problems[:limit], f"and {len(problems) - limit} more"]


def tell_extras(where: str, names: list[str]) -> None:
    """Warn of tensors that are left out though they are known, since who put them there may have meant them."""
    if names:
        warnings.warn(
            f"{where}left out, as they are no part of a language model: {', '.join(_shorten(sorted(names)))}",
            stacklevel=4,  # who called from_pretrained or from_tensors
        )


def _nothing_found(directory: Path) -> str:
    pickles = sorted(path.name for path in directory.glob("pytorch_model*.bin"))
    if not pickles:
        return f"{directory}: there is no {st.SINGLE_NAME} and no {st.INDEX_NAME}"
    return (
        f"{directory}: there is no {st.SINGLE_NAME}. {pickles[0]} was found, but is not read: unpickling it could run "
        "any code. Convert it where PyTorch and transformers are installed: "
        f"AutoModelForCausalLM.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"
    )


class Arrays:
    """Arrays in memory, by any of the published names, checked against a configuration; read as a `Checkpoint` is.

    Raises InputError that lists every tensor that is missing, unknown or of another shape.
    """

    by_output = False
    packed = None

    def __init__(self, config: Config, tensors: Mapping[str, npt.ArrayLike]) -> None:
        names, extras = match_names(tensors)
        self._arrays = {name: np.ascontiguousarray(tensors[source], np.float32) for name, source in names.items()}
        kept = {name: name for name in self._arrays}
        self.config = settle_head(config, kept, lambda a, b: np.array_equal(self._arrays[a], self._arrays[b]))
        self._arrays = {name: self._arrays[source] for name, source in kept.items()}
        expected = expected_shapes(self.config)
        problems = [f"{name} {list(shape)} is missing" for name, shape in expected.items() if name not in self._arrays]
        problems += [f"{name} is not part of this model" for name in self._arrays if name not in expected]
        problems += [
            f"{name} is {list(array.shape)}, expected {list(expected[name])}"
            for name, array in self._arrays.items()
            if name in expected and array.shape != expected[name]
        ]
        if problems:
            explanation = explain_unknown([name for name in self._arrays if name not in expected], expected)
            problems = ([] if explanation is None else [explanation]) + problems
            raise InputError(f"the weights do not fit the configuration: {'; '.join(_shorten(problems))}")
        tell_extras("", extras)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The values of one tensor, by its bare name."""
        return self._arrays[name]

    def rows(self, name: str, first: int, last: int) -> npt.NDArray[np.float32]:
        """The rows `first` to `last` of one tensor."""
        return self._arrays[name][first:last]


class PackedArrays:
    """What `Parameters.tensors` gave of a model whose matrices are panels of `dtype`, read as a `Checkpoint` is."""

    by_output = False

    def __init__(self, config: Config, tensors: Mapping[str, npt.NDArray[Any]], dtype: str) -> None:
        self.config, self.packed = config, dtype
        self._tensors = tensors

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The values of one tensor that is not in panels."""
        return self._tensors[name]

    def rows(self, name: str, first: int, last: int) -> npt.NDArray[np.float32]:
        """The rows `first` to `last` of a table that is not in panels."""
        return self._tensors[name][first:last]

    def panels(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of one packed tensor."""
        return self._tensors[name]
