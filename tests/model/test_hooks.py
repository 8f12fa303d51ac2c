"""Hooks: every name, in every kind of run, with the very bits of a run without; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import seeded
from hypothesis import given
from hypothesis import strategies as some

from gpt2fast.checkpoint.config import Config
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.hub.models import resolve
from gpt2fast.language_model import LanguageModel, load
from gpt2fast.model.gpt2 import GPT2
from gpt2fast.model.hooks import act_name

CONFIG = Config(vocab_size=331, n_ctx=300, n_embd=60, n_layer=3, n_head=3, n_inner=100)
IDS = np.random.default_rng(7).integers(0, 331, 23)


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8", "int4", "int8, float32", "float32, bfloat16"])
def model(request):
    dtype, _, cache = request.param.partition(", ")
    return GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG), dtype=dtype, cache_dtype=cache or None)


@pytest.fixture(scope="module")
def one():
    return GPT2.from_tensors(CONFIG, seeded.tensors(CONFIG))


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return load("demo")


def nothing(activation, hook):
    """A function that looks, and changes nothing."""


def same(activation, hook):
    return activation.copy()


# Values


TINY = ["plain", "epsilon", "gelu-exact", "inner", "no-attn-scale", "relu", "scale-by-layer", "untied"]


@pytest.mark.parametrize("variant", ["demo", *TINY])
def test_values_are_those_of_transformer_lens(data, tiny, variant):
    expected = np.load(data / "reference" / "hooks" / f"{variant}.npz")
    model = GPT2.from_pretrained(resolve("demo") if variant == "demo" else tiny / variant)
    ids = expected["ids"]
    names = [name for name in expected if "hook_" in name and not name.startswith("patched:")]
    assert {name for name in model.hook_names if name.startswith("blocks.2.")} <= set(names) or variant == "demo"
    logits, cache = model.run_with_cache(ids, names)
    columns = expected["logits"].shape[-1]
    np.testing.assert_allclose(logits[..., :columns], expected["logits"], rtol=0, atol=1e-4)
    assert list(cache) == [name for name in model.hook_names if name in names]
    for name, value in cache.items():
        assert value.shape == expected[name].shape
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4, err_msg=name)
    for name in names:
        patched = model.run_with_hooks(ids, [(name, lambda activation, hook: activation * 0.5)], last_only=True)
        np.testing.assert_allclose(
            patched[0, :columns], expected[f"patched:{name}"], rtol=1e-4, atol=2e-4, err_msg=name
        )


# The same bits


@pytest.mark.parametrize("function", [nothing, same])
def test_functions_that_change_nothing(model, function):
    plain = model(IDS)
    for name in model.hook_names:
        np.testing.assert_array_equal(model.run_with_hooks(IDS, [(name, function)]), plain, err_msg=name)
    np.testing.assert_array_equal(model.run_with_hooks(IDS, [(lambda name: True, function)]), plain)


@given(lengths=some.lists(some.integers(1, 40), min_size=1, max_size=5), threads=some.integers(1, 3))
def test_texts_of_different_lengths(one, lengths, threads):
    one.num_threads = threads
    texts = [IDS.repeat(2)[i : i + length] for i, length in enumerate(lengths)]
    logits, cache = one.run_with_cache(texts)
    for i, text in enumerate(texts):
        alone, found = one.run_with_cache(text)
        np.testing.assert_array_equal(logits[i], alone)
        np.testing.assert_array_equal(alone, one(text))
        for name in found:
            np.testing.assert_array_equal(cache[name][i], found[name][0], err_msg=name)


@given(cut=some.integers(1, 22))
def test_a_kv_cache(model, cut):
    plain, whole = model.run_with_cache(IDS)
    kv = model.new_cache()
    model.run_with_hooks(IDS[:cut], [(lambda name: True, nothing)], cache=kv)
    starts = []
    logits, cache = model.run_with_cache(IDS[cut:], cache=kv)
    model.run_with_hooks([5], [("hook_embed", lambda activation, hook: starts.append(hook.start))], cache=kv)
    assert starts == [len(IDS)]
    np.testing.assert_array_equal(logits, plain[cut:])
    for name in whole:
        last = whole[name][:, :, cut:] if name.endswith(("scores", "pattern")) else whole[name][:, cut:]
        np.testing.assert_array_equal(cache[name], last, err_msg=name)


def test_hooks_in_generation_scoring_and_passes(lm):
    text = "There was once a poor woodcutter who had two children"
    prompts = ["Once upon a time", "The king", "In the wood there"]
    options = {"temperature": 0.9, "seed": 3, "max_new_tokens": 12}
    expected = lm.generate_batch(prompts, **options), lm.score(text), lm.model.hidden_states(IDS, layers="all")
    kv = lm.model.new_cache(2)
    extended = lm.model.extend(kv, [1, 0], [IDS, IDS[:4]])
    seen = set()
    with lm.model.hooks([(lambda name: True, lambda activation, hook: seen.add(hook.name))]):
        assert lm.model.has_hooks
        found = lm.generate_batch(prompts, **options), lm.score(text), lm.model.hidden_states(IDS, layers="all")
        kv = lm.model.new_cache(2)
        np.testing.assert_array_equal(lm.model.extend(kv, [1, 0], [IDS, IDS[:4]]), extended)
    assert not lm.model.has_hooks
    assert seen == set(lm.model.hook_names)
    assert [generation.text for generation in found[0]] == [generation.text for generation in expected[0]]
    np.testing.assert_array_equal(found[1].log_probabilities, expected[1].log_probabilities)
    np.testing.assert_array_equal(found[2], expected[2])


def test_changes_reach_generation_and_scoring(lm):
    text = "There was once a poor woodcutter"
    plain = lm.score(text).log_likelihood
    with lm.model.hooks([("blocks.2.hook_mlp_out", lambda activation, hook: 0 * activation)]):
        within = lm.score(text).log_likelihood, lm.generate("Once", temperature=0, max_new_tokens=20).text
        with lm.model.hooks([("blocks.3.hook_mlp_out", lambda activation, hook: 0 * activation)]):
            assert lm.score(text).log_likelihood not in (plain, within[0])
        assert lm.score(text).log_likelihood == within[0] != plain
    assert lm.score(text).log_likelihood == plain
    assert lm.generate("Once", temperature=0, max_new_tokens=20).text != within[1]


@pytest.mark.parametrize("name", [act_name(name, 1) for name in ("attn_scores", "pattern", "z", "mlp_out", "result")])
def test_a_change_of_one_place_leaves_others_alone(one, name):
    def change(activation, hook):
        if name.endswith(("scores", "pattern")):
            activation[0, 1, 9, :5] *= 0.5
        else:
            activation[0, 9] *= 0.5

    logits = one.run_with_hooks(IDS, [(name, change)])
    np.testing.assert_array_equal(logits[:9], one(IDS)[:9])  # what came before cannot know
    stream = one.run_with_hooks(IDS, [(name, change)], stop_at_layer=2)
    plain = one.run_with_hooks(IDS, stop_at_layer=2)
    np.testing.assert_array_equal(np.delete(stream, 9, axis=0), np.delete(plain, 9, axis=0))
    assert (stream[9] != plain[9]).any()


# From layer to layer


def test_layers_shared_by_patched_runs(model):
    plain, cache = model.run_with_cache(IDS)
    for layer in range(-3, 4):
        stream = model.run_with_hooks(IDS, stop_at_layer=layer)
        assert stream.shape == (23, 60)
        if layer not in (0, 3):
            np.testing.assert_array_equal(stream, cache["resid_pre", layer][0])
        np.testing.assert_array_equal(model.run_with_hooks(stream, start_at_layer=layer), plain)
    ragged = model.run_with_hooks([IDS, IDS[:5]], stop_at_layer=1)
    logits = model.run_with_hooks(ragged, start_at_layer=1, last_only=True)
    np.testing.assert_array_equal(logits, [plain[-1], plain[4]])
    hooks = [(act_name("z", 2), lambda z, hook: 0 * z)]
    stream = model.run_with_hooks(np.tile(IDS, (2, 1)), stop_at_layer=2)
    patched = model.run_with_hooks(stream, hooks, start_at_layer=2)
    np.testing.assert_array_equal(patched[1], model.run_with_hooks(IDS, hooks))
    _, below = model.run_with_cache(IDS, stop_at_layer=1)
    assert {hook.split(".")[1] for hook in below if hook.startswith("blocks")} == {"0"}


# What is kept


def test_only_what_was_asked_for(one):
    _, cache = one.run_with_cache(IDS, ["blocks.1.attn.hook_k", "hook_embed"])
    assert list(cache) == ["hook_embed", "blocks.1.attn.hook_k"]
    assert cache.nbytes == 2 * 23 * 60 * 4
    assert all(value.base is None or value.base.nbytes == value.nbytes for value in cache.values())
    _, cache = one.run_with_cache([IDS, IDS[:3]], lambda name: name.endswith("hook_z"))
    assert list(cache) == [f"blocks.{layer}.attn.hook_z" for layer in range(3)]
    assert cache.nbytes == 3 * 26 * 60 * 4
    assert not any(name.endswith("hook_result") for name in one.run_with_cache(IDS)[1])
    assert one.run_with_cache(IDS, act_name("result", 0))[1]["result", 0].shape == (1, 23, 3, 60)


def test_kept_arrays_stay_as_they_were(one):
    def spoil(activation, hook):
        activation[:] = 1

    _, plain = one.run_with_cache(IDS, "blocks.0.hook_resid_post")
    kept = []
    one.run_with_hooks(
        IDS, [("blocks.0.hook_resid_post", lambda a, hook: kept.append(a)), ("blocks.1.hook_resid_pre", spoil)]
    )
    np.testing.assert_array_equal(kept[0], plain["resid_post", 0])
    with one.hooks([("blocks.1.hook_resid_pre", spoil)]):
        _, cache = one.run_with_cache(IDS)
    np.testing.assert_array_equal(cache["resid_post", 0], plain["resid_post", 0])
    assert (cache["resid_pre", 1] == 1).all()


def test_keys_of_a_cache(one):
    _, cache = one.run_with_cache(IDS)
    assert cache["pattern", 1] is cache["blocks.1.attn.hook_pattern"]
    assert cache["scale", 0, "ln2"] is cache["blocks.0.ln2.hook_scale"]
    assert cache["scale", None] is cache["ln_final.hook_scale"]
    assert ("resid_post", -1) in cache
    assert "blocks.7.hook_z" not in cache
    assert cache.remove_batch_dim()["embed"].shape == (23, 60)
    with pytest.raises(InputError, match="has not kept 'blocks.0.attn.hook_result'"):
        cache["result", 0]
    with pytest.raises(KeyError, match="did you mean 'blocks.0.hook_mlp_out'"):
        cache["blocks.0.hook_mlpout"]
    with pytest.raises(InputError, match="expected one of resid_pre, "):
        cache["residual", 0]
    with pytest.raises(InputError, match="there are 2 texts"):
        one.run_with_cache([IDS, IDS], "hook_embed", remove_batch_dim=True)


# What the residual stream is made of


def test_parts_of_the_residual_stream(one):
    _, cache = one.run_with_cache(np.stack([IDS, IDS[::-1]]))
    for layer in (None, 0, 1, -1):
        parts, labels = cache.decompose_resid(layer)
        assert len(labels) == len(parts)
        sums = cache["resid_post", -1] if layer in (None, -1) else cache["resid_pre", layer]
        np.testing.assert_allclose(parts.sum(axis=0), sums, atol=1e-5)
        heads, labels = cache.stack_head_results(layer, incl_remainder=True)
        assert labels[-1] == "remainder"
        np.testing.assert_allclose(heads.sum(axis=0), sums, atol=1e-5)
    parts, labels = cache.decompose_resid(1, mlp_input=True, mode="attn", incl_embeds=False)
    assert labels == ["0_attn_out", "1_attn_out"]
    np.testing.assert_array_equal(parts[1], cache["attn_out", 1])
    normed, _ = cache.decompose_resid(1, mlp_input=True, apply_ln=True)
    np.testing.assert_allclose(normed.sum(axis=0), cache["normalized", 1, "ln2"], atol=1e-5)
    normed, _ = cache.decompose_resid(apply_ln=True)
    np.testing.assert_allclose(normed.sum(axis=0), cache["normalized", None], atol=1e-5)
    heads, labels = cache.stack_head_results(2)
    assert labels == [f"L{layer}H{head}" for layer in range(2) for head in range(3)]
    _, results = one.run_with_cache(np.stack([IDS, IDS[::-1]]), act_name("result", 1))
    np.testing.assert_array_equal(np.moveaxis(heads[3:], 0, 2), results["result", 1])
    _, few = one.run_with_cache(IDS, "hook_embed")
    for call in (few.decompose_resid, few.stack_head_results, lambda: few.apply_ln_to_stack(parts)):
        with pytest.raises(InputError, match="the run has not kept"):
            call()


# What is refused


@pytest.mark.parametrize(
    ("hooks", "error", "words"),
    [
        ([("blocks.0.hook_resid_mit", nothing)], InputError, "did you mean 'blocks.0.hook_resid_mid'"),
        ([("blocks.7.attn.hook_z", nothing)], InputError, "the model's layers are 0 to 2"),
        ([("hook_embed", nothing), (["hook_embed", "zebra"], nothing)], InputError, "fwd_hooks[1] has 'zebra'"),
        ([("z", nothing)], InputError, "did you mean 'blocks.0.attn.hook_z'"),
        ([(3, nothing)], InputTypeError, "fwd_hooks[0] is of type int"),
        ([nothing], InputTypeError, "fwd_hooks[0] is <function nothing"),
        ([("hook_embed", 3)], InputTypeError, "fwd_hooks[0] has 3 for a function"),
        ([("hook_embed", lambda a, hook: a[0])], InputError, "(23, 60); expected that of the activation, (1, 23, 60)"),
        ([("hook_embed", lambda a, hook: "no")], InputTypeError, "the function at hook_embed returned str"),
        ([("hook_embed", lambda a, hook: [[1], [1, 2]])], InputTypeError, "the function at hook_embed returned list"),
        ([("hook_embed", lambda a, hook: a + np.nan)], InputError, "gave nan at (0, 0, 0); expected finite numbers"),
        ([("hook_embed", lambda a, hook: a * 1e300)], InputError, "at (0, 0, 0); expected finite numbers"),
        (
            [(act_name("attn_scores", 0), lambda a, hook: np.inf - 0 * a[..., :1] + 0 * a)],
            InputError,
            "expected finite",
        ),
    ],
)
def test_refused_hooks(one, hooks, error, words):
    kv = one.new_cache()
    one(IDS[:3], kv)
    held = kv.nbytes
    with np.errstate(all="ignore"), pytest.raises(error) as caught:
        one.run_with_hooks(IDS, hooks, cache=kv)
    assert words in str(caught.value)
    assert kv.lengths.tolist() == [3]
    assert kv.nbytes == held


def test_an_error_of_a_function(one):
    class Stop(Exception):
        pass

    def stop(activation, hook):
        raise Stop

    kv = one.new_cache(2)
    one.extend(kv, [0, 1], [IDS[:20], IDS[:3]])
    kv.copy_row(0, 1)
    with pytest.raises(Stop), one.hooks([("blocks.1.hook_mlp_out", stop)]):
        one.extend(kv, [1, 0], [IDS, IDS[:4]])
    assert not one.has_hooks
    assert kv.lengths.tolist() == [20, 20]
    np.testing.assert_array_equal(one.extend(kv, [0], [IDS[20:]])[0], one(IDS)[-1])


def test_a_function_that_grows_the_cache_it_is_called_in(one):
    kv = one.new_cache()

    def grow(activation, hook):
        one(IDS, kv)

    with pytest.raises(InputError, match="has changed the cache of the pass"):
        one.run_with_hooks(IDS, [("blocks.1.hook_mlp_out", grow)], cache=kv)
    assert kv.lengths.tolist() == [0]


def test_scores_that_hide_everything_attend_to_nothing(one):
    hide = (act_name("attn_scores", 0), lambda scores, hook: np.full_like(scores, -np.inf))
    with one.hooks([hide]):
        _, cache = one.run_with_cache(IDS, [act_name("pattern", 0), act_name("z", 0)])
    assert not cache["pattern", 0].any()
    assert not cache["z", 0].any()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: m.run_with_hooks([]), InputError, "a text of no tokens"),
        (lambda m: m.run_with_hooks([[1], []]), InputError, "a text of no tokens"),
        (lambda m: m.run_with_hooks([[1, 2], [331]]), InputError, "id 331 is outside the vocabulary"),
        (lambda m: m.run_with_hooks(np.zeros((1, 1, 1), int)), InputError, "ids has shape (1, 1, 1)"),
        (lambda m: m.run_with_hooks([[1, 2], 3]), InputError, "several depths"),
        (lambda m: m.run_with_hooks(np.zeros(301, int)), InputError, "301 tokens long; the limit is 300"),
        (lambda m: m.run_with_hooks(IDS, stop_at_layer=4), InputError, "stop_at_layer is 4; the model has 3 layers"),
        (lambda m: m.run_with_hooks(IDS, stop_at_layer=-4), InputError, "stop_at_layer is -4"),
        (lambda m: m.run_with_hooks(IDS, start_at_layer=1), InputTypeError, "begins with the residual stream"),
        (lambda m: m.run_with_hooks(np.zeros((2, 59)), start_at_layer=1), InputError, "(2, 59); expected 60"),
        (lambda m: m.run_with_hooks(np.zeros((2, 60)), start_at_layer=2, stop_at_layer=1), InputError, "before start"),
        (lambda m: m.run_with_hooks(IDS, cache=m.new_cache(), stop_at_layer=1), InputError, "takes all layers"),
        (lambda m: m.run_with_hooks(IDS, cache=m.new_cache(2)), InputError, "the cache has 2 rows, ids 1"),
        (lambda m: m.run_with_hooks(IDS, cache=3), InputTypeError, "cache is of type int"),
        (lambda m: m.run_with_cache(IDS, "hook_emb"), InputError, "names_filter has 'hook_emb'"),
    ],
)
def test_refused_runs(one, call, error, words):
    with pytest.raises(error) as caught:
        call(one)
    assert words in str(caught.value)


def test_copies_have_no_hooks(one):
    with one.hooks([("hook_embed", nothing)]):
        assert not one.__copy__().has_hooks
        assert not one.with_dtype("int8").has_hooks


def test_no_tokens_are_proposed_to_functions():
    """Unless they are asked for: a function would see what is then thrown away."""
    lm = load("demo")
    assert lm.drafter() is not None
    with lm.model.hooks([]):
        assert lm.drafter() is None
        assert lm.drafter(speculate="lookup") is not None
    assert lm.drafter() is not None
