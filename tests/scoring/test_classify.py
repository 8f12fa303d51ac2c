"""Classifiers: the logits of transformers' GPT2ForSequenceClassification and GPT2ForTokenClassification."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpt2fast
from gpt2fast import safetensors
from gpt2fast.errors import InputError, InputTypeError, UnknownTokenError

DATA = Path(__file__).parents[1] / "data" / "classify"
EXPECTED = json.loads((DATA / "expected.json").read_text("utf-8"))
TEXTS = EXPECTED["texts"]


@pytest.fixture(scope="module")
def of_texts() -> gpt2fast.LanguageModel:
    return gpt2fast.load(DATA / "sequence")  # and no warning of a tensor that is left out


@pytest.fixture(scope="module")
def of_tokens() -> gpt2fast.LanguageModel:
    return gpt2fast.load(DATA / "tokens")


def changed(tmp_path: Path, name: str, values: dict[str, Any], **tensors: Any) -> Path:
    shutil.copytree(DATA / name, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = {**json.loads(path.read_text("utf-8")), **values}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}), "utf-8")
    if tensors:
        path = tmp_path / "model" / "model.safetensors"
        found = {**safetensors.load_file(path), **{name.replace("_", "."): value for name, value in tensors.items()}}
        safetensors.save_file({name: value for name, value in found.items() if value is not None}, path)
    return tmp_path / "model"


def test_labels_of_texts(of_texts: gpt2fast.LanguageModel) -> None:
    labels = ["sad", "glad", "neither"]
    found = of_texts.classify(TEXTS)
    for one, logits in zip(found, EXPECTED["sequence"]["logits"], strict=True):
        np.testing.assert_allclose(one.logits, logits, atol=1e-4)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        assert one.label == labels[int(np.argmax(logits))]
        assert list(one.probabilities) == labels
        np.testing.assert_allclose(list(one.probabilities.values()), probabilities, atol=1e-4)
        assert one.probability == max(one.probabilities.values())


def test_a_text_is_labelled_at_its_last_token_that_is_no_padding(of_texts: gpt2fast.LanguageModel) -> None:
    ids = EXPECTED["sequence"]["ids"]
    longest = max(map(len, ids))
    padded = [one + [269] * (longest - len(one)) for one in ids]
    for one, logits in zip(of_texts.classify(padded), EXPECTED["sequence"]["padded"], strict=True):
        np.testing.assert_allclose(one.logits, logits, atol=1e-4)
    # Text, ids and any batch: the same bits.
    alone = [of_texts.classify([text])[0] for text in TEXTS]
    for one, other, third in zip(alone, of_texts.classify(padded), of_texts.classify(ids), strict=True):
        assert one.logits.tolist() == other.logits.tolist() == third.logits.tolist()


def test_labels_of_tokens(of_tokens: gpt2fast.LanguageModel) -> None:
    found = of_tokens.classify(TEXTS)
    for tokens, logits, text in zip(found, EXPECTED["tokens"]["logits"], TEXTS, strict=True):
        np.testing.assert_allclose([token.logits for token in tokens], logits, atol=1e-4)
        ids, spans = of_tokens.tokenizer.encode_with_offsets(text)
        assert [token.id for token in tokens] == ids
        assert [token.span for token in tokens] == spans
        assert [token.text for token in tokens] == [text[slice(*span)] for span in spans]
        best = [["O", "B-PER", "I-PER", "B-LOC"][i] for i in np.argmax(logits, axis=1)]
        assert [token.label for token in tokens] == best


def test_several_labels_at_once_and_a_regression(tmp_path: Path) -> None:
    logits = EXPECTED["sequence"]["logits"][0]
    (one,) = gpt2fast.load(changed(tmp_path, "sequence", {"problem_type": "multi_label_classification"})).classify(
        TEXTS[:1]
    )
    np.testing.assert_allclose(list(one.probabilities.values()), 1 / (1 + np.exp(-np.array(logits))), atol=1e-4)
    (one,) = gpt2fast.load(changed(tmp_path / "r", "sequence", {"problem_type": "regression"})).classify(TEXTS[:1])
    np.testing.assert_allclose(one.logits, logits, atol=1e-4)
    assert np.isnan(one.probability)


def test_labels_without_names_and_a_pickled_model(tmp_path: Path) -> None:
    lm = gpt2fast.load(changed(tmp_path, "sequence", {"id2label": "gone"}))
    assert list(lm.classify(["a"])[0].probabilities) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    again = pickle.loads(pickle.dumps(lm))
    assert again.classify(["a"])[0].logits.tolist() == lm.classify(["a"])[0].logits.tolist()


def test_long_texts(of_texts: gpt2fast.LanguageModel) -> None:
    with pytest.raises(InputError, match=r"texts\[1\] has 41 tokens; the model's context is 40"):
        of_texts.classify(["a", "a" * 41])
    cut, whole = of_texts.classify(["ab" * 21], truncate=True), of_texts.classify(["ab" * 20])
    assert cut[0].logits.tolist() == whole[0].logits.tolist()


@pytest.mark.parametrize(
    ("values", "tensors", "words"),
    [
        ({}, {"score_weight": None}, "score.weight is missing, the head of a GPT2ForSequenceClassification"),
        ({}, {"score_weight": np.zeros((3, 5), np.float32)}, "score.weight is [3, 5], expected [labels, 16]"),
        ({}, {"score_bias": np.zeros(2, np.float32)}, "score.bias is [2], expected [3]"),
        ({"id2label": {"0": "a"}}, {}, "expected a label for each number from 0 to 2"),
        ({"id2label": [1]}, {}, "expected a label for each number from 0 to 2"),
        ({"problem_type": "guessing"}, {}, "problem_type is 'guessing'"),
        ({"pad_token_id": "x"}, {}, "pad_token_id is 'x'"),
    ],
)
def test_heads_that_are_refused(tmp_path: Path, values: Any, tensors: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        gpt2fast.load(changed(tmp_path, "sequence", values, **tensors))
    assert words in str(caught.value)


def test_refusals(of_texts: gpt2fast.LanguageModel) -> None:
    refused: list[tuple[Any, type[Exception], str]] = [
        ("a", InputTypeError, "texts is one str; expected a list of texts"),
        (["a", ""], InputError, "texts[1] is empty"),
        ([3], InputTypeError, "texts[0] is of type int"),
        ([[270]], UnknownTokenError, "tokens[0] is 270"),
    ]
    for texts, error, words in refused:
        with pytest.raises(error) as caught:
            of_texts.classify(texts)
        assert words in str(caught.value)
    with pytest.raises(InputError, match="the checkpoint has no head for labels"):
        gpt2fast.load("demo").classify(["a"])
    assert of_texts.classify([]) == []


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["sequence", "tokens"])
def test_a_classifier_is_written_with_its_head(tmp_path: Path, name: str, packed: bool) -> None:
    lm = gpt2fast.load(DATA / name, dtype="int8" if packed else "float32")
    lm.save_pretrained(tmp_path, packed=packed, max_shard_size="20KB" if not packed else "5GB")
    again = gpt2fast.load(tmp_path, dtype="int8" if packed else "float32")
    assert again.head is not None
    assert lm.head is not None
    assert (again.head.of, again.head.labels, again.head.problem_type) == (
        lm.head.of,
        lm.head.labels,
        lm.head.problem_type,
    )
    assert again.head.pad_token_id == lm.head.pad_token_id
    for one, other in zip(again.classify(TEXTS), lm.classify(TEXTS), strict=True):
        pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
        assert all(a.logits.tobytes() == b.logits.tobytes() for a, b in pairs)
    before, after = (json.loads((path / "config.json").read_text()) for path in (DATA / name, tmp_path))
    for key in ("architectures", "id2label", "label2id", "pad_token_id"):
        assert after[key] == before[key]
    bias = [key for key in safetensors.load_file(DATA / name / "model.safetensors") if key.endswith("er.bias")]
    written = [key for path in tmp_path.glob("*.safetensors") for key in safetensors.load_file(path)]
    assert [key for key in written if key in ("score.bias", "classifier.bias")] == bias
