"""Whether a release could be cut from this tree: `make release-check`.

Looks at the version and its part of CHANGELOG, the licences of what the wheel holds and asks for, and known
vulnerabilities of these.  Builds the sdist, and from it the wheel twice in different directories, which must give the
same bytes, and has twine and check_package.py look at both.  All checks are run; what failed is named at the end.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Licences of packages that the wheel asks for.
ALLOWED = "MIT;BSD;Apache;PSF;0BSD;Zlib;CC0;Python Software Foundation"


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """What a command writes; CalledProcessError where it fails, after its output was shown."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout)
        done.check_returncode()
    return done.stdout


def version() -> None:
    """One version number, which CHANGELOG has a part for."""
    number = re.search(r'^version = "(.+)"', (ROOT / "rust" / "Cargo.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if not headings or number not in headings[0]:
        raise ValueError(f"rust/Cargo.toml has version {number}, CHANGELOG begins with {headings[:1]}")
    print(f"version {number}: {headings[0]}")


def licences() -> None:
    """Of the crates in the wheel, and of the packages that it asks for."""
    run(sys.executable, "tests/tools/third_party.py", "--check")
    with tempfile.TemporaryDirectory() as directory:
        python = _environment(Path(directory), *_requirements(), "pip-licenses")
        found = run(
            *(python, "-m", "piplicenses", "--packages", *map(_name, _requirements())),
            *("--partial-match", f"--allow-only={ALLOWED}"),
        )
    print(found.strip())


def vulnerabilities() -> None:
    """Known ones of the packages that the wheel asks for, and of the crates in it where cargo-audit is installed."""
    with tempfile.TemporaryDirectory() as directory:
        asked = Path(directory) / "requirements.txt"
        asked.write_text("\n".join(_requirements()) + "\n")
        python = _environment(Path(directory) / "environment", "pip-audit")
        print(run(python, "-m", "pip_audit", "--requirement", asked, "--progress-spinner", "off").strip())
    try:
        print(run("cargo", "audit").strip().splitlines()[-1])
    except FileNotFoundError:
        pass
    except subprocess.CalledProcessError as error:
        if "no such command" not in (error.output or ""):
            raise
        print("cargo-audit is not installed: crates were not looked up")


def packages() -> None:
    """The sdist, the wheel of it twice, and both as twine and check_package.py want them."""
    stamp = run("git", "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        python = _environment(directory / "environment", "build", "twine")
        run(python, "-m", "build", "--sdist", "--outdir", directory, SOURCE_DATE_EPOCH=stamp)
        (sdist,) = directory.glob("*.tar.gz")
        wheels = []
        for name in ("one", "another-place"):
            with tarfile.open(sdist) as archive:
                archive.extractall(directory / name, filter="data")
            (source,) = (directory / name).iterdir()
            run(python, "-m", "build", "--wheel", "--outdir", directory / name, source, SOURCE_DATE_EPOCH=stamp)
            wheels += (directory / name).glob("*.whl")
        first, second = map(_digests, wheels)
        if first != second:
            differing = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
            raise ValueError(f"two builds of the wheel differ in {', '.join(differing)}")
        if wheels[0].read_bytes() != wheels[1].read_bytes():
            raise ValueError("two builds of the wheel hold the same files, but differ as archives")
        print(f"{wheels[0].name}: built twice, {hashlib.sha256(wheels[0].read_bytes()).hexdigest()}")
        if not any("/sboms/" in name for name in first):
            raise ValueError("the wheel has no list of what it was built from (dist-info/sboms)")
        print(run(python, "-m", "twine", "check", "--strict", sdist, wheels[0]).strip())
        run(sys.executable, "tests/tools/check_package.py", wheels[0])


def _digests(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def _requirements() -> list[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'"([^"]+)"', re.search(r"^dependencies = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)[1])  # type: ignore[index]


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~ \[;]", requirement)[0]


def _environment(directory: Path, *packages: str) -> Path:
    """The python of a new environment with these packages."""
    run(sys.executable, "-m", "venv", directory)
    python = directory / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *packages)
    return python


CHECKS: tuple[Callable[[], None], ...] = (version, licences, vulnerabilities, packages)


def main() -> None:
    """Run all checks."""
    failed = []
    for check in CHECKS:
        print(f"== {check.__name__} ==", flush=True)
        try:
            check()
        except (ValueError, subprocess.CalledProcessError) as error:
            print(f"failed: {error}", flush=True)
            failed.append(check.__name__)
    if failed:
        sys.exit(f"not ready: {', '.join(failed)}")
    print("ready")


if __name__ == "__main__":
    main()
