"""Corpora hold the added tokens of their tokenizer, special ones where that is asked for, wherever files are cut."""

from __future__ import annotations

import json

import numpy as np
import pytest
from paths import DATA

import gpt2fast
from gpt2fast import cli
from gpt2fast.corpus import documents, tokenize_files

CASE = DATA / "cases" / "tok-added-tokens-json"
TEXT = "my value in dignums dollars <user> the king: yes! <bot>\n"


@pytest.fixture(scope="module")
def enc():
    return gpt2fast.Tokenizer.from_pretrained(CASE)


@pytest.mark.parametrize("allow_special", [False, True])
@pytest.mark.parametrize("size", [7, 40, 1000])
def test_long_documents_are_cut_where_no_token_is(tmp_path, monkeypatch, enc, allow_special, size):
    monkeypatch.setattr(documents, "PART_BYTES", size)
    monkeypatch.setattr(documents, "HASHED_BYTES", 0)
    (tmp_path / "in.txt").write_text(TEXT * 50)
    tokenize_files(tmp_path / "in.txt", tmp_path / "out.npy", tokenizer=enc, allow_special=allow_special, eot="append")
    expected = enc.encode(TEXT * 50, allowed_special="all" if allow_special else set(), disallowed_special=())
    assert np.load(tmp_path / "out.npy").tolist() == [*expected, 299]
    assert expected.count(303) == 50
    assert expected.count(301) == 50 * allow_special


def test_json_lines_and_the_shell(tmp_path, enc, capsysbinary):
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    options = [str(tmp_path / "in.jsonl"), "--tokenizer", str(CASE), "--quiet", "-o"]
    for more, allowed in (([], set()), (["--allow-special"], "all")):
        cli.main(["tokenize", *options, str(tmp_path / "out.npy"), "--overwrite", *more])
        expected = enc.encode(TEXT, allowed_special=allowed, disallowed_special=())
        assert np.load(tmp_path / "out.npy").tolist() == expected
        cli.main(["encode", "--tokenizer", str(CASE), "--text", TEXT, *more])
        assert capsysbinary.readouterr().out.split() == [b"%d" % id for id in expected]
        cli.main(["count", "--tokenizer", str(CASE), "--text", TEXT, *more])
        assert capsysbinary.readouterr().out.split() == [b"%d" % len(expected)]


def test_a_job_with_special_tokens_is_another_job(tmp_path, enc):
    (tmp_path / "in.txt").write_text(TEXT)
    tokenize_files(tmp_path / "in.txt", tmp_path / "a.npy", tokenizer=enc)
    tokenize_files(tmp_path / "in.txt", tmp_path / "b.npy", tokenizer=enc, allow_special=True)
    assert np.load(tmp_path / "a.npy").tolist() != np.load(tmp_path / "b.npy").tolist()
    with pytest.raises(gpt2fast.InputTypeError, match="allow_special is 1; expected True or False"):
        tokenize_files(tmp_path / "in.txt", tmp_path / "c.npy", tokenizer=enc, allow_special=1)


def test_the_end_that_a_tokenizer_names_is_put_after_documents(tmp_path):
    enc = gpt2fast.Tokenizer.from_pretrained(DATA / "cases" / "tok-special-map")
    (tmp_path / "in.txt").write_text("The king")
    tokenize_files(tmp_path / "in.txt", tmp_path / "out.npy", tokenizer=enc, eot="append")
    assert np.load(tmp_path / "out.npy").tolist() == [270, 73, 299, 2]


def test_scores_of_documents(tmp_path):
    lm = gpt2fast.load(CASE)
    (tmp_path / "in.txt").write_text("<user> the king")
    for bos, allow in ((True, False), (False, True), (True, True)):
        gpt2fast.corpus.score_files(
            tmp_path / "in.txt", tmp_path / "out.jsonl", lm, tokens=True, bos=bos, allow_special=allow
        )
        row = json.loads((tmp_path / "out.jsonl").read_text())
        (tmp_path / "out.jsonl").unlink()
        score = lm.score("<user> the king", bos=bos, allow_special=allow)
        assert row["ids"] == score.ids.tolist()
        assert row["log_likelihood"] == score.log_likelihood
