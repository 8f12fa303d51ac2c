"""Hugging Face datasets: ids of examples and of Arrow tables, and results that are found again."""

from __future__ import annotations

import pickle

import corpora
import numpy as np
import pytest

import gpt2fast
from gpt2fast.integrations.datasets import TokenizeExamples

datasets = pytest.importorskip("datasets")


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    datasets.disable_progress_bars()
    corpora.write(tmp_path / "in.jsonl", corpora.DOCUMENTS * 3)
    return datasets.Dataset.from_json(str(tmp_path / "in.jsonl"), cache_dir=str(tmp_path))


@pytest.mark.parametrize("format", [None, "arrow"])
@pytest.mark.parametrize("eot", ["none", "append", "prepend"])
def test_a_dataset(dataset, format, eot):
    tokens = dataset.with_format(format).map(
        TokenizeExamples(eot=eot, num_threads=1), batched=True, batch_size=5, remove_columns=["text"]
    )
    assert tokens.column_names == ["id", "input_ids"]
    assert tokens.data.schema.field("input_ids").type.value_type == "uint16"
    expected = [corpora.stream([text], eot) for text in corpora.DOCUMENTS * 3]
    assert tokens.with_format(None)["input_ids"][:] == expected


def test_results_are_found_again(dataset):
    first, second = (
        dataset.map(TokenizeExamples(eot="append"), batched=True, load_from_cache_file=True) for _ in range(2)
    )
    assert first.cache_files == second.cache_files != []
    assert pickle.dumps(TokenizeExamples()) == pickle.dumps(TokenizeExamples())
    assert pickle.dumps(TokenizeExamples()) != pickle.dumps(TokenizeExamples(eot="append"))


def test_plain_batches():
    tokenize = TokenizeExamples(field="body", output="ids", eot="prepend")
    found = tokenize({"body": ["hello world", "", "hi"], "id": [1, 2, 3]})
    assert list(found) == ["ids"]
    assert [ids.tolist() for ids in found["ids"]] == [[50256, 31373, 995], [50256], [50256, 5303]]
    assert all(ids.dtype == np.uint16 for ids in found["ids"])
    assert tokenize({"body": []}) == {"ids": []}


def test_bad_batches():
    with pytest.raises(gpt2fast.InputError, match="there is no column 'text', but 'body'"):
        TokenizeExamples()({"body": ["a"]})
    with pytest.raises(gpt2fast.InputTypeError, match="a single example; say dataset.map"):
        TokenizeExamples()({"text": "a"})
    with pytest.raises(gpt2fast.InputTypeError, match=r"texts\[1\] is of type NoneType"):
        TokenizeExamples()({"text": ["a", None]})
