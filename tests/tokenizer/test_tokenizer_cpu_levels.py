"""GPT2FAST_CPU reaches the tokenizer: each level that this processor has gives the ids of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gpt2fast import _bpe
from gpt2fast.kernels import cpu

#: Which code each level takes, at most; AVX-512 here needs VBMI2, which is younger than AVX-512 itself.
CODE = {"baseline": "sse2", "x86-64-v3": "avx2", "x86-64-v4": "avx2"}
TEXTS = [
    "Hello  wörld's 12\n\n\u3000漢字, isn't it?  verylongwordwithoutanyspaces " * 30,
    "日本語 🦊 привет 12345 don't " * 50,
    "a" * 300 + "=" * 300,
]


def run(level: str, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GPT2FAST_CPU": level}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("level", cpu.supported_levels())
def test_each_level(level):
    code = f"import gpt2fast, json; from gpt2fast import _bpe; enc = gpt2fast.get_encoding('gpt2'); texts = {TEXTS!r}\n"
    code += "print(json.dumps([_bpe.cpu_levels()[1], enc.encode_batch(texts), [enc.count(text) for text in texts]]))"
    used, ids, counts = json.loads(run(level, code).stdout)
    import gpt2fast

    expected = gpt2fast.get_encoding("gpt2").encode_batch(TEXTS)
    assert ids == expected
    assert counts == [len(ids) for ids in expected]
    if level in CODE and cpu.supported_levels() == cpu.LEVELS:
        assert used == CODE[level]


def test_the_same_levels_as_the_kernels():
    assert tuple(_bpe.cpu_levels()[0]) == cpu.supported_levels()


def test_an_unknown_level_is_an_import_error():
    result = run("avx9000", "import gpt2fast; gpt2fast.get_encoding('gpt2')")
    assert result.returncode == 1
    kernels = run("avx9000", "import gpt2fast.kernels.cpu")
    assert result.stderr.splitlines()[-1] == kernels.stderr.splitlines()[-1]
    assert "gpt2fast.errors.CpuLevelError: the environment variable GPT2FAST_CPU is 'avx9000'" in result.stderr
