"""Sparse autoencoders of SAELens' format (Bricken et al. 2023; top-k: arXiv:2406.04093; JumpReLU: arXiv:2407.14435).

A directory has cfg.json and sae_weights.safetensors with W_enc (d_in, d_sae), b_enc (d_sae,), W_dec (d_sae, d_in),
b_dec (d_in,), and for JumpReLU threshold (d_sae,).  Configurations of SAELens 6 have what concerns the model under
"metadata"; older ones have all in one object, with other names for some of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import flag, path_name, whole_number
from gpt2fast.checkpoint.config import read_object
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.kernels.linear import Weight
from gpt2fast.model.hooks.functions import HookPoint
from gpt2fast.safetensors import as_float32, read_file, safe_open

__all__ = ["SparseAutoencoder"]

Floats = npt.NDArray[np.float32]

_ARCHITECTURES = ("standard", "topk", "jumprelu")
_NORMALIZATIONS = ("none", "layer_norm", "constant_norm_rescale")
#: What older configurations call it.
_FORMER = {"hook_point": "hook_name", "hook_point_head_index": "hook_head_index", "activation_fn_str": "activation_fn"}
#: Larger sizes are not believed, as they are multiplied.
_LIMIT = 1 << 24


@dataclass(frozen=True)
class _Settings:
    """What cfg.json says, in one form for all versions."""

    architecture: str
    d_in: int
    d_sae: int
    hook_name: str
    k: int | None
    rescales: bool
    subtracts_bias: bool
    normalization: str
    centred: bool
    by_head: bool


class SparseAutoencoder:
    """A sparse autoencoder: an activation as a sum of a few of many directions, its features.

    Made by `SparseAutoencoder.load`.  Activations are float32 [..., d_in]; of one that was trained on all heads
    together, at "blocks.3.attn.hook_z", they are [..., n_head, head_dim], as a run has them.

    One that was trained on a model which TransformerLens had changed with `center_writing_weights` knows activations
    without their mean.  Then `centred` is True: `encode` takes the mean off, `reconstruct` and `splice` put it back.
    """

    def __init__(self, settings: _Settings, tensors: Mapping[str, Floats]) -> None:
        self._settings = settings
        digest = hashlib.sha256(repr(settings).encode())
        for name in sorted(tensors):
            digest.update(np.ascontiguousarray(tensors[name]).data)
        #: The SHA-256 of its settings and weights, 32 bytes.
        self.sha256 = digest.digest()
        self._bias = tensors["b_dec"]
        self._threshold = tensors.get("threshold")
        self._norms = np.linalg.norm(tensors["W_dec"], axis=1) if settings.rescales else None
        self._directions = tensors["W_dec"]
        self._encoder = Weight.panels(tensors["W_enc"], tensors["b_enc"])
        self._decoder = Weight.panels(tensors["W_dec"], tensors["b_dec"])

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, centred: bool | None = None) -> SparseAutoencoder:
        """The sparse autoencoder in `directory`: SAELens' cfg.json and sae_weights.safetensors.

        Architectures are "standard" (ReLU), "topk" and "jumprelu".  `centred` says whether it was trained on
        activations without their mean; by default the configuration tells, which not all published ones do.

        Raises MissingFileError where a file is missing; InputError for another architecture or normalization, a
        configuration that makes no sense, and tensors that are missing, unknown, of another shape or not finite.
        """
        home = Path(path_name(directory))
        settings = _settings(read_object(home / "cfg.json"), str(home / "cfg.json"))
        if centred is not None:
            settings = replace(settings, centred=flag("centred", centred))
        return cls(settings, _tensors(str(home / "sae_weights.safetensors"), settings))

    @property
    def architecture(self) -> str:
        """The kind: "standard", "topk" or "jumprelu"."""
        return self._settings.architecture

    @property
    def hook_name(self) -> str:
        """The name of the activation that it was trained on."""
        return self._settings.hook_name

    @property
    def d_in(self) -> int:
        """How many numbers an activation has."""
        return self._settings.d_in

    @property
    def d_sae(self) -> int:
        """How many features there are."""
        return self._settings.d_sae

    @property
    def centred(self) -> bool:
        """Whether it was trained on activations without their mean."""
        return self._settings.centred

    @property
    def directions(self) -> Floats:
        """The direction of each feature, float32 (d_sae, d_in): the vector of a `Steering` towards it."""
        return self._directions

    def __repr__(self) -> str:
        s = self._settings
        return f"<SparseAutoencoder {s.architecture!r} of {s.d_sae:,} features at {s.hook_name!r}, d_in={s.d_in}>"

    def encode(self, activation: npt.ArrayLike) -> Floats:
        """How strong each feature is in an activation: float32 [..., d_sae], 0 for most.

        The numbers are those of SAELens' `encode`, but for the last digits.  Raises InputError for an activation of
        another width, InputTypeError for what is no array of floats.
        """
        rows = self._rows(activation)
        return self._encoded(rows.values).reshape(*rows.shape, self.d_sae)

    def decode(self, features: npt.ArrayLike) -> Floats:
        """The activation that features [..., d_sae] make up: float32 [..., d_in].

        What `encode` has taken off or divided by, the mean of a centred one and the scale of one that normalizes
        activations, is not in the features: `reconstruct` puts it back.  Raises as `encode` does.
        """
        array = _floats("features", features)
        if array.shape[-1:] != (self.d_sae,):
            raise InputError(f"features has shape {array.shape}; expected {self.d_sae} for its last dimension")
        return self._decoded(array.reshape(-1, self.d_sae)).reshape(*array.shape[:-1], self.d_in)

    def reconstruct(self, activation: npt.ArrayLike) -> Floats:
        """What an activation is after its way through the features and back: float32, of the activation's shape.

        Raises as `encode` does.
        """
        rows = self._rows(activation)
        found = rows.restored(self._decoded(self._encoded(rows.values)))
        return found.reshape(np.shape(activation))

    def splice(
        self, change: Callable[[Floats], Any] | None = None, *, error: bool = True
    ) -> tuple[str, Callable[..., Any]]:
        """The hook that leads a run through the features: a pair for `run_with_hooks` and `GPT2.hooks`.

        `change` gets the features of each token, float32 [texts, tokens, d_sae]; it changes them in place or returns
        others.  With `error`, what the features do not explain, the activation less its reconstruction, stays in the
        run, which so differs by nothing but what `change` does: where it does nothing the bits are those of a run
        without.  Without `error` the run goes on with the reconstruction.

        Raises InputTypeError for a `change` that is no function; the hook raises InputError for features of another
        shape, or that are not finite.
        """
        if change is not None and not callable(change):
            raise InputTypeError(f"change is of type {type(change).__name__}; expected a function of the features")
        error = flag("error", error)

        def through(activation: Floats, hook: HookPoint) -> Floats:
            rows = self._rows(activation)
            before = self._encoded(rows.values)
            given = before.reshape(*rows.shape, self.d_sae).copy()
            returned = None if change is None else change(given)
            after = _floats(f"what change gave at {hook.name}", given if returned is None else returned)
            if after.shape != given.shape:
                raise InputError(f"change gave features of shape {after.shape} at {hook.name}; expected {given.shape}")
            after = after.reshape(before.shape)
            if error:
                # The error is in both, and only their difference comes in.
                changed = (after != before).any(axis=1, keepdims=True)
                difference = rows.scale * (self._decoded(after) - self._decoded(before))
                flat = activation.reshape(before.shape[0], -1)
                found = np.where(changed, flat + difference, flat)
            else:
                found = rows.restored(self._decoded(after))
            return found.reshape(activation.shape)

        return self.hook_name, through

    def _rows(self, activation: npt.ArrayLike) -> _Rows:
        array = _floats("activation", activation)
        s = self._settings
        heads = 2 if s.by_head and array.shape[-1:] != (s.d_in,) else 1
        if array.ndim < heads or int(np.prod(array.shape[-heads:])) != s.d_in:
            raise InputError(f"activation has shape {array.shape}; expected {s.d_in} for its last dimension")
        flat = np.ascontiguousarray(array.reshape(-1, s.d_in))
        shift, scale = np.zeros((len(flat), 1), np.float32), np.ones((len(flat), 1), np.float32)
        if s.centred:
            shift = flat.mean(axis=1, keepdims=True)
        if s.normalization == "layer_norm":
            shift = flat.mean(axis=1, keepdims=True)
            scale = np.std(flat - shift, axis=1, ddof=1, keepdims=True)
            values = (flat - shift) / (scale + np.float32(1e-5))
        elif s.normalization == "constant_norm_rescale":
            length = np.linalg.norm(flat - shift, axis=1, keepdims=True)
            scale = np.where(length == 0, np.float32(1), length / np.float32(np.sqrt(s.d_in)))
            values = (flat - shift) / scale
        else:
            values = flat - shift
        return _Rows(array.shape[: array.ndim - heads], values, shift, scale)

    def _encoded(self, values: Floats) -> Floats:
        """The features [n, d_sae] of activations [n, d_in]."""
        s = self._settings
        found = self._encoder.multiply(np.ascontiguousarray(values - self._bias if s.subtracts_bias else values))
        if self._norms is not None:
            found *= self._norms
        if self._threshold is not None:
            found[found <= self._threshold] = 0
        if s.k is not None:
            found = _highest(found, s.k)
        # Not np.maximum(found, 0), which keeps -0.
        found[~(found > 0)] = 0
        return found

    def _decoded(self, features: Floats) -> Floats:
        """The activations [n, d_in] that features [n, d_sae] make up."""
        if self._norms is not None:
            features = features / np.where(self._norms == 0, np.float32(1), self._norms)
        return self._decoder.multiply(np.ascontiguousarray(features))


@dataclass(frozen=True)
class _Rows:
    """Activations as the encoder takes them, and what was taken off."""

    #: The dimensions before that of the activation.
    shape: tuple[int, ...]
    values: Floats
    shift: Floats
    scale: Floats

    def restored(self, values: Floats) -> Floats:
        """`values` [n, d_in] with that again."""
        return values * self.scale + self.shift


def _highest(values: Floats, k: int) -> Floats:
    """The k highest of each row, of equal ones the first; the others are 0."""
    if k >= values.shape[1]:
        return values
    least = np.partition(values, -k, axis=1)[:, -k, None]
    above, equal = values > least, values == least
    room = k - above.sum(axis=1, keepdims=True)
    return np.where(above | (equal & (np.cumsum(equal, axis=1) <= room)), values, np.float32(0))


def _floats(name: str, values: Any) -> Floats:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        raise InputError(f"{name} is no array: its rows are of different lengths") from None
    if array.dtype.kind != "f" or not array.ndim:
        raise InputTypeError(f"{name} is of {array.dtype}, with {array.ndim} dimensions; expected an array of floats")
    with np.errstate(over="ignore"):
        found = np.asarray(array, np.float32)
    if not np.isfinite(found).all():
        raise InputError(f"{name} has numbers that are not finite in float32")
    return found


def _settings(values: dict[str, Any], path: str) -> _Settings:
    """What the configuration says, in the words of any version of SAELens."""
    metadata = values.get("metadata")
    every = {**(metadata if isinstance(metadata, dict) else {}), **values}
    for old, new in _FORMER.items():
        if old in every:
            every.setdefault(new, every[old])

    def word(name: str, default: str, expected: tuple[str, ...]) -> str:
        value = every.get(name)
        value = default if value is None or value is False else value
        if value not in expected:
            raise InputError(f"{path}: {name} is {value!r:.80}; expected {' or '.join(map(repr, expected))}")
        return str(value)

    def truth(name: str, default: bool) -> bool:
        value = every.get(name, default)
        if not isinstance(value, bool):
            raise InputError(f"{path}: {name} is {value!r:.80}; expected true or false")
        return value

    def size(name: str, value: Any) -> int:
        try:
            return whole_number(f"{path}: {name}", value, least=1, most=_LIMIT)
        except InputTypeError as error:
            raise InputError(str(error)[:300]) from None

    hook_name = every.get("hook_name")
    if not isinstance(hook_name, str):
        raise InputError(f"{path}: hook_name is {hook_name!r:.80}; expected the name of a hook")
    if every.get("hook_head_index") is not None:
        raise InputError(f"{path}: hook_head_index is {every['hook_head_index']!r:.80}; SAEs of one head are not read")
    architecture = word("architecture", "standard", _ARCHITECTURES)
    k = every.get("k")
    arguments = every.get("activation_fn_kwargs")
    if every.get("activation_fn") == "topk" and architecture == "standard":
        architecture = "topk"
    elif every.get("activation_fn") not in (None, "relu", "topk"):
        raise InputError(f"{path}: activation_fn is {every['activation_fn']!r:.80}; expected 'relu' or 'topk'")
    if architecture == "topk" and k is None and isinstance(arguments, dict):
        k = arguments.get("k")
    kept = every.get("model_from_pretrained_kwargs")
    d_sae = size("d_sae", every.get("d_sae"))
    settings = _Settings(
        architecture=architecture,
        d_in=size("d_in", every.get("d_in")),
        d_sae=d_sae,
        hook_name=hook_name,
        k=size("k", k) if architecture == "topk" else None,
        rescales=architecture == "topk" and truth("rescale_acts_by_decoder_norm", False),
        subtracts_bias=truth("apply_b_dec_to_input", True),
        normalization=word("normalize_activations", "none", _NORMALIZATIONS),
        centred=isinstance(kept, dict) and kept.get("center_writing_weights") is True,
        by_head=word("reshape_activations", "hook_z" if "hook_z" in hook_name else "none", ("none", "hook_z"))
        == "hook_z",
    )
    if settings.normalization == "layer_norm" and settings.d_in == 1:
        raise InputError(f"{path}: d_in is 1, of which there is no layer_norm; expected 2 or more")
    if settings.k is not None and settings.k > d_sae:
        raise InputError(f"{path}: k is {settings.k}; there are {d_sae} features")
    return settings


def _tensors(path: str, settings: _Settings) -> dict[str, Floats]:
    """The weights in float32.  Raises InputError where they are not those of the configuration."""
    d_in, d_sae = settings.d_in, settings.d_sae
    expected = {"W_enc": (d_in, d_sae), "b_enc": (d_sae,), "W_dec": (d_sae, d_in), "b_dec": (d_in,)}
    if settings.architecture == "jumprelu":
        expected["threshold"] = (d_sae,)
    with safe_open(path) as file:  # before anything is read
        shapes = {name: entry.shape for name, entry in file.entries.items()}
    scaled = shapes.pop("scaling_factor", None)
    for name in sorted(expected.keys() | shapes.keys()):
        if name not in shapes:
            raise InputError(f"{path}: has no tensor {name!r}; expected it for {settings.architecture!r}")
        if name not in expected:
            raise InputError(f"{path}: has a tensor {name!r:.80}, which {settings.architecture!r} does not have")
        if tuple(shapes[name]) != expected[name]:
            raise InputError(f"{path}: tensor {name!r} has shape {tuple(shapes[name])}; expected {expected[name]}")
    content = read_file(path)
    found = {}
    for name, array in content.tensors.items():
        try:
            values = as_float32(array, content.dtypes[name])
        except InputTypeError as error:
            raise InputError(f"{path}: tensor {name!r}: {error}") from None
        if not np.isfinite(values).all():
            raise InputError(f"{path}: tensor {name!r} has numbers that are not finite")
        found[name] = values
    if scaled is not None and not np.allclose(found.pop("scaling_factor"), 1):
        raise InputError(f"{path}: tensor 'scaling_factor' is not 1 throughout; finetuned scales are not read")
    return found
