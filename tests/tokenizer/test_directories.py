"""Tokenizers as they lie in model directories give the ids that transformers and tokenizers give, in every call, and
are saved as they were read.

tests/tools/update_tokenizer_directories.py writes the directories and what is expected of them.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from paths import DATA

from gpt2fast import Tokenizer

CONTENT: dict[str, Any] = json.loads((DATA / "tokenizer" / "directories.json").read_text())
CASES: dict[str, Any] = CONTENT["cases"]
TEXTS: list[str] = CONTENT["texts"]
#: Special tokens that ordinary text makes, too, are always found: there nothing is said of special tokens as text.
ORDINARY = "padding that is a byte"


def filled(value):
    if value == "VOCAB":
        return CONTENT["VOCAB"]
    if value == "MERGES":
        return [merge.split(" ") for merge in CONTENT["MERGES"]]
    return {key: filled(one) for key, one in value.items()} if isinstance(value, dict) else value


def write(directory, files):
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        if name == "merges.txt":
            (directory / name).write_text("#version: 0.2\n" + "\n".join(CONTENT["MERGES"]) + "\n")
        else:
            (directory / name).write_text(json.dumps(filled(content), ensure_ascii=False), encoding="utf-8")
    return directory


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """A case, its directory, and the tokenizer read from that."""
    directory = write(tmp_path / "read", CASES[request.param]["files"])
    return CASES[request.param], directory, Tokenizer.from_pretrained(directory)


def test_every_call_finds_the_same_tokens(case):
    expected, _, enc = case
    lists = expected["ids"]
    for text, ids in zip(TEXTS, lists, strict=True):
        data = text.encode()
        assert enc.encode(text, allowed_special="all") == ids, text
        assert enc.encode(data, allowed_special="all") == ids
        assert enc.encode(bytearray(data), allowed_special=enc.special_tokens_set) == ids
        assert enc.encode_to_numpy(text, allowed_special="all").tolist() == ids
        assert enc.count(text, allowed_special="all") == len(ids)
        stable, rest = enc.encode_with_unstable(text, allowed_special="all")
        assert stable == ids[: len(stable)]
        assert rest or stable == ids
        found, spans = enc.encode_with_offsets(text, allowed_special="all")
        assert found == ids
        assert "".join(text[start:end] for start, end in spans) == text or not text.isascii()
        spans = enc.encode_with_offsets(data, allowed_special="all")[1]
        assert b"".join(data[start:end] for start, end in spans) == data
    assert enc.encode_batch(TEXTS, allowed_special="all") == lists
    assert enc.count_batch(TEXTS, allowed_special="all") == list(map(len, lists))
    ids, offsets = enc.encode_batch_flat(TEXTS, allowed_special="all", num_threads=2)
    assert [part.tolist() for part in np.split(ids, offsets[1:-1])] == lists
    joined = "".join(TEXTS).encode()
    ends = np.cumsum([0, *(len(text.encode()) for text in TEXTS)])
    assert enc.encode_spans(joined, ends, allowed_special="all")[0].tolist() == [id for ids in lists for id in ids]


def test_special_tokens_are_text_where_they_are_not_allowed(case):
    expected, _, enc = case
    if expected is CASES[ORDINARY]:
        assert enc.encode("wait!!") == enc.encode("wait!!", allowed_special="all")
        return
    lists = expected["special as text"]
    for text, ids in zip(TEXTS, lists, strict=True):
        assert enc.encode_ordinary(text) == ids, text
        assert enc.encode(text, disallowed_special=()) == ids
        assert enc.count(text) == len(ids)
        assert enc.encode_with_offsets(text)[0] == ids
    assert enc.encode_ordinary_batch(TEXTS) == lists
    assert enc.encode_batch_flat(TEXTS)[0].tolist() == [id for ids in lists for id in ids]
    assert enc.count_batch(TEXTS) == list(map(len, lists))


def test_what_a_tokenizer_says_of_itself(case):
    expected, _, enc = case
    assert enc.n_vocab == expected["size"]
    assert enc.special_tokens_set >= set(expected["special"])
    assert enc.is_special_token(enc.encode_single_token(expected["special"][0])) if expected["special"] else True
    if expected["bos"] is not None:
        assert enc.bos_token_id == expected["bos"]
    elif expected["begin"]:
        assert enc.bos_token_id == expected["begin"][0]
    if expected["eos"] is not None:
        assert enc.eos_token_id == enc.eot_token == expected["eos"]


def test_decoding_gives_the_text_back(case):
    expected, _, enc = case
    for text, ids in zip(TEXTS, expected["ids"], strict=True):
        if all(not (token.lstrip or token.rstrip) for token in enc._files.added.values()):
            prefix = enc._files.add_prefix_space
            assert enc.decode(ids).replace(" ", "") == text.replace(" ", "") if prefix else enc.decode(ids) == text


def test_a_saved_directory_is_the_one_that_was_read(case, tmp_path):
    expected, directory, enc = case
    enc.save_pretrained(tmp_path / "saved")
    again = Tokenizer.from_pretrained(tmp_path / "saved")
    restored = pickle.loads(pickle.dumps(enc))
    for other in (again, restored):
        assert other.encode_batch(TEXTS, allowed_special="all") == expected["ids"]
        assert other.special_tokens_set == enc.special_tokens_set
        assert (other.bos_token_id, other.eos_token_id) == (enc.bos_token_id, enc.eos_token_id)
    for name in CASES and expected["files"]:
        assert (tmp_path / "saved" / name).read_bytes() == (directory / name).read_bytes()
    again.save_pretrained(directory)  # over itself


def test_transformers_reads_what_was_saved(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    expected, _, enc = case
    enc.save_pretrained(tmp_path / "saved")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [read.encode(text, add_special_tokens=False) for text in TEXTS] == expected["ids"]
