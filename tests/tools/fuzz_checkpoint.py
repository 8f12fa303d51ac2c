"""A coverage-guided fuzz of config.json and weights, ordinary and packed: anything but a model that runs, or
gpt2fast.Error, is a finding.

`make fuzz` runs it for a minute with Atheris, which chooses what Hypothesis draws in
`tests/checkpoint/test_hostile_checkpoints.py`.  For longer::

    python tests/tools/fuzz_checkpoint.py -max_total_time=1800 -rss_limit_mb=2048 CORPUS

New inputs are kept in CORPUS, a directory that may be empty.  A finding is written to a file `crash-...`, which is an
argument that shows it again.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

import atheris
from hypothesis import given, settings

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "checkpoint")]
with atheris.instrument_imports(include=["gpt2fast.checkpoint", "gpt2fast.model", "gpt2fast.safetensors"]):
    import test_hostile_checkpoints as hostile

# In memory where the system has such a place.
FOLDER = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


@settings(deadline=None, database=None)
@given(hostile.changed())
def refused_or_a_model(checkpoint: tuple[object, ...]) -> None:
    hostile.attempt(Path(FOLDER.name), *checkpoint)


def main() -> None:
    corpus = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    if corpus and os.path.isdir(corpus) and not os.listdir(corpus):
        for seed in range(64):  # long enough for all that is drawn
            Path(corpus, f"random-{seed}").write_bytes(random.Random(seed).randbytes(600))
    atheris.Setup(sys.argv, lambda content: refused_or_a_model.hypothesis.fuzz_one_input(content))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
