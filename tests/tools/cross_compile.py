"""Compile the C half for other systems, and compare the kernels' digests where these can be run: `make cross`.

Clang comes with zig (PyPI's ziglang, installed into the environment).  For macOS, musl, aarch64 and Windows every file
is compiled; the program tests/tools/native/kernels.c is linked for Windows and aarch64 and run by Wine and QEMU where
they are installed (apt install wine qemu-user-static).  What it writes must be what this machine's own build writes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYX = ROOT / "pyx"
PROGRAM = ROOT / "tests" / "tools" / "native" / "kernels.c"
FLAGS = ["-std=gnu11", "-O2", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Ipyx"]
#: The files of one system under pyx/runtime, and what runs the program: None where nothing here does.
TARGETS = {
    "x86_64-windows-gnu": ("windows", "wine"),
    "aarch64-linux-musl": ("posix", "qemu-aarch64-static"),
    "x86_64-linux-musl": ("posix", None),
    "aarch64-macos": ("posix", None),
    "x86_64-macos": ("posix", None),
}


def sources(system: str) -> list[Path]:
    """The C files of a system."""
    runtime = PYX / "runtime"
    return [
        *(runtime / "pool.c", runtime / system / "memory.c", PYX / "simd" / "dispatch.c"),
        *sorted((PYX / "simd" / "levels").glob("*.c")),
    ]


def digests(command: list[str | Path]) -> dict[str, list[str]]:
    """What the program says of each level."""
    environment = os.environ | {"WINEDEBUG": "-all"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        level, _, rest = line.partition(" ")
        found.setdefault(level, []).append(rest)
    if found.pop("pool", None) != ["ok"]:
        raise ValueError(f"the program did not come to its end: {done.stdout[-200:]!r}")
    return found


def main() -> None:
    """Compile all, run what can be run."""
    zig = [sys.executable, "-m", "ziglang", "cc", *FLAGS]
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        own = directory / "own"
        compiler = os.environ.get("CC", "cc")
        link = ["-Ipyx/runtime/posix", PROGRAM, *sources("posix"), "-o", own, "-lm", "-lpthread"]
        subprocess.run([compiler, *FLAGS, *link], cwd=ROOT, check=True)
        expected = digests([own])
        (golden,) = {tuple(lines) for lines in expected.values()}  # all levels of this machine say the same
        print(f"this machine: {', '.join(expected)} agree")
        for target, (system, runner) in TARGETS.items():
            include = f"-Ipyx/runtime/{system}"
            if runner is None or shutil.which(runner) is None:
                for source in sources(system):
                    command = [*zig, "-target", target, include, "-c", source, "-o", directory / "object.o"]
                    subprocess.run(command, cwd=ROOT, check=True)
                print(f"{target}: compiles")
                continue
            program = directory / (target + (".exe" if system == "windows" else ""))
            link = [
                include,
                PROGRAM,
                *sources(system),
                "-o",
                program,
                *(["-lm", "-static"] if system == "posix" else []),
            ]
            subprocess.run([*zig, "-target", target, *link], cwd=ROOT, check=True)
            found = digests([runner, program])
            wrong = [level for level, lines in found.items() if tuple(lines) != golden]
            if wrong or not found:
                sys.exit(f"{target}: {', '.join(wrong)} differ from this machine's digests")
            print(f"{target}: runs under {runner}; {', '.join(found)} as here")


if __name__ == "__main__":
    main()
