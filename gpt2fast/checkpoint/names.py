"""Which tensors a GPT-2 has, and under which names checkpoints have them.

Names are those with which Hugging Face published OpenAI's weights (`wte.weight`, `h.0.attn.c_attn.weight` …), with or
without `transformer.` before them, and nanoGPT's, which are the same; `torch.compile` leaves `_orig_mod.` there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from gpt2fast.checkpoint.config import Config
from gpt2fast.errors import InputError

__all__ = [
    "BLOCK_MATRICES",
    "TABLES",
    "expected_shapes",
    "explain_unknown",
    "inputs_and_outputs",
    "is_matrix",
    "match_names",
    "packed_names",
    "settle_head",
]

Shape = tuple[int, ...]

#: The products of a block, by their published names.
BLOCK_MATRICES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
#: The tables with a row for each token.
TABLES = ("wte.weight", "lm_head.weight")

# Under these names the output head is found; where it is tied, also under that of the embeddings.
_HEADS = ("lm_head.weight", "lm_head.decoder.weight")
# Causal masks that older checkpoints carry along, float or bool.
_MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
# What training puts beside a language model: value heads (TRL, trlX), and transformers' heads for other tasks.
_EXTRA = re.compile(
    r"(v_head|value_head|ilql_heads|q_heads?|target_q_heads?|score|classifier|multiple_choice_head|qa_outputs)\..+"
)


@lru_cache(maxsize=16)
def expected_shapes(config: Config) -> MappingProxyType[str, Shape]:
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
    return MappingProxyType(shapes)


def is_matrix(name: str) -> bool:
    """Whether that is the name of a matrix of a block."""
    return name.startswith("h.") and name.endswith(tuple(f"{matrix}.weight" for matrix in BLOCK_MATRICES))


def packed_names(config: Config) -> list[str]:
    """The names of the tensors that are kept in panels: the matrices of the blocks and the output head's table."""
    head = "wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    return [*filter(is_matrix, expected_shapes(config)), head]


def inputs_and_outputs(config: Config, name: str) -> tuple[int, int]:
    """How many inputs and outputs a matrix or a table has."""
    rows, columns = expected_shapes(config)[name]
    return (columns, rows) if name in TABLES else (rows, columns)


def match_names(names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """For each tensor the name under which the checkpoint has it, by its bare name, and the extras, which are no part
    of the network; causal masks are in neither.

    Raises InputError where two names stand for the same tensor.

    >>> match_names(["transformer.wte.weight", "transformer.h.0.attn.bias", "v_head.summary.weight"])
    ({'wte.weight': 'transformer.wte.weight'}, ['v_head.summary.weight'])
    """
    matched: dict[str, str] = {}
    extras = []
    for name in names:
        bare = name.removeprefix("_orig_mod.").removeprefix("transformer.")
        if _MASK.fullmatch(bare):
            continue
        if _EXTRA.fullmatch(bare):
            extras.append(name)
            continue
        if bare in matched:
            raise InputError(f"the checkpoint has {bare} twice: as {matched[bare]!r} and as {name!r}")
        matched[bare] = name
    return matched, extras


def settle_head(config: Config, names: dict[str, str], equal: Callable[[str, str], bool]) -> Config:
    """The configuration with the truth about the output head, which in `names` then has its one place.

    A head that is stored and differs from the embeddings was trained on its own: it is used, even where config.json
    says that the two are tied (as transformers does since 5.0).  One that is `equal` to them, a function of two bare
    names, is tied, and a tied table may be stored under the head's name alone.

    Raises InputError where there are two heads that differ.
    """
    stored = [name for name in _HEADS if name in names]
    if len(stored) == 2 and not equal(*stored):
        raise InputError(f"there are two output heads, {' and '.join(map(names.__getitem__, stored))}, which differ")
    for name in stored[1:]:
        del names[name]
    if not stored:
        return config
    head = names.pop(stored[0])
    if config.tie_word_embeddings and "wte.weight" not in names:
        names["wte.weight"] = head
        return config
    names["lm_head.weight"] = head
    if config.tie_word_embeddings:
        if not equal("lm_head.weight", "wte.weight"):
            return replace(config, tie_word_embeddings=False)
        del names["lm_head.weight"]
    return config


def explain_unknown(names: Iterable[str], expected: Collection[str]) -> str | None:
    """Why tensors of these names are not found among the `expected` ones: wrappers of PyTorch put something before
    them, or LoRA matrices were not merged.  None where it is something else.

    >>> explain_unknown(["module.transformer.wte.weight"], ["wte.weight"])
    "'module.' stands in names such as module.transformer.wte.weight, where wte.weight or transformer.wte.weight is \
expected: save the model inside of its wrapper"
    """
    parts = {part for name in expected for part in name.split(".")}
    for name in names:
        if ".lora_" in name:
            return (
                f"{name} belongs to a LoRA adapter: merge it into the model and save that (PEFT: merge_and_unload), or "
                "give the adapter's directory beside the model's, as adapter"
            )
        pieces = [piece for piece in name.split(".") if piece != "transformer"]
        bare = ".".join(piece for piece in pieces if piece in parts)
        added = ".".join(piece for piece in pieces if piece not in parts)
        if added and bare in expected:
            return (
                f"'{added}.' stands in names such as {name}, where {bare} or transformer.{bare} is expected: save the "
                "model inside of its wrapper"
            )
    return None
