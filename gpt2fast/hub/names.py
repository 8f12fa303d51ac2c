"""What the hub is told and what a model directory holds: the names that `hub.py` and `hub_client.py` share."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "ADAPTER",
    "COMMIT",
    "CONFIG",
    "INDEX",
    "KNOWN",
    "PICKLE",
    "TOKENIZERS",
    "WEIGHTS",
    "WITHOUT_NETWORK",
    "Published",
    "adapter_advice",
    "hugging_face_directory",
    "missing_file",
]

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
ADAPTER = "adapter_config.json"
#: The sets of files any of which makes a tokenizer.
TOKENIZERS = (frozenset({"vocab.json", "merges.txt"}), frozenset({"tokenizer.json"}))

#: What to do where a download is impossible; ends the messages of such errors.
WITHOUT_NETWORK = (
    "Without a network, use the model that ships with gpt2fast, which has the name 'demo' (--model demo), or give "
    "the path of a directory with config.json, model.safetensors, vocab.json and merges.txt."
)

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Published:
    """A repository of the hub, which revision of it is meant, and the SHA-256 of its files as far as known here."""

    repo: str
    revision: str
    sha256: Mapping[str, str] = field(default_factory=dict)


_GPT2_TOKENIZER = {
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "tokenizer.json": "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6",
}

#: The names that need no organisation.  Each is pinned to a commit, so that a name means the same weights for ever.
#: Of gpt2-medium and gpt2-large the SHA-256 are not known here: the hub's own digests are checked, as for any other
#: model, which finds a damaged download but trusts the hub.
KNOWN: dict[str, Published] = {
    "gpt2": Published(
        "openai-community/gpt2",
        "607a30d783dfa663caf39e06633721c8d4cfcd7e",
        {
            WEIGHTS: "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
            **_GPT2_TOKENIZER,
        },
    ),
    "gpt2-medium": Published("openai-community/gpt2-medium", "6dcaa7a952f72f9298047fd5137cd6e4f05f41da"),
    "gpt2-large": Published("openai-community/gpt2-large", "32b71b12589c2f8d625668d2335a01cac3249519"),
    "gpt2-xl": Published(
        "openai-community/gpt2-xl",
        "15ea56dee5df4983c59b2538573817e1667135e2",
        {
            WEIGHTS: "0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a",
            **_GPT2_TOKENIZER,
        },
    ),
    "distilgpt2": Published(
        "distilbert/distilgpt2",
        "2290a62682d06624634c1f46a6ad5be0f47f38aa",
        {
            WEIGHTS: "e1ff18884359fe8beb795a5f414feb85a6ce3d929ad019c0d958c039d2b94a1b",
            **_GPT2_TOKENIZER,
        },
    ),
}


def hugging_face_directory(variable: str, name: str) -> Path:
    """The directory that the environment variable names, else `name` in Hugging Face's home."""
    # As in huggingface_hub.constants, but read at each call, and without the import.
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    return Path(os.path.expandvars(os.environ.get(variable) or os.path.join(home, name))).expanduser()


def adapter_advice(directory: Path) -> str:
    """What to do with a directory that holds an adapter instead of a model; empty where that is not so."""
    names = {entry.name for entry in directory.iterdir()}
    if ADAPTER not in names or (CONFIG in names and not names.isdisjoint({WEIGHTS, INDEX})):
        return ""
    return (
        f"{ADAPTER} is there: this is an adapter (LoRA), which goes with the model that it was trained on, its "
        "base_model_name_or_path. Load that model and give this directory as adapter: gpt2fast.load(MODEL, "
        f"adapter={os.fspath(directory)!r}) or --model MODEL --adapter {directory}"
    )


def missing_file(directory: Path, *, tokenizer: bool = True) -> str | None:
    """What a model directory lacks, in words, or None; a `tokenizer` among it, unless another one may be meant."""
    names = {entry.name for entry in directory.iterdir()}
    if CONFIG not in names:
        return CONFIG
    if WEIGHTS not in names and INDEX not in names:
        return f"{WEIGHTS} (or {INDEX} with its shards)"
    if tokenizer and not any(names.issuperset(files) for files in TOKENIZERS):
        return "tokenizer: vocab.json and merges.txt, or tokenizer.json"
    return None
