"""What the server answers: the texts of `LanguageModel.generate`, in the forms that OpenAI's own client reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from live_server import Live, live
from paths import DATA
from toy_model import ToyModel, scripted

import gpt2fast
from gpt2fast import LanguageModel, Tokenizer
from gpt2fast.generation.sampling import log_probabilities
from gpt2fast.server import Limits

FILES = DATA / "generation"
PROMPTS = ["Once upon a time", "The old king", "A", "In the middle of the night " * 9]


@pytest.fixture(scope="module")
def demo() -> LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def server(demo: LanguageModel) -> Iterator[Live]:
    with live(demo) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is needed", max_retries=0) as client:
        yield client


def options_of(settings: dict[str, Any]) -> Any:
    """The settings of a request as `generate` has them."""
    return {
        "max_new_tokens": settings.get("max_tokens", 16),
        "temperature": settings.get("temperature", 1),
        "top_k": settings.get("top_k", 0),
        **{name: value for name, value in settings.items() if name not in ("max_tokens", "temperature", "top_k", "n")},
    }


# Texts


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"seed": 5},
        {"seed": 2**63 - 1, "temperature": 1.5, "top_p": 0.9, "max_tokens": 40},
        {"seed": 1, "presence_penalty": 1.5, "frequency_penalty": 0.5, "max_tokens": 40},
        {"seed": 1, "stop": [".", "the"], "max_tokens": 60},
    ],
)
def test_texts_are_those_of_generate(client: openai.OpenAI, demo: LanguageModel, settings: dict[str, Any]) -> None:
    for prompt in PROMPTS:
        right = demo.generate(prompt, **options_of(settings))
        found = client.completions.create(model="demo", prompt=prompt, **settings)
        assert (found.choices[0].text, found.choices[0].logprobs) == (right.text, None)
        assert found.choices[0].finish_reason == ("length" if right.finish_reason == "length" else "stop")
        assert found.usage is not None
        assert found.usage.prompt_tokens == len(right.prompt_ids)
        assert found.usage.completion_tokens == len(right.ids)
        assert (found.object, found.model) == ("text_completion", "demo")
        streamed = list(client.completions.create(model="demo", prompt=prompt, stream=True, **settings))
        assert "".join(chunk.choices[0].text for chunk in streamed) == right.text
        assert [chunk.choices[0].finish_reason for chunk in streamed][-1] == found.choices[0].finish_reason
        assert {chunk.choices[0].finish_reason for chunk in streamed[:-1]} <= {None}
        assert len({chunk.id for chunk in streamed}) == 1


def test_extensions(client: openai.OpenAI, demo: LanguageModel) -> None:
    more = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.3}
    found = client.completions.create(model="demo", prompt=PROMPTS[0], seed=3, max_tokens=30, extra_body=more)
    assert found.choices[0].text == demo.generate(PROMPTS[0], seed=3, max_new_tokens=30, temperature=1, **more).text


def test_prompts_in_every_form_and_samples(client: openai.OpenAI, demo: LanguageModel) -> None:
    ids = [demo.tokenizer.encode(prompt) for prompt in PROMPTS]
    right = [demo.generate(prompt, n=3, seed=7, max_new_tokens=9, temperature=1, top_k=0) for prompt in PROMPTS]
    texts = [sample.text for samples in right for sample in samples]  # type: ignore[union-attr]
    for prompt in (PROMPTS, ids):
        found = client.completions.create(model="demo", prompt=prompt, n=3, best_of=3, seed=7, max_tokens=9)
        assert [choice.text for choice in found.choices] == texts
        assert [choice.index for choice in found.choices] == list(range(12))
        assert found.usage is not None
        assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (sum(map(len, ids)), 12 * 9)
    for one in (PROMPTS[0], ids[0], [PROMPTS[0]], [ids[0]]):
        found = client.completions.create(model="demo", prompt=one, seed=7, max_tokens=9)
        assert [choice.text for choice in found.choices] == texts[:1]
    pieces = [""] * 12
    for chunk in client.completions.create(model="demo", prompt=PROMPTS, n=3, seed=7, max_tokens=9, stream=True):
        pieces[chunk.choices[0].index] += chunk.choices[0].text
    assert pieces == texts


def test_an_empty_prompt_starts_a_text(server: Live, demo: LanguageModel) -> None:
    right = demo.generate("", seed=1, max_new_tokens=8, temperature=1, top_k=0).text
    for prompt in ("", [[]], None):
        assert server.complete(prompt, seed=1, max_tokens=8)["choices"][0]["text"] == right
    echoed = server.complete("", seed=1, max_tokens=8, echo=True, logprobs=0)["choices"][0]
    assert echoed["text"] == right
    assert "".join(echoed["logprobs"]["tokens"]) == right


def test_usage_of_a_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model="demo", prompt="Once", max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )
    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])
    last = chunks[-1]
    assert (last.choices, last.usage and last.usage.total_tokens) == ([], 6)


def test_a_stream_is_server_sent_events(server: Live) -> None:
    status, headers, content = server.ask(
        "POST", "/v1/completions", {"prompt": "Once", "stream": True, "max_tokens": 4, "temperature": 0}
    )
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = content.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") and "\n" not in event for event in events[:-2])


def test_characters_come_whole(demo: LanguageModel) -> None:
    """A character of four tokens, each of which is no text of its own."""
    tokenizer = Tokenizer.from_pretrained(FILES / "g-stop-strings" / "model")
    script = [tokenizer.encode_single_token(bytes([byte])) for byte in "é🥊!".encode()]
    lm = LanguageModel(ToyModel(logits=scripted(script, 1)), tokenizer)  # type: ignore[arg-type]
    with live(lm) as server:
        asked = {"prompt": [5], "temperature": 0, "max_tokens": len(script), "logprobs": 0}
        whole = server.complete(**asked)["choices"][0]
        assert whole["text"] == "é🥊!"
        assert whole["logprobs"]["tokens"][:2] == ["bytes:\\xc3", "bytes:\\xa9"]
        assert whole["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 1, 2]
        _, _, content = server.ask("POST", "/v1/completions", {**asked, "stream": True})
        chunks = [json.loads(line[6:]) for line in content.decode().split("\n\n")[:-2]]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "é🥊!"
        joined = [token for chunk in chunks for token in chunk["choices"][0]["logprobs"]["tokens"]]
        assert joined == whole["logprobs"]["tokens"]


# Log-probabilities


def test_logprobs(client: openai.OpenAI, demo: LanguageModel) -> None:
    right = demo.generate(PROMPTS[0], seed=2, max_new_tokens=12, temperature=1, top_k=0, logprobs=3)
    assert right.logprobs is not None
    assert right.top_logprobs is not None
    found = client.completions.create(model="demo", prompt=PROMPTS[0], seed=2, max_tokens=12, logprobs=3).choices[0]
    logprobs = found.logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == right.logprobs
    assert logprobs.tokens == [demo.tokenizer.decode([i]) for i in right.ids]
    assert logprobs.top_logprobs is not None
    for i, best, top, logprob in zip(right.ids, right.top_logprobs, logprobs.top_logprobs, right.logprobs, strict=True):
        expected = {demo.tokenizer.decode([other]): value for other, value in best}
        expected[demo.tokenizer.decode([i])] = logprob
        assert top == expected
    assert logprobs.text_offset is not None
    for offset, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
        assert found.text[offset:].startswith(token)


@pytest.mark.parametrize("prompt", ["Once upon a time", "The naïve king — said: ", "x" * 300])
def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI, demo: LanguageModel, prompt: str) -> None:
    ids = demo.tokenizer.encode(prompt)
    logits = demo.model(ids)
    right = [float(log_probabilities(row)[i]) for row, i in zip(logits[:-1], ids[1:], strict=True)]
    only = client.completions.create(model="demo", prompt=prompt, echo=True, logprobs=2, max_tokens=0).choices[0]
    assert (only.text, only.finish_reason) == (prompt, "length")
    assert only.logprobs is not None
    assert only.logprobs.token_logprobs == [None, *right]
    assert only.logprobs.top_logprobs is not None
    assert [top and max(top, key=top.__getitem__) for top in only.logprobs.top_logprobs[1:]] == [
        demo.tokenizer.decode([int(row.argmax())]) for row in logits[:-1]
    ]
    # As lm-evaluation-harness asks: several prompts as ids, one new token, which it leaves out again.
    more = client.completions.create(
        model="demo", prompt=[ids, [7], ids[:3]], echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1
    )
    for choice, length in zip(more.choices, (len(ids), 1, 3), strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert len(choice.logprobs.token_logprobs) == length + 1
    assert more.choices[0].logprobs is not None
    assert (more.choices[0].logprobs.token_logprobs or [])[:-1] == [None, *right]
    streamed = list(
        client.completions.create(model="demo", prompt=prompt, echo=True, logprobs=1, max_tokens=2, stream=True, seed=1)
    )
    whole = client.completions.create(model="demo", prompt=prompt, echo=True, logprobs=1, max_tokens=2, seed=1)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text
    assert whole.choices[0].logprobs is not None
    parts = [chunk.choices[0].logprobs for chunk in streamed]
    assert [offset for part in parts if part for offset in part.text_offset or []] == whole.choices[
        0
    ].logprobs.text_offset


def test_the_end_of_a_text_and_a_stop_string_have_logprobs(demo: LanguageModel) -> None:
    tokenizer = Tokenizer.from_pretrained(FILES / "g-stop-strings" / "model")
    a, b = (tokenizer.encode_single_token(letter) for letter in "ab")
    lm = LanguageModel(ToyModel(logits=scripted([a, b, 269], 1)), tokenizer)  # type: ignore[arg-type]
    with live(lm) as server:
        found = server.complete([7], temperature=0, logprobs=1)["choices"][0]
        assert (found["text"], found["finish_reason"]) == ("ab", "stop")
        assert found["logprobs"]["tokens"] == ["a", "b", "<|endoftext|>"]
        found = server.complete([7], temperature=0, logprobs=1, stop="b")["choices"][0]
        assert (found["text"], found["finish_reason"]) == ("a", "stop")
        assert found["logprobs"]["tokens"] == ["a", "b"]


# The other addresses


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "gpt2fast"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-9' here; this server has 'demo'"):
        client.models.retrieve("gpt-9")
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-9' here"):
        client.completions.create(model="gpt-9", prompt="")


def test_embeddings(client: openai.OpenAI, server: Live, demo: LanguageModel) -> None:
    texts = ["Once", "upon a time", "a " * 300, "x", "The old king looked out of the window"]
    right = [demo.model.hidden_states(demo.tokenizer.encode(text)).mean(axis=0) for text in texts]
    coded = client.embeddings.create(model="demo", input=texts)  # the client asks for base64
    plain = client.embeddings.create(model="demo", input=texts, encoding_format="float")
    for expected, one, other in zip(right, coded.data, plain.data, strict=True):
        np.testing.assert_allclose(one.embedding, expected, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(np.float32(one.embedding), np.float32(other.embedding))
    assert coded.usage.prompt_tokens == sum(demo.tokenizer.count(text) for text in texts)
    alone = client.embeddings.create(model="demo", input=demo.tokenizer.encode(texts[1]))
    assert alone.data[0].embedding == coded.data[1].embedding
    for bad in ("", ["a", ""], []):
        status, content = server.post("/v1/embeddings", input=bad)
        assert status == 400
        assert "empty" in content["error"]["message"]
    status, content = server.post("/v1/embeddings", input="a", dimensions=10)
    assert (status, content["error"]["param"]) == (400, "dimensions")


def test_scores(server: Live, demo: LanguageModel) -> None:
    texts = ["Once upon a time", "", "naïve — 🥊", "The king said nothing. " * 100]
    status, content = server.post("/score", text=texts, context="Well,", stride=100)
    assert status == 200
    for found, right in zip(content["data"], demo.score_batch(texts, context="Well,", stride=100), strict=True):
        assert [token["id"] for token in found["tokens"]] == right.ids.tolist()
        assert [token["log_probability"] for token in found["tokens"]] == right.log_probabilities.tolist()
        assert [token["rank"] for token in found["tokens"]] == right.ranks.tolist()
        assert [[token["start"], token["end"]] for token in found["tokens"]] == right.spans.tolist()
    assert content["data"][1] == {"tokens": [], "log_likelihood": 0, "perplexity": None, "bits_per_byte": None}
    status, content = server.post("/score", text="Once upon a time")
    assert round(content["data"][0]["perplexity"], 2) == 7.07


def test_tokens(server: Live, demo: LanguageModel) -> None:
    text = "Once upon a naïve <|endoftext|>"
    ids, spans = demo.tokenizer.encode_with_offsets(text)
    assert server.post("/tokenize", text=text) == (
        200,
        {"ids": ids, "count": len(ids), "spans": [list(span) for span in spans]},
    )
    special = server.post("/tokenize", text=text, allow_special=True)[1]["ids"]
    assert special == demo.tokenizer.encode(text, allowed_special="all")
    assert server.post("/detokenize", ids=special) == (200, {"text": text})


def test_health_and_metrics(server: Live) -> None:
    assert server.ask("GET", "/health")[::2] == (200, {"status": "ok"})
    server.complete("Once", max_tokens=3)
    status, headers, content = server.ask("GET", "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    text = content.decode()
    assert 'gpt2fast_requests_total{path="/v1/completions",status="200"}' in text
    assert re.search(r'gpt2fast_tokens_total\{kind="completion"\} \d', text)
    assert "gpt2fast_places_taken 0.0" in text
    server.ask("GET", "/secret/of/somebody")
    assert "secret" not in server.ask("GET", "/metrics")[2].decode()


def test_keep_alive_head_and_options(server: Live) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for _ in range(3):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "A", "max_tokens": 2}))
        socket = connection.sock
        assert connection.getresponse().read()
        assert connection.sock is socket
    connection.close()
    status, headers, content = server.ask("HEAD", "/health")
    assert (status, content) == (200, b"")
    status, headers, _ = server.ask("OPTIONS", "/v1/completions")
    assert (status, headers["allow"]) == (405, "POST")


def test_speculation_changes_nothing(demo: LanguageModel) -> None:
    with live(demo, limits=Limits(rows=2), speculate="int4") as server:
        for seed in range(3):
            right = demo.generate(PROMPTS[0], seed=seed, max_new_tokens=30, temperature=1, top_k=0).text
            assert server.complete(PROMPTS[0], seed=seed, max_tokens=30)["choices"][0]["text"] == right
