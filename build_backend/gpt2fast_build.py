"""PEP 517 hooks of gpt2fast: the Cython kernels through setuptools, then everything else through maturin.

maturin builds the Rust crate and assembles the wheel, and its `include` list sweeps the compiled kernels in.  So the
hooks below are maturin's own, except that each first looks whether cargo and a C compiler are there, and that a wheel
or an editable install first compiles the kernels in place.

Why in place: maturin packages what lies in the source tree.  Why `build_wheel` empties `gpt2fast/kernels/` first: an
extension left there by another Python, or by an older editable install, would be swept into the wheel.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import maturin

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "gpt2fast" / "kernels"


def _say_what_is_missing():
    """Stop with one readable sentence where a compiler is missing or too old, before a page of tool output hides it."""
    needed = re.search(r'^rust-version = "([\d.]+)"', (ROOT / "rust" / "Cargo.toml").read_text(), re.MULTILINE)[1]
    install = f"install Rust {needed} or newer (https://rustup.rs) and try again."
    if shutil.which("cargo") is None:
        sys.exit(f"gpt2fast: cannot build: `cargo` was not found. The tokenizer is written in Rust; {install}")
    said = subprocess.run(["cargo", "--version"], cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.match(r"cargo (\d+(?:\.\d+)*)", said.stdout)
    if found is None:
        sys.exit(f"gpt2fast: cannot build: `cargo --version` failed: {(said.stderr or said.stdout).strip()}; {install}")
    if _numbers(found[1]) < _numbers(needed):
        sys.exit(
            f"gpt2fast: cannot build: {shutil.which('cargo')} is version {found[1]}, and the tokenizer needs Rust "
            f"{needed}; {install}"
        )
    compiler = os.environ.get("CC", "cc").split()[0]
    if shutil.which(compiler) is None and shutil.which("gcc") is None and shutil.which("clang") is None:
        sys.exit(
            f"gpt2fast: cannot build: no C compiler (looked for `{compiler}`, gcc and clang). Install one "
            "(Debian: `apt install build-essential`; macOS: `xcode-select --install`) and try again."
        )


def _numbers(version):
    return tuple(map(int, version.split(".")))


def _checked(hook):
    """The hook, after a look at what a build needs."""

    @functools.wraps(hook)
    def checked(*arguments, **keywords):
        _say_what_is_missing()
        return hook(*arguments, **keywords)

    return checked


# Where cargo is missing, maturin's `get_requires_for_build_*` ask for a package that downloads a toolchain.  Behind the
# check they never do.
get_requires_for_build_editable = _checked(maturin.get_requires_for_build_editable)
get_requires_for_build_sdist = _checked(maturin.get_requires_for_build_sdist)
get_requires_for_build_wheel = _checked(maturin.get_requires_for_build_wheel)
prepare_metadata_for_build_editable = _checked(maturin.prepare_metadata_for_build_editable)
prepare_metadata_for_build_wheel = _checked(maturin.prepare_metadata_for_build_wheel)
build_sdist = _checked(maturin.build_sdist)


def _build_kernels(*, clean):
    if clean:
        for pattern in ("*.so", "*.pyd"):
            for stale in KERNELS.glob(pattern):
                stale.unlink()
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=ROOT, check=True)


@_checked
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build a wheel with kernels compiled for this Python, and only those; returns the wheel's file name."""
    _build_kernels(clean=True)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


@_checked
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Build an editable wheel; other Pythons' kernels in the tree are left alone.  Returns the wheel's file name."""
    _build_kernels(clean=False)
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
