"""The parameters of a network as a device keeps them: made from a checkpoint, or from another model's, and saved.

Everything goes one tensor at a time, the large tables in parts: read, repacked, dropped.  So the most memory that
loading takes is that of the finished model.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from gpt2fast import safetensors as st
from gpt2fast._internal.arguments import path_name
from gpt2fast._internal.atomic import atomic_write
from gpt2fast.checkpoint.adapters import AdaptedCheckpoint
from gpt2fast.checkpoint.config import ACTIVATIONS, Config
from gpt2fast.checkpoint.heads import LabelHead
from gpt2fast.checkpoint.names import BLOCK_MATRICES, TABLES, inputs_and_outputs, packed_names
from gpt2fast.checkpoint.weights import Arrays, Checkpoint, PackedArrays, packed_metadata
from gpt2fast.errors import InputError
from gpt2fast.model.backend import Backend, Network, StoredWeight

if TYPE_CHECKING:
    from gpt2fast.kernels.linear import Weight

__all__ = ["Parameters", "assemble"]

Floats = npt.NDArray[np.float32]

#: What of a configuration logits depend on.
_TOLD = (
    *("vocab_size", "n_ctx", "n_embd", "n_layer", "n_head", "n_inner", "activation_function", "layer_norm_epsilon"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tie_word_embeddings"),
)
_HASHED = 1 << 20  # values that are read at once


class Parameters:
    """The parameters of a network, read as those of a `Checkpoint` are."""

    by_output = True
    packed = None

    def __init__(self, config: Config) -> None:
        self.config = config
        #: The matrices of the blocks and the tables of tokens, by their published names.
        self.matrices: dict[str, StoredWeight] = {}
        #: Biases, weights of norms, the embeddings of positions: on the host, wherever the network is.
        self.others: dict[str, Floats] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take."""
        matrices = sum(matrix.nbytes for matrix in self.matrices.values())
        return matrices + sum(values.nbytes for values in self.others.values())

    def tensor(self, name: str) -> Floats:
        """The values of one tensor, of matrices and tables [outputs, inputs]."""
        matrix = self.matrices.get(name)
        return self.others[name] if matrix is None else matrix.outputs(0, matrix.shape[1])

    def rows(self, name: str, first: int, last: int) -> Floats:
        """The rows `first` to `last` of one table."""
        return self.matrices[name].outputs(first, last)

    def tensors(self, *, packed: bool) -> dict[str, npt.NDArray[Any]]:
        """All of them, by their published names: float32 in Hugging Face's layout, with `packed` the matrices and the
        head's table as the bytes of their panels."""
        panels = packed_names(self.config) if packed else []
        tensors: dict[str, npt.NDArray[Any]] = dict(self.others)
        for name, matrix in self.matrices.items():
            if name in panels:
                tensors[name] = cast("Weight", matrix).panels_data()
            else:
                tensors[name] = self.tensor(name) if name in TABLES else matrix.values()
        return tensors

    def digest(self) -> str:
        """A SHA-256 of what every training changes and takes no time to read: biases, norms, positions."""
        found = hashlib.sha256(repr(self.config).encode())
        for name, values in self.others.items():
            found.update(name.encode())
            found.update(values.tobytes())
        return found.hexdigest()

    @cached_property
    def sha256(self) -> bytes:
        """The SHA-256 of the sizes and of every value, 32 bytes.

        First comes what config.json says that logits depend on, as JSON without spaces, its keys sorted; then for each
        tensor, by sorted names, its name, a zero byte, and its values in little-endian float32, those of matrices and
        tables as [outputs, inputs].
        """
        config = self.config.to_dict()
        told = {name: config[name] for name in _TOLD}
        found = hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode())
        for name in sorted([*self.matrices, *self.others]):
            found.update(name.encode() + b"\0")
            if name in self.others:
                found.update(self.others[name].astype("<f4", order="C", copy=False).tobytes())
                continue
            k, n = self.matrices[name].shape
            step = max(_HASHED // k, 1)
            for first in range(0, n, step):
                found.update(self.rows(name, first, min(first + step, n)).astype("<f4", copy=False).tobytes())
        return found.digest()

    def save(
        self, directory: str | Path, *, max_shard_size: int | str, packed_as: str | None, head: LabelHead | None = None
    ) -> None:
        """Write config.json and model.safetensors, or its shards, into `directory`, which is made where it is missing.

        The tensors are float32 in Hugging Face's layout; with `packed_as`, the dtype of panels, the matrices are these.
        A `head` of labels is written, too.
        """
        folder = Path(path_name(directory))
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {**self.tensors(packed=packed_as is not None), **({} if head is None else head.tensors())}
        config = {**self.config.to_dict(), **({} if head is None else head.to_dict())}
        metadata = {"format": "pt", **(packed_metadata(packed_as) if packed_as else {})}
        st.save_sharded(tensors, folder, max_shard_size=max_shard_size, metadata=metadata)
        with atomic_write(folder / "config.json") as file:
            file.write((json.dumps(config, indent=2) + "\n").encode())


#: Where parameters are read from.
Source: TypeAlias = Checkpoint | AdaptedCheckpoint | Arrays | PackedArrays | Parameters


def assemble(source: Source, backend: Backend) -> tuple[Network, Parameters]:
    """The network of the parameters that `source` has, and these, both as the backend's device keeps them."""
    config, tensor = source.config, source.tensor
    panels = source.panels if isinstance(source, Checkpoint | PackedArrays) and source.packed else None
    made = Parameters(config)

    def biases(name: str, count: int) -> Floats:
        return tensor(name) if config.bias else np.zeros(count, np.float32)

    def packed(name: str, bias: Floats | None, k: int, n: int) -> StoredWeight:
        try:
            return backend.packed(panels(name), bias, k=k, n=n)  # type: ignore[misc]
        except InputError as error:
            raise InputError(f"{name}: {error}") from None

    def matrix(name: str) -> StoredWeight:
        name, bias_name = f"{name}.weight", f"{name}.bias"
        k, n = inputs_and_outputs(config, name)
        bias = made.others[bias_name] = biases(bias_name, n)
        weight = packed(name, bias, k, n) if panels else backend.matrix(tensor(name), bias, by_output=source.by_output)
        made.matrices[name] = weight
        return weight

    def table(name: str) -> StoredWeight:
        k, n = inputs_and_outputs(config, name)
        weight = packed(name, None, k, n) if panels else backend.table(partial(source.rows, name), n, k)
        made.matrices[name] = weight
        return weight

    def vectors(name: str) -> tuple[Any, Any]:
        weight = made.others[f"{name}.weight"] = tensor(f"{name}.weight")
        bias = made.others[f"{name}.bias"] = biases(f"{name}.bias", len(weight))
        return backend.vector(weight), backend.vector(bias)

    blocks = []
    for i in range(config.n_layer):
        block: dict[str, Any] = {"scale": config.attention_scale(i)}
        for name in ("ln_1", "ln_2"):
            block[name] = vectors(f"h.{i}.{name}")
        for key, name in zip(("c_attn", "c_proj", "c_fc", "mlp_c_proj"), BLOCK_MATRICES, strict=True):
            block[key] = matrix(f"h.{i}.{name}")
        blocks.append(block)
    if config.tie_word_embeddings:
        wte = head = table("wte.weight")
    else:
        wte = made.matrices["wte.weight"] = backend.embeddings(tensor("wte.weight"))
        head = table("lm_head.weight")
    made.others["wpe.weight"] = tensor("wpe.weight")
    network = backend.transformer(
        n_head=config.n_head,
        activation=ACTIVATIONS[config.activation_function],
        epsilon=config.layer_norm_epsilon,
        wte=wte,
        wpe=backend.vector(made.others["wpe.weight"]),
        blocks=blocks,
        ln_f=vectors("ln_f"),
        head=head,
    )
    return network, made
