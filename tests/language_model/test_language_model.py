"""Text in, text out: what `load` gives for names and directories, and that it gives nothing for half a model."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path

import pytest

import gpt2fast
import gpt2fast.generation
import gpt2fast.language_model
from gpt2fast import InputError, InputTypeError, LanguageModel, MissingFileError

FILES = ("config.json", "model.safetensors", "vocab.json", "merges.txt")


@pytest.fixture
def directory(tmp_path: Path, data: Path) -> Path:
    """A copy of a tiny model that the test may spoil."""
    return Path(shutil.copytree(data / "generation" / "g-batch-eos" / "model", tmp_path / "model"))


def test_the_demo_is_the_default() -> None:
    lm = gpt2fast.load()
    assert isinstance(lm, LanguageModel)
    assert (lm.model.num_parameters, lm.tokenizer.n_vocab) == (5_918_720, 4096)
    assert repr(lm).startswith("<LanguageModel <GPT2 5,918,720 parameters")


def test_a_directory_as_str_and_as_path(directory: Path) -> None:
    for path in (directory, str(directory)):
        assert gpt2fast.load(path).generate([89], max_new_tokens=3, temperature=0).text == "abc"


def test_the_working_directory_may_be_named_by_a_dot(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    assert gpt2fast.load(".").generate([89], max_new_tokens=3, temperature=0).text == "abc"


@pytest.mark.parametrize("missing", FILES)
def test_a_missing_file_is_named(directory: Path, missing: str) -> None:
    (directory / missing).unlink()
    with pytest.raises(MissingFileError, match=missing):
        gpt2fast.load(directory)


@pytest.mark.parametrize("damaged", FILES)
def test_a_damaged_file_is_named(directory: Path, damaged: str) -> None:
    (directory / damaged).write_bytes(b"\xff{")
    with pytest.raises(InputError, match=damaged):
        gpt2fast.load(directory)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "float8"}, "dtype is 'float8'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"gemm": "fast"}, "gemm is 'fast'"),
        ({"num_threads": 0}, "num_threads"),
    ],
)
def test_unknown_options_of_load(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        gpt2fast.load("demo", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "error"), [("gpt3", MissingFileError), ("", InputError), (5, InputTypeError)])
def test_names_that_are_none(name: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        gpt2fast.load(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["generate", "generate_batch", "stream"])
def test_signatures_name_the_options(name: str) -> None:
    parameters = inspect.signature(getattr(gpt2fast.LanguageModel, name)).parameters
    settings = gpt2fast.generation.Settings()
    assert parameters["temperature"].default == 0.8
    for option in gpt2fast.language_model.GenerateOptions.__annotations__:
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
        of_others = False if option == "allow_special" else None
        assert parameters[option].default in (getattr(settings, option, of_others), of_others)
    assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def test_what_notebooks_show() -> None:
    lm = gpt2fast.load("demo")
    score = lm.score("Once <b>&\n\U0001f98a")
    shown = score._repr_html_()
    assert "<b>" not in shown
    assert shown.count("<span") == len(score)
    assert f"{len(score)} tokens" in shown
    text = lm.generate("Once", max_new_tokens=80, temperature=0)
    assert len(repr(text)) < 120
    assert repr(text).startswith(f"<Generation of 80 tokens (length): {text.text[:20]!r}"[:-1])
