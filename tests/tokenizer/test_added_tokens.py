"""Added tokens are found by the rules of Hugging Face's tokenizers, in texts of any kind and length, by every call."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_directories import CONTENT

import gpt2fast
from gpt2fast import Tokenizer
from gpt2fast.tokenizer.special import AddedToken

VOCAB = CONTENT["VOCAB"]
MERGES = [merge.split(" ") for merge in CONTENT["MERGES"]]
PLAIN = gpt2fast.get_encoding()


def tokenizer(added, *, add_prefix_space=False, **files):
    """The tokenizer of a directory with these added tokens, (text, flags) each."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": add_prefix_space}
    tokens = [{"id": len(VOCAB) + i, "content": text, **flags} for i, (text, flags) in enumerate(added)]
    content = {"added_tokens": tokens, "pre_tokenizer": byte_level, "model": {"vocab": VOCAB, "merges": MERGES}}
    with tempfile.TemporaryDirectory() as directory:
        for name, value in {"tokenizer.json": content, **files}.items():
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            (Path(directory) / name).write_bytes(content)
        return Tokenizer.from_pretrained(directory)


def found_by_hand(text, tokens):
    """The parts of a text, slowly: strings, and the tokens' numbers."""

    def rounds(text, chosen):
        parts, start, at = [], 0, 0
        while at < len(text):
            here = [i for i in chosen if text.startswith(tokens[i][0], at)]
            if not here:
                at += 1
                continue
            best = max(here, key=lambda i: len(tokens[i][0]))
            token, flags = tokens[best]
            begin, end = at, at + len(token)
            at = end
            if flags.get("single_word") and (re.search(r"\w\Z", text[:begin]) or re.match(r"\w", text[end:])):
                continue
            if flags.get("lstrip"):
                begin = max(start, len(text[:begin].rstrip()))
            if flags.get("rstrip"):
                end += len(text[end:]) - len(text[end:].lstrip())
            parts += [text[start:begin], best]
            start = end
        return [part for part in (*parts, text[start:]) if part != ""]

    first = [i for i, (_, flags) in enumerate(tokens) if not flags.get("normalized")]
    second = [i for i, (_, flags) in enumerate(tokens) if flags.get("normalized")]
    parts = rounds(text, first)
    return [p for part in parts for p in (rounds(part, second) if isinstance(part, str) else [part])]


PIECES = ["<a>", "<b>", "cat", "ca", " cat", "\u65e5\u672c", "x y", "y ", "\U0001f642"]
flags = st.fixed_dictionaries(
    {name: st.booleans() for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
)
texts = st.lists(
    st.sampled_from([*PIECES, " ", "  ", "\n", "\u00a0", "a", "s", "_", "9", "'s", "the"]), max_size=12
).map("".join)


@given(st.dictionaries(st.sampled_from(PIECES), flags, max_size=5), texts, st.booleans())
def test_any_tokens_in_any_text(chosen, text, add_prefix_space):
    # A token that begins with what another takes as white space is a rare quarrel between the two; see the Rust tests.
    tokens = [
        (token, {**of, "rstrip": of["rstrip"] and not any(t[0] == " " for t in chosen)}) for token, of in chosen.items()
    ]
    enc = tokenizer(tokens, add_prefix_space=add_prefix_space)
    plain = tokenizer([])
    expected = []
    for part in found_by_hand(text, tokens):
        if isinstance(part, str):
            space = " " if add_prefix_space and not part.startswith(" ") else ""
            expected += plain.encode(space + part)
        else:
            expected.append(len(VOCAB) + part)
    assert enc.encode(text, allowed_special="all") == expected
    assert enc.encode(text.encode(), allowed_special="all") == expected


@pytest.mark.parametrize("add_prefix_space", [False, True])
def test_long_texts_are_cut_where_no_token_is(add_prefix_space):
    chosen = [
        ("g t", {}),
        ("king the", {"normalized": True}),
        ("the \u00e9", {"rstrip": True}),
        ("e k", {"special": True}),
    ]
    enc = tokenizer(chosen, add_prefix_space=add_prefix_space)
    for unit in ("the king ", "the \u00e9 ", "\u65e5\u672c", "\U0001f642 king the "):
        text = unit * (700_000 // len(unit))
        alone = enc.encode(text, allowed_special="all")
        ids, _ = enc.encode_batch_flat([text, "the"], allowed_special="all", num_threads=3)
        assert ids.tolist() == alone + enc.encode("the")
        assert enc.count_batch([text], allowed_special="all", num_threads=2) == [len(alone)]
        part = unit * 1000
        assert enc.encode(part, allowed_special="all")[:500] == alone[:500]


def test_white_space_before_a_token_is_looked_through_once():
    enc = tokenizer([("<mask>", {"lstrip": True}), ("<r>", {"rstrip": True})])
    blank = " " * 2_000_000
    assert enc.count(blank) == len(enc.encode(blank))
    assert enc.encode(blank + "<mask>") == [len(VOCAB)]
    assert enc.encode((" " * 50 + "<mask>") * 20_000) == [len(VOCAB)] * 20_000
    assert enc.encode("<r>" + blank) == [len(VOCAB) + 1]


def test_thousands_of_tokens():
    names = [f"<extra_{i}>" for i in range(3000)]
    enc = tokenizer([(name, {}) for name in names])
    assert enc.encode("".join(names)) == list(range(len(VOCAB), len(VOCAB) + 3000))
    assert enc.encode_single_token("<extra_2999>") == len(VOCAB) + 2999
    assert enc.decode(range(len(VOCAB), len(VOCAB) + 3)) == "<extra_0><extra_1><extra_2>"


def test_a_cut_changes_no_id():
    enc = tokenizer(
        [("New York", {}), ("<mask>", {"lstrip": True}), ("cat", {"single_word": True})], add_prefix_space=True
    )
    text = ("in New York a cat, <mask> cats  <mask>\n\nthe king " * 4).encode()
    whole = enc.encode(text)
    cuts = {enc.last_cut(text[:end]) for end in range(len(text) + 1)} - {0}
    assert len(cuts) > 30
    for cut in cuts:
        assert enc.encode(text[:cut]) + enc.encode(text[cut:]) == whole, text[:cut]


def test_some_of_the_special_tokens_are_allowed():
    enc = tokenizer([("<a>", {"special": True}), ("<b>", {"special": True}), ("cat", {})])
    a, b, cat = range(len(VOCAB), len(VOCAB) + 3)
    assert enc.encode("<a><b>cat", allowed_special={"<a>"}, disallowed_special=()) == [a, *plain_ids("<b>"), cat]
    with pytest.raises(gpt2fast.InputError, match="special token '<b>'"):
        enc.encode("<a><b>", allowed_special={"<a>"})
    assert enc.encode("cat") == [cat]
    for i in range(200):  # however many different sets are asked for
        assert enc.encode("<b>", allowed_special={"<b>", f"<{i}>"}) == [b]
    for wrong in ("<a>", 5, [3], [""], None):
        with pytest.raises(gpt2fast.Error):
            enc.encode("cat", allowed_special={"<a>"}, disallowed_special=wrong)
        with pytest.raises(gpt2fast.Error):
            enc.encode("cat", disallowed_special={"<a>"}, allowed_special=wrong or "none")


def plain_ids(text):
    return tokenizer([]).encode(text)


def test_text_that_is_not_unicode():
    enc = tokenizer([("<a>", {"single_word": True}), ("<b>", {"lstrip": True, "rstrip": True})])
    a, b = len(VOCAB), len(VOCAB) + 1
    assert enc.encode(b"\xff<a>\xe6\x97") == [id_of_byte(0xFF), a, id_of_byte(0xE6), id_of_byte(0x97)]
    assert enc.encode(b"\xc2\xa0<b>\xe3\x80\x80<b>\xa0") == [b, b, id_of_byte(0xA0)]
    assert enc.encode("\ud800<a>") == enc.encode("\ufffd<a>")


def id_of_byte(byte):
    return VOCAB[PLAIN.byte_symbols()[byte]]


def test_older_pickles_know_no_flags():
    token = AddedToken.__new__(AddedToken)
    token.__dict__ = {"id": 3, "lstrip": False, "rstrip": True}
    assert (token.special, token.single_word, token.normalized) == (True, False, False)


def test_a_token_that_is_no_utf16(tmp_path):
    with pytest.raises(gpt2fast.InputError, match="lone surrogate"):
        tokenizer([("\ud800", {})])


@given(
    st.binary(max_size=40), st.sampled_from(["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
)
def test_any_small_file_is_read_or_refused(content, name):
    check_read_or_refused({name: content})


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 300) | st.sampled_from(["<s>", "", "\ud800", "th", "GPT2Tokenizer"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "id", "lstrip", "special", "__type", "3", "266", "<x>"]), inner)
    ),
    max_leaves=6,
)
keys = st.sampled_from(
    ["bos_token", "eos_token", "x_token", "additional_special_tokens", "extra_special_tokens", "added_tokens_decoder",
     "add_prefix_space", "tokenizer_class", "<s>", "th"]
)  # fmt: skip


@given(
    st.dictionaries(keys, values, max_size=3), st.dictionaries(keys, values, max_size=3), st.dictionaries(keys, values)
)
def test_any_values_are_read_or_refused(config, special, added):
    check_read_or_refused(
        {"tokenizer_config.json": config, "special_tokens_map.json": special, "added_tokens.json": added}
    )


def check_read_or_refused(files):
    with contextlib.suppress(gpt2fast.InputError):
        enc = tokenizer([("<s>", {"special": True})], **files)
        assert enc.n_vocab > len(VOCAB)
        assert np.array_equal(enc.encode_to_numpy("the", disallowed_special=()), enc.encode_ordinary("the"))
