"""The range coder gives back what was put in, writes what whole numbers of Python make of the definition, to the last
byte and at every CPU level, and hardly more than the frequencies allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpt2fast.errors import InputError
from gpt2fast.kernels import cpu, elementwise
from gpt2fast.kernels.coding import Decoder, Encoder, crc32c


@pytest.fixture(autouse=True)
def _back_to_this_level():
    before = cpu.cpu_level()
    yield
    cpu.use_level(before)


def frequencies(row):
    """The definition, in whole numbers; exp is the kernels' own."""
    weights = elementwise.exp(row - row.max()).astype(np.float64) * 2.0**30
    weights = [int(weight) for weight in weights]
    shift = next(s for s in range(64) if (sum(weights) >> s) + len(weights) < 2**32)
    return [(weight >> shift) + 1 for weight in weights]


def encoded(logits, ids):
    """The definition of the coder, with one number of any length for all that is written."""
    low, width, count = 0, 2**64 - 1, 0
    for row, id in zip(logits, ids, strict=True):
        found = frequencies(row)
        unit = width // sum(found)
        low += unit * sum(found[:id])
        width = unit * found[id]
        while width < 2**56:
            low, width, count = low << 8, width << 8, count + 1
    for zeros in range(64, -1, -8):
        number = -(-low >> zeros) << zeros
        if number < low + width:
            break
    return number.to_bytes(count + 8, "big").rstrip(b"\0")


@some.composite
def rows_and_ids(draw):
    generator = np.random.default_rng(draw(some.integers(0, 2**32)))
    n = draw(some.sampled_from([1, 2, 3, 15, 16, 17, 64, 65, 130, 300]))
    count = draw(some.integers(0, 30))
    spread = draw(some.sampled_from([0.0, 0.5, 5.0, 60.0, 1e6]))
    logits = (generator.standard_normal((count, n)) * spread).astype(np.float32)
    logits[generator.random((count, n)) < draw(some.sampled_from([0.0, 0.3]))] = -np.inf
    logits[:, 0] = generator.standard_normal(count)  # not all of them -inf
    likely = draw(some.booleans())
    ids = logits.argmax(axis=1) if likely and count else generator.integers(0, n, count)
    return logits, ids.astype(np.int64)


@given(rows_and_ids(), some.integers(1, 3))
def test_what_is_written_is_read_at_every_level(case, threads):
    logits, ids = case
    written = set()
    for level in cpu.supported_levels():
        cpu.use_level(level)
        encoder = Encoder()
        half = len(ids) // 2
        assert encoder.encode(logits[:half], ids[:half], num_threads=threads) == half
        assert encoder.encode(logits[half:], ids[half:], num_threads=threads) == len(ids) - half
        written.add(encoder.finish())
    assert written == {encoded(logits, ids)}
    (data,) = written
    for level in cpu.supported_levels():
        cpu.use_level(level)
        decoder = Decoder(data)
        assert [decoder.decode(row) for row in logits] == ids.tolist()


def test_a_carry_goes_through_the_bytes_before():
    # An id at the upper end of its interval, many times, makes bytes of 255, which a carry then runs through.
    logits = np.zeros((4000, 3), np.float32)
    generator = np.random.default_rng(7)
    for p in (0.5, 0.9, 0.99):
        ids = np.where(generator.random(4000) < p, 2, generator.integers(0, 3, 4000))
        encoder = Encoder()
        encoder.encode(logits, ids)
        data = encoder.finish()
        assert data == encoded(logits, ids)
        decoder = Decoder(data)
        assert [decoder.decode(row) for row in logits] == ids.tolist()


@pytest.mark.parametrize("n", [50, 4096, 50257])
def test_cost_is_the_entropy(n):
    count = 60 if n > 10_000 else 600
    generator = np.random.default_rng(n)
    logits = (generator.standard_normal((count, n)) * 3).astype(np.float32)
    weights = np.exp(logits.astype(np.float64))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    ids = (probabilities.cumsum(axis=1) > generator.random((count, 1))).argmax(axis=1)
    entropy = -np.log2(probabilities[np.arange(count), ids]).sum()
    encoder = Encoder()
    encoder.encode(logits, ids)
    assert 8 * len(encoder.finish()) <= entropy * 1.0002 + 16


def test_every_token_is_possible():
    logits = np.full((1, 1000), -1e30, np.float32)
    logits[0, 5] = 1e30
    for id in (0, 5, 999):
        encoder = Encoder()
        encoder.encode(logits, np.array([id]))
        data = encoder.finish()
        assert len(data) <= 5
        assert Decoder(data).decode(logits[0]) == id


@pytest.mark.parametrize("value", [np.nan, np.inf, "all"])
@pytest.mark.parametrize("n", [1, 5, 16, 100])
def test_logits_that_are_not_finite(level, value, n):
    logits = np.zeros((3, n), np.float32)
    if value == "all":
        logits[1] = -np.inf
    else:
        logits[1, n - 1] = value
    assert Encoder().encode(logits, np.zeros(3, np.int64)) == 1
    assert Decoder(b"").decode(logits[1]) == -1


@given(some.binary(max_size=60), some.integers(1, 200))
def test_any_bytes_are_tokens_or_refused(data, n):
    decoder = Decoder(data)
    logits = np.linspace(-3, 3, n, dtype=np.float32)
    for _ in range(100):
        id = decoder.decode(logits)
        assert id == -2 or 0 <= id < n
        if id == -2:
            break


def test_arguments():
    rows = np.zeros((2, 4), np.float32)
    with pytest.raises(IndexError, match="id 4 of row 1"):
        Encoder().encode(rows, np.array([0, 4]))
    with pytest.raises(IndexError, match="id -1 of row 0"):
        Encoder().encode(rows, np.array([-1, 0]))
    with pytest.raises(ValueError, match="1 ids for 2 rows"):
        Encoder().encode(rows, np.array([1]))
    with pytest.raises(ValueError, match="not contiguous"):
        Encoder().encode(rows[:, ::2], np.array([1, 1]))
    with pytest.raises(InputError, match="0 logits"):
        Decoder(b"").decode(rows[0, :0])
    with pytest.raises(InputError, match="0 logits"):
        Encoder().encode(rows[:, :0], np.array([0, 0]))
    assert Encoder().encode(rows[:0], np.array([], np.int64)) == 0
    assert Encoder().finish() == b""


def test_crc32c_of_published_vectors():
    # RFC 3720, appendix B.4.
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C
