"""`num_threads` is what a call uses: no thread beside the caller's for one, others beside it for more."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tokenizer_reference import gpt2

ENC = gpt2()
TASKS = Path("/proc/self/task")
TEXTS = ["The quick brown fox jumps over the lazy dog. " * 20 + "<|endoftext|>"] * 2000
IDS = ENC.encode_ordinary_batch(TEXTS)
CALLS = {
    "encode_batch": lambda num_threads: ENC.encode_batch(TEXTS, num_threads=num_threads, disallowed_special=()),
    "encode_batch, special": lambda num_threads: ENC.encode_batch(
        TEXTS, num_threads=num_threads, allowed_special="all"
    ),
    "encode_ordinary_batch": lambda num_threads: ENC.encode_ordinary_batch(TEXTS, num_threads=num_threads),
    "encode_batch_flat": lambda num_threads: ENC.encode_batch_flat(TEXTS, num_threads=num_threads),
    "count_batch": lambda num_threads: ENC.count_batch(TEXTS, num_threads=num_threads),
    "decode_batch": lambda num_threads: ENC.decode_batch(IDS, num_threads=num_threads),
    "decode_bytes_batch": lambda num_threads: ENC.decode_bytes_batch(IDS, num_threads=num_threads),
}


def most_threads(call, enough):
    """The most threads beside those from before that this process has had while `call` ran, once or until `enough`."""
    before, most, end = len(os.listdir(TASKS)) + 1, 0, threading.Event()

    def look():
        nonlocal most
        while not end.is_set():
            most = max(most, len(os.listdir(TASKS)) - before)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(50):
            call()
            if most >= enough:
                break
    finally:
        end.set()
        watcher.join()
    return most


@pytest.mark.skipif(not TASKS.exists(), reason="the system does not list a process's threads there")
@pytest.mark.parametrize("name", CALLS)
def test_num_threads_is_used(name):
    assert most_threads(lambda: CALLS[name](3), enough=1) >= 1
    assert most_threads(lambda: CALLS[name](1), enough=0) == 0
