"""Open the golden compressed files and write them again, with no tokenizer: what aarch64 does under emulation.

python tests/tools/compressed_bits.py    status 1 where a file does not open, or is written with other bytes

It needs NumPy and the Cython half.  Of the Rust half, which is not compiled there, compression takes nothing but the
bytes of tokens, and the tokens of a text: those are read from vocab.json, these are the ones that come out of the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]
sys.path += [str(ROOT)]  # where another build is not on the path
if "--emulated" in sys.argv:
    missing: Any = types.ModuleType("gpt2fast._bpe")
    missing.Bpe = object
    sys.modules["gpt2fast._bpe"] = missing

import bits  # noqa: E402

from gpt2fast.compression import container  # noqa: E402
from gpt2fast.compression.codec import Codec, DecodedChunk  # noqa: E402
from gpt2fast.kernels.cpu import cpu_level  # noqa: E402
from gpt2fast.tokenizer.encoding import Tokenizer  # noqa: E402

FOLDER = ROOT / "tests" / "data" / "compression"


class Tokens(Tokenizer):
    """The demo model's tokens, and of texts the ids that `known` has."""

    def __init__(self) -> None:
        symbols = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in symbols]
        byte_of = {chr(byte): byte for byte in symbols} | {chr(256 + i): byte for i, byte in enumerate(others)}
        vocabulary = json.loads((bits.MODELS["demo"] / "vocab.json").read_text(encoding="utf-8"))
        self._bytes = [b""] * len(vocabulary)
        for token, id in vocabulary.items():
            special = token == "<|endoftext|>"
            self._bytes[id] = token.encode() if special else bytes(byte_of[symbol] for symbol in token)
        self.known: dict[bytes, list[int]] = {}

    n_vocab = property(lambda self: len(self._bytes))
    bos_token_id = eos_token_id = property(lambda self: len(self._bytes) - 1)

    def is_added_token(self, token: int) -> bool:
        return False

    def decode_single_token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def encode_ordinary(self, text: Any) -> list[int]:
        return self.known[bytes(text)]


def problems(path: Path, dtype: str, sha256: str) -> list[str]:
    """What is wrong with a golden file."""
    tokens = Tokens()
    codec = Codec(types.SimpleNamespace(model=bits.load("demo", dtype), tokenizer=tokens))
    file = io.BytesIO(path.read_bytes())
    container.read_header(file)
    digest = hashlib.sha256()
    wrong = []
    while (block := container.read_block(file)[0]).kind != "end":
        if block.kind == "model":
            codec = codec.for_record(container.ModelRecord.from_bytes(block.body))
        elif block.kind == "text":
            record = codec.record
            chunk = DecodedChunk(record.first_id, block.code, block.size, codec._tokens, record.stride)
            for _ in codec._decoding.run(chunk):
                pass
            digest.update(chunk.content)
            tokens.known[bytes(chunk.content)] = chunk.ids[1:]
            if codec.encode([bytes(chunk.content)]) != [block.code]:
                wrong.append(f"{path.name}: a chunk is written with other bytes")
        else:
            digest.update(container.unpack_plain(block))
    if digest.hexdigest() != sha256:
        wrong.append(f"{path.name}: other bytes come out of it")
    return wrong


def main() -> int:
    """Try every file; the exit status."""
    wrong = []
    for name, case in json.loads((FOLDER / "expected.json").read_text(encoding="utf-8")).items():
        found = problems(FOLDER / name, case["dtype"], case["sha256"])
        print(f"{cpu_level()}: {name}: {'; '.join(found) or 'opened, and written again'}", flush=True)
        wrong += found
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
