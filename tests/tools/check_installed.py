"""Use the installed gpt2fast as a stranger would: for a fresh environment that has nothing else, from any directory.

Run by `make package`, `make wheel` and the release workflow, with the environment's own Python and no test framework.
Tokenizes, generates and scores at every CPU level that this processor has, and runs the shell command.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The tail ends in a print, so that a process that dies silently is noticed, too.
SCRIPT = """
import sys
import gpt2fast
from gpt2fast.kernels.cpu import cpu_level

enc = gpt2fast.get_encoding("gpt2")
ids = enc.encode("hello world, caf\\u00e9 \\U0001f642")
if ids[:2] != [31373, 995] or enc.decode(ids) != "hello world, caf\\u00e9 \\U0001f642":
    sys.exit(f"wrong tokens: {ids}")
for dtype in ("float32", "bfloat16", "int8"):
    lm = gpt2fast.load("demo", dtype=dtype)
    text = lm.generate("Once upon a time", max_new_tokens=8, temperature=0).text
    if text != ", and the old man was very fond":
        sys.exit(f"wrong text with {dtype}: {text!r}")
if abs(gpt2fast.load("demo", gemm="blas").score("Once upon a time").perplexity - 7.07) > 0.01:
    sys.exit("wrong perplexity")
loaded = {"torch", "tiktoken", "transformers", "cupy", "ray", "starlette", "huggingface_hub"} & sys.modules.keys()
if loaded:
    sys.exit(f"the import loads {loaded}")
print(cpu_level())
"""


def run(*command: str, **variables: str) -> str:
    """The standard output of a command, run in an empty directory; its failure ends the program."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "GPT2FAST_CPU")}
    with tempfile.TemporaryDirectory() as empty:
        result = subprocess.run(command, cwd=empty, env=environment | variables, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{command[0]} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


def main() -> None:
    """Check what `import gpt2fast` finds, at every CPU level, and the command beside this Python."""
    place = run(sys.executable, "-c", "import gpt2fast; print(gpt2fast.__file__)").strip()
    if Path(place).resolve().is_relative_to(ROOT / "gpt2fast"):
        sys.exit(f"gpt2fast is imported from the source tree, {place}; install the wheel and run this with its Python")
    names = "from gpt2fast.kernels.cpu import supported_levels; print(*supported_levels())"
    for level in run(sys.executable, "-c", names).split():
        used = run(sys.executable, "-c", SCRIPT, GPT2FAST_CPU=level).strip()
        if used != level:
            sys.exit(f"GPT2FAST_CPU={level} gives {used}")
        print(f"{place}: fine with GPT2FAST_CPU={level}", flush=True)
    command = str(Path(sys.executable).parent / "gpt2fast")
    if "gpt2fast" not in run(command, "--version") or not run(command, "generate", "Once", "--tokens", "5", "--quiet"):
        sys.exit(f"{command} says nothing")


if __name__ == "__main__":
    main()
