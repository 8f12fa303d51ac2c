"""The configuration of a GPT-2 checkpoint: config.json, read, checked and written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpt2fast._internal.arguments import path_name, whole_number
from gpt2fast.errors import InputError, InputTypeError, MissingFileError
from gpt2fast.safetensors.files import open_file, read_at

__all__ = ["ACTIVATIONS", "Config", "read_object"]

#: The function that each name of config.json stands for.  Several are one formula, written by several hands.
ACTIVATIONS = {
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_python_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "tanh": "tanh",
}

#: The largest size of each kind that is believed: a configuration is a file, which may say anything, and its numbers
#: are multiplied.  GPT-2's own are at most 50,257, 1,024, 1,600, 48, 25 and 6,400.
_LIMITS = {
    "vocab_size": 2**31 - 1,
    "n_ctx": 2**24,
    "n_embd": 2**20,
    "n_layer": 2**12,
    "n_head": 2**20,
    "n_inner": 2**22,
}

# The keys of config.json for a value, the first one present counts.  transformers accepts the later ones too, and
# ignores n_ctx where n_positions is there; block_size is nanoGPT's.
_KEYS = {
    "n_ctx": ("n_positions", "max_position_embeddings", "n_ctx", "block_size"),
    "n_embd": ("n_embd", "hidden_size"),
    "n_head": ("n_head", "num_attention_heads"),
    "n_layer": ("n_layer", "num_hidden_layers"),
}
# Published ones are of a kilobyte; a parsed one takes up to a hundred times its file's size.
_LONGEST_FILE = 4 << 20
_REQUIRED = ("vocab_size", "n_ctx", "n_embd", "n_layer", "n_head")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The numbers and switches that make a GPT-2 network; names as in the published config.json.

    Raises InputError where they cannot make one: sizes below 1, heads that do not divide the width, an activation
    function that is unknown.

    >>> Config(vocab_size=50257, n_ctx=1024, n_embd=768, n_layer=12, n_head=12).head_dim
    64
    """

    vocab_size: int
    #: Positions: the longest text that the model can see, in tokens.
    n_ctx: int
    n_embd: int
    n_layer: int
    n_head: int
    #: Width of the feed-forward layer; 4 * n_embd where config.json has null.
    n_inner: int = 0
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True
    #: Whether matrices and norms have biases; false in many checkpoints of nanoGPT, never in Hugging Face's.
    bias: bool = True
    bos_token_id: int | None = None
    #: The token that ends a text, or several each of which does; None where the checkpoint does not say.
    eos_token_id: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in _REQUIRED:
            self._check_size(name)
        if isinstance(self.n_inner, int) and self.n_inner == 0:
            object.__setattr__(self, "n_inner", 4 * self.n_embd)
        self._check_size("n_inner")
        if self.n_embd % self.n_head:
            raise InputError(f"n_head is {self.n_head}, which does not divide n_embd, {self.n_embd}")
        if not isinstance(self.activation_function, str) or self.activation_function not in ACTIVATIONS:
            raise InputError(
                f"activation_function is {_shown(self.activation_function)}; expected one of {', '.join(ACTIVATIONS)}"
            )
        epsilon = self.layer_norm_epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 <= epsilon < 1e30:
            raise InputError(f"layer_norm_epsilon is {_shown(epsilon)}; expected a number from 0")
        for name in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tie_word_embeddings", "bias"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; expected true or false")
        for name in ("bos_token_id", "eos_token_id"):
            value = getattr(self, name)
            several = isinstance(value, (list, tuple)) and name == "eos_token_id"
            ids = value if several else [] if value is None else [value]
            if any(isinstance(id, bool) or not isinstance(id, int) for id in ids):
                raise InputError(f"{name} is {value!r:.80}; expected a token id{' or several' * several} or null")
            # Small checkpoints are often made from GPT-2's configuration with its 50256 left in: no such token.
            ids = tuple(dict.fromkeys(id for id in ids if 0 <= id < self.vocab_size))
            object.__setattr__(self, name, ids if len(ids) > 1 else ids[0] if ids else None)

    def _check_size(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LIMITS[name]:
            raise InputError(f"{name} is {_shown(value)}; expected a whole number from 1 to {_LIMITS[name]}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    def attention_scale(self, layer: int) -> float:
        """The factor of the attention scores of `layer`, counted from 0."""
        layer = whole_number("layer", layer)
        # A root and a quotient are rounded alike by every C library, a power is not.
        scale = 1 / math.sqrt(self.head_dim) if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, source: str = "configuration") -> Config:
        """The configuration in a parsed config.json.

        The arguments that nanoGPT keeps in a checkpoint (`model_args`) are understood, too.  Keys that do not matter
        here (dropout, task heads) are ignored.  Raises InputError, beginning with `source`,
        where the model is not a GPT-2, a size is missing, or a switch asks for what is not implemented.
        """
        if not isinstance(values, Mapping):
            raise InputTypeError(f"{source}: is of type {type(values).__name__}; expected a dict")
        model_type = values.get("model_type", "gpt2")
        if model_type != "gpt2":
            raise InputError(f"{source}: model_type is {model_type!r}; expected 'gpt2'")
        if values.get("add_cross_attention"):
            raise InputError(f"{source}: add_cross_attention is set; a GPT-2 with cross-attention is not supported")
        found: dict[str, Any] = {}
        for name in cls.__dataclass_fields__:
            keys = _KEYS.get(name, (name,))
            value = next((values[key] for key in keys if values.get(key) is not None), None)
            if value is not None:
                found[name] = value
            elif name in _REQUIRED:
                raise InputError(f"{source}: {keys[0]} is missing")
        if "block_size" in values and "activation_function" not in found:
            found["activation_function"] = "gelu"  # nanoGPT's own arguments say none; its code has torch.nn.GELU
        try:
            return cls(**found)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Config:
        """The configuration in `directory`/config.json; where texts begin and end is generation_config.json's to say,
        where there is one.  Raises MissingFileError or InputError, naming the file."""
        path = Path(path_name(directory)) / "config.json"
        try:
            config = cls.from_dict(read_object(path), source=str(path))
        except MissingFileError as error:
            raise MissingFileError(f"{error}; a model directory has a config.json") from None
        path = Path(directory) / "generation_config.json"
        values = read_object(path) if path.exists() else {}
        said = {name: values[name] for name in ("bos_token_id", "eos_token_id") if values.get(name) is not None}
        try:
            return replace(config, **said)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The configuration as transformers writes it to config.json; its GPT-2 always has biases, which may be 0."""
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self.vocab_size,
            "n_positions": self.n_ctx,
            "n_ctx": self.n_ctx,
            "n_embd": self.n_embd,
            "n_layer": self.n_layer,
            "n_head": self.n_head,
            "n_inner": None if self.n_inner == 4 * self.n_embd else self.n_inner,
            "activation_function": self.activation_function,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "scale_attn_weights": self.scale_attn_weights,
            "scale_attn_by_inverse_layer_idx": self.scale_attn_by_inverse_layer_idx,
            "tie_word_embeddings": self.tie_word_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": list(self.eos_token_id) if isinstance(self.eos_token_id, tuple) else self.eos_token_id,
        }


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file such as config.json.

    Raises MissingFileError where there is no such file, InputError where it is something else or larger than 4 MiB.
    """
    with open_file(path, "a JSON file") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LONGEST_FILE:
            raise InputError(f"{path}: is {size} bytes long; expected a configuration of at most {_LONGEST_FILE}")
        content = read_at(file, size, 0)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def _shown(value: object) -> str:
    """A value of a file or a caller as messages show it, short however long it is."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of more than 40 digits"
    return text if len(text) <= 80 else text[:80] + "..."
