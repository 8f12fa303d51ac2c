"""The Cython extensions of gpt2fast, and nothing else: the project's metadata is in pyproject.toml.

Called by build_backend/gpt2fast_build.py as `setup.py build_ext --inplace`.  The C files of pyx/simd are compiled
once per CPU level by including the same source under different `#pragma GCC target`s, so no flag here may name a CPU.
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)

KERNELS = "pyx/gpt2fast/kernels"
C_CODE = [Path("pyx/simd"), Path("pyx/runtime")]
SYSTEM = Path("pyx/runtime") / ("windows" if sys.platform == "win32" else "posix")

# -fopenmp-simd: `#pragma omp simd` without the OpenMP runtime (the thread pool is our own).
# -ffp-contract=off: results are the same bits everywhere; compilers fuse multiplications with additions as they like.
# Never -ffast-math: linked, it sets flush-to-zero for the whole process and assumes that there are no infinities.
COMPILE = ["-std=gnu11", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
COMPILE += ["-g0", "-fvisibility=hidden"]
if os.environ.get("GPT2FAST_SANITIZE"):  # make sanitize
    COMPILE += ["-g", "-fno-omit-frame-pointer", f"-fsanitize={os.environ['GPT2FAST_SANITIZE']}"]
LINK = [flag for flag in COMPILE if flag.startswith("-fsanitize")]
if sys.platform != "win32":
    LINK += ["-pthread"]

HEADERS = sorted(str(p) for room in C_CODE for p in room.rglob("*") if p.name.endswith((".h", ".inc.c")))
# Only `cpu` links the C sources, of one system; the other modules reach them through the pointers it shares.
COMPILED = [p for room in C_CODE for p in room.rglob("*.c") if not p.name.endswith(".inc.c")]
SOURCES = {"cpu": sorted(str(p) for p in COMPILED if p.parent.parent != SYSTEM.parent or p.parent == SYSTEM)}

extensions = [
    Extension(
        f"gpt2fast.kernels.{path.stem}",
        [str(path), *SOURCES.get(path.stem, [])],
        include_dirs=["pyx", str(SYSTEM)],
        depends=HEADERS,
        # The loops are in the C files; -O3 on what Cython generates only takes longer.
        extra_compile_args=[*COMPILE, "-O3" if path.stem in SOURCES else "-O2"],
        extra_link_args=LINK,
    )
    for path in sorted(Path(KERNELS).glob("*.pyx"))
]


class InParallel(build_ext):
    """build_ext that compiles the extensions side by side, as many as there are processors."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()


setup(
    name="gpt2fast-kernels",
    packages=[],
    cmdclass={"build_ext": InParallel},
    ext_modules=cythonize(
        extensions,
        include_path=["pyx"],
        build_dir="build/cython",
        language_level=3,
        compiler_directives={
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            "freethreading_compatible": True,
        },
    ),
)
