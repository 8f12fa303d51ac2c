"""GPT2FAST_CPU chooses the kernels' CPU level, and is refused where the level is not there.

What the kernels compute at each level is a matter of the tests that use the fixture `level`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpt2fast.kernels import cpu


def run(code, level):
    environment = {**os.environ, "GPT2FAST_CPU": level}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("level", ["", *cpu.supported_levels()])
def test_a_level_is_chosen_by_name_and_the_best_without_one(level):
    printed = run("import gpt2fast.kernels.cpu as c; print(c.cpu_level())", level)
    assert printed.stdout.strip() == (level or cpu.supported_levels()[-1])


def test_unknown_level_is_an_import_error():
    result = run("import gpt2fast.kernels.cpu", "avx9000")
    assert result.returncode == 1
    assert "gpt2fast.errors.CpuLevelError: the environment variable GPT2FAST_CPU is 'avx9000'" in result.stderr
    assert "not a level that gpt2fast knows" in result.stderr
    assert "baseline" in result.stderr


@pytest.mark.skipif(len(cpu.supported_levels()) == len(cpu.LEVELS), reason="this processor has every level")
def test_level_that_this_processor_lacks():
    result = run("import gpt2fast.kernels.cpu", cpu.LEVELS[-1])
    assert "is not supported by this processor" in result.stderr
