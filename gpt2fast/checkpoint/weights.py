"""Checkpoints: which tensors a GPT-2 has, under which names they come, and whether they are all there.

Read are the layouts in which GPT-2 weights are published as safetensors: Hugging Face's, with or without the
`transformer.` prefix, in one file or in shards, and nanoGPT's, whose matrices are transposed (`torch.nn.Linear` instead
of `Conv1D`); and our own packed files, which hold the matrices as the kernels read them.  Shapes are checked before a
single value is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from gpt2fast import safetensors as st
from gpt2fast._internal.numerics import numerics_version
from gpt2fast.checkpoint.config import Config
from gpt2fast.errors import InputError, InputTypeError, MissingFileError

__all__ = ["BLOCK_MATRICES", "DTYPES", "TABLES", "Arrays", "Checkpoint", "expected_shapes", "match_names"]

Shape = tuple[int, ...]

#: The products of a block, by their published names.
BLOCK_MATRICES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
#: The tables with a row for each token.
TABLES = ("wte.weight", "lm_head.weight")

#: How the matrices of a model can be kept.
DTYPES = ("float32", "bfloat16", "int8", "int4")

_PACKED = "gpt2fast.panels"
_NUMERICS = "gpt2fast.numerics_version"
_VERSION = 1  # goes up when the bytes of panels get another meaning
# Causal masks that older checkpoints carry along, float or bool.
_MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
_FLOATS = ("F64", "F32", "F16", "BF16")


def expected_shapes(config: Config) -> dict[str, Shape]:
    """The name and shape of every tensor of a GPT-2 of this configuration, in the order of the network."""
    e, inner = config.n_embd, config.n_inner
    shapes: dict[str, Shape] = {"wte.weight": (config.vocab_size, e), "wpe.weight": (config.n_ctx, e)}
    for i in range(config.n_layer):
        block: dict[str, Shape] = {
            "ln_1.weight": (e,),
            "ln_1.bias": (e,),
            "attn.c_attn.weight": (e, 3 * e),
            "attn.c_attn.bias": (3 * e,),
            "attn.c_proj.weight": (e, e),
            "attn.c_proj.bias": (e,),
            "ln_2.weight": (e,),
            "ln_2.bias": (e,),
            "mlp.c_fc.weight": (e, inner),
            "mlp.c_fc.bias": (inner,),
            "mlp.c_proj.weight": (inner, e),
            "mlp.c_proj.bias": (e,),
        }
        shapes.update({f"h.{i}.{name}": shape for name, shape in block.items()})
    shapes.update({"ln_f.weight": (e,), "ln_f.bias": (e,)})
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, e)
    if not config.bias:
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith(".bias")}
    return shapes


def packed_names(config: Config) -> list[str]:
    """The names of the tensors that are kept in panels: the matrices of the blocks and the output head's table."""
    head = "wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    return [*filter(_is_matrix, expected_shapes(config)), head]


def inputs_and_outputs(config: Config, name: str) -> tuple[int, int]:
    """How many inputs and outputs a matrix or a table has."""
    rows, columns = expected_shapes(config)[name]
    return (columns, rows) if name in TABLES else (rows, columns)


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


def _is_matrix(name: str) -> bool:
    return name.startswith("h.") and name.endswith(tuple(f"{matrix}.weight" for matrix in BLOCK_MATRICES))


def match_names(names: Iterable[str], *, tied: bool) -> dict[str, str]:
    """For each network tensor the name under which the checkpoint has it; masks and a tied head are left out.

    Raises InputError where two names stand for the same tensor.

    >>> match_names(["transformer.wte.weight", "transformer.h.0.attn.bias", "lm_head.weight"], tied=True)
    {'wte.weight': 'transformer.wte.weight'}
    """
    matched: dict[str, str] = {}
    for name in names:
        bare = name.removeprefix("_orig_mod.").removeprefix("transformer.")
        if _MASK.fullmatch(bare) or (tied and bare == "lm_head.weight"):
            continue
        if bare in matched:
            raise InputError(f"the checkpoint has {bare} twice: as {matched[bare]!r} and as {name!r}")
        matched[bare] = name
    return matched


class Checkpoint:
    """A model directory, opened and checked: the configuration, and every tensor of the network on request.

    Raises MissingFileError where the directory or its files are missing, and InputError (InputTypeError for a weight
    that is not of a floating type) that lists every tensor that is missing, unknown or of another shape or type.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise MissingFileError(f"{self.directory}: there is no such directory")
        self.config = Config.from_pretrained(self.directory)
        self._files: list[st.SafeOpen] = []
        self._file_of: dict[str, st.SafeOpen] = {}
        try:
            self._open()
            #: As what dtype the matrices are packed; None for an ordinary checkpoint.
            self.packed = _packed_dtype(self._files[0].metadata())
            self._names = match_names(self._file_of, tied=self.config.tie_word_embeddings)
            #: Matrices are [outputs, inputs] (torch.nn.Linear, as nanoGPT saves them) instead of [inputs, outputs].
            self.by_output = self._is_linear_layout()
            self._check()
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

    def _shape(self, name: str) -> Shape:
        source = self._names[name]
        return tuple(self._file_of[source].get_slice(source).get_shape())

    def _is_linear_layout(self) -> bool:
        # c_attn tells: its two sides differ.  The square c_proj then follows the others.
        name = "h.0.attn.c_attn.weight"
        return name in self._names and self._shape(name) == (3 * self.config.n_embd, self.config.n_embd)

    def _check(self) -> None:
        problems = []
        types = []
        expected = expected_shapes(self.config)
        panels = packed_names(self.config) if self.packed else []
        if self.packed:
            from gpt2fast.kernels.linear import packed_size  # ordinary files are looked at without compiled modules

            expected |= {name: (packed_size(*inputs_and_outputs(self.config, name), self.packed),) for name in panels}
        for name, shape in expected.items():
            if name not in self._names:
                problems.append(f"{name} {list(shape)} is missing")
                continue
            wanted = shape[::-1] if self.by_output and _is_matrix(name) else shape
            found = self._shape(name)
            if found != wanted:
                problems.append(f"{self._names[name]} is {list(found)}, expected {list(wanted)}")
            source = self._names[name]
            dtype = self._file_of[source].get_slice(source).get_dtype()
            allowed = ("U8",) if name in panels else _FLOATS
            if dtype not in allowed:
                types.append(f"{source} is of type {dtype}, expected one of {', '.join(allowed)}")
        problems += [
            f"{source} is not part of this model" for name, source in self._names.items() if name not in expected
        ]
        if self.config.bias and not any(name.endswith(".bias") for name in self._names):
            problems = ['there are no biases, as in many checkpoints of nanoGPT; is "bias": false meant?', *problems]
        if types and not problems:
            raise InputTypeError("; ".join(_shorten(types)))
        if problems or types:
            raise InputError(f"the weights do not fit config.json: {'; '.join(_shorten(problems + types))}")

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The values of one tensor, by its bare name, as C-contiguous float32; half precision is widened exactly."""
        source = self._names[name]
        file = self._file_of[source]
        return st.as_float32(file.get_tensor(source), file.get_slice(source).get_dtype())

    def rows(self, name: str, first: int, last: int) -> npt.NDArray[np.float32]:
        """The rows `first` to `last` of one tensor, likewise; the others are not read."""
        source = self._names[name]
        part = self._file_of[source].get_slice(source)
        return st.as_float32(part[first:last], part.get_dtype())

    def panels(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of one packed tensor."""
        source = self._names[name]
        return self._file_of[source].get_tensor(source)

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

    def __init__(self, config: Config, tensors: Mapping[str, npt.ArrayLike]) -> None:
        self.config = config
        names = match_names(tensors, tied=config.tie_word_embeddings)
        expected = expected_shapes(config)
        self._arrays = {name: np.ascontiguousarray(tensors[source], np.float32) for name, source in names.items()}
        problems = [f"{name} {list(shape)} is missing" for name, shape in expected.items() if name not in self._arrays]
        problems += [f"{name} is not part of this model" for name in self._arrays if name not in expected]
        problems += [
            f"{name} is {list(array.shape)}, expected {list(expected[name])}"
            for name, array in self._arrays.items()
            if name in expected and array.shape != expected[name]
        ]
        if problems:
            raise InputError(f"the weights do not fit the configuration: {'; '.join(_shorten(problems))}")

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The values of one tensor, by its bare name."""
        return self._arrays[name]

    def rows(self, name: str, first: int, last: int) -> npt.NDArray[np.float32]:
        """The rows `first` to `last` of one tensor."""
        return self._arrays[name][first:last]
