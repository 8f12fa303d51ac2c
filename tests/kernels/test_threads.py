"""The thread pool: every item once, from any number of threads, after a fork, from several Python threads at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from gpt2fast import Error
from gpt2fast._internal.threads import default_num_threads, resolve_num_threads
from gpt2fast.kernels.cpu import squares
from gpt2fast.kernels.linear import Weight


@pytest.mark.parametrize("num_threads", [1, 2, 3, 16, 1000])
@pytest.mark.parametrize(("count", "grain"), [(0, 1), (1, 1), (2, 5), (1000, 1), (1000, 7), (12345, 100)])
def test_every_item_once(count, grain, num_threads):
    assert squares(count, grain, num_threads) == [i * i for i in range(count)]


def test_many_short_loops():
    expected = [i * i for i in range(64)]
    assert all(squares(64, 1, 2) == expected for _ in range(3000))


def test_several_python_threads_at_once():
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    weight = Weight.panels(np.random.default_rng(1).standard_normal((256, 512)).astype(np.float32))
    expected = weight.multiply(x)
    wrong = []

    def work():
        for _ in range(200):
            if not np.array_equal(weight.multiply(x, num_threads=2), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_fork_parent_and_child_work():
    code = """
import os, signal
from gpt2fast.kernels.cpu import squares
expected = [i * i for i in range(500)]
assert squares(500, 1, 2) == expected
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if squares(500, 1, 3) == expected else 1)
    assert squares(500, 1, 2) == expected
    assert os.waitpid(child, 0)[1] == 0
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


def test_default_number(monkeypatch):
    monkeypatch.delenv("GPT2FAST_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if hasattr(os, "sched_getaffinity"):
        assert default_num_threads() == min(len(os.sched_getaffinity(0)), 256)
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert default_num_threads() == 5
    monkeypatch.setenv("GPT2FAST_THREADS", "3")
    assert default_num_threads() == resolve_num_threads(None) == 3
    assert resolve_num_threads(7) == 7


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_bad_variable_is_named(monkeypatch, value):
    monkeypatch.setenv("GPT2FAST_THREADS", value)
    with pytest.raises(Error, match="GPT2FAST_THREADS"):
        default_num_threads()


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_bad_argument_is_named(value):
    with pytest.raises(ValueError, match="num_threads"):
        resolve_num_threads(value)
