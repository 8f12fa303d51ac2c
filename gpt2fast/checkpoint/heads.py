"""The heads of checkpoints that label texts or tokens: GPT2ForSequenceClassification, GPT2ForTokenClassification."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpt2fast import safetensors as st
from gpt2fast.checkpoint.config import read_object
from gpt2fast.errors import InputError

__all__ = ["LabelHead", "head_tensors", "read_head"]

#: What each architecture labels, and the name of its head's tensors.
_HEADS: dict[str, tuple[Literal["text", "token"], str]] = {
    "GPT2ForSequenceClassification": ("text", "score"),
    "GPT2ForTokenClassification": ("token", "classifier"),
}
_PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")


@dataclass(frozen=True, eq=False)
class LabelHead:
    """A linear map from final hidden states to the logits of labels."""

    #: What gets labels: a "text", at its last token that is no padding, or every "token".
    of: Literal["text", "token"]
    labels: tuple[str, ...]
    #: float32 (labels, n_embd).
    weight: npt.NDArray[np.float32]
    #: float32 (labels,), zeros where the checkpoint has none.
    bias: npt.NDArray[np.float32]
    #: "single_label_classification", "multi_label_classification" or "regression".
    problem_type: str
    pad_token_id: int | None

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """The head's tensors by their published names; a bias of zeros only where the architecture has one."""
        name = _HEADS[self._architecture][1]
        has_bias = self.of == "token" or self.bias.any()
        return {f"{name}.weight": self.weight, **({f"{name}.bias": self.bias} if has_bias else {})}

    def to_dict(self) -> dict[str, Any]:
        """What config.json says of it."""
        return {
            "architectures": [self._architecture],
            "id2label": {str(i): label for i, label in enumerate(self.labels)},
            "label2id": {label: i for i, label in enumerate(self.labels)},
            "problem_type": self.problem_type,
            "pad_token_id": self.pad_token_id,
        }

    @property
    def _architecture(self) -> str:
        return next(name for name, (of, _) in _HEADS.items() if of == self.of)


def head_tensors(values: dict[str, Any]) -> tuple[str, ...]:
    """The names of the head's tensors in a checkpoint whose config.json holds `values`; none where it has no such head.

    >>> head_tensors({"architectures": ["GPT2ForSequenceClassification"]})
    ('score.weight', 'score.bias')
    """
    found = _kind(values)
    return () if found is None else (f"{found[1]}.weight", f"{found[1]}.bias")


def _kind(values: dict[str, Any]) -> tuple[Literal["text", "token"], str] | None:
    names = values.get("architectures")
    names = names if isinstance(names, list) else []
    return next((_HEADS[name] for name in names if isinstance(name, str) and name in _HEADS), None)


def read_head(directory: str | Path, n_embd: int) -> LabelHead | None:
    """The head of the checkpoint in `directory`, None where config.json names no architecture that has one.

    Raises InputError, naming the file, where the head is missing, is not [labels, n_embd], or does not fit the labels.
    """
    path = Path(directory) / "config.json"
    values = read_object(path)
    kind = _kind(values)
    if kind is None:
        return None
    weight_name, bias_name = head_tensors(values)
    tensors = _read(Path(directory), (weight_name, bias_name))
    weight = tensors.get(weight_name)
    if weight is None:
        raise InputError(f"{directory}: {weight_name} is missing, the head of a {values['architectures'][0]}")
    if weight.ndim != 2 or weight.shape[1] != n_embd or not len(weight):
        raise InputError(f"{directory}: {weight_name} is {list(weight.shape)}, expected [labels, {n_embd}]")
    bias = tensors.get(bias_name, np.zeros(len(weight), np.float32))
    if bias.shape != (len(weight),):
        raise InputError(f"{directory}: {bias_name} is {list(bias.shape)}, expected [{len(weight)}]")
    problem = values.get("problem_type")
    if problem is None:  # as transformers' pipeline takes it
        problem = _PROBLEMS[len(weight) == 1]
    if problem not in _PROBLEMS:
        raise InputError(f"{path}: problem_type is {problem!r:.60}; expected one of {', '.join(_PROBLEMS)}")
    pad = values.get("pad_token_id")
    if pad is not None and (isinstance(pad, bool) or not isinstance(pad, int)):
        raise InputError(f"{path}: pad_token_id is {pad!r:.60}; expected a token id or null")
    return LabelHead(kind[0], _labels(values, len(weight), path), weight, bias, problem, pad)


def _labels(values: dict[str, Any], count: int, path: Path) -> tuple[str, ...]:
    named = values.get("id2label")
    if named is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(named, dict) or {*map(str, named)} != {*map(str, range(count))}:
        raise InputError(f"{path}: id2label is {named!r:.60}; expected a label for each number from 0 to {count - 1}")
    return tuple(str(named[str(i)]) for i in range(count))


def _read(directory: Path, names: tuple[str, ...]) -> dict[str, npt.NDArray[np.float32]]:
    """Those of the tensors that the checkpoint has, in float32."""
    single = directory / st.SINGLE_NAME
    files = {single} if single.is_file() else {Path(path) for path in st.read_index(directory).values()}
    found = {}
    for path in sorted(files):
        with st.safe_open(path) as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                if name.removeprefix("_orig_mod.") in names:
                    part = file.get_slice(name)
                    found[name.removeprefix("_orig_mod.")] = st.as_float32(part[...], part.get_dtype())
    return found
