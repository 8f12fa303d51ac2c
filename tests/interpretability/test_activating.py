"""Where neurons and features are strongest: what looking at every token gives, over any number of texts and files."""

from __future__ import annotations

import json
from unittest import mock

import numpy as np
import pytest
import seeded
from hypothesis import given
from hypothesis import strategies as some
from tiny_model import tiny_model

import gpt2fast
from gpt2fast import GPT2, Config, LanguageModel
from gpt2fast.cli import main
from gpt2fast.corpus import activating, documents, groups, max_activating_files
from gpt2fast.errors import InputError, InputTypeError
from gpt2fast.interpretability import SparseAutoencoder, max_activating
from gpt2fast.interpretability.activating import Search

NEURONS = "blocks.1.mlp.hook_post"
TEXTS = [
    "The old king was tired of his crown and of his three daughters.",
    "",
    "A little girl sang to the sea.",
    "There was a king who was a giant, and the giant had a goose that laid an egg every day " * 3,
    "é 🦊 — snow",
    "The old king was tired of his crown and of his three daughters.",
    "Once",
]


@pytest.fixture(scope="module")
def lm():
    tokenizer = gpt2fast.Tokenizer.from_pretrained(gpt2fast.hub.resolve("demo"))
    config = Config(vocab_size=tokenizer.n_vocab, n_ctx=24, n_embd=12, n_layer=3, n_head=3)
    arrays = {name: np.asarray(values) for name, values in seeded.tensors(config).items()}
    return LanguageModel(GPT2.from_tensors(config, arrays), tokenizer)


@pytest.fixture(scope="module")
def sae(data):
    return SparseAutoencoder.load(data / "sae" / "jumprelu")


def by_hand(lm, texts, name, k, *, bos=True):
    """For each unit the strongest (activation, text, position) of every text, found by looking at all of them."""
    model, room = lm.model, lm.model.config.n_ctx - bos
    first = [0] if bos else []  # what stands for the token that texts begin with is replaced below
    if bos:
        from gpt2fast.model.pairing import beginning

        first = [beginning(model, lm.tokenizer)]
    hook = name if isinstance(name, str) else name.hook_name
    strongest = {}
    for number, text in enumerate(texts):
        ids = lm.tokenizer.encode(text)
        seen = []
        start = 0
        while len(seen) < len(ids):
            window = ids[start : start + room]
            array = model.run_with_cache(first + window, hook)[1][hook][0][len(first) :]
            array = array.reshape(len(array), -1) if isinstance(name, str) else name.encode(array)
            seen += list(array[len(seen) - start :])
            start += room // 2
        if seen:
            values = np.array(seen)
            for unit in range(values.shape[1]):
                place = int(values[:, unit].argmax())
                strongest.setdefault(unit, []).append((float(values[place, unit]), number, place))
    least = -np.inf if isinstance(name, str) else 0
    return {
        unit: sorted((one for one in found if one[0] > least), key=lambda one: (-one[0], one[1]))[:k]
        for unit, found in strongest.items()
    }


def told(found):
    return {unit: [(one.activation, one.text, one.position) for one in examples] for unit, examples in found.items()}


@pytest.mark.parametrize("name", [NEURONS, "blocks.2.attn.hook_z", "hook_embed", "ln_final.hook_normalized", "sae"])
@pytest.mark.parametrize("bos", [True, False])
def test_they_are_those_that_looking_at_every_token_finds(lm, sae, name, bos):
    what = sae if name == "sae" else name
    for k in (1, 3, 10):
        found = max_activating(lm, TEXTS, what, k, bos=bos)
        assert told(found) == by_hand(lm, TEXTS, what, k, bos=bos)
        assert found.texts == len(TEXTS)


@given(
    some.lists(some.sampled_from(TEXTS), max_size=9), some.integers(1, 4), some.integers(1, 64), some.integers(1, 40)
)
def test_how_texts_are_grouped_does_not_matter(texts, k, size, tokens):
    lm = tiny_model()
    name = "blocks.0.mlp.hook_post"
    whole = max_activating(lm, texts, name, k)
    from gpt2fast.interpretability import activating as module

    with mock.patch.multiple(module, _CHARACTERS=size, _TOKENS=tokens):
        parts = max_activating(lm, iter(texts), name, k)
    assert dict(parts) == dict(whole)


def test_an_example_is_the_text_around_the_token(lm):
    found = max_activating(lm, TEXTS, NEURONS, 3, units=[7, 2], before=4, after=2)
    assert list(found) == [7, 2]
    assert dict(max_activating(lm, TEXTS, NEURONS, 3, units=[2, 7], before=4, after=2)) == dict(found)
    for unit, examples in found.items():
        for one in examples:
            ids = lm.tokenizer.encode(TEXTS[one.text])
            start = max(one.position - 4, 0)
            assert one.unit == unit
            assert one.before == lm.tokenizer.decode(ids[start : one.position])
            assert one.token == lm.tokenizer.decode([ids[one.position]])
            assert one.after == lm.tokenizer.decode(ids[one.position + 1 : one.position + 3])
            assert one.marked("<", ">") == f"{one.before}<{one.token}>{one.after}"


def test_all_units_in_another_order_keep_their_numbers(lm):
    order = list(range(48))[::-1]
    assert dict(max_activating(lm, TEXTS, NEURONS, 2, units=order)) == dict(max_activating(lm, TEXTS, NEURONS, 2))


def test_features_that_are_nowhere_have_no_examples(lm, sae):
    found = max_activating(lm, ["Once"], sae, 5)
    assert set(map(len, found.values())) == {0, 1}
    assert all(one.activation > 0 for examples in found.values() for one in examples)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "blocks.1.mlp.hook_pots"}, InputError, "did you mean 'blocks.1.mlp.hook_post'"),
        ({"name": "blocks.1.attn.hook_pattern"}, InputError, "no vector for a token"),
        ({"name": 3}, InputTypeError, "expected a name or a SparseAutoencoder"),
        ({"k": 0}, InputError, "k is 0"),
        ({"units": [48]}, InputError, "units is 48; expected 47 or less"),
        ({"units": [-1]}, InputError, "units is -1"),
        ({"units": ["a"]}, InputTypeError, "units"),
        ({"before": -1}, InputError, "before"),
        ({"k": 10**7}, InputError, "name fewer units"),
        ({"texts": "one"}, InputTypeError, "texts is one str"),
        ({"texts": ["a", 3]}, InputTypeError, "text 1 is of type int"),
        ({"texts": 3}, InputTypeError, "texts is of type int"),
    ],
)
def test_what_makes_no_sense_is_refused(lm, arguments, error, message):
    with pytest.raises(error, match=message):
        max_activating(lm, **{"texts": ["a"], "name": NEURONS, **arguments})


def test_an_autoencoder_of_another_width_is_refused(sae):
    with pytest.raises(InputError, match="d_in is 12; blocks.1.hook_resid_post has 256 numbers a token"):
        max_activating(gpt2fast.load("demo"), ["a"], sae)


def test_a_unit_that_was_not_looked_for_is_named(lm):
    found = max_activating(lm, ["a king"], NEURONS, units=[3])
    assert found.get(4) is None
    assert 4 not in found
    with pytest.raises(KeyError, match="unit 4 was not looked for"):
        found[4]


# Files


@pytest.fixture
def corpus(tmp_path):
    home = tmp_path / "in"
    home.mkdir()
    for name, part in (("a.jsonl", TEXTS[:4]), ("b.jsonl", TEXTS[4:])):
        (home / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    return home


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["neurons", "features"])
def test_a_table_has_what_the_texts_have(tmp_path, corpus, lm, sae, kind):
    what = sae if kind == "features" else NEURONS
    summary = max_activating_files(corpus, tmp_path / "top.jsonl", lm, what, 3, before=5)
    expected = max_activating(lm, TEXTS, what, 3, before=5)
    found = rows(tmp_path / "top.jsonl")
    assert (summary.documents, summary.skipped, summary.units) == (7, 0, len(expected))
    assert summary.examples == len(found) == sum(map(len, expected.values()))
    assert summary.tokens == sum(len(lm.tokenizer.encode(text)) for text in TEXTS)
    assert [
        (
            row["unit"],
            row["rank"],
            np.float32(row["activation"]),
            row["position"],
            row["before"],
            row["token"],
            row["after"],
        )
        for row in found
    ] == [
        (unit, rank, np.float32(one.activation), one.position, one.before, one.token, one.after)
        for unit, examples in expected.items()
        for rank, one in enumerate(examples, 1)
    ]
    place = {"a.jsonl": 0, "b.jsonl": 4}
    assert [place[row["file"].rpartition("/")[2]] + row["document"] for row in found] == [
        one.text for examples in expected.values() for one in examples
    ]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("out", ["t.jsonl", "t.parquet", "t.csv"])
def test_a_job_goes_on_where_it_was_stopped(tmp_path, corpus, lm, out):
    (corpus / "c.jsonl").write_text('{"text": "a king"}\nno JSON\n{"text": "a queen"}\n')
    options = {"k": 2, "on_error": "skip"}
    whole = max_activating_files(corpus, tmp_path / f"whole-{out}", lm, NEURONS, **options)
    assert (whole.documents, whole.skipped, whole.resumed) == (9, 1, False)
    add = Search.add
    with (
        mock.patch.object(documents, "BATCH_BYTES", 120),
        mock.patch.object(groups, "GROUP_BYTES", 60),
    ):
        stops = 0
        for stop in range(1, 30):
            calls = 0

            def stopping(self, texts, numbers, stop=stop):
                nonlocal calls
                calls += 1
                if calls > 2:
                    if stop % 2:  # as a kill: what was noted last is what there is
                        add(self, texts, numbers)
                    raise KeyboardInterrupt
                return add(self, texts, numbers)

            with mock.patch("gpt2fast.interpretability.activating.Search.add", stopping):
                try:
                    found = max_activating_files(corpus, tmp_path / out, lm, NEURONS, checkpoint_seconds=0, **options)
                    break
                except KeyboardInterrupt:
                    stops += 1
                    assert not (tmp_path / out).exists()
    assert stops > 1
    assert found.resumed
    assert (found.documents, found.tokens, found.skipped) == (whole.documents, whole.tokens, whole.skipped)
    assert (tmp_path / out).read_bytes() == (tmp_path / f"whole-{out}").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def stopped(corpus, out, lm, what=NEURONS, **options):
    """A job that was stopped after its first documents."""
    done = []

    def stopping(self, *, finished=False):
        save(self, finished=finished)
        done.append(1)
        raise KeyboardInterrupt

    save = activating._Job.save
    with mock.patch.object(activating._Job, "save", stopping), pytest.raises(KeyboardInterrupt):
        max_activating_files(corpus, out, lm, what, checkpoint_seconds=0, **options)
    assert done


def test_another_job_does_not_go_on_with_it(tmp_path, corpus, lm, sae):
    out = tmp_path / "top.jsonl"
    stopped(corpus, out, lm, k=3)
    for options, message in [
        ({"k": 2}, "with k 3, not 2"),
        ({"k": 3, "before": 9}, "before 24, not 9"),
        ({"k": 3, "units": [1]}, "units"),
        ({"k": 3, "what": sae}, "name|sae"),
        ({"k": 3, "bos": False}, "bos"),
    ]:
        with pytest.raises(InputError, match=message):
            max_activating_files(corpus, out, lm, options.pop("what", NEURONS), **options)
    assert max_activating_files(corpus, out, lm, NEURONS, 3).resumed
    with pytest.raises(InputError, match="is there already"):
        max_activating_files(corpus, out, lm, NEURONS, 3)
    assert not max_activating_files(corpus, out, lm, NEURONS, 2, overwrite=True).resumed


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"x"), lambda path: path.unlink()])
def test_what_a_job_has_kept_may_be_damaged(tmp_path, corpus, lm, damage):
    out = tmp_path / "top.jsonl"
    stopped(corpus, out, lm)
    (kept,) = (tmp_path / "top.jsonl.partial").glob("found-*.npz")
    damage(kept)
    with pytest.raises(InputError, match="damaged.*--restart"):
        max_activating_files(corpus, out, lm, NEURONS)
    assert not max_activating_files(corpus, out, lm, NEURONS, restart=True).resumed


def test_a_job_that_ended_as_its_table_got_its_name(tmp_path, corpus, lm):
    out = tmp_path / "top.jsonl"
    with (
        mock.patch.object(activating, "sync_directory", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        max_activating_files(corpus, out, lm, NEURONS)
    before = out.read_bytes()
    found = max_activating_files(corpus, out, lm, NEURONS)
    assert found.resumed
    assert found.examples == len(rows(out))
    assert out.read_bytes() == before
    assert not list(tmp_path.glob("*.partial"))


# The shell


def test_the_shell_shows_the_token_in_its_text(tmp_path, capsysbinary):
    path = tmp_path / "a.jsonl"
    texts = ["The old king was tired.", "A little girl sang.", "There was a king\x1b[2J\nwho was a giant."]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    line = ("activating", str(path), "--name", "blocks.3.mlp.hook_post", "-k", "2")
    assert main((*line, "--unit", "791", "--unit", "3")) == 0
    told = capsysbinary.readouterr()
    first, *found = told.out.decode().splitlines()
    expected = max_activating(gpt2fast.load("demo"), texts, "blocks.3.mlp.hook_post", 2, units=[791])[791]
    assert (first, found[2], len(found)) == ("unit 791", "unit 3", 5)
    for shown, one in zip(found, expected, strict=False):
        text = one.marked().replace("\x1b", "\\x1b").replace("\n", "\\n")
        assert shown == f"{one.activation:9.4f}  {path}:{one.text}:{one.position}  {text}"
    assert "« king»" in found[0]
    assert told.err.decode().startswith("[4 tokens of 2 units; 3 documents, ")
    assert main((*line, "--unit", "791", "-o", str(tmp_path / "top.jsonl"), "--quiet")) == 0
    assert [row["activation"] for row in rows(tmp_path / "top.jsonl")] == [one.activation for one in expected]


def test_the_shell_says_what_is_wrong(tmp_path, capsysbinary, data):
    path = tmp_path / "a.txt"
    path.write_text("A king")
    name = ("--name", "blocks.3.mlp.hook_post")
    for options, status, message in [
        (name, 2, "--unit N"),
        ((*name, "--unit", "3", "--overwrite"), 2, "-o OUT"),
        ((*name, "--unit", "3", "--before", "-1"), 2, "--before is -1"),
        ((*name, "--unit", "99999"), 1, "units is 99999"),
        (("--name", "blocks.3.mlp.hook_pots", "--unit", "3"), 1, "did you mean"),
        (("--sae", str(data / "sae" / "topk"), "--unit", "3"), 1, "d_in is 12"),
    ]:
        assert main(("activating", str(path), *options)) == status
        assert message in capsysbinary.readouterr().err.decode()
