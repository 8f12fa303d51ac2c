"""The demo model and a text that it knows."""

from __future__ import annotations

import pytest
from tales import TALE

import gpt2fast
from gpt2fast.language_model import LanguageModel


@pytest.fixture(scope="session")
def lm() -> LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="session")
def tale() -> bytes:
    """1,946 bytes of a tale, in UTF-8."""
    return TALE.encode()


@pytest.fixture(scope="session")
def short(tale: bytes) -> bytes:
    """500 bytes of it."""
    return tale[:500]
