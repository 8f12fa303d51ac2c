"""A coverage-guided fuzz of the safetensors reader: anything but a checked tensor or gpt2fast.Error is a finding.

`make fuzz` runs it for a minute with Atheris, beside the reference package: files that are accepted are compared.
For longer::

    python tests/tools/fuzz_safetensors.py -max_total_time=1800 -rss_limit_mb=2048 CORPUS

New inputs are kept in CORPUS, a directory that may be empty.  A finding is written to a file `crash-...`, which is an
argument that shows it again.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["gpt2fast.safetensors"]):
    import gpt2fast
    from gpt2fast import safetensors as st
    from gpt2fast.safetensors.dtypes import ITEM_SIZES, SUB_BYTE

try:
    import safetensors as reference
except ImportError:
    reference = None

SEEDS = Path(__file__).parents[1] / "data" / "safetensors"
# In memory where the system has such a place.
FOLDER = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
PATH = os.path.join(FOLDER.name, "m.safetensors")
COPY = os.path.join(FOLDER.name, "copy.safetensors")

NUMBERS = [
    *(0, 1, 2, 3, 4, 7, 8, 16, 24, 255, 256, 4096, -1, True, False, None, 1.0, "1", [], {}),
    *(n + d for n in (2**31, 2**32, 2**53, 2**62, 2**63, 2**64) for d in (-1, 0, 1)),
    *(10**19, 10**20, 10**30, 1e300, float("nan"), float("inf"), -0.0),
]
NAMES = ["a", "b", "c", "__metadata__", "", "\0", "é", "\ud800", "dtype", "shape", "data_offsets", "x" * 300]
DTYPES = [*ITEM_SIZES, *SUB_BYTE, "f32", "F12", "", None, 1, ["F32"]]


class Object(list):
    """A JSON object that may have a key more than once: a list of pairs."""


def dump(value: object) -> str:
    if isinstance(value, Object):
        return "{" + ",".join(f"{json.dumps(key)}:{dump(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value)


def number(source: atheris.FuzzedDataProvider) -> object:
    if source.ConsumeProbability() < 0.8:
        return source.ConsumeIntInRange(0, 9)
    return source.PickValueInList(NUMBERS)


# When the input is used up every probability is 0, so what is rare happens above a limit.
def build(source: atheris.FuzzedDataProvider) -> bytes:
    """A file that is nearly correct: tensors one after the other, with what the fuzzer chose to be wrong."""
    header = Object()
    place = 0
    for _ in range(source.ConsumeIntInRange(0, 4)):
        dtype = source.PickValueInList(DTYPES)
        shape = [number(source) for _ in range(source.ConsumeIntInRange(0, 4))]
        size = ITEM_SIZES.get(dtype, 1) if isinstance(dtype, str) else 1
        for dimension in shape:
            size = size * int(dimension) if isinstance(dimension, int) and 0 <= dimension < 10 else 0
        offsets: list[object] = [place, place + size]
        place += size
        if source.ConsumeProbability() > 0.9:
            offsets[source.ConsumeIntInRange(0, 1)] = number(source)
        fields = Object([("dtype", dtype), ("shape", shape), ("data_offsets", offsets)])
        while source.ConsumeProbability() > 0.9:
            fields.append((source.PickValueInList(NAMES), number(source)))
        if source.ConsumeProbability() > 0.95:
            del fields[source.ConsumeIntInRange(0, len(fields) - 1)]
        header.insert(source.ConsumeIntInRange(0, len(header)), (source.PickValueInList(NAMES), fields))
    if source.ConsumeBool():
        metadata = Object()
        while source.ConsumeProbability() > 0.5:
            value = source.PickValueInList(NAMES) if source.ConsumeProbability() < 0.9 else number(source)
            metadata.append((source.PickValueInList(NAMES), value))
        header.append(("__metadata__", metadata if source.ConsumeProbability() < 0.9 else number(source)))
    text = bytearray(dump(header).encode())
    if source.ConsumeProbability() > 0.8:
        text[source.ConsumeIntInRange(0, len(text) - 1)] = source.ConsumeIntInRange(0, 255)
    text += b" " * source.ConsumeIntInRange(0, 8)
    length = len(text)
    if source.ConsumeProbability() > 0.95:
        length += source.ConsumeIntInRange(-9, 9)
    data = source.ConsumeBytes(64)
    if source.ConsumeProbability() > 0.95:
        place += source.ConsumeIntInRange(-9, 9)
    data = (data * (max(place, 0) // max(len(data), 1) + 1))[:place] if data else bytes(max(place, 0))
    return struct.pack("<Q", max(length, 0)) + bytes(text) + data


def test_one_input(content: bytes) -> None:
    source = atheris.FuzzedDataProvider(content[1:])
    file = build(source) if content[:1] >= b"\x80" else content[1:]
    with open(PATH, "wb") as out:
        out.write(file)
    found = []
    for mmap in (False, True):
        try:
            found.append(st.read_file(PATH, mmap=mmap))
        except gpt2fast.Error as error:
            str(error)
    try:
        st.read_metadata(PATH)
    except gpt2fast.Error:
        if found:
            raise AssertionError("refused after it was accepted") from None
    try:
        raw = st.deserialize(file)
    except gpt2fast.Error:
        if found:
            raise AssertionError("refused in memory") from None
    else:
        if reference is not None:
            theirs = [(name, {**tensor, "data": bytes(tensor["data"])}) for name, tensor in reference.deserialize(file)]
            if sorted(raw, key=lambda item: item[0]) != sorted(theirs, key=lambda item: item[0]):
                raise AssertionError("the reference reads other bytes")
    if not found:
        return
    copied, mapped = found  # accepted in one mode only: an error
    loaded = st.load(file)
    with st.safe_open(PATH) as opened:
        for name, array in copied.tensors.items():
            for other in (mapped.tensors[name], opened.get_tensor(name), loaded[name]):
                if other.shape != array.shape or other.dtype != array.dtype or other.tobytes() != array.tobytes():
                    raise AssertionError(f"different values of {name!a}")
            for each in (array, mapped.tensors[name]):
                if each.size:
                    each.reshape(-1)[[0, -1]] = each.reshape(-1)[[-1, 0]]
    with open(PATH, "rb") as changed:
        if changed.read() != file:
            raise AssertionError("writing to arrays changed the file")
    st.save_file(mapped.tensors, COPY, mapped.metadata, dtypes=mapped.dtypes)
    again = st.read_file(COPY)
    if again.dtypes != mapped.dtypes or again.metadata != mapped.metadata:
        raise AssertionError("what was written is not what was read")
    if reference is not None:
        reference.deserialize(file)  # raises where we took something that is no safetensors file


def main() -> None:
    arguments = [sys.argv[0], *sys.argv[1:]]
    corpus = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    if corpus and os.path.isdir(corpus) and not os.listdir(corpus):
        for path in SEEDS.glob("*/*.safetensors"):
            Path(corpus, path.name).write_bytes(b"\0" + path.read_bytes())
        for seed in range(64):
            Path(corpus, f"built-{seed}").write_bytes(b"\xff" + bytes((seed * i * 37) % 256 for i in range(1, 200)))
    atheris.Setup(arguments, test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
