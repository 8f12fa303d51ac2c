"""PEP 517 hooks of gpt2fast: the Cython kernels through setuptools, then everything else through maturin.

maturin builds the Rust crate and assembles the wheel, and its `include` list sweeps the compiled kernels in.  So the
hooks below are maturin's own, except that a wheel or an editable install first compiles the kernels in place.

Why in place: maturin packages what lies in the source tree.  Why `build_wheel` empties `gpt2fast/kernels/` first: an
extension left there by another Python, or by an older editable install, would be swept into the wheel.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import maturin

# What stays as maturin has it: requirements, metadata and the source distribution.
from maturin import (  # noqa: F401
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "gpt2fast" / "kernels"


def _say_what_is_missing():
    """Stop with one readable sentence where a compiler is missing, before a page of tool output hides it."""
    if shutil.which("cargo") is None:
        sys.exit(
            "gpt2fast: cannot build: `cargo` was not found. The tokenizer is written in Rust; install a Rust "
            "toolchain (https://rustup.rs, or your system's `cargo`, 1.89 or newer) and try again."
        )
    compiler = os.environ.get("CC", "cc").split()[0]
    if shutil.which(compiler) is None and shutil.which("gcc") is None and shutil.which("clang") is None:
        sys.exit(
            f"gpt2fast: cannot build: no C compiler (looked for `{compiler}`, gcc and clang). Install one "
            "(Debian: `apt install build-essential`; macOS: `xcode-select --install`) and try again."
        )


def _build_kernels(*, clean):
    if clean:
        for pattern in ("*.so", "*.pyd"):
            for stale in KERNELS.glob(pattern):
                stale.unlink()
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=ROOT, check=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build a wheel with kernels compiled for this Python, and only those; returns the wheel's file name."""
    _say_what_is_missing()
    _build_kernels(clean=True)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Build an editable wheel; other Pythons' kernels in the tree are left alone.  Returns the wheel's file name."""
    _say_what_is_missing()
    _build_kernels(clean=False)
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
