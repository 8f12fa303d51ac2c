"""Where a compiler is missing or too old, every hook of the build says so in one line, and nothing is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

# maturin is there where the package was built in this environment; the hooks need no more of it than its names.
MATURIN = """
def _hook(*arguments, **keywords): raise RuntimeError("maturin was called")
get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel = _hook
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel = _hook
build_sdist = build_wheel = build_editable = _hook
"""
HOOKS = [
    "get_requires_for_build_editable()",
    "get_requires_for_build_sdist()",
    "get_requires_for_build_wheel()",
    "prepare_metadata_for_build_editable('.')",
    "prepare_metadata_for_build_wheel('.')",
    "build_sdist('.')",
    "build_wheel('.')",
    "build_editable('.')",
]


def call(hook: str, directory: Path, cargo: str | None) -> subprocess.CompletedProcess[str]:
    """Call a hook where `cargo --version` prints this, or there is none."""
    (directory / "maturin.py").write_text(MATURIN)
    programs = directory / "bin"
    programs.mkdir()
    if cargo is not None:
        (programs / "cargo").write_text(f"#!/bin/sh\n{cargo}\n")
        (programs / "cargo").chmod(0o755)
    code = f"import sys; sys.path[:0] = [{str(directory)!r}, {str(ROOT / 'build_backend')!r}]\n"
    code += f"import gpt2fast_build; gpt2fast_build.{hook}"
    environment = {key: value for key, value in os.environ.items() if key != "CC"} | {"PATH": str(programs)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for cargo")
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    ("cargo", "said"),
    [
        (None, "`cargo` was not found"),
        ("echo cargo 1.65.0", "is version 1.65.0, and the tokenizer needs Rust 1.89"),
        ("echo no toolchain >&2; exit 1", "`cargo --version` failed: no toolchain"),
        ("echo 'cargo 1.89.0 (c24e10642 2025-06-23)'", "no C compiler"),
    ],
)
def test_what_is_missing(hook, cargo, said, tmp_path):
    result = call(hook, tmp_path, cargo)
    assert result.returncode == 1
    assert said in result.stderr
    assert result.stderr.startswith("gpt2fast: cannot build: ")
    assert result.stderr.count("\n") == 1
