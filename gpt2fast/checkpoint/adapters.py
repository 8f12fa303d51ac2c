"""LoRA adapters, as PEFT saves them, merged into the tensors of a checkpoint while these are read.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (https://arxiv.org/abs/2106.09685): a matrix W was
trained as W + s B A, where A and B are of rank r, and s is alpha / r; or alpha / sqrt(r) in rank-stabilised LoRA
(Kalajdzievski 2023, https://arxiv.org/abs/2312.03732).  The format is PEFT's: adapter_config.json says how it was
trained, adapter_model.safetensors has the matrices, and tensors that were trained whole (biases, `modules_to_save`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast import safetensors as st
from gpt2fast._internal.arguments import real_number, whole_number
from gpt2fast._internal.threads import default_num_threads
from gpt2fast.checkpoint.config import Config, read_object
from gpt2fast.checkpoint.names import expected_shapes, inputs_and_outputs, is_matrix, match_names
from gpt2fast.checkpoint.weights import Checkpoint, tell_extras
from gpt2fast.errors import InputError, InputTypeError, MissingFileError

__all__ = ["AdaptedCheckpoint"]

Floats = npt.NDArray[np.float32]

_CONFIG, _WEIGHTS, _PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_WTE, _HEAD = "wte.weight", "lm_head.weight"
#: The tables that are looked up in, where PEFT's matrices have other names and another orientation.
_EMBEDDINGS = (_WTE, "wpe.weight")

# What follows a module's name in PEFT's names; that of the adapter is there in checkpoints of training only.
_LOW_RANK = re.compile(r"(.+)\.(lora_(?:embedding_)?[AB])(?:\.(?!(?:weight|bias)$)\w+)?(?:\.weight)?")
_WHOLE = re.compile(r"(.+?)\.(?:base_layer\.|modules_to_save\.(?:\w+\.)?)?(weight|bias)")

# Keys of adapter_config.json that are read below, or that say how the adapter was trained and not what it computes.
_KNOWN = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "bias"),
    *(
        "modules_to_save",
        "ensure_weight_tying",
        "init_lora_weights",
        "target_modules",
        "exclude_modules",
        "auto_mapping",
    ),
    *(
        "layers_to_transform",
        "layers_pattern",
        "lora_dropout",
        "inference_mode",
        "task_type",
        "base_model_name_or_path",
    ),
    *("revision", "peft_version", "megatron_core", "qalora_group_size", "loftq_config", "eva_config", "runtime_config"),
}
# Ways to begin that leave the model's own weights as they are; PiSSA, OLoRA, CorDA and LoftQ change them.
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")


@dataclass
class _Change:
    """What becomes of one tensor."""

    #: The tensor of the adapter's file that takes its place.
    whole: str | None = None
    #: The two of which a product is added: "A" and "B".
    factors: dict[str, str] = field(default_factory=dict)
    scaling: float = 1.0


class AdaptedCheckpoint:
    """A checkpoint with a LoRA adapter merged into it, read as a `Checkpoint` is.

    Merged are the values in float32: a tensor that the adapter has whole takes the checkpoint's place, and the product
    of a pair of matrices, times its scale, is added.  The product is that of the kernels, so merged weights are the
    same on every processor.  `fan_in_fan_out` is not needed: the shapes say how a matrix lies.

    Where the embeddings are the output head, too, and an adapter changes one of the two, they are two tables from then
    on, as in training.  (PEFT's own merge_and_unload adds the LoRA of either to both, and warns that the merged model
    differs from the trained one.)

    Raises MissingFileError where the directory has no adapter; InputError, which names the file, where it is no LoRA
    adapter, asks for what is not supported (DoRA and other variants), or does not fit the checkpoint.
    """

    packed = None

    def __init__(self, checkpoint: Checkpoint, directory: str | Path) -> None:
        self._checkpoint, self._directory = checkpoint, Path(directory)
        if checkpoint.packed:
            raise InputError(f"{checkpoint.directory}: the weights are packed; an adapter is merged into ordinary ones")
        self.by_output = checkpoint.by_output
        options = _read_options(self._directory / _CONFIG)
        path = self._directory / _WEIGHTS
        if not path.is_file() and (self._directory / _PICKLE).is_file():
            raise MissingFileError(
                f"{path}: there is no such file. {_PICKLE} was found, but is not read: unpickling it could run any "
                "code. Save the adapter again with PEFT, which writes safetensors"
            )
        self._file = st.safe_open(path)
        try:
            self._changes = _Reader(checkpoint, options, self._file, path).changes()
            self.config = self._settle_tables(options)
        except BaseException:
            self._file.close()
            raise

    def _settle_tables(self, options: _Options) -> Config:
        """The configuration with the truth about the output head."""
        config = self._checkpoint.config
        if not config.tie_word_embeddings or self._changes.keys().isdisjoint({_WTE, _HEAD}):
            return config
        if options.ensure_weight_tying:  # PEFT heeds it or not, as the embeddings are called
            raise InputError(
                f"{self._directory / _CONFIG}: ensure_weight_tying is set and the embeddings are trained, which is not "
                "supported; merge the adapter with PEFT (merge_and_unload)"
            )
        return replace(config, tie_word_embeddings=False)

    def tensor(self, name: str) -> Floats:
        """The values of one tensor, by its bare name, as C-contiguous float32."""
        change = self._changes.get(name)
        base = None if change is None else change.whole
        values = self._checkpoint.tensor(self._stored(name)) if base is None else self._whole(base, slice(None))
        if change is None or not change.factors:
            return values
        left, right = self._factors(name, change, slice(None))
        return _add_product(values, left, right, change.scaling)

    def rows(self, name: str, first: int, last: int) -> Floats:
        """The rows `first` to `last` of one table, likewise; the others are not read."""
        change, part = self._changes.get(name), slice(first, last)
        base = None if change is None else change.whole
        values = self._checkpoint.rows(self._stored(name), first, last) if base is None else self._whole(base, part)
        if change is None or not change.factors:
            return values
        left, right = self._factors(name, change, part)
        return _add_product(values, left, right, change.scaling)

    def _stored(self, name: str) -> str:
        """The checkpoint's tensor of that name; a head that is no longer tied begins as the embeddings."""
        return _WTE if name == _HEAD and self._checkpoint.config.tie_word_embeddings else name

    def _whole(self, name: str, part: slice) -> Floats:
        stored = self._file.get_slice(name)
        return st.as_float32(stored[part], stored.get_dtype())

    def _factors(self, name: str, change: _Change, part: slice) -> tuple[Floats, Floats]:
        """The two matrices whose product is added to the rows `part` of the tensor as the checkpoint has it."""
        a, b = self._file.get_slice(change.factors["A"]), self._file.get_slice(change.factors["B"])
        if name in _EMBEDDINGS:  # [rank, rows] and [columns, rank]
            left, right = st.as_float32(a[:, part], a.get_dtype()).T, st.as_float32(b[...], b.get_dtype()).T
        elif name == _HEAD or self.by_output:  # [rank, inputs] and [outputs, rank] of a matrix [outputs, inputs]
            left, right = st.as_float32(b[part], b.get_dtype()), st.as_float32(a[...], a.get_dtype())
        else:
            left, right = st.as_float32(a[...], a.get_dtype()).T, st.as_float32(b[...], b.get_dtype()).T
        return np.ascontiguousarray(left), np.ascontiguousarray(right)

    def close(self) -> None:
        """Close the adapter's file; the checkpoint stays open."""
        self._file.close()

    def __enter__(self) -> AdaptedCheckpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _add_product(values: Floats, left: Floats, right: Floats, scaling: float) -> Floats:
    from gpt2fast.kernels.linear import Weight  # checkpoints are looked at without compiled modules

    threads = default_num_threads()
    product = Weight.panels(right, num_threads=threads).multiply(left, num_threads=threads)
    product *= np.float32(scaling)
    product += values
    return product


@dataclass(frozen=True)
class _Options:
    """What adapter_config.json says of the merge."""

    rank: int
    alpha: float
    rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    ensure_weight_tying: bool

    def rank_and_scaling(self, module: str) -> tuple[int, float]:
        """The rank and the scale of the LoRA of a module, by its name in the model."""
        rank = self.rank_pattern.get(_matching(self.rank_pattern, module), self.rank)
        alpha = self.alpha_pattern.get(_matching(self.alpha_pattern, module), self.alpha)
        return rank, alpha / (math.sqrt(rank) if self.rslora else rank)


def _matching(patterns: Mapping[str, object], module: str) -> str:
    """The first of the patterns that is the end of the module's name, as PEFT matches them; else the name."""
    return next((pattern for pattern in patterns if re.match(rf"(.*\.)?({pattern})$", module)), module)


def _read_options(path: Path) -> _Options:
    try:
        values = read_object(path)
    except MissingFileError as error:
        raise MissingFileError(f"{error}; a LoRA adapter has an {_CONFIG}") from None
    try:
        return _parse_options(values)
    except (InputError, InputTypeError) as error:
        raise type(error)(f"{path}: {error}") from None


def _parse_options(values: Mapping[str, Any]) -> _Options:
    if values.get("peft_type") != "LORA":
        raise InputError(f"peft_type is {values.get('peft_type')!r}; expected 'LORA', no other adapters are merged")
    start = values.get("init_lora_weights")
    if not any(start is plain or (isinstance(start, str) and start == plain) for plain in _PLAIN_STARTS):
        raise InputError(
            f"init_lora_weights is {start!r}, for which PEFT changes the model's own weights, too; merge the adapter "
            "with PEFT (merge_and_unload)"
        )
    for key, value in values.items():
        if key not in _KNOWN and value:
            raise InputError(
                f"{key} is {str(value)[:80]}, which is not supported; merge it with PEFT (merge_and_unload)"
            )
    if values.get("bias", "none") not in ("none", "all", "lora_only"):
        raise InputError(f"bias is {values['bias']!r}; expected 'none', 'all' or 'lora_only'")
    switches = {key: values.get(key) or False for key in ("use_rslora", "ensure_weight_tying", "fan_in_fan_out")}
    for key, value in switches.items():
        if not isinstance(value, bool):
            raise InputError(f"{key} is {value!r}; expected true or false")
    patterns: dict[str, dict[str, Any]] = {}
    for key in ("rank_pattern", "alpha_pattern"):
        patterns[key] = values.get(key) or {}
        if not isinstance(patterns[key], dict):
            raise InputError(f"{key} is {patterns[key]!r}; expected an object from modules to numbers")
        for pattern in patterns[key]:
            _check_pattern(pattern, key)
    return _Options(
        rank=whole_number("r", values.get("r", 8), least=1),
        alpha=real_number("lora_alpha", values.get("lora_alpha", 8)),
        rslora=switches["use_rslora"],
        rank_pattern={
            key: whole_number(f"rank_pattern of {key!r}", value, least=1)
            for key, value in patterns["rank_pattern"].items()
        },
        alpha_pattern={
            key: real_number(f"alpha_pattern of {key!r}", value) for key, value in patterns["alpha_pattern"].items()
        },
        ensure_weight_tying=switches["ensure_weight_tying"],
    )


def _check_pattern(pattern: str, where: str) -> None:
    """Refuse what is no regular expression, and those that could take time without end."""
    try:
        re.compile(rf"(.*\.)?({pattern})$")
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"{where} has {pattern[:80]!r}, which is no regular expression: {error}") from None
    if len(pattern) > 200 or re.search(r"\)[*+?{]", pattern) or len(re.findall(r"[*+{]", pattern)) > 3:
        raise InputError(
            f"{where} has {pattern[:80]!r}; expected the end of a module's name, or a short regular expression "
            "without repeated groups"
        )


class _Reader:
    """Finds out which tensors of a model an adapter's file changes."""

    def __init__(self, checkpoint: Checkpoint, options: _Options, file: st.SafeOpen, path: Path) -> None:
        self._options, self._file, self._path = options, file, path
        # With a head of its own, which an adapter may have where the model has none.
        self._config = replace(checkpoint.config, tie_word_embeddings=False)
        self._by_output = checkpoint.by_output
        self._shapes = expected_shapes(self._config)
        self._changes: dict[str, _Change] = {}
        self._problems: list[str] = []

    def changes(self) -> dict[str, _Change]:
        """What becomes of which tensors, by their bare names."""
        modules: dict[str, str] = {}
        whole: dict[str, str] = {}
        for name in self._file.entries:
            rest = name.removeprefix("base_model.model.")
            low_rank = _LOW_RANK.fullmatch(rest)
            if low_rank is not None:
                self._add_factor(name, low_rank[1], low_rank[2])
                modules[f"{low_rank[1].removeprefix('transformer.')}.weight"] = low_rank[1]
            elif (match := _WHOLE.fullmatch(rest)) is not None:
                known = f"{match[1]}.{match[2]}"
                if known in whole:
                    self._problems.append(f"{whole[known]} and {name} stand for the same tensor")
                whole[known] = name
            else:
                self._problems.append(f"{name} is of a kind that is not supported")
        try:
            matched, extras = match_names(whole)
        except InputError as error:
            raise InputError(f"{self._path}: {error}") from None
        for bare, known in matched.items():
            self._add_whole(bare, whole[known])
        for bare, module in modules.items():
            self._complete_factors(bare, module)
        if not self._changes and not self._problems:
            self._problems.append("there are no tensors in it")
        if self._problems:
            more = f"; and {len(self._problems) - 8} more" if len(self._problems) > 8 else ""
            raise InputError(
                f"{self._path}: the adapter cannot be merged into this model: {'; '.join(self._problems[:8])}{more}"
            )
        tell_extras(f"{self._path}: ", extras)
        return self._changes

    def _add_factor(self, name: str, module: str, kind: str) -> None:
        bare = f"{module.removeprefix('transformer.')}.weight"
        if bare not in self._shapes or len(self._shapes[bare]) != 2:
            self._problems.append(f"{name}: this model has no matrix {module}")
        elif ("embedding" in kind) != (bare in _EMBEDDINGS):
            self._problems.append(f"{name}: {module} is {'an embedding' if bare in _EMBEDDINGS else 'no embedding'}")
        else:
            factors = self._changes.setdefault(bare, _Change()).factors
            if kind[-1] in factors:
                self._problems.append(f"{factors[kind[-1]]} and {name} are two adapters; expected one")
            factors[kind[-1]] = name

    def _complete_factors(self, bare: str, module: str) -> None:
        change = self._changes.get(bare)
        if change is None:
            return  # named as a problem before
        if len(change.factors) < 2:
            (there,) = change.factors.values()
            self._problems.append(f"{there} is there without its other half")
            return
        rank, change.scaling = self._options.rank_and_scaling(module)
        rows, columns = self._shapes[bare]
        inputs, outputs = (rows, columns) if bare in _EMBEDDINGS else inputs_and_outputs(self._config, bare)
        for half, expected in (("A", [rank, inputs]), ("B", [outputs, rank])):
            self._check(change.factors[half], expected)

    def _add_whole(self, bare: str, name: str) -> None:
        if bare not in self._shapes:
            self._problems.append(f"{name} is not part of this model")
            return
        shape = self._shapes[bare]
        self._check(name, list(shape[::-1] if self._by_output and is_matrix(bare) else shape))
        self._changes.setdefault(bare, _Change()).whole = name

    def _check(self, name: str, expected: list[int]) -> None:
        found = self._file.get_slice(name)
        if found.get_shape() != expected:
            self._problems.append(f"{name} is {found.get_shape()}, expected {expected}")
        elif found.get_dtype() not in ("F64", "F32", "F16", "BF16"):
            self._problems.append(f"{name} is of type {found.get_dtype()}, expected a floating type")
