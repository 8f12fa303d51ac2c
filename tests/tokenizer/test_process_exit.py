"""A process ends with status 0 while daemon threads are inside the tokenizer, where they release Python's lock."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, time
import gpt2fast
enc = gpt2fast.get_encoding("gpt2")
text, texts = "hello world " * 50_000, ["hello world " * 50] * 1000
ids = enc.encode(text)
call = {
    "encode": lambda: enc.encode(text),
    "count_batch": lambda: enc.count_batch(texts, num_threads=2),
    "encode_batch": lambda: enc.encode_batch(texts, num_threads=2),
    "encode_batch_flat": lambda: enc.encode_batch_flat(texts, num_threads=2),
    "decode": lambda: enc.decode(ids),
    "decode_batch": lambda: enc.decode_batch([ids] * 8, num_threads=2),
}[sys.argv[1]]
under_way = threading.Barrier(4)

def work():
    call()
    under_way.wait()
    while True:
        call()

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
under_way.wait()
time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "call", ["encode", "count_batch", "encode_batch", "encode_batch_flat", "decode", "decode_batch"]
)
def test_threads_that_are_under_way_do_not_end_the_process(call):
    run = subprocess.run([sys.executable, "-c", PROGRAM, call], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
