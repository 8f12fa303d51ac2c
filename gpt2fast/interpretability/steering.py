"""Steering vectors: made of pairs of texts that differ in what is steered, and kept in files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.arguments import flag, listed, one_of, path_name, real_number
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.model.hooks.names import layer_of, selected
from gpt2fast.model.hooks.steering import Positions, Steering
from gpt2fast.model.pairing import beginning
from gpt2fast.safetensors import as_float32, read_file, save_file
from gpt2fast.safetensors.files import open_file, read_at
from gpt2fast.scoring.lens import Pair

if TYPE_CHECKING:
    from gpt2fast.model.gpt2 import GPT2

__all__ = ["Steering", "contrast_vector", "load_steering", "save_steering"]

#: Texts that are read together.
_TEXTS = 16
#: The key of a file's metadata that tells strengths and positions, and what its value begins with.
_KEY, _VERSION = "gpt2fast.steering", 1


def contrast_vector(
    lm: Pair,
    pairs: Iterable[tuple[str | bytes, str | bytes]],
    name: str,
    *,
    tokens: Literal["last", "mean"] = "last",
    bos: bool = True,
    strength: float = 1.0,
    positions: Positions = None,
) -> Steering:
    """The vector that leads from the second texts of `pairs` to the first: the mean difference of their activations at
    `name`, a `Steering`.

    Of each text the activation of its last token counts, or with `tokens="mean"` the mean over its tokens.  A text
    comes after the token that texts begin with, unless `bos` is False; that token does not count.  `strength` and
    `positions` are those of the Steering.  The method is that of contrastive activation addition (Rimsky et al. 2023,
    arXiv:2312.06681).

    Raises InputError for a name that does not exist or has no vector for a token, where there are no pairs, and for a
    text of no tokens or beyond the model's context; InputTypeError for what is no pair of texts.

    >>> import gpt2fast
    >>> lm = gpt2fast.load("demo")
    >>> pairs = [("The queen laughed", "The queen wept"), ("They were merry", "They were sad")]
    >>> contrast_vector(lm, pairs, "blocks.3.hook_resid_post", strength=2)
    <Steering 'blocks.3.hook_resid_post': a vector (256,) of norm 66.4, strength=2>
    """
    model = lm.model
    one_of("tokens", tokens, ("last", "mean"))
    if not isinstance(name, str):
        raise InputTypeError(f"name is of type {type(name).__name__}; expected the name of a hook")
    selected("name", name, model.config.n_layer)
    if name.endswith(("attn_scores", "hook_pattern")):
        raise InputError(f"name is {name!r}, where there is no vector for a token; expected another name")
    real_number("strength", strength)
    first = beginning(model, lm.tokenizer) if flag("bos", bos) else None
    texts: list[list[int]] = []
    for i, pair in enumerate(listed("pairs", pairs, "pairs of texts")):
        if isinstance(pair, (str, bytes)) or len(listed(f"pairs[{i}]", pair, "a pair of texts")) != 2:
            raise InputTypeError(f"pairs[{i}] is {pair!r:.80}; expected a pair of texts")
        for text in pair:
            if not isinstance(text, (str, bytes)):
                raise InputTypeError(f"pairs[{i}] has {text!r:.80}; expected str or bytes")
            ids = lm.tokenizer.encode_ordinary(text)
            if not ids:
                raise InputError(f"pairs[{i}] has a text of no tokens")
            texts.append([*([] if first is None else [first]), *ids])
            if len(texts[-1]) > model.config.n_ctx:
                raise InputError(
                    f"pairs[{i}] has a text of {len(texts[-1])} tokens; the model's limit is {model.config.n_ctx}"
                )
    if not texts:
        raise InputError("pairs is empty; expected at least one pair of texts")
    total: Any = 0.0
    for number, vector in enumerate(_activations(model, texts, name, tokens, 0 if first is None else 1)):
        total = total + (vector if number % 2 == 0 else -vector)
    return Steering(name, total / (len(texts) // 2), strength, positions)


def save_steering(
    path: str | os.PathLike[str],
    steer: Steering | Iterable[Steering],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write vectors to a safetensors file: a tensor for each, called as its hook, and strengths and positions in the
    metadata, to which `metadata` is added, texts by name.

    The file appears whole or not at all, and replaces one that is there.  Raises InputError for two vectors at one
    name, and InputTypeError for what is no Steering.

    >>> import os, tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> path = os.path.join(directory.name, "merry.safetensors")
    >>> save_steering(path, Steering("blocks.3.hook_resid_post", [0.5, -1.0], strength=4), {"made of": "two pairs"})
    >>> load_steering(path)
    [<Steering 'blocks.3.hook_resid_post': a vector (2,) of norm 1.118, strength=4>]
    >>> directory.cleanup()
    """
    path_name(path)
    vectors = [steer] if isinstance(steer, Steering) else listed("steer", steer, "a Steering or a list of them")
    if not vectors:
        raise InputError("steer is empty; expected at least one Steering")
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    settings: dict[str, Any] = {}
    for one in vectors:
        if not isinstance(one, Steering):
            raise InputTypeError(f"steer has {one!r:.80}; expected a Steering")
        if one.name in tensors:
            raise InputError(f"steer has two vectors at {one.name}; a file has one for each name: save two files")
        tensors[one.name] = one.vector
        settings[one.name] = {"strength": one.strength, "positions": _as_json(one.positions)}
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InputTypeError(f"metadata is of type {type(metadata).__name__}; expected a dict of strings")
    if metadata is not None and _KEY in metadata:
        raise InputError(f"metadata has {_KEY!r}, which is the file's own; expected other names")
    own = {_KEY: json.dumps({"version": _VERSION, "vectors": settings})}
    save_file(tensors, path, {**(metadata or {}), **own})


def load_steering(path: str | os.PathLike[str]) -> list[Steering]:
    """The vectors of a safetensors file, in the order of their names: what `generate` takes as `steer`.

    Where the metadata say nothing of a vector, as in files of others, its strength is 1 and it is added at all
    positions.  Raises MissingFileError where there is no such file; InputError where it is damaged, holds what is no
    vector, or is one of repeng's control vectors in GGUF, whose layers become names as the message says.
    """
    name = path_name(path)
    with open_file(path) as file:
        if read_at(file, min(4, os.fstat(file.fileno()).st_size), 0) == b"GGUF":
            raise InputError(
                f"{name}: a GGUF file, as repeng and llama.cpp keep control vectors; expected safetensors.  Its tensor "
                "'direction.N' is what is added at blocks.N.hook_resid_post: read it with the package gguf, and pass "
                "Steering('blocks.N.hook_resid_post', direction) for each N to save_steering"
            )
    content = read_file(path)
    settings = _settings(content.metadata.get(_KEY), name)
    if not content.tensors:
        raise InputError(f"{name}: holds no vector")
    unknown = sorted(settings.keys() - content.tensors.keys())
    if unknown:
        raise InputError(f"{name}: its metadata tell of a vector {unknown[0]!r:.80} that is not there")
    found = []
    for tensor in sorted(content.tensors):
        try:
            vector = as_float32(content.tensors[tensor], content.dtypes[tensor])
            strength, positions = settings.get(tensor, (1.0, None))
            found.append(Steering(tensor, vector, strength, positions))
        except (InputError, InputTypeError) as error:
            raise InputError(f"{name}: tensor {tensor!r:.80}: {error}") from None
    return found


def _activations(model: GPT2, texts: list[list[int]], name: str, tokens: str, skipped: int) -> Iterable[Any]:
    """For each text the activation of its last token, or the mean over its tokens but the first `skipped`: float64."""
    layer = layer_of(name)
    # Nothing above the layer is needed; the final norm comes after all layers.
    stop = None if name.startswith("ln_final") else 0 if layer is None else layer + 1
    for start in range(0, len(texts), _TEXTS):
        group = texts[start : start + _TEXTS]
        cache = model.run_with_cache(group, name, stop_at_layer=stop, last_only=True)[1]
        for array in cache[name]:
            wide = array[skipped:].astype(np.float64)
            yield wide[-1] if tokens == "last" else wide.mean(axis=0)


def _as_json(positions: Any) -> Any:
    if isinstance(positions, slice):
        return {"start": positions.start, "stop": positions.stop, "step": positions.step}
    return positions


def _settings(text: str | None, name: str) -> dict[str, tuple[Any, Any]]:
    """The strength and the positions of each vector that the metadata tell of."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
        version = found["version"]
        if version != _VERSION:
            raise InputError(f"{name}: steering vectors of version {version!r:.40}; this gpt2fast reads {_VERSION}")
        return {key: (one["strength"], _of_json(one["positions"])) for key, one in found["vectors"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: the metadata {_KEY!r} are damaged: {error!r:.120}") from None


def _of_json(positions: Any) -> Any:
    if isinstance(positions, dict):
        return slice(positions["start"], positions["stop"], positions["step"])
    return positions
