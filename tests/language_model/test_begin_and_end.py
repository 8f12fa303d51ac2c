"""Texts begin with the token that a model has for it and end with any of those that it has for that."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paths import DATA

import gpt2fast
from gpt2fast.model.pairing import beginning, ends

CASES = DATA / "cases"


@pytest.fixture
def case(tmp_path: Path) -> Any:
    """A copy of a case's directory, with files changed: a dict is merged into the JSON that is there."""

    def make(name: str, **files: dict[str, Any]) -> Path:
        shutil.copytree(CASES / name, tmp_path / name)
        for file, changes in files.items():
            path = tmp_path / name / f"{file}.json"
            content = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps(content | changes))
        return tmp_path / name

    return make


def expected(name: str) -> Any:
    return json.loads((CASES / name / "expected.json").read_text())


def test_scores_and_texts_begin_with_bos() -> None:
    lm = gpt2fast.load(CASES / "m-bos-not-eos")
    after_bos, after_eos = expected("m-bos-not-eos").values()
    np.testing.assert_allclose(lm.score("The king").log_probabilities, after_bos, atol=1e-4)
    assert lm.generate("", max_new_tokens=1).prompt_ids == [198]
    assert lm.score_choices("", ["The king"])[0].log_likelihood == lm.score("The king").log_likelihood
    ids = lm.tokenizer.encode("The king")
    logits = lm.model([299, *ids])[:-1].astype(float)
    logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(logarithms[range(len(ids)), ids], after_eos, atol=1e-4)


def test_a_tokenizer_names_both_where_the_configuration_has_gpt2s(case: Any) -> None:
    directory = case("tok-special-map")
    lm = gpt2fast.load(directory)
    values = expected("tok-special-map")
    assert lm.tokenizer.encode("<s>The king</s>", allowed_special="all") == values["ids of <s>The king</s>"]
    np.testing.assert_allclose(
        lm.score("The king").log_probabilities, values["log-probabilities of 'The king' after <s>"], atol=1e-4
    )
    assert (beginning(lm.model, lm.tokenizer), ends(lm.model, lm.tokenizer)) == (0, {2})
    generated = lm.generate("The king", logit_bias={2: 100}, max_new_tokens=3)
    assert (generated.ids, generated.finish_reason) == ([2], "eos")


@pytest.mark.parametrize("file", ["config", "generation_config"])
def test_each_of_several_ends_ends_a_text(case: Any, file: str) -> None:
    directory = case("m-bos-not-eos", **{file: {"eos_token_id": [299, 285]}})
    lm = gpt2fast.load(directory)
    assert lm.model.config.eos_token_id == (299, 285)
    found = lm.generate("The king", temperature=0, max_new_tokens=12, seed=1)
    assert (found.ids, found.finish_reason) == ([3, 3, 3, 285], "eos")
    later = lm.generate("The king", temperature=0, max_new_tokens=12, min_new_tokens=6)
    assert 285 not in later.ids[:6]
    assert 299 not in later.ids[:6]
    beams = lm.beam_search("The king", num_beams=4, num_return_sequences=4, max_new_tokens=8)
    assert {beam.ids[-1] for beam in beams if beam.finish_reason == "eos"} <= {299, 285}
    assert all(285 not in beam.ids[:-1] for beam in beams)
    for speculate in ("lookup", "int8", "off"):
        assert lm.generate("The king", temperature=0, max_new_tokens=12, seed=1, speculate=speculate) == found
    lm.save_pretrained(directory.parent / "saved")
    again = gpt2fast.load(directory.parent / "saved")
    assert again.generate("The king", temperature=0, max_new_tokens=12, seed=1) == found


def test_what_generation_config_says_comes_first(case: Any) -> None:
    directory = case("m-bos-not-eos", generation_config={"bos_token_id": 265, "eos_token_id": None})
    config = gpt2fast.Config.from_pretrained(directory)
    assert (config.bos_token_id, config.eos_token_id) == (265, 299)
    for wrong in ({"eos_token_id": "299"}, {"eos_token_id": [1.5]}, {"bos_token_id": [1]}, {"bos_token_id": True}):
        (directory / "generation_config.json").write_text(json.dumps(wrong))
        with pytest.raises(gpt2fast.InputError, match=r"generation_config.json: (bos|eos)_token_id is"):
            gpt2fast.Config.from_pretrained(directory)
    for content in ("[]", "{"):
        (directory / "generation_config.json").write_text(content)
        with pytest.raises(gpt2fast.InputError, match=r"generation_config.json: "):
            gpt2fast.Config.from_pretrained(directory)


def pair(bos: Any, eos: Any, own: tuple[Any, Any], added: int | None = None, size: int = 60_000) -> tuple[Any, Any]:
    """A model and a tokenizer, which knows `own` and has one added token."""
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=size, bos_token_id=bos, eos_token_id=eos))
    tokenizer = SimpleNamespace(
        n_vocab=size, bos_token_id=own[0], eos_token_id=own[1], is_added_token=lambda id: id == added
    )
    return model, tokenizer


@pytest.mark.parametrize(
    ("given", "begin", "end"),
    [
        (pair(5, 7, (1, 2)), 5, {7}),
        (pair(5, (7, 8), (1, 2)), 5, {7, 8}),
        (pair(None, 7, (1, 2)), 1, {7}),  # the tokenizer has a token of its own for it
        (pair(None, (7, 8), (2, 2)), 7, {7, 8}),
        (pair(None, None, (1, 2)), 1, {2}),
        (pair(None, None, (None, 2)), 2, {2}),
        (pair(None, None, (1, None)), 1, set()),
        (pair(None, None, (None, None)), None, set()),
        (pair(50256, 50256, (1, 2)), 1, {2}),  # an ordinary word there
        (pair(50256, 50256, (1, 2), added=50256), 50256, {50256}),
        (pair(50256, (50256, 9), (1, 2)), 1, {9}),
        (pair(50256, 50256, (None, None)), None, set()),
        (pair(5, 7, (1, 2), size=6), 5, {2}),  # beyond what both know
        (pair(9, 9, (8, 8), size=6), None, set()),
    ],
)
def test_which_tokens_they_are(given: tuple[Any, Any], begin: int | None, end: set[int]) -> None:
    assert (beginning(*given), ends(*given)) == (begin, end)


def test_gpt2s_end_among_ordinary_words_is_noticed(tmp_path: Path) -> None:
    lm = gpt2fast.load("demo")
    lm.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=50257, bos_token_id=50256, eos_token_id=50256))
    symbols = gpt2fast.get_encoding().byte_symbols()
    vocabulary = {symbol: i for i, symbol in enumerate(symbols)}
    more = [a + b for a in symbols for b in symbols][: 50257 - 256 - 1]
    vocabulary |= {text: 256 + i for i, text in enumerate(["<|endoftext|>", *more])}
    (tmp_path / "v.json").write_text(json.dumps(vocabulary))
    (tmp_path / "m.txt").write_text("\n".join(f"{text[0]} {text[1]}" for text in more))
    tokenizer = gpt2fast.Tokenizer.from_files(tmp_path / "v.json", tmp_path / "m.txt")
    from gpt2fast.model.pairing import warn_of_ends

    with pytest.warns(UserWarning, match="50256, GPT-2's end-of-text, which is .* in this tokenizer"):
        warn_of_ends(model, tokenizer)
    assert (beginning(model, tokenizer), ends(model, tokenizer)) == (256, {256})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_ends(model, gpt2fast.get_encoding())


# The border of a context, and texts without a beginning


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


@pytest.mark.parametrize("context", ["The king ", "The king  \n", " ", "The king", b"The king ", "The king\u00a0"])
@pytest.mark.parametrize("text", ["was old", " was old", "\nwas"])
def test_score_and_score_choices_agree_about_white_space(lm: gpt2fast.LanguageModel, context: Any, text: Any) -> None:
    text = text.encode() if isinstance(context, bytes) else text
    (choice,) = lm.score_choices(context, [text])
    score = lm.score(text, context=context)
    assert score.text == choice.text == context[len(context.rstrip()) :] + text
    assert score.ids.tolist() == choice.ids.tolist()
    assert score.log_likelihood == choice.log_likelihood


def test_white_space_before_a_text(lm: gpt2fast.LanguageModel) -> None:
    assert lm.score("was old", context="The king ").log_likelihood == pytest.approx(-10.976, abs=1e-3)
    mixed = lm.score(b"was old", context="The king ")
    assert mixed.text == b" was old"
    assert mixed.log_likelihood == lm.score("was old", context=b"The king ").log_likelihood
    assert lm.score("", context="The king ").text == ""


def test_without_bos_the_first_token_has_no_probability(lm: gpt2fast.LanguageModel) -> None:
    texts = ["Once upon a time", "", "a", "There was a king who had a son. " * 40]
    scores = lm.score_batch(texts, bos=False)
    for text, score in zip(texts, scores, strict=True):
        ids, spans = lm.tokenizer.encode_with_offsets(text)
        assert score.ids.tolist() == ids[1:]
        assert score.spans.tolist() == [list(span) for span in spans[1:]]
        assert score.log_probabilities.tolist() == lm.score(text, bos=False).log_probabilities.tolist()
    ids = lm.tokenizer.encode(texts[0])
    logits = lm.model(ids)[:-1].astype(float)
    logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(scores[0].log_probabilities, logarithms[range(len(ids) - 1), ids[1:]], atol=1e-5)
    with_context = lm.score(" time", context="Once upon a", bos=False)
    assert with_context.log_probabilities.tolist() == [scores[0].log_probabilities[-1]]


# Special tokens in texts


def test_special_tokens_in_prompts_and_texts() -> None:
    lm = gpt2fast.load(CASES / "tok-added-tokens-json")
    values = expected("tok-added-tokens-json")
    for text, ids in values["ids"].items():
        assert lm.score(text, allow_special=True).ids.tolist() == ids
        assert lm.score_batch([text], allow_special=True)[0].ids.tolist() == ids
        assert lm.generate(text, allow_special=True, max_new_tokens=1).prompt_ids == ids
        assert lm.generate_batch([text], allow_special=True, max_new_tokens=1)[0].prompt_ids == ids
        assert lm.beam_search(text, allow_special=True, max_new_tokens=1)[0].prompt_ids == ids
        if "<" not in text:  # dignums is no special token
            assert lm.score(text).ids.tolist() == ids
            assert lm.generate(text, max_new_tokens=1).prompt_ids == ids
    assert lm.score("<user>").ids.tolist() == lm.tokenizer.encode_ordinary("<user>") != [301]
    assert list(lm.stream("<user>", allow_special=True, max_new_tokens=2, seed=1)) == list(
        lm.stream([301], max_new_tokens=2, seed=1)
    )
    (score,) = lm.score_choices("<user>", [" king<bot>"], allow_special=True)
    assert score.ids[-1] == 302
    np.testing.assert_allclose(
        lm.score("Once upon a time!").log_probabilities,
        values["log-probabilities after end-of-text of Once upon a time!"],
        atol=1e-4,
    )
    for call in (lm.score, lm.generate, lm.beam_search):
        with pytest.raises(gpt2fast.InputTypeError, match="allow_special is 'all'; expected True or False"):
            call("a", allow_special="all")  # type: ignore[operator]


@pytest.mark.parametrize("packed", [False, True])
def test_a_saved_model_has_its_tokens(tmp_path: Path, packed: bool) -> None:
    lm = gpt2fast.load(CASES / "tok-added-tokens-json", dtype="int8" if packed else "float32")
    lm.save_pretrained(tmp_path / "saved", packed=packed)
    again = gpt2fast.load(tmp_path / "saved", dtype="int8" if packed else "float32")
    assert again.tokenizer.special_tokens_set == {"<|endoftext|>", "<|pad|>", "<user>", "<bot>"}
    for text, ids in expected("tok-added-tokens-json")["ids"].items():
        assert again.tokenizer.encode(text, allowed_special="all") == ids
    assert again.score("dignums").log_likelihood == lm.score("dignums").log_likelihood


def test_a_directory_with_another_tokenizer_is_left_as_it_is(tmp_path: Path) -> None:
    lm = gpt2fast.load(CASES / "m-bos-not-eos")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(gpt2fast.InputError, match=r"tokenizer.json: belongs to another tokenizer"):
        lm.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_checkpoint_without_a_tokenizer(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(CASES / "m-bos-not-eos" / name, tmp_path)
    with pytest.raises(gpt2fast.MissingFileError, match="tokenizer='gpt2' or --tokenizer gpt2"):
        gpt2fast.load(tmp_path)
    whole = gpt2fast.load(CASES / "m-bos-not-eos")
    for tokenizer in (CASES / "m-bos-not-eos", str(CASES / "m-bos-not-eos"), whole.tokenizer):
        lm = gpt2fast.load(tmp_path, tokenizer=tokenizer)
        assert lm.score("The king").log_likelihood == whole.score("The king").log_likelihood
    assert gpt2fast.load(tmp_path, tokenizer="gpt2").tokenizer is gpt2fast.get_encoding()
