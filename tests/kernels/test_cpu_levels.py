"""Each CPU level that this processor has: chosen by name, right in every kernel, and refused where it is not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from paths import ROOT

from gpt2fast.kernels import cpu


def run(code_or_arguments, level):
    arguments = ["-c", code_or_arguments] if isinstance(code_or_arguments, str) else code_or_arguments
    environment = {**os.environ, "GPT2FAST_CPU": level}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("level", ["", *cpu.supported_levels()])
def test_a_level_is_chosen_by_name_and_the_best_without_one(level):
    printed = run("import gpt2fast.kernels.cpu as c; print(c.cpu_level())", level)
    assert printed.stdout.strip() == (level or cpu.supported_levels()[-1])


# At the level of this process the files run in this process.
@pytest.mark.parametrize("level", [level for level in cpu.supported_levels() if level != cpu.cpu_level()])
def test_kernels_and_checkpoints_at_each_other_level(level):
    files = [f"tests/{name}.py" for name in ("kernels/test_kernels", "model/test_reference", "model/test_invariance")]
    result = run(["-m", "pytest", "-q", "-m", "not slow", *files], level)
    assert result.returncode == 0, result.stdout[-3000:]


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
