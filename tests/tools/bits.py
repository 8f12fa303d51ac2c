"""The digests of what is the same on every processor: printed, compared with tests/data/bits.json, or written there.

python tests/tools/bits.py            one line for each model and dtype
python tests/tools/bits.py --check    and status 1 where one is not the golden one
python tests/tools/bits.py --update   after a change of the definition, with a new gpt2fast.numerics_version
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support")]
sys.path += [str(Path(__file__).resolve().parents[2])]  # where another build is not on the path

import bits  # noqa: E402

from gpt2fast.kernels.cpu import cpu_level  # noqa: E402


def main(arguments: list[str]) -> int:
    found = bits.collected()
    print(f"{cpu_level()}: functions {bits.hashlib.sha256(json.dumps(found['functions']).encode()).hexdigest()[:12]}")
    for name, model in found["models"].items():
        print(f"{name:20}", *(f"{what} {value[:12]}" for what, value in model["digests"].items()), sep="  ")
    if arguments == ["--update"]:
        bits.GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    elif arguments == ["--check"]:
        expected = bits.golden()
        if found != expected:
            wrong = [what for what, value in found["functions"].items() if value != expected["functions"][what]]
            for name in bits.MODELS:
                for dtype in bits.DTYPES:
                    wrong += bits.problems(name, dtype)
            print("\n".join(["these differ from tests/data/bits.json:", *wrong]))
            return 1
        print("all as in tests/data/bits.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
