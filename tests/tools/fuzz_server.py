"""A coverage-guided fuzz of the bodies of requests: a 500, an answer in another form than /openapi.json has, one that
does not come, or anything that a request leaves behind in the server, is a finding.

`make fuzz` runs it for a minute with Atheris, which chooses what Hypothesis draws in
`tests/server/test_hostile_requests.py`.  For longer::

    python tests/tools/fuzz_server.py -max_total_time=1800 -rss_limit_mb=2048 CORPUS

New inputs are kept in CORPUS, a directory that may be empty.  A finding is written to a file `crash-...`, which is an
argument that shows it again.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import atheris
from hypothesis import given, settings

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "server"), str(TESTS / "support")]
with atheris.instrument_imports(include=["gpt2fast.server", "gpt2fast.tokenizer", "gpt2fast.generation"]):
    import test_hostile_requests as hostile

ATTEMPTS = hostile.Attempts()


@settings(deadline=None, database=None)
@given(hostile.requests())
def answered(request: tuple[str, bytes]) -> None:
    ATTEMPTS.attempt(*request)


def main() -> None:
    corpus = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    if corpus and os.path.isdir(corpus) and not os.listdir(corpus):
        for seed in range(64):  # long enough for all that is drawn
            Path(corpus, f"random-{seed}").write_bytes(random.Random(seed).randbytes(600))
    atheris.Setup(sys.argv, lambda content: answered.hypothesis.fuzz_one_input(content))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
