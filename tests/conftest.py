"""Shared fixtures, and how many examples Hypothesis tries: GPT2FAST_EXAMPLES, 50 where it is not set."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from paths import DATA
from toy_model import ToyModel

import gpt2fast
from gpt2fast.kernels import cpu

# No deadline: a shared machine stops for longer than any sensible one.
settings.register_profile(
    "gpt2fast",
    max_examples=int(os.environ.get("GPT2FAST_EXAMPLES", "50")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gpt2fast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: processes that take files in this order then end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def data() -> Path:
    """The directory of test data."""
    return DATA


@pytest.fixture(scope="session")
def demo_directory() -> Path:
    """The directory of the model that ships."""
    return Path(gpt2fast.__file__).parent / "data" / "demo"


@pytest.fixture(scope="session")
def tiny(data: Path) -> Path:
    """Tiny checkpoints, one per switch of the configuration, with Hugging Face's outputs."""
    return data / "reference" / "tiny"


@pytest.fixture(scope="session")
def model_case(data: Path) -> Any:
    """A function from a case's id to its inputs and expected values: trouble that other projects had with models."""
    cases = {case["id"]: case for case in json.loads((data / "cases" / "model-cases.json").read_text())}
    return cases.__getitem__


# Where the environment chooses one, that one alone.
LEVELS = [cpu.cpu_level()] if os.environ.get("GPT2FAST_CPU") else cpu.supported_levels()


@pytest.fixture(params=LEVELS, scope="module")
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each CPU level that this processor has, which the kernels take as long as a test of this level lasts."""
    before = cpu.cpu_level()
    cpu.use_level(request.param)
    yield request.param
    cpu.use_level(before)


@pytest.fixture(scope="session")
def tokenizer(data: Path) -> gpt2fast.Tokenizer:
    """The 256 bytes, a few merges, and end-of-text, 269: what `ToyModel` has logits for."""
    return gpt2fast.Tokenizer.from_pretrained(data / "generation" / "g-stop-strings" / "model")


@pytest.fixture(scope="module")
def toy(tokenizer: gpt2fast.Tokenizer) -> gpt2fast.LanguageModel:
    """That tokenizer, and a network that is quick and knows what it was shown."""
    return gpt2fast.LanguageModel(ToyModel(), tokenizer)  # type: ignore[arg-type]
