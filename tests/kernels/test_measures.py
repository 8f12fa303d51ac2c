"""Measures taken in the head are, bit for bit, those of the logits: at every CPU level, of any rows, on any threads."""

from __future__ import annotations

import numpy as np
import pytest
import seeded

from gpt2fast.checkpoint.config import Config
from gpt2fast.kernels import elementwise
from gpt2fast.model.gpt2 import GPT2

pytestmark = pytest.mark.usefixtures("level")


def outputs_of(config, rows, *, dtype="float32", threads=1, spoil=None, gemm="panel"):
    """The outputs after a text of that many ids, where `spoil` is in the row of id 3 of the head."""
    tensors = seeded.tensors(config)
    if spoil is not None:
        name = next(name for name in tensors if name.endswith("wte.weight"))
        tensors[name] = tensors[name].copy()
        tensors[name][3] = spoil
    model = GPT2.from_tensors(config, tensors, dtype=dtype, num_threads=threads, gemm=gemm)
    ids = [5 + i % 5 for i in range(rows)]
    return model.forward(model.new_cache(1, rows), [0], [ids], [rows])


@pytest.mark.parametrize("vocab_size", [11, 32, 97])
@pytest.mark.parametrize(
    ("dtype", "gemm"),
    [("float32", "panel"), ("float32", "blas"), ("bfloat16", "panel"), ("int8", "panel"), ("int4", "panel")],
)
def test_measures_are_those_of_the_logits(vocab_size, dtype, gemm):
    config = Config(vocab_size=vocab_size, n_ctx=200, n_embd=24, n_layer=1, n_head=2)
    found = {}
    for threads in (1, 2, 3):
        outputs = outputs_of(
            config, 197, dtype=dtype, threads=threads, gemm=gemm
        )  # two whole blocks of rows and a part
        logits = outputs.logits(0, 197)
        for start, count, n_vocab in ((0, 197, vocab_size), (3, 1, vocab_size), (1, 13, vocab_size - 2), (197, 0, 1)):
            targets = [(i * 7) % n_vocab for i in range(count)]
            measures = outputs.measure(start, targets, n_vocab)
            assert measures.shape == (count, 4)
            of_logits = logits[start : start + count, :n_vocab]
            expected = elementwise.measures(of_logits, np.array(targets, np.int64), num_threads=1)
            if gemm == "panel":
                assert measures.tobytes() == expected.tobytes()
                assert found.setdefault((start, count), measures.tobytes()) == measures.tobytes()
            else:  # BLAS sums otherwise for another number of rows
                np.testing.assert_allclose(measures, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_leave_no_measure(value):
    config = Config(vocab_size=33, n_ctx=40, n_embd=24, n_layer=1, n_head=2)
    outputs = outputs_of(config, 14, spoil=value)
    assert np.isnan(outputs.measure(0, [5] * 14, 33)).all()
    assert not np.isnan(outputs.measure(0, [1] * 14, 3)).any()  # id 3 is not asked for
