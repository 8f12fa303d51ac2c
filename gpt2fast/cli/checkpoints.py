"""`gpt2fast inspect`, `pack` and `download`: files of models."""

from __future__ import annotations

import argparse
import os
from typing import Any

from gpt2fast.cli import common


def add_to(commands: Any) -> None:
    """Add the commands to the parser's."""
    inspect = common.add_command(
        commands,
        "inspect",
        _inspect_command,
        "what a safetensors file or a checkpoint holds",
        "Write the names, types, shapes and places of the tensors, without reading them.",
    )
    inspect.add_argument("--json", action="store_true", help="JSON instead of a table")
    inspect.add_argument("path", metavar="PATH", help="a safetensors file, or a directory with a model")

    pack = common.add_command(
        commands,
        "pack",
        _pack_command,
        "write a model in fewer bits",
        "Write a model and its tokenizer into a directory, its matrices as the kernels read them: an int8 model takes "
        "a quarter of the space and loads sooner, with the same --dtype.",
    )
    common.add_model(pack, dtype="int8")
    pack.add_argument("directory", metavar="DIRECTORY", help="made where it is missing")

    download = common.add_command(
        commands,
        "download",
        _download_command,
        "fetch a model",
        "Fetch a model into the user's cache, where it is not there yet, and write the directory's path.",
    )
    download.add_argument("name", metavar="NAME", help="gpt2, gpt2-medium, gpt2-large, gpt2-xl, distilgpt2 or org/name")


def _inspect_command(options: argparse.Namespace) -> None:
    from gpt2fast.checkpoint.inspect import inspect, render_json, render_text

    report = inspect(options.path)
    common.stdout().write((render_json if options.json else render_text)(report).encode("utf-8", "surrogateescape"))


def _pack_command(options: argparse.Namespace) -> None:
    common.load(options).save_pretrained(options.directory, packed=True)


def _download_command(options: argparse.Namespace) -> None:
    from gpt2fast.hub.models import download

    common.stdout().write(os.fsencode(download(options.name)) + b"\n")
