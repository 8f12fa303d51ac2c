"""Shared fixtures, and how many examples Hypothesis tries: GPT2FAST_EXAMPLES, 50 where it is not set."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a shared machine stops for longer than any sensible one.
settings.register_profile(
    "gpt2fast",
    max_examples=int(os.environ.get("GPT2FAST_EXAMPLES", "50")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gpt2fast")

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def data() -> Path:
    """The directory of test data."""
    return DATA


@pytest.fixture(scope="session")
def tiny(data: Path) -> Path:
    """Tiny checkpoints, one per switch of the configuration, with Hugging Face's outputs."""
    return data / "reference" / "tiny"


@pytest.fixture(scope="session")
def model_case(data: Path) -> Any:
    """A function from a case's id to its inputs and expected values: trouble that other projects had with models."""
    cases = {case["id"]: case for case in json.loads((data / "cases" / "model-cases.json").read_text())}
    return cases.__getitem__
