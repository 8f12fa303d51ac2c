"""lm-evaluation-harness: its `hf` models' numbers, whatever the batch, and its rules for what does not fit.

With lm_eval installed, the harness itself runs the tasks of tests/data/lm_eval; without, what it would call is called.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stand_in_lm_eval

import gpt2fast
from gpt2fast.errors import InputError, InputTypeError

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "lm_eval"
HF = json.loads((DATA / "hf.json").read_text("utf-8"))
REAL = importlib.util.find_spec("lm_eval") is not None


@pytest.fixture(scope="module")
def module() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if not REAL:
            for name, one in stand_in_lm_eval.modules().items():
                patch.setitem(sys.modules, name, one)
        sys.modules.pop("gpt2fast.integrations.lm_eval", None)
        yield importlib.import_module("gpt2fast.integrations.lm_eval")
        sys.modules.pop("gpt2fast.integrations.lm_eval", None)


@pytest.fixture(scope="module")
def lm(module: Any) -> Any:
    return module.GPT2FastLM("demo")


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=one) for one in arguments]


# The numbers of `hf`


def test_loglikelihood(lm: Any) -> None:
    found = lm.loglikelihood(requests(*((context, choice) for context, choice, _, _ in HF["loglikelihood"])))
    for (context, choice, value, greedy), (own, own_greedy) in zip(HF["loglikelihood"], found, strict=True):
        assert own == pytest.approx(value, abs=1e-4), (context, choice)
        assert own_greedy is greedy, (context, choice)


def test_loglikelihood_rolling(lm: Any) -> None:
    found = lm.loglikelihood_rolling(requests(*((text,) for text, _ in HF["loglikelihood_rolling"])))
    assert found == pytest.approx([value for _, value in HF["loglikelihood_rolling"]], abs=1e-4)


def test_generate_until(lm: Any) -> None:
    found = lm.generate_until(requests(*((context, options) for context, options, _ in HF["generate_until"])))
    assert found == [text for _, _, text in HF["generate_until"]]


@pytest.mark.skipif(not REAL, reason="lm_eval is not installed")
def test_the_harness_itself(module: Any, lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.chdir(ROOT)
    tasks = TaskManager(include_path=str(DATA), include_defaults=False)
    found = lm_eval.simple_evaluate(model=lm, tasks=list(HF["results"]), task_manager=tasks, bootstrap_iters=0)
    for task, values in HF["results"].items():
        for metric, value in values.items():
            assert found["results"][task][f"{metric},none"] == pytest.approx(value, rel=1e-6), (task, metric)
    assert found["config"]["model_numerics_version"] == gpt2fast.numerics_version


@pytest.mark.skipif(not REAL, reason="lm_eval is not installed")
def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpt2fast", "lm-eval", "--model", "gpt2fast", "--model_args"]
    command += ["pretrained=demo,dtype=int8", "--tasks", "fables_choices", "--include_path", str(DATA)]
    command += ["--output_path", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (results,) = tmp_path.rglob("results_*.json")
    assert json.loads(results.read_text("utf-8"))["config"]["model_dtype"] == "int8"


# What the harness's rules leave open, and what it asks for


def test_each_request_is_scored_as_alone(lm: Any) -> None:
    pairs = [(context, choice) for context, choice, _, _ in HF["loglikelihood"][:24]]
    together = lm.loglikelihood(requests(*pairs, *reversed(pairs)))
    assert together[:24] == together[:23:-1] == [lm.loglikelihood(requests(pair))[0] for pair in pairs]


def test_a_context_of_spaces_comes_after_the_beginning_of_texts(lm: Any) -> None:
    (found,) = lm.loglikelihood(requests(("  \n", "There was a man")))
    assert found[0] == pytest.approx(gpt2fast.load("demo").score("  \nThere was a man").log_likelihood, abs=1e-9)


def test_what_does_not_fit_loses_its_beginning(module: Any) -> None:
    short = module.GPT2FastLM("demo", max_length=8)
    words = "one two three four five six seven eight nine ten"
    long, cut = short.loglikelihood(requests((words, " king"), ("x " + words, " king")))
    assert long == cut
    demo = gpt2fast.load("demo")
    ids = demo.tokenizer.encode(words)[-8:]
    expected = demo.score(" king", context=demo.tokenizer.decode(ids), bos=False)
    assert long[0] == pytest.approx(expected.log_likelihood, abs=1e-9)
    with pytest.raises(InputError, match="a continuation has 0 tokens; expected 1 to 8"):
        short.loglikelihood(requests(("a", "")))
    with pytest.raises(InputError, match="expected 1 to 8"):
        short.loglikelihood(requests(("a", " king" * 9)))
    with pytest.raises(InputError, match="max_gen_toks is 8; the context of 8 tokens has no room"):
        short.generate_until(requests(("a", {"max_gen_toks": 8})))


@pytest.mark.parametrize(("length", "tokens"), [(1, 5), (4, 10), (4, 8), (7, 3), (5, 0)])
def test_windows_measure_every_token_once_after_as_much_as_fits(module: Any, length: int, tokens: int) -> None:
    ids = list(range(tokens))
    windows = list(module._windows(ids, -1, length))
    assert [i for _, continuation in windows for i in continuation] == ids
    for context, continuation in windows:
        start = continuation[0]
        assert context == ([-1, *ids])[: start + 1][-(length - len(continuation) + 1) :] or not start
        assert len(context) + len(continuation) - 1 <= length


def test_answers_go_to_the_cache_by_the_harness_s_keys(lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[str, Any, Any]] = []
    hook = SimpleNamespace(add_partial=lambda kind, arguments, result: kept.append((kind, arguments, result)))
    monkeypatch.setattr(lm, "cache_hook", hook)
    options = {"until": ["."], "max_gen_toks": 4}
    lm.loglikelihood(requests(("Once upon a", " time")))
    lm.loglikelihood_rolling(requests(("Once upon a time",)))
    (text,) = lm.generate_until(requests(("Once upon a", options)))
    assert [(kind, arguments) for kind, arguments, _ in kept] == [
        ("loglikelihood", ("Once upon a", " time")),
        ("loglikelihood_rolling", ("Once upon a time",)),
        ("generate_until", ("Once upon a", {"until": ["."], "max_gen_toks": 4})),
    ]
    assert kept[2][2] == text


def test_sampling(lm: Any) -> None:
    sampled = ("Once upon a", {"max_gen_toks": 12, "do_sample": True, "temperature": 1.0})
    first, second = lm.generate_until(requests(sampled, sampled))
    assert first != second  # a request that repeats another one wants another sample
    assert lm.generate_until(requests(sampled, sampled)) == [first, second]
    greedy = [("Once upon a", {"max_new_tokens": 12, **more}) for more in ({}, {"do_sample": False, "temperature": 1})]
    assert (
        len(
            {
                *lm.generate_until(requests(*greedy)),
                *lm.generate_until(requests((greedy[0][0], {"until": "§", "max_tokens": 12}))),
            }
        )
        == 1
    )
    assert lm.generate_until(requests(("Once upon a", {"temperature": 1, "max_gen_toks": 12}))) == [first]


def test_the_device_that_the_harness_asks_for(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert module.GPT2FastLM("demo", device="cuda:0", dtype="int8").get_model_info()["model_device"] == "cpu"
    with pytest.raises(gpt2fast.Error):
        module.GPT2FastLM("demo", device="cuda:1", dtype="int8")  # which somebody wants


def test_bos_before_every_context(module: Any) -> None:
    first = module.GPT2FastLM("demo", add_bos_token=True)
    (found,) = first.loglikelihood(requests(("Once upon a", " time")))
    assert found[0] == pytest.approx(gpt2fast.load("demo").score(" time", context="Once upon a").log_likelihood)
    assert first.loglikelihood(requests(("<|endoftext|>Once upon a", " time"))) == [found]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"max_length": 513}, InputError, "max_length is 513; the model's context is 512"),
        ({"max_length": 0}, InputError, "max_length is 0"),
        ({"prefix_token_id": 4096}, InputError, "prefix_token_id is 4096"),
        ({"parallelize": True}, InputError, "gpt2fast takes no model argument 'parallelize'"),
        ({"max_gen_toks": "8"}, InputTypeError, "max_gen_toks is '8'"),
    ],
)
def test_arguments_that_are_refused(module: Any, arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        module.GPT2FastLM("demo", **arguments)


def test_generation_arguments_that_are_unknown(lm: Any) -> None:
    with pytest.raises(InputError, match="knows no generation argument 'num_beams'; those it knows are min_new_tokens"):
        lm.generate_until(requests(("a", {"num_beams": 2})))


def test_registering_twice_does_not_collide(module: Any) -> None:
    from lm_eval.api.registry import model_registry

    module.register()
    module.register()
    assert "gpt2fast" in model_registry


def test_the_harness_finds_the_model_by_its_entry_point() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert '[project.entry-points."lm_eval.models"]\ngpt2fast = "gpt2fast.integrations.lm_eval:GPT2FastLM"\n' in text


@pytest.mark.skipif(REAL, reason="lm_eval is installed")
def test_without_the_harness_the_command_says_what_to_install() -> None:
    command = [sys.executable, "-m", "gpt2fast", "lm-eval", "--model", "gpt2fast", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "gpt2fast: this needs the package lm_eval: pip install 'gpt2fast[lm-eval]'\n"
