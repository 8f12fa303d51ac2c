"""Texts that a regular expression, a JSON schema, choices or a grammar describe: all parse, whatever is drawn."""

from __future__ import annotations

import json
import re
import time
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import gpt2fast
from gpt2fast.errors import GrammarError, InputError, InputTypeError, MissingDependencyError
from gpt2fast.generation import constraint as constraint_module
from gpt2fast.generation.constraint import Constraint
from gpt2fast.generation.grammar import GrammarLimits, compile_grammar, read_grammar

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPTS = ["Once upon a time", "The king said: ", ""]


@pytest.fixture(scope="module")
def lm():
    return gpt2fast.load("demo")


# What is said

_LITERALS = some.text("abz019 -é狐", min_size=1, max_size=3).map(re.escape)
_REGEXES = some.recursive(
    _LITERALS | some.sampled_from(["[a-f]", "[0-9]{1,3}", r"\d", "(yes|no)", "x?"]),
    lambda inner: (
        some.tuples(inner, inner).map("".join)
        | some.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})")
        | inner.map(lambda part: f"({part}){{1,3}}")
    ),
    max_leaves=5,
)


@given(
    regex=_REGEXES,
    prompt=some.sampled_from(PROMPTS),
    seed=some.integers(0, 9),
    temperature=some.sampled_from([0, 1, 5]),
)
def test_regular_expressions(lm, regex, prompt, seed, temperature):
    found = lm.generate(prompt, regex=regex, seed=seed, temperature=temperature, top_k=0, max_new_tokens=80)
    if found.finish_reason != "length":
        assert re.fullmatch(regex, found.text), (regex, found.text)
    else:
        assert len(found.ids) == 80


_VALUES = some.recursive(
    some.sampled_from(
        [
            {"type": "integer", "minimum": -5, "maximum": 500},
            {"type": "string", "maxLength": 5},
            {"type": "string", "pattern": "^[a-c]{1,4}$"},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["red", 7, None]},
            {"const": "é狐"},
        ]
    ),
    lambda inner: (
        some.dictionaries(some.sampled_from("abc"), inner, min_size=1, max_size=3).map(
            lambda found: {
                "type": "object",
                "properties": found,
                "required": list(found),
                "additionalProperties": False,
            }
        )
        | inner.map(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2})
        | some.tuples(inner, inner).map(lambda pair: {"anyOf": list(pair)})
    ),
    max_leaves=5,
)


def fits(value, schema):
    """Whether a value is of a schema of `_VALUES`."""
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return value == schema["const"]
    kind = schema["type"]
    if kind == "object":
        return (
            isinstance(value, dict)
            and value.keys() == schema["properties"].keys()
            and all(fits(value[name], one) for name, one in schema["properties"].items())
        )
    if kind == "array":
        return isinstance(value, list) and 1 <= len(value) <= 2 and all(fits(item, schema["items"]) for item in value)
    if kind == "string":
        return isinstance(value, str) and len(value) <= 5 and bool(re.search(schema.get("pattern", ""), value))
    if kind == "integer":
        return type(value) is int and -5 <= value <= 500
    return value is None if kind == "null" else isinstance(value, bool)


@given(schema=_VALUES, seed=some.integers(0, 9), temperature=some.sampled_from([0, 1, 5]))
def test_json_schemas(lm, schema, seed, temperature):
    found = lm.generate("It is ", json_schema=schema, seed=seed, temperature=temperature, top_k=0, max_new_tokens=200)
    if found.finish_reason != "length":
        assert fits(json.loads(found.text), schema), (schema, found.text)


@pytest.mark.parametrize(
    "how", [{}, {"speculate": "lookup"}, {"speculate": "int8"}, {"logprobs": 1}, {"batch_size": 1}]
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_the_same_text_however_it_is_made(lm, how, temperature):
    options = {"json_schema": SCHEMA, "max_new_tokens": 60, "seed": 3, "temperature": temperature}
    expected = [lm.generate(prompt, **options) for prompt in PROMPTS]
    found = lm.generate_batch(PROMPTS, **options, **how)
    assert [(one.text, one.ids) for one in found] == [(one.text, one.ids) for one in expected]
    for one in found:
        assert json.loads(one.text).keys() == {"name", "age"}
        assert one.finish_reason in ("stop", "eos")


def test_choices_and_their_probability(lm):
    choices = ["the king", "a queen", "nobody"]
    said = {lm.generate("Then came", choices=choices, seed=seed, temperature=2).text for seed in range(30)}
    assert said == set(choices)
    beams = lm.beam_search("Then came", choices=choices, num_beams=3, num_return_sequences=3)
    assert {beam.text for beam in beams} <= set(choices)
    said = lm.generate("Then came", choices=["a", "a"], seed=1)
    assert (said.text, said.finish_reason) == ("a", "stop")


def test_grammars(lm):
    lark = 'start: "(" inner ")"\ninner: | "(" inner ")" inner'
    found = lm.generate("x", lark=lark, seed=1, temperature=0, max_new_tokens=60)
    depth = 0
    for character in found.text:
        depth += {"(": 1, ")": -1}[character]
        assert depth >= 0
    gbnf = 'root ::= "x" [0-9]{2,4} "!"'
    assert re.fullmatch(r"x[0-9]{2,4}!", lm.generate("x", grammar=gbnf, seed=2).text)
    assert re.fullmatch(r"x[0-9]{2,4}!", lm.generate("x", grammar='start: "x" /[0-9]{2,4}/ "!"', seed=2).text)
    assert lm.generate("x", grammar='\n \n  start : "a"').text == "a"
    gbnf = 'start ::= "b"\nother ::= start\nroot ::= "a" other'  # a rule that is called start makes it no Lark
    with pytest.raises(GrammarError, match="already exists"):
        lm.generate("x", grammar=gbnf)


def test_a_text_that_ends_in_the_middle_says_so(lm):
    found = lm.generate("x", json_schema=SCHEMA, max_new_tokens=5, seed=1)
    assert (found.finish_reason, len(found.ids)) == ("length", 5)
    with pytest.raises(ValueError, match="delimiter|value|Unterminated"):
        json.loads(found.text)


def test_what_the_grammar_leaves_no_choice_about_takes_no_pass(lm, monkeypatch):
    passes = []
    forward = type(lm.model._network).forward

    def counted(self, *arguments, **options):
        passes.append(1)
        return forward(self, *arguments, **options)

    monkeypatch.setattr(type(lm.model._network), "forward", counted)
    text = "A long text that can be nothing else, over and over."
    found = lm.generate("x", choices=[text], temperature=0)
    assert found.text == text
    assert len(passes) < len(found.ids) / 2


def test_stop_strings_and_minimum_lengths_count_too(lm):
    assert lm.generate("x", regex="(ab)+c", stop="b", seed=1).text == "a"
    found = lm.generate("x", regex="a*", min_new_tokens=4, seed=1, temperature=0)
    assert len(found.ids) >= 4


@pytest.mark.parametrize("how", [{}, {"logprobs": 1}, {"speculate": "lookup"}, {"speculate": "int8"}])
@pytest.mark.parametrize("temperature", [0, 1])
def test_what_is_forced_is_spelled_without_banned_tokens(lm, how, temperature):
    text = "the king of all the land and the king"
    usual = lm.generate("x", choices=[text], seed=1).ids
    assert usual == lm.tokenizer.encode(text)
    king = usual[1]
    for bans in ({"banned_ids": [king]}, {"banned_sequences": [[king]]}):
        found = lm.generate("x", choices=[text], seed=1, temperature=temperature, **bans, **how)
        assert (found.text, found.finish_reason) == (text, "stop")
        assert king not in found.ids
    found = lm.generate("x", choices=[text], seed=1, temperature=temperature, no_repeat_ngram_size=2, **how)
    assert found.text == text
    pairs = list(zip(found.ids, found.ids[1:], strict=False))
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("how", [{}, {"speculate": "lookup"}, {"speculate": "int8"}])
def test_functions_are_asked_about_what_is_forced(lm, how):
    text = "the king of all the land"
    king = lm.tokenizer.encode(text)[1]
    asked = []

    def processor(ids, logits):
        asked.append(len(ids))
        logits[king] = -np.inf
        return logits

    found = lm.generate("x", choices=[text], seed=1, logits_processor=processor, **how)
    assert (found.text, king in found.ids) == (text, False)
    assert {len(found.prompt_ids) + i for i in range(len(found.ids))} <= set(asked)
    schema = {"const": text}
    found = lm.generate("x", json_schema=schema, seed=1, logits_processor=processor, **how)
    assert (found.text, king in found.ids) == (f'"{text}"', False)
    others = [id for id in range(4096) if id != king]
    found = lm.generate("x", choices=[text], seed=1, prefix_allowed_tokens_fn=lambda prompt, ids: others, **how)
    assert (found.text, king in found.ids) == (text, False)


def test_processors_work_within_the_grammar(lm):
    def likes_no(ids, logits):
        logits[lm.tokenizer.encode("no")[0]] += 100
        return logits

    assert lm.generate("x", choices=["yes", "no"], logits_processor=likes_no, temperature=0).text == "no"


# What is refused before anything is computed


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"regex": "("}, GrammarError, "regex is not acceptable"),
        ({"regex": r"a(?=b)"}, GrammarError, "regex is not acceptable"),
        ({"regex": "[^\x00-\U0010ffff]"}, GrammarError, "regex"),
        ({"json_schema": "{"}, GrammarError, "json_schema is not valid JSON"),
        ({"json_schema": False}, GrammarError, "which no JSON fits"),
        ({"json_schema": {"type": "nonsense"}}, GrammarError, "json_schema is not acceptable"),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 4}}, GrammarError, "json_schema"),
        ({"json_schema": 5}, InputTypeError, "json_schema is of type int"),
        ({"json_schema": {"a": {1, 2}}}, InputTypeError, "json_schema is no JSON"),
        ({"choices": []}, InputError, "choices is empty"),
        ({"choices": ["a", ""]}, InputError, r"choices\[1\] is empty"),
        ({"choices": "abc"}, InputTypeError, "choices is 'abc'; expected a list of texts"),
        ({"choices": ["a", 5]}, InputTypeError, r"choices\[1\] is of type int"),
        ({"choices": ["\ud800"]}, InputError, "lone surrogate"),
        ({"lark": "nonsense"}, GrammarError, "lark is not acceptable"),
        ({"lark": "start: missing"}, GrammarError, "lark is not acceptable"),
        ({"grammar": "root ::= ("}, GrammarError, "grammar is not acceptable"),
        ({"regex": 5}, InputTypeError, "regex is of type int"),
        ({"regex": "a", "choices": ["a"]}, InputError, "regex and choices were given; expected one of them"),
        ({"regex": "a", "token_mask": lambda: None}, InputError, "regex and token_mask were given"),
        ({"regex": "a", "ignore_eos": True}, InputError, "ignore_eos is set, but regex says where texts end"),
    ],
)
def test_what_is_refused(lm, monkeypatch, options, error, message):
    monkeypatch.setattr(type(lm.model._network), "forward", None)
    for call in (lm.generate, lm.stream, lambda prompt, **how: lm.generate_batch([prompt], **how)):
        with pytest.raises(error, match=message):
            call("x", **options)


def test_bytes_that_the_vocabulary_cannot_make(tokenizer):
    """The ids of a network may be fewer than those of its tokenizer."""
    grammar = read_grammar(choices=["é"])
    assert compile_grammar(grammar, tokenizer, 256, frozenset())
    with pytest.raises(GrammarError, match="choices allows no text of this vocabulary's tokens"):
        compile_grammar(grammar, tokenizer, 90, frozenset())


def test_without_the_package(lm, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'gpt2fast\[grammar\]'"):
        lm.generate("x", regex="a")


# Grammars of people who mean it


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "a{1,1000}" * 200},
        {"regex": "((a{1,50}){1,50}){1,50}"},
        {"regex": "(" * 20_000 + "a" + ")" * 20_000},
        {"regex": "(a|b)*" * 3000 + "c"},
        {"json_schema": '{"items":' * 50_000 + "{}" + "}" * 50_000},
        {"json_schema": {"$ref": "#"}},
        {"json_schema": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
        {"json_schema": {"enum": [f"value {i}" for i in range(50_000)]}},
        {"json_schema": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(5000)}}},
        {"choices": [f"choice {i}" for i in range(20_000)]},
        {"lark": "start: " + " ".join(['"a"?'] * 3000)},
        {"lark": 'start: start start | "a" | '},
        {"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000},
        {"grammar": "\n" * 1_000_000 + 'root ::= "a"'},
        {"grammar": "root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(5000)) + '\nr5000 ::= "x"'},
        {"regex": "x" * 10_000_001},
    ],
    ids=lambda options: next(iter(options)),
)
def test_hostile_grammars_are_bounded(lm, options):
    """Texts come, or an error of ours, in seconds."""
    start, told = time.monotonic(), ""
    try:
        lm.generate("x", max_new_tokens=8, seed=1, **options)
    except gpt2fast.Error as error:
        told = str(error)
    assert len(told) < 2000
    assert time.monotonic() - start < 60  # most take milliseconds


def test_limits_are_the_callers(lm):
    grammar = read_grammar(regex="a" * 100)
    with pytest.raises(GrammarError, match="regex has 100 characters; expected 50 or less"):
        compile_grammar(grammar, lm.tokenizer, 4096, frozenset(), GrammarLimits(source=50))
    grammar = read_grammar(grammar='root ::= a\na ::= "b"')
    assert compile_grammar(grammar, lm.tokenizer, 4096, frozenset(), GrammarLimits(conversion=40))
    with pytest.raises(GrammarError, match="grammar has 2 rules in 20 characters; expected a product of 39 or less"):
        compile_grammar(grammar, lm.tokenizer, 4096, frozenset(), GrammarLimits(conversion=39))


# Masks of other packages


class Alternating:
    """a, b, a, b … as xgrammar's matchers are asked."""

    def __init__(self, ids):
        self.ids, self.accepted = ids, []

    def fill_next_token_bitmask(self, bitmask, index):
        id = self.ids[len(self.accepted) % 2]
        bitmask[index, :] = 0
        bitmask[index, id // 32] = np.int32(np.uint32(1 << id % 32).astype(np.int32))

    def accept_token(self, id):
        if id != self.ids[len(self.accepted) % 2]:
            return False
        self.accepted.append(id)
        return True

    def rollback(self, count):
        del self.accepted[len(self.accepted) - count :]


@pytest.mark.parametrize("how", [{}, {"speculate": "int8"}, {"n": 2}])
def test_a_mask_of_ones_own(lm, how):
    ids = [lm.tokenizer.encode(letter)[0] for letter in "ab"]
    found = lm.generate("x", token_mask=lambda: Alternating(ids), max_new_tokens=7, seed=1, **how)
    for one in found if isinstance(found, list) else [found]:
        assert one.text == "abababa"


def test_a_mask_that_is_none(lm):
    with pytest.raises(InputTypeError, match="token_mask made a int; expected xgrammar's GrammarMatcher"):
        lm.generate("x", token_mask=lambda: 5)


def test_masks_of_outlines_core(lm):
    outlines_core = pytest.importorskip("outlines_core")
    end = lm.tokenizer.eot_token
    words = {}
    for id in range(4096):
        if id != end:
            words.setdefault(lm.tokenizer.decode_single_token_bytes(id), []).append(id)
    index = outlines_core.Index("[a-c]{2} [0-9]", outlines_core.Vocabulary(end, words))
    found = lm.generate("x", token_mask=lambda: outlines_core.Guide(index), seed=1)
    assert re.fullmatch("[a-c]{2} [0-9]", found.text)


def test_masks_of_xgrammar(lm):
    xgrammar = pytest.importorskip("xgrammar")
    end = lm.tokenizer.eot_token
    words = [lm.tokenizer.decode_single_token_bytes(id) for id in range(4096)]
    info = xgrammar.TokenizerInfo(words, stop_token_ids=[end])
    compiled = xgrammar.GrammarCompiler(info).compile_regex("[a-c]{2} [0-9]")
    found = lm.generate("x", token_mask=lambda: xgrammar.GrammarMatcher(compiled), seed=1)
    assert re.fullmatch("[a-c]{2} [0-9]", found.text)


# The constraint itself


@pytest.mark.parametrize("long", [-1, 1e9], ids=["beside the pass", "after it"])
@pytest.mark.parametrize("how", [{}, {"speculate": "lookup"}, {"speculate": "int8"}])
def test_the_same_text_wherever_masks_are_computed(lm, long, how):
    options = {"json_schema": SCHEMA, "max_new_tokens": 60, "seed": 3, "temperature": 1}
    expected = lm.generate_batch(PROMPTS, **options)
    with patch.object(constraint_module, "_LONG", long):
        assert lm.generate_batch(PROMPTS, **options, **how) == expected


@settings(max_examples=30)
@given(some.lists(some.sampled_from(["a", "ab", "b", "c"]), max_size=6), some.integers(0, 6), some.booleans())
def test_a_constraint_can_be_asked_about_any_ids(lm, words, cut, ahead):
    make = compile_grammar(read_grammar(regex="[ab]*c?"), lm.tokenizer, 4096, frozenset([lm.tokenizer.eot_token]))
    constraint = Constraint(make, 4096)
    ids = [id for word in words for id in lm.tokenizer.encode(word)]
    for asked in (ids, ids[:cut], ids, []):
        valid = "c" not in lm.tokenizer.decode(asked)[:-1]
        if ahead:
            with patch.object(constraint_module, "_LONG", -1):
                constraint.begin(asked, ids[len(asked) :])
        if valid:
            fresh = Constraint(make, 4096)
            assert (constraint.mask(asked) == fresh.mask(asked)).all()
        else:
            with pytest.raises(GrammarError, match="cannot follow"):
                constraint.mask(asked)
