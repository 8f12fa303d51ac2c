"""A tokenizer can be pickled, copied, shared by threads and used after a fork."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from tokenizer_reference import GPT2, gpt2, reference

import gpt2fast

ENC = gpt2()
TEXT = "It's naïve: 12 foxes 🦊\n\n  and a verylongwordthatfitsnokey " * 40
IDS = reference().encode(TEXT)


def own():
    return gpt2fast.Tokenizer.from_files(GPT2 / "vocab.json", GPT2 / "merges.txt")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol):
    by_name = pickle.dumps(ENC, protocol)
    assert pickle.loads(by_name) is ENC
    assert len(by_name) < 200
    other = pickle.loads(pickle.dumps(own(), protocol))
    assert other is not ENC
    assert other.encode(TEXT) == IDS
    assert (other.name, other.eot_token, other.n_vocab) == ("gpt2", 50256, 50257)


def test_a_vocabulary_of_the_same_name_is_pickled_whole(tmp_path):
    symbols = ENC.byte_symbols()
    directory = tmp_path / "gpt2"
    directory.mkdir()
    (directory / "merges.txt").write_text("a b\n")
    (directory / "vocab.json").write_text(json.dumps({**{s: i for i, s in enumerate(symbols)}, "ab": 256}))
    small = gpt2fast.Tokenizer.from_files(directory / "vocab.json", directory / "merges.txt")
    assert small.name == "gpt2"
    assert pickle.loads(pickle.dumps(small)).encode("abc") == [256, 99]


def test_copies():
    for enc in (ENC, own()):
        for other in (copy.copy(enc), copy.deepcopy(enc)):
            assert other.encode(TEXT) == IDS


def test_names_of_the_same_ids():
    assert gpt2fast.get_encoding("gpt2") is ENC
    assert gpt2fast.get_encoding("r50k_base").encode(TEXT) == IDS
    assert pickle.loads(pickle.dumps(gpt2fast.get_encoding("r50k_base"))).name == "r50k_base"
    for wrong in ("cl100k_base", "GPT2", ""):
        with pytest.raises(gpt2fast.InputError, match="unknown encoding .* expected one of 'gpt2', 'r50k_base'"):
            gpt2fast.get_encoding(wrong)


def test_threads_share_one():
    enc = own()
    texts = [f"{i} {TEXT} {i * 7919}" for i in range(64)]
    expected = [reference().encode(text) for text in texts]

    def work(i):
        if i % 3 == 0:
            return enc.encode_batch_flat([texts[i]], num_threads=2)[0].tolist()
        return enc.encode(texts[i]) if i % 3 == 1 else enc.encode_to_numpy(texts[i]).tolist()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(64))) == expected
        assert list(pool.map(enc.decode, expected)) == texts


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_fork_while_threads_encode():
    # A lock that a thread holds at the fork stays locked in the child for ever: in a process of its own, with a limit.
    script = (
        "import os, threading, gpt2fast, numpy\n"  # numpy: an import under way at a fork is Python's own trap
        "enc = gpt2fast.get_encoding('gpt2'); text = 'hello fork 123 ' * 20000; expected = enc.encode(text)\n"
        "stop = threading.Event()\n"
        "def work():\n"
        "    while not stop.is_set(): enc.encode_batch_flat([text, text], num_threads=2); enc.encode('hi')\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "[t.start() for t in threads]\n"
        "for _ in range(20):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        same = enc.encode(text) == expected\n"
        "        same &= enc.encode_batch_flat([text], num_threads=2)[0].tolist() == expected\n"
        "        os._exit(0 if same else 1)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "stop.set(); [t.join() for t in threads]\n"
    )
    # Python 3.12 and later warn of any fork beside threads.
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", script], check=True, timeout=60)


def test_another_process():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(ENC.encode, TEXT).result(timeout=60) == IDS


def test_results_belong_to_the_caller():
    ids, offsets = ENC.encode_batch_flat([TEXT])
    first = ids.copy()
    ENC.encode_batch_flat(["other text " * 1000])
    assert np.array_equal(ids, first)
    assert offsets.tolist() == [0, len(IDS)]
