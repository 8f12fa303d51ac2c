"""The examples in docstrings run and show what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import gpt2fast

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(gpt2fast.__path__, "gpt2fast.")
    if not module.name.endswith(("__main__", "_bpe")) and ".kernels" not in module.name
)


@pytest.mark.parametrize("name", ["gpt2fast", *MODULES])
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
