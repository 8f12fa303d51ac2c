"""A coverage-guided fuzz of the reader of compressed files: anything but gpt2fast.Error, or bytes that are written and
read again, is a finding.

`make fuzz` runs it for a minute with Atheris.  For longer::

    python tests/tools/fuzz_compressed.py -max_total_time=1800 -rss_limit_mb=2048 CORPUS

New inputs are kept in CORPUS, a directory that may be empty.  A finding is written to a file `crash-...`, which is an
argument that shows it again.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path

import atheris

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "support")]
with atheris.instrument_imports(include=["gpt2fast.compression"]):
    import gpt2fast
    from gpt2fast import compression
    from gpt2fast.compression import codec, container

from tales import tiny  # noqa: E402

SEEDS = TESTS / "data" / "compression"
LM = tiny("float32", 1, gpt2fast.load("demo").tokenizer)
RECORD = codec.Codec(LM).record.to_bytes()
KINDS: list[container.Kind] = ["model", "text", "stored", "deflated"]


# When the input is used up every probability is 0, so what is rare happens above a limit.
def build(source: atheris.FuzzedDataProvider) -> bytes:
    """A file that is nearly correct: blocks with right checks, an index, and what the fuzzer chose to be wrong."""
    index, digest = container.Index(), hashlib.sha256()
    out = container.HEADER
    if source.ConsumeProbability() < 0.9:
        block = container.block_bytes("model", RECORD)
        index.add(len(block), 0)
        out += block
    for _ in range(source.ConsumeIntInRange(0, 4)):
        kind = source.PickValueInList(KINDS)
        body = source.ConsumeBytes(source.ConsumeIntInRange(0, 60))
        size = source.ConsumeIntInRange(0, 40)
        if kind == "text":
            body = container.text_body(size, body)
        elif kind == "stored":
            digest.update(body)
            size = len(body)
        elif kind == "deflated" and source.ConsumeBool():
            digest.update(body)
            size = len(body)
            kind, body = container.deflated(body)
        block = container.block_bytes(kind, body)
        index.add(len(block) + (source.ConsumeProbability() > 0.95), size)
        out += block
    end = container.block_bytes("end", container.end_body(digest.digest(), index))
    out += end + (len(end) + (source.ConsumeProbability() > 0.95)).to_bytes(4, "little")
    if source.ConsumeProbability() > 0.8:
        place = source.ConsumeIntInRange(0, len(out) - 1)
        out = out[:place] + bytes([source.ConsumeIntInRange(0, 255)]) + out[place + 1 :]
    return out


def test_one_input(content: bytes) -> None:
    source = atheris.FuzzedDataProvider(content[1:])
    file = build(source) if content[:1] >= b"\x80" else content[1:]
    try:
        info = compression.inspect(io.BytesIO(file))
    except gpt2fast.Error:
        info = None
    try:
        original = compression.decompress(file, LM)
    except gpt2fast.Error:
        original = None
    if original is not None and (info is None or info.size != len(original) or info.compressed_size != len(file)):
        raise AssertionError("it is read, and its blocks are refused")
    with compression.open(io.BytesIO(file), LM) if file[:9] == container.HEADER else io.BytesIO() as reader:
        try:
            reader.seek(3)
            part = reader.read(5)
        except gpt2fast.Error:
            part = None
    if original is not None and file and part != original[3:8]:
        raise AssertionError("a part of it is not that part of the whole")
    if original is not None and compression.decompress(compression.compress(original, LM), LM) != original:
        raise AssertionError("what was read does not survive")


def main() -> None:
    corpus = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    if corpus and os.path.isdir(corpus) and not os.listdir(corpus):
        for path in SEEDS.glob("*.g2z"):
            Path(corpus, path.name).write_bytes(b"\0" + path.read_bytes())
        for seed in range(64):
            Path(corpus, f"built-{seed}").write_bytes(b"\xff" + bytes((seed * i * 37) % 256 for i in range(1, 200)))
    atheris.Setup([sys.argv[0], *sys.argv[1:]], test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
