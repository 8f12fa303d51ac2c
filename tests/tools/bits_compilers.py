"""Build the Cython half with gcc and with clang, where they are, and check the golden digests at every CPU level.

python tests/tools/bits_compilers.py [COMPILER …]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(compiler: str, work: Path) -> Path:
    """A copy of the package whose kernels that compiler has made."""
    copy = work / "lib"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "gpt2fast", copy / "gpt2fast", ignore=shutil.ignore_patterns("__pycache__"))
    for module in (copy / "gpt2fast" / "kernels").glob("*.so"):
        module.unlink()
    command = [
        sys.executable,
        "setup.py",
        "--quiet",
        "build_ext",
        "--build-lib",
        copy,
        "--build-temp",
        work / "objects",
    ]
    environment = os.environ | {"CC": compiler, "LDSHARED": f"{compiler} -shared"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return copy


def main(arguments: list[str]) -> int:
    compilers = arguments or [name for name in ("gcc", "clang") if shutil.which(name)]
    failed = []
    for compiler in compilers:
        copy = build(compiler, ROOT / "build" / "bits" / compiler)
        environment = os.environ | {"PYTHONPATH": str(copy)}
        ask = [sys.executable, "-P", "-c"] if sys.version_info >= (3, 11) else [sys.executable, "-c"]
        ask += ["from gpt2fast.kernels import cpu; print(cpu.__file__, *cpu.supported_levels())"]
        where, *levels = subprocess.check_output(ask, env=environment, text=True, cwd=copy).split()
        if not Path(where).is_relative_to(copy):
            raise RuntimeError(f"{where} was imported, not what {compiler} has made in {copy}")
        for level in levels:
            check = [sys.executable, ROOT / "tests" / "tools" / "bits.py", "--check"]
            run = subprocess.run(
                check, env=environment | {"GPT2FAST_CPU": level}, text=True, capture_output=True, check=False
            )
            print(f"{compiler} {level}: {(run.stdout.strip() or run.stderr.strip()).splitlines()[-1]}", flush=True)
            if run.returncode:
                print(run.stdout)
                failed.append(f"{compiler} {level}")
    return 1 if failed or not compilers else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
