"""What speculative decoding brings: tokens per second of one text with each way to propose, beside none.

    python benchmarks/speculation.py [--rounds 3] [--tokens 200] [--threads N] [--model DIRECTORY] [--dtype int8]

The model is the demo, which writes real texts, or one of your own.  Texts are compared first: whatever proposes, they
must be the same.  The ways take turns; shown are the rates of the best round, and how many proposals were right.
Weights from a seed say little here: their greedy texts repeat themselves, and so every proposal is right.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpt2fast

PROMPTS = ("Once upon a time there was a king who", "The old woman said to her daughter", "In the middle of the forest")
WAYS = ("off", "int8", "int4", "lookup")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    lm = gpt2fast.load(options.model, dtype=options.dtype, num_threads=options.threads)
    ways = [way for way in WAYS if way != options.dtype]
    print(f"{lm.model!r}; {time.strftime('%d %B %Y')}")
    for temperature in (0.0, 0.8):
        rates: dict[str, float] = dict.fromkeys(ways, 0.0)
        found: dict[str, list[gpt2fast.Generation]] = {}
        for _ in range(options.rounds + 1):  # the first round makes the copies in fewer bits
            for way in ways:
                start = time.perf_counter()
                found[way] = [
                    lm.generate(p, max_new_tokens=options.tokens, temperature=temperature, seed=1, speculate=way)
                    for p in PROMPTS
                ]
                seconds = time.perf_counter() - start
                rates[way] = max(rates[way], sum(len(text.ids) for text in found[way]) / seconds)
        for way in ways:
            if found[way] != found["off"]:
                raise SystemExit(f"speculate={way!r} changed a text")
            drafted, accepted = (sum(getattr(t, name) for t in found[way]) for name in ("drafted", "accepted"))
            share = f", {accepted / drafted:4.0%} of {drafted} proposals right" if drafted else ""
            print(
                f"temperature {temperature:g}, speculate={way:7}{rates[way]:8.0f} tokens/s, "
                f"{rates[way] / rates['off']:.2f} times{share}"
            )


if __name__ == "__main__":
    main()
