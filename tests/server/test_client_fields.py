"""Fields that clients of other servers send: honoured where they have a meaning, else ignored, never misunderstood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from live_server import Live, live
from paths import DATA

import gpt2fast
from gpt2fast import LanguageModel
from gpt2fast.server import Limits
from gpt2fast.server.foreign_fields import _IGNORED, _OFF

REPORTED = json.loads((DATA / "cases" / "server-fields.json").read_text())


@pytest.fixture(scope="module")
def demo() -> LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def server(demo: LanguageModel) -> Iterator[Live]:
    with live(demo) as running:
        yield running


def text(server: Live, prompt: Any = "Once upon a time", **fields: Any) -> str:
    found: str = server.complete(prompt, **fields)["choices"][0]["text"]
    return found


@pytest.mark.parametrize("name", REPORTED)
def test_requests_that_other_servers_take(server: Live, name: str) -> None:
    path = "/v1/completions/" if name == "trailing slash" else "/v1/completions"
    status, _, content = server.ask("POST", path, REPORTED[name])
    assert status == 200, content


def test_what_means_the_same_gives_the_same(server: Live) -> None:
    right = text(server, seed=3, max_tokens=12)
    for same in (
        {"max_tokens": None, "max_completion_tokens": 12},
        {"max_tokens": 12, "max_completion_tokens": 12},
        {"max_tokens": None, "n_predict": 12},
        {"top_k": -1},
        {"repeat_penalty": 1},
        {"do_sample": True, "typical_p": 1.0, "mirostat": 0, "mirostat_tau": 5.0, "use_beam_search": False},
        {"cache_prompt": True, "id_slot": -1, "add_special_tokens": True, "skip_special_tokens": False},
        {"response_format": {"type": "text"}, "guided_json": None, "logits_processors": [], "request_id": "x"},
    ):
        assert text(server, **{"seed": 3, "max_tokens": 12, **same}) == right, same
    greedy = text(server, temperature=0, max_tokens=12)
    assert text(server, do_sample=False, max_tokens=12) == greedy
    assert text(server, temperature=0, repeat_penalty=1.3, max_tokens=12) == text(
        server, temperature=0, repetition_penalty=1.3, max_tokens=12
    )
    assert text(server, temperature=0, no_repeat_ngram_size=2, max_tokens=40) != text(
        server, temperature=0, max_tokens=40
    )


def test_a_seed_of_minus_one_is_drawn(server: Live) -> None:
    assert len({text(server, seed=-1, max_tokens=20) for _ in range(4)}) > 1


@pytest.mark.parametrize("name", [*_OFF, "suffix"])
def test_what_is_not_here_is_refused_by_name(server: Live, name: str) -> None:
    for value in (0.123, "x", ["x"], {"x": 1}) if name != "suffix" else ("x",):
        status, content = server.post("/v1/completions", prompt="a", max_tokens=1, **{name: value})
        assert (status, content["error"]["param"]) == (400, name)
        assert "is not supported" in content["error"]["message"]
    for value in (None, *_OFF.get(name, ())):
        server.complete("a", max_tokens=1, **{name: value})


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/score"])
def test_what_changes_nothing_is_ignored(server: Live, path: str) -> None:
    needed = {"/v1/completions": "prompt", "/v1/embeddings": "input", "/score": "text"}[path]
    for value in (None, True, -1, "x", [1], {"a": "b"}):
        status, content = server.post(path, **{needed: "a", **dict.fromkeys(_IGNORED, value)})
        assert status == 200, content


def test_where_a_text_ends(toy: LanguageModel) -> None:
    """269 is end-of-text."""
    always = {"logit_bias": {"269": 100}, "temperature": 0, "max_tokens": 5, "return_token_ids": True}
    with live(toy) as server:

        def choice(**fields: Any) -> Any:
            return server.complete([1, 2], **{**always, **fields})["choices"][0]

        found = choice()
        assert (found["token_ids"], found["finish_reason"], found["text"]) == ([269], "stop", "")
        assert found["prompt_token_ids"] == [1, 2]
        found = choice(ignore_eos=True)
        assert (found["token_ids"], found["finish_reason"]) == ([269] * 5, "length")
        found = choice(min_tokens=3)
        assert (len(found["token_ids"]), found["token_ids"][3], found["finish_reason"]) == (4, 269, "stop")
        assert 269 not in found["token_ids"][:3]
        third = {"logit_bias": {"70": 100, "269": -100}, "stop_token_ids": [70, 71]}
        found = choice(**third)
        assert (found["token_ids"], found["finish_reason"], found["text"]) == ([70], "stop", "")
        found = choice(**third, min_tokens=2)
        assert (len(found["token_ids"]), found["token_ids"][-1]) == (3, 70)
        assert not {70, 71, 269} & set(found["token_ids"][:-1])
        for wrong, words in (
            ({"min_tokens": 6}, "min_tokens is 6, max_tokens only 5"),
            ({"stop_token_ids": [270]}, "stop_token_ids[0] is 270; expected a token id from 0 to 269"),
            ({"stop_token_ids": 3}, "stop_token_ids is of type number"),
            ({"stop_token_ids": [1] * 1025}, "stop_token_ids has 1025 ids"),
            ({"max_completion_tokens": 6}, "max_tokens is 5 and max_completion_tokens 6"),
        ):
            status, content = server.post("/v1/completions", prompt="a", **{**always, **wrong})
            assert (status, words in content["error"]["message"]) == (400, True), content


def test_best_of_shows_the_likeliest(server: Live, demo: LanguageModel) -> None:
    options: Any = {"seed": 5, "temperature": 1, "top_k": 0, "logprobs": 0}
    for prompt in ("Once upon a time", ["The old king", "A"]):
        found = server.complete(prompt, n=2, best_of=6, max_tokens=10, seed=5)
        expected = []
        for one in [prompt] if isinstance(prompt, str) else prompt:
            texts = demo.generate(one, n=6, max_new_tokens=10, **options)
            ranked = sorted(texts, key=lambda text: -sum(text.logprobs) / len(text.logprobs))  # type: ignore[union-attr]
            expected += [text.text for text in ranked[:2]]
        assert [choice["text"] for choice in found["choices"]] == expected
        assert [choice["index"] for choice in found["choices"]] == list(range(len(expected)))
        assert all(choice["logprobs"] is None for choice in found["choices"])
        assert found["usage"]["completion_tokens"] == 10 * 6 * len(expected) // 2
    with_logprobs = server.complete("Once upon a time", n=1, best_of=4, max_tokens=6, seed=5, logprobs=2)
    (choice,) = with_logprobs["choices"]
    assert len(choice["logprobs"]["tokens"]) == 6


def test_usage_with_every_chunk(server: Live) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1/", api_key="none is needed", max_retries=0) as client:
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(
            client.completions.create(model="demo", prompt="Once", max_tokens=6, stream=True, stream_options=options)
        )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert len(counts) == len(chunks)
    assert (counts == sorted(counts), 1 <= counts[0] < 6, counts[-1]) == (True, True, 6)


def test_prompts_cut_to_their_ends(server: Live, demo: LanguageModel) -> None:
    ids = demo.tokenizer.encode("Once upon a time there was an old king")
    right = text(server, ids[-4:], seed=1)
    assert text(server, ids, seed=1, truncate_prompt_tokens=4) == right
    assert text(server, demo.tokenizer.decode(ids), seed=1, truncate_prompt_tokens=4) == right
    n_ctx = demo.model.config.n_ctx
    long = (ids * n_ctx)[: n_ctx + 7]
    whole = server.complete(long, seed=1, truncate_prompt_tokens=-1, max_tokens=10)
    assert whole["usage"] == {"prompt_tokens": n_ctx - 9, "completion_tokens": 10, "total_tokens": n_ctx + 1}
    echoed = server.complete(ids, truncate_prompt_tokens=2, max_tokens=0, echo=True)["choices"][0]["text"]
    assert echoed == demo.tokenizer.decode(ids[-2:])


def test_tokens_by_their_ids(server: Live, demo: LanguageModel) -> None:
    fields: Any = {"temperature": 0, "max_tokens": 5, "logprobs": 1, "return_token_ids": True}
    choice = server.complete("Once", **fields, return_tokens_as_token_ids=True)["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(
        name in top for name, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True)
    )
    _, _, content = server.ask("POST", "/v1/completions", {"prompt": "Once", **fields, "stream": True})
    chunks = [json.loads(line[6:])["choices"][0] for line in content.decode().split("\n\n")[:-2]]
    assert [token for chunk in chunks for token in chunk["token_ids"]] == choice["token_ids"]
    assert [chunk["prompt_token_ids"] for chunk in chunks] == [demo.tokenizer.encode("Once")] + [None] * (
        len(chunks) - 1
    )


def test_slashes_mean_nothing(server: Live) -> None:
    for path in ("/v1/completions/", "//v1/completions", "/v1//completions//"):
        assert server.ask("POST", path, {"prompt": "a", "max_tokens": 1})[0] == 200
    for path in ("/health/", "//health", "/v1/models/", "/v1/models/demo/"):
        assert server.ask("GET", path)[0] == 200
    with openai.OpenAI(base_url=f"{server.url}//v1/", api_key="x", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["demo"]


# Special tokens in texts


@pytest.mark.parametrize("allowed", [False, True])
def test_special_tokens_in_prompts(demo: LanguageModel, allowed: bool) -> None:
    prompt = "The end.<|endoftext|>Once"
    plain, special = demo.tokenizer.encode_ordinary(prompt), demo.tokenizer.encode(prompt, allowed_special="all")
    with live(demo, allow_special=allowed) as server:
        for flag, ids in ((None, special if allowed else plain), (True, special), (False, plain)):
            asked = {"prompt": prompt, "allow_special": flag, "max_tokens": 0, "echo": True}
            found = server.complete(**asked, logprobs=1)
            assert found["usage"]["prompt_tokens"] == len(ids)
            assert found["choices"][0]["text"] == prompt
            assert server.post("/tokenize", text=prompt, allow_special=flag)[1]["ids"] == ids
            scored = server.post("/score", text=prompt, allow_special=flag)[1]["data"][0]
            assert [token["id"] for token in scored["tokens"]] == ids
            embedded = server.post("/v1/embeddings", input=prompt, allow_special=flag)[1]
            assert embedded["data"] == server.post("/v1/embeddings", input=ids)[1]["data"]


# Tokens, in the words of vLLM and of llama.cpp


def test_tokens_in_others_words(server: Live, demo: LanguageModel) -> None:
    sentence = "Once upon a naïve 🥊 time"
    ids = demo.tokenizer.encode(sentence)
    status, content = server.post("/tokenize", prompt=sentence, add_special_tokens=False)
    assert (status, content) == (200, {"tokens": ids, "count": len(ids), "max_model_len": demo.model.config.n_ctx})
    assert server.post("/tokenize", content=sentence, add_special=True, with_pieces=False)[1]["tokens"] == ids
    assert server.post("/detokenize", tokens=ids) == (200, {"prompt": sentence, "content": sentence})
    assert server.post("/tokenize", prompt="", content=None)[1]["tokens"] == []
    for path, fields, param in (
        ("/tokenize", {"text": "a", "prompt": "a"}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/detokenize", {"ids": [1], "tokens": [1]}, "ids"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ):
        status, content = server.post(path, **fields)
        assert (status, content["error"]["param"]) == (400, param)
    status, _, info = server.ask("GET", "/tokenizer_info")
    assert (status, info["eos_token"], info["model_max_length"]) == (200, "<|endoftext|>", demo.model.config.n_ctx)
    assert info["chat_template"] is None


def test_numbers_of_thousands_of_digits(toy: LanguageModel) -> None:
    with live(toy, limits=Limits(rows=2, queue=2, grace=5)) as server:
        for huge in (10**4299, -(10**4299), 2**64):
            for name in ("max_tokens", "n", "best_of", "top_k", "seed", "logprobs", "min_tokens"):
                status, content = server.post("/v1/completions", prompt="a", **{name: huge})
                assert (status, content["error"]["param"]) == (400, name)
                assert f"is a number of {len(str(abs(huge)))} digits; expected" in content["error"]["message"]
        assert server.post("/v1/completions", prompt="a", max_tokens=2**63 - 1)[1]["error"]["param"] == "prompt"
