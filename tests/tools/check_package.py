"""Build the sdist and wheels, install them in empty environments, and use them from another directory.

Run by `make package`, outside pytest: it compiles everything three times.  Checks that the sdist is enough to build
from, that the wheel of the sdist and of the tree hold the same files and nothing else, and that an install over an
older editable one works.  Given wheels (`python tests/tools/check_package.py dist/*.whl`), it only looks into them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = re.compile(
    r"gpt2fast/(\w+/)*(\w+\.py|\w+\.pyi|py\.typed|\w+\.cu|README\.md)"
    r"|gpt2fast/_internal/page\.css|gpt2fast/(server|interpretability)/page/page\.(css|html|js)"
    r"|gpt2fast/(_bpe|kernels/\w+)[\w.-]*\.(so|pyd)"
    r"|gpt2fast/data/(gpt2|demo)/(vocab\.json|merges\.txt|LICENSE|config\.json|model\.safetensors|README\.md)"
    r"|gpt2fast-[\w.]+\.dist-info/.*"
)
CHECK = Path(__file__).with_name("check_installed.py")


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> None:
    """Run a command, showing it; its failure ends the program."""
    print("+", *command, flush=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment | variables, check=True)


def new_environment(directory: Path) -> Path:
    """Make an empty environment; returns its python."""
    venv.create(directory, with_pip=True)
    return directory / "bin" / "python"


def files(wheel: Path) -> set[str]:
    """The wheel's files, checked against what may be there."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    strange = sorted(name for name in names if not ALLOWED.fullmatch(name))
    if strange:
        sys.exit(f"{wheel.name} holds files that should not be there: {strange}")
    needed = {
        "gpt2fast/data/demo/model.safetensors",
        "gpt2fast/data/gpt2/LICENSE",
        "gpt2fast/py.typed",
        "gpt2fast/model/cuda/choice.cu",
        "gpt2fast/model/cuda/kernels.cu",
        "gpt2fast/_internal/page.css",
        "gpt2fast/interpretability/page/page.html",
        "gpt2fast/server/page/page.html",
    }
    if needed - names:
        sys.exit(f"{wheel.name} lacks {sorted(needed - names)}")
    compiled = sum(name.endswith((".so", ".pyd")) for name in names)
    sources = len(list((ROOT / "pyx" / "gpt2fast" / "kernels").glob("*.pyx")))
    if compiled != sources + 1:
        sys.exit(f"{wheel.name} holds {compiled} compiled modules, expected {sources + 1}")
    size = wheel.stat().st_size / 1e6
    print(f"{wheel.name}: {len(names)} files, {size:.1f} MB")
    if size > 25:
        sys.exit(f"{wheel.name} is larger than 25 MB")
    return names


def main() -> None:
    """Build, compare, install, use."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        python = new_environment(work / "build environment")  # with a space in its path
        run(python, "-m", "pip", "install", "--quiet", "build")
        run(python, "-m", "build", "--outdir", work / "dist")  # an sdist, and a wheel from it
        (sdist,) = (work / "dist").glob("*.tar.gz")
        (wheel,) = (work / "dist").glob("*.whl")
        from_sdist = files(wheel)

        run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", work / "tree", ".")
        (tree,) = (work / "tree").glob("*.whl")
        if files(tree) != from_sdist:
            sys.exit(f"the wheels differ: {files(tree) ^ from_sdist}")

        python = new_environment(work / "wheel")
        run(python, "-m", "pip", "install", "--quiet", wheel)
        run(python, CHECK, cwd=work)

        # Over an editable install, then back: neither leaves files that the other trips over.
        python = new_environment(work / "editable")
        run(python, "-m", "pip", "install", "--quiet", "-e", ".")
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", sdist)
        run(python, CHECK, cwd=work)
    print("package: fine")


if __name__ == "__main__":
    if wheels := sys.argv[1:]:  # look into these only
        for wheel in wheels:
            files(Path(wheel))
    else:
        main()
