"""Modules that have moved are found under their former names, too, by imports and by older pickles."""

from __future__ import annotations

import importlib
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpt2fast
from gpt2fast._internal.finder import FORMER_NAMES


@pytest.mark.parametrize("former", sorted(set(FORMER_NAMES) - {"hub_client"}))  # which needs huggingface_hub
def test_a_former_name_is_the_module_of_today(former):
    found = importlib.import_module(f"gpt2fast.{former}")
    assert found is importlib.import_module(f"gpt2fast.{FORMER_NAMES[former]}")
    assert found.__name__ == found.__spec__.name == f"gpt2fast.{FORMER_NAMES[former]}"


def test_a_source_folder_that_was_not_built_says_so(tmp_path: Path):
    package = Path(gpt2fast.__file__).parent
    shutil.copytree(
        package, tmp_path / "gpt2fast", ignore=shutil.ignore_patterns("*.so", "*.pyd", "data", "__pycache__")
    )
    for use in ("get_encoding", "load"):
        code = f"import gpt2fast; gpt2fast.{use}('gpt2')"
        result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        *_, last = result.stderr.splitlines()
        assert last.startswith(f"gpt2fast.errors.NotBuiltError: {tmp_path / 'gpt2fast'} holds no compiled gpt2fast.")
        assert "pip install -e ." in last
    command = [sys.executable, "-m", "gpt2fast", "count"]
    result = subprocess.run(command, cwd=tmp_path, input="a", capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("gpt2fast: ")
    assert result.stderr.count("\n") == 1


def test_other_names_are_not_found():
    with pytest.raises(ModuleNotFoundError, match="gpt2fast.nothing"):
        importlib.import_module("gpt2fast.nothing")
    assert sys.meta_path.count(next(f for f in sys.meta_path if getattr(f, "__name__", "") == "_Finder")) == 1


def test_pickles_of_before_the_move(data: Path):
    things = pickle.loads((data / "former-names.pickle").read_bytes())
    assert things["encoding"] is gpt2fast.get_encoding("gpt2")
    lm = gpt2fast.load("demo")
    assert things["config"] == lm.model.config
    assert things["generation"] == lm.generate("Once", max_new_tokens=3, temperature=0, seed=1)
    assert things["beam"].ids == lm.beam_search("Once", num_beams=2, max_new_tokens=3)[0].ids
    assert things["score"].ids.tolist() == lm.score("Once upon a time").ids.tolist()
    assert things["word"].text == things["token"].text == "Once"
    assert (things["settings"].seed, things["settings"].stop, things["sampling"].top_k) == (3, ("a",), 5)
    assert things["step"].id == things["generation"].ids[0]
    assert things["tokenizer"].decode(things["tokenizer"].encode("a text")) == "a text"
    assert type(things["tokenize_batches"]).__name__ == "TokenizeBatches"
    assert things["tokenize_examples"]({"text": ["hello world"]})["input_ids"][0].tolist() == [31373, 995]
    assert isinstance(things["error"], KeyError)
