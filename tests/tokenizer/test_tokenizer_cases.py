"""Trouble that other projects had with tokenizers: each reported text gives the right ids here."""

from __future__ import annotations

import hashlib
import json
import threading
import time

import numpy as np
import pytest
from paths import DATA
from tokenizer_reference import gpt2, reference

import gpt2fast

FILES = DATA / "tokenizer"
CASES = {case["id"]: case for case in json.loads((FILES / "cases.json").read_text())}
ENC = gpt2()


def every_encoding(text):
    """The ids of `text` by every way there is, which must agree."""
    ids = ENC.encode(text)
    assert ENC.encode_ordinary(text) == ids
    assert ENC.encode_batch([text]) == ENC.encode_ordinary_batch([text]) == [ids]
    assert ENC.encode_to_numpy(text).tolist() == ENC.encode_batch_flat([text])[0].tolist() == ids
    assert ENC.count(text) == ENC.count_batch([text])[0] == len(ids)
    return ids


@pytest.mark.parametrize("case", ["tok-unicode-whitespace", "tok-emoji-zwj", "tok-reserved-words"])
def test_ids_and_round_trip(case):
    for row in CASES[case]["expected"]["rows"]:
        assert every_encoding(row["text"]) == row["ids"], row["text"]
        assert ENC.decode(row["ids"]) == row["text"]


def test_lone_surrogates():
    case = CASES["tok-lone-surrogate"]
    for units, ids in zip(case["input"]["utf16_units"], case["expected"]["ids"], strict=True):
        text = "".join(map(chr, units))
        assert every_encoding(text) == ids == reference().encode(text)


def test_byte_alphabet():
    case = CASES["tok-byte-alphabet"]
    ids = case["input"]["ids_for_byte_0_to_255"]
    assert ENC.decode_bytes(ids) == bytes(range(256)) == bytes.fromhex(case["expected"]["bytes_hex"])
    for token, byte in case["expected"]["spot"].items():
        assert ENC.decode_single_token_bytes(int(token)).hex() == byte
        assert ENC.encode(bytes.fromhex(byte)) == [int(token)]


def test_cut_characters():
    for row in CASES["tok-decode-partial-utf8"]["expected"]["rows"]:
        assert ENC.decode_bytes(row["ids"]).hex() == row["bytes_hex"]
        assert ENC.decode(row["ids"]) == row["text_replace"]
        with pytest.raises(UnicodeDecodeError):
            ENC.decode(row["ids"], errors="strict")
        stream = ENC.decode_stream()
        assert "".join(map(stream.feed, row["ids"])) + stream.flush() == row["text_replace"]


@pytest.mark.parametrize("vocab", CASES["tok-merges-file"]["input"]["vocab"])
@pytest.mark.parametrize("merges", CASES["tok-merges-file"]["input"]["merges"])
def test_merges_files(vocab, merges):
    case, directory = CASES["tok-merges-file"], FILES / "tok-merges-file"
    enc = gpt2fast.Tokenizer.from_files(directory / vocab, directory / merges)
    for text, ids in zip(case["input"]["texts"], case["expected"]["ids"][merges], strict=True):
        assert enc.encode(text) == ids
        assert enc.decode(ids) == text
    assert enc.eot_token == 268


@pytest.mark.parametrize("merges", CASES["tok-merges-file"]["input"]["bad_merges"])
def test_bad_merges_files(merges):
    directory = FILES / "tok-merges-file"
    with pytest.raises(gpt2fast.InputError, match=r": line \d+") as caught:
        gpt2fast.Tokenizer.from_files(directory / "vocab.json", directory / merges)
    assert str(directory / merges) in str(caught.value)


def long_run(build):
    if "lcg_letters" in build:
        x, letters = 1, []
        for _ in range(build["lcg_letters"]):
            x = (1103515245 * x + 12345) % 2**31
            letters.append("etaoinshr"[(x >> 16) % 9])
        return "".join(letters)
    return build["unit"] * build["count"] + build["suffix"]


RUNS = list(zip(CASES["tok-long-runs"]["input"]["build"], CASES["tok-long-runs"]["expected"]["results"], strict=True))


@pytest.mark.parametrize(("build", "expected"), RUNS, ids=["-".join(map(str, build.values())) for build, _ in RUNS])
def test_long_runs(build, expected):
    text = long_run(build)
    ids = ENC.encode_to_numpy(text)
    assert len(ids) == expected["n_ids"]
    assert hashlib.sha256(ids.astype("<u4").tobytes()).hexdigest() == expected["sha256_u32le"]
    assert ids[:4].tolist() == expected["head"]
    assert ids[-4:].tolist() == expected["tail"]


def test_long_runs_need_no_stack():
    found = []
    previous = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: found.extend(ENC.encode_to_numpy(long_run(b)) for b, _ in RUNS))
        thread.start()
    finally:
        threading.stack_size(previous)
    thread.join()
    assert [len(ids) for ids in found] == [expected["n_ids"] for _, expected in RUNS]


@pytest.mark.parametrize("unit", ["a", "7", "^", "=", "ab", " ", "\n", "é", "あ", "漢", "us", "0123456789"])
def test_time_grows_with_length(unit):
    def seconds(count):
        text = unit * count
        best = np.inf
        for _ in range(3):
            start = time.thread_time()  # not the clock on the wall: other processes must not fail this
            ENC.count(text)
            best = min(best, time.thread_time() - start)
        return best

    # Quadratic time would take 16 times as long.
    assert seconds(400_000 // len(unit)) < 10 * seconds(100_000 // len(unit)) + 0.01
