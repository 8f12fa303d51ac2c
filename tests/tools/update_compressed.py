"""Write the golden files of the present format into tests/data/compression, beside those of earlier ones.

Only for a new version of the format or of the arithmetic: files that are there must open for ever.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from tales import ANOTHER, TALE  # noqa: E402

import gpt2fast  # noqa: E402
from gpt2fast import compression, numerics_version  # noqa: E402
from gpt2fast.compression.container import FORMAT_VERSION  # noqa: E402

FOLDER = ROOT / "tests" / "data" / "compression"


def main() -> None:
    """Write the files and what they must give."""
    FOLDER.mkdir(exist_ok=True)
    listed = FOLDER / "expected.json"
    expected = json.loads(listed.read_text()) if listed.exists() else {}
    # Text in a chunk that is longer than the context, what is none, and text once more.
    none = bytes(random.Random(8).choices(range(33, 256), k=1000)) + bytes(900)
    content = TALE.encode() + none + ANOTHER.encode()
    for dtype in ("float32", "bfloat16", "int8", "int4"):
        name = f"format-{FORMAT_VERSION}-numerics-{numerics_version}-{dtype}.g2z"
        if name in expected:
            sys.exit(f"{name} is there already")
        chunk = 1950
        (FOLDER / name).write_bytes(compression.compress(content, gpt2fast.load("demo", dtype=dtype), chunk=chunk))
        blocks = compression.inspect(FOLDER / name).blocks
        sha256 = hashlib.sha256(content).hexdigest()
        expected[name] = {"dtype": dtype, "chunk": chunk, "sha256": sha256, "blocks": blocks}
    listed.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
