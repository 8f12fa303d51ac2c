"""Vocabulary files are read to the letter, and broken ones are refused by file and key or line."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_reference import GPT2, byte_of_symbol, gpt2

import gpt2fast
from gpt2fast import Tokenizer

SYMBOLS = gpt2().byte_symbols()
BASE = {symbol: i for i, symbol in enumerate(SYMBOLS)}
VOCAB = {**BASE, "th": 256, "the": 257, "Ġthe": 258, "##": 259, "<|endoftext|>": 260}
MERGES = "#version: 0.2\nt h\nth e\nĠ the\n# #\n"


def write(directory, vocab=VOCAB, merges=MERGES):
    for name, content in (("vocab.json", vocab), ("merges.txt", merges)):
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content)).encode("utf-8", "surrogatepass")
        (directory / name).write_bytes(content)
    return directory / "vocab.json", directory / "merges.txt"


def text_of(vocab, **changes):
    return json.dumps({**vocab, **changes})


def without(*names, **changes):
    return {**{name: id_ for name, id_ in VOCAB.items() if name not in names}, **changes}


def test_a_small_vocabulary(tmp_path):
    enc = Tokenizer.from_files(*write(tmp_path))
    assert enc.encode("the the ## th") == [257, 258, BASE["Ġ"], 259, BASE["Ġ"], 256]
    assert (enc.n_vocab, enc.eot_token, enc.name) == (261, 260, tmp_path.name)


def test_byte_symbols():
    assert {symbol: byte for byte, symbol in enumerate(SYMBOLS)} == byte_of_symbol()
    assert (SYMBOLS[0], SYMBOLS[32], SYMBOLS[65], SYMBOLS[10]) == ("Ā", "Ġ", "A", "Ċ")


@pytest.mark.parametrize(
    "merges",
    [
        MERGES,
        MERGES.rstrip(),
        MERGES.replace("\n", "\r\n"),
        MERGES.replace("\n", "\n\n"),
        MERGES.removeprefix("#version: 0.2\n"),
        MERGES + "\n\n",
        "#version: 7\n" + MERGES.removeprefix("#version: 0.2\n"),
    ],
)
def test_the_same_merges(tmp_path, merges):
    enc = Tokenizer.from_files(*write(tmp_path, merges=merges))
    assert enc.encode("the ##") == [257, BASE["Ġ"], 259]


def test_the_order_of_the_vocabulary_does_not_matter(tmp_path):
    enc = Tokenizer.from_files(*write(tmp_path, vocab=dict(reversed(VOCAB.items()))))
    assert enc.encode("the the") == [257, 258]


def test_ids_need_not_follow_the_merges(tmp_path):
    ids = {name: 260 - id_ for name, id_ in VOCAB.items()}
    enc = Tokenizer.from_files(*write(tmp_path, vocab=ids))
    assert enc.encode("the the ##") == [3, 2, ids["Ġ"], 1]
    assert enc.decode([3, 2]) == "the the"
    assert enc.eot_token == 0


BROKEN_VOCABULARIES = {
    "empty file": ("", "EOF"),
    "no JSON": ("{not json", "line 1"),
    "a list": ("[1, 2]", "expected a JSON object"),
    "a number": ("7", "expected a JSON object"),
    "null": ("null", "expected a JSON object"),
    "empty object": ("{}", "empty"),
    "something after it": (text_of(VOCAB) + " {}", "follows"),
    "a comma too many": (text_of(VOCAB)[:-1] + ",}", "line 1"),
    "cut off": (text_of(VOCAB)[:-1], "EOF"),
    "byte order mark": (b"\xef\xbb\xbf" + text_of(VOCAB).encode(), "line 1"),
    "not UTF-8": (text_of(VOCAB).encode().replace(b'"th"', b'"t\xff"'), "line 1"),
    "lone surrogate": (text_of(VOCAB).replace('"th"', '"\\ud800"'), "line 1"),
    "NaN": (text_of(VOCAB).replace(": 256", ": NaN"), "th"),
    "a key twice": (text_of(VOCAB)[:-1] + ', "th": 256}', "\"th\" is there twice"),
    "a key twice with another id": (text_of(VOCAB)[:-1] + ', "th": 261}', "\"th\" is there twice"),
    "a gap": (text_of(VOCAB, th=300), "\"th\" has id 300"),
    "an id twice": (text_of(VOCAB, th=257), "both have id 257"),
    "an id below zero": (text_of(VOCAB, th=-1), "\"th\""),
    "a fractional id": (text_of(VOCAB, th=256.0), "\"th\""),
    "an id that is text": (text_of(VOCAB, th="256"), "\"th\""),
    "an id that is true": (text_of(VOCAB, th=True), "\"th\""),
    "an id that is null": (text_of(VOCAB, th=None), "\"th\""),
    "a nested id": (text_of(VOCAB, th=[256]), "\"th\""),
    "an id of 64 bits": (text_of(VOCAB, th=2**64), "\"th\""),
    "a huge id": (text_of(VOCAB, th=2**63), "\"th\""),
    "a byte missing": (text_of(without("a", x2=BASE["a"])), "byte 0x61"),
    "the space missing": (text_of(without("Ġ", x2=BASE["Ġ"])), "byte 0x20"),
    "a token with a space": (text_of(without("th", **{"t h": 256})), "\"t h\".*no byte symbol"),
    "a token with a character beyond": (text_of(without("th", 日=256)), "no byte symbol"),
    "a token with a control character": (text_of(without("th", **{"t\n": 256})), "no byte symbol"),
    "an empty token": (text_of(without("th", **{"": 256})), "empty"),
    "nothing but nesting": ("[" * 100_000, "vocab.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_VOCABULARIES)
def test_broken_vocabularies(tmp_path, name):
    content, part = BROKEN_VOCABULARIES[name]
    vocab, merges = write(tmp_path, vocab=content, merges="")
    with pytest.raises(gpt2fast.InputError, match=part) as caught:
        Tokenizer.from_files(vocab, merges)
    assert str(caught.value).startswith(f"{vocab}: ")


BROKEN_MERGES = {
    "one symbol": ("#version: 0.2\nth\n", "line 2 is \"th\""),
    "three symbols": ("t h e\n", "line 1 is \"t h e\""),
    "two spaces": ("t h\nth  e\n", "line 2 is"),
    "a space before": (" t h\n", "line 1 is"),
    "a space after": ("t h \n", "line 1 is"),
    "a tab": ("t\th\n", "line 1 is"),
    "an empty half": ("t \n", "line 1: \"\""),
    "only a space": (" \n", "line 1: \"\""),
    "an unknown left": ("q8 h\n", "line 1: \"q8\" is not in the vocabulary"),
    "an unknown right": ("t h\nth q8\n", "line 2: \"q8\""),
    "an unknown product": ("t h\nh t\n", "line 2: \"ht\" is not in the vocabulary"),
    "a merge twice": ("t h\nth e\nt h\n", "line 3: the merge \"t h\" is there twice"),
    "a version later on": ("t h\n#version: 0.2\n", "line 2"),
    "a comment": ("# a comment\n", "line 1"),
    "a byte order mark": ("\ufefft h\n", "line 1"),
    "not UTF-8": (b"t h\n\xff h\n", "line 2 is not UTF-8"),
    "a special token": ("<|endoftext|> h\n", "line 1: \"<|endoftext|>h\" is not in the vocabulary"),
    "JSON": ('[["t", "h"]]\n', "line 1"),
    "carriage returns alone": ("t h\rth e\r", "line 1"),
    "a no-break space": ("t\u00a0h\n", "line 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_MERGES)
def test_broken_merges(tmp_path, name):
    content, part = BROKEN_MERGES[name]
    vocab, merges = write(tmp_path, merges=content)
    with pytest.raises(gpt2fast.InputError, match=part.replace("|", r"\|")) as caught:
        Tokenizer.from_files(vocab, merges)
    assert str(caught.value).startswith(f"{merges}: ")


@given(st.binary(max_size=60), st.booleans())
def test_any_file_is_read_or_refused(tmp_path_factory, content, as_merges):
    directory = tmp_path_factory.getbasetemp()
    files = write(directory, merges=content) if as_merges else write(directory, vocab=content)
    with contextlib.suppress(gpt2fast.InputError):
        Tokenizer.from_files(*files)


def test_missing_files(tmp_path):
    vocab, merges = write(tmp_path)
    for files in ((tmp_path / "no.json", merges), (vocab, tmp_path / "no.txt"), (str(vocab), str(tmp_path / "no.txt"))):
        with pytest.raises(gpt2fast.MissingFileError, match=r"no\.(json|txt)"):
            Tokenizer.from_files(*files)
    with pytest.raises(gpt2fast.InputError, match="is a directory"):
        Tokenizer.from_files(tmp_path, merges)
    (tmp_path / "empty").mkdir()
    with pytest.raises(gpt2fast.MissingFileError, match="neither a tokenizer.json nor a vocab.json"):
        Tokenizer.from_pretrained(tmp_path / "empty")
    with pytest.raises(gpt2fast.MissingFileError, match="no such directory"):
        Tokenizer.from_pretrained(tmp_path / "nowhere")
    vocab.unlink()
    with pytest.raises(gpt2fast.MissingFileError, match="vocab.json"):
        Tokenizer.from_pretrained(tmp_path)


def test_special_tokens_by_name(tmp_path):
    vocab, merges = write(tmp_path, vocab={**VOCAB, "<pad>": 261, "[UNK 1]": 262})
    with pytest.raises(gpt2fast.InputError, match=r"\[UNK 1\].*no byte symbol"):
        Tokenizer.from_files(vocab, merges)
    enc = Tokenizer.from_files(vocab, merges, special_tokens=["[UNK 1]", "<pad>"])
    assert enc.special_tokens_set == {"<|endoftext|>", "<pad>", "[UNK 1]"}
    assert enc.encode("the[UNK 1]<pad>", allowed_special="all") == [257, 262, 261]
    assert 262 not in enc.encode("the[UNK 1]", disallowed_special=())
    with pytest.raises(gpt2fast.InputError, match="'<nope>', which was named as special"):
        Tokenizer.from_files(vocab, merges, special_tokens=["<nope>"])


def test_no_end_of_text(tmp_path):
    enc = Tokenizer.from_files(*write(tmp_path, vocab=without("<|endoftext|>")))
    assert enc.special_tokens_set == set()
    with pytest.raises(gpt2fast.UnknownTokenError, match="no special token '<|endoftext|>'"):
        _ = enc.eot_token
    assert enc.decode(enc.encode("<|endoftext|>")) == "<|endoftext|>"


def test_the_quick_way_to_load_gpt2_comes_to_the_same():
    # The tables of get_encoding were made when this package was built; this reads and checks both files.
    checked = Tokenizer.from_files(GPT2 / "vocab.json", GPT2 / "merges.txt")
    quick = gpt2()
    assert quick.n_vocab == checked.n_vocab
    assert quick.special_tokens_set == checked.special_tokens_set
    for token in range(checked.n_vocab):
        assert quick.decode_single_token_bytes(token) == checked.decode_single_token_bytes(token)
    assert quick._bpe.unreachable_tokens() == checked._bpe.unreachable_tokens() == []
    assert quick.encode_ordinary_batch(checked.token_byte_values()) == checked.encode_ordinary_batch(
        checked.token_byte_values()
    )


def test_tokens_that_no_merge_makes(tmp_path):
    vocab, merges = write(tmp_path, vocab={**VOCAB, "zz": 261})
    enc = Tokenizer.from_files(vocab, merges)
    assert enc._bpe.unreachable_tokens() == [261]
    assert enc.encode("zz") == [BASE["z"], BASE["z"]]
    assert enc.encode_single_token("zz") == 261


def test_saved_files_load_again(tmp_path):
    gpt2().save_pretrained(tmp_path / "gpt2")
    for name in ("vocab.json", "merges.txt"):
        assert (tmp_path / "gpt2" / name).read_bytes() == (GPT2 / name).read_bytes()
    enc = Tokenizer.from_pretrained(tmp_path / "gpt2")
    assert enc.encode("It's saved 🦊") == gpt2().encode("It's saved 🦊")
    small = Tokenizer.from_files(*write(tmp_path))
    small.save_pretrained(tmp_path / "small")
    assert Tokenizer.from_pretrained(tmp_path / "small").encode("the") == [257]


# tokenizer.json

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPLIT = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def tokenizer_json(**changes):
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 260,
                "content": "<|endoftext|>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": VOCAB,
            "merges": [["t", "h"], ["th", "e"], ["Ġ", "the"], ["#", "#"]],
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = content
        for parent in parents:
            target = target[parent]
        target[last] = value
    return content


def load(directory, content):
    (directory / "tokenizer.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return Tokenizer.from_pretrained(directory)


@pytest.mark.parametrize(
    "content",
    [
        tokenizer_json(),
        tokenizer_json(model__merges=["t h", "th e", "Ġ the", "# #"]),
        tokenizer_json(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False}),
        tokenizer_json(model__dropout=0.0, model__continuing_subword_prefix=None),
        tokenizer_json(model__vocab=without("<|endoftext|>")),
    ],
)
def test_tokenizer_json(tmp_path, content):
    enc = load(tmp_path, content)
    assert enc.encode("the the ##<|endoftext|>", allowed_special="all") == [257, 258, BASE["Ġ"], 259, 260]
    assert (enc.n_vocab, enc.name) == (261, tmp_path.name)


def test_tokenizer_json_comes_before_the_other_files(tmp_path):
    write(tmp_path, vocab=BASE, merges="")
    assert load(tmp_path, tokenizer_json()).n_vocab == 261


def test_a_token_that_takes_the_space_before_it(tmp_path):
    mask = {"id": 261, "content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "special": True}
    content = tokenizer_json()
    content["added_tokens"].append(mask)
    enc = load(tmp_path, content)
    assert enc.encode("the  <mask> the", allowed_special="all") == [257, 261, 258]
    enc.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "tokenizer.json").read_text()) == content
    again = Tokenizer.from_pretrained(tmp_path / "saved")
    assert again.encode("the  <mask> the", allowed_special="all") == [257, 261, 258]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pre_tokenizer__type": "Whitespace"}, "pre_tokenizer.type"),
        ({"pre_tokenizer__type": "Sequence"}, "pre_tokenizer.pretokenizers"),
        ({"pre_tokenizer": sequence()}, "pre_tokenizer.type is 'Sequence of nothing'"),
        ({"pre_tokenizer": sequence(BYTE_LEVEL, BYTE_LEVEL)}, r"pre_tokenizer.pretokenizers\[0\].type"),
        ({"pre_tokenizer": sequence({"type": "Digits"}, BYTE_LEVEL)}, r"pretokenizers\[0\].type is 'Digits'"),
        ({"pre_tokenizer": sequence(BYTE_LEVEL, {"type": "Digits"})}, r"pretokenizers\[1\].type is 'Digits'"),
        ({"pre_tokenizer": sequence({"type": "Split"}, BYTE_LEVEL)}, r"pretokenizers\[0\].pattern"),
        ({"pre_tokenizer": sequence(SPLIT | {"pattern": {"Regex": r"\w+"}}, BYTE_LEVEL)}, r"\[0\].pattern"),
        ({"pre_tokenizer": sequence(SPLIT | {"pattern": {"String": " "}}, BYTE_LEVEL)}, r"\[0\].pattern"),
        ({"pre_tokenizer": sequence(SPLIT | {"behavior": "MergedWithNext"}, BYTE_LEVEL)}, r"\[0\].behavior"),
        ({"pre_tokenizer": sequence(SPLIT | {"behavior": "Removed"}, BYTE_LEVEL)}, r"\[0\].behavior"),
        ({"pre_tokenizer": sequence(SPLIT, BYTE_LEVEL | {"add_prefix_space": True})}, r"\[1\].add_prefix_space"),
        ({"pre_tokenizer": sequence(None, BYTE_LEVEL)}, r"pretokenizers\[0\] is null"),
        ({"pre_tokenizer__add_prefix_space": "yes"}, "pre_tokenizer.add_prefix_space"),
        ({"pre_tokenizer__use_regex": False}, "pre_tokenizer.use_regex"),
        ({"pre_tokenizer": None}, "pre_tokenizer"),
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}, r"normalizers\[0\] is 'NFC'"),
        ({"normalizer": []}, "normalizer"),
        ({"post_processor": {"type": "Magic"}}, "post_processor.type is 'Magic'"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "post_processor: cls and sep"),
        ({"post_processor": {"type": "TemplateProcessing"}}, "post_processor.single"),
        ({"post_processor": {"type": "Sequence", "processors": {}}}, "post_processor.processors"),
        ({"model__type": "WordPiece"}, "model.type"),
        ({"model__type": "Unigram"}, "model.type"),
        ({"model": None}, "model"),
        ({"model__dropout": 0.1}, "model.dropout"),
        ({"model__continuing_subword_prefix": "##"}, "model.continuing_subword_prefix"),
        ({"model__end_of_word_suffix": "</w>"}, "model.end_of_word_suffix"),
        ({"model__byte_fallback": True}, "model.byte_fallback"),
        ({"model__ignore_merges": True}, "model.ignore_merges"),
        ({"model__merges": None}, "model.merges"),
        ({"model__merges": ["th"]}, "model.merges"),
        ({"model__merges": [["t", 3]]}, r"model.merges\[0\]"),
        ({"model__merges": [["t", "h\n"]]}, r"model.merges\[0\]"),
        ({"model__merges": [["t", "q8"]]}, "model.merges"),
        ({"model__vocab": None}, "model.vocab"),
        ({"model__vocab": ["a"]}, "model.vocab"),
        ({"model__vocab": {**VOCAB, "th": 7}}, "model.vocab"),
        ({"added_tokens": {"a": 1}}, "added_tokens"),
        ({"added_tokens": ["a"]}, r"added_tokens\[0\]"),
        ({"added_tokens": [{"id": 1}]}, r"added_tokens\[0\].content"),
        ({"added_tokens": [{"id": "1", "content": "x"}]}, r"added_tokens\[0\].id"),
        ({"added_tokens": [{"id": True, "content": "x"}]}, r"added_tokens\[0\].id"),
        ({"added_tokens": [{"id": 999, "content": "<x>"}]}, "<x>"),
        ({"added_tokens": [{"id": 261, "content": "<x>", "single_word": 1}]}, r"added_tokens\[0\].single_word"),
        ({"added_tokens": [{"id": 261, "content": "\ud800"}]}, r"added_tokens\[0\].content .* lone surrogate"),
        ({"added_tokens": [{"id": 261, "content": ""}]}, r"added_tokens\[0\].content"),
        (
            {"added_tokens": [{"id": 261, "content": "<x>"}, {"id": 262, "content": "<x>"}]},
            r"added_tokens\[1\]: '<x>' has the id 262 here and 261 before",
        ),
        (
            {"added_tokens": [{"id": 261, "content": "<x>"}, {"id": 261, "content": "<y>"}]},
            r"added_tokens\[1\].id is 261, which is that of '<x>'",
        ),
        ({"added_tokens": [{"id": 3, "content": "th"}]}, "th"),
        ({"added_tokens": [{"id": 3, "content": "<|endoftext|>"}]}, "<|endoftext|>"),
    ],
)
def test_what_tokenizer_json_may_not_ask_for(tmp_path, changes, named):
    with pytest.raises(gpt2fast.InputError, match=named.replace("|", r"\|")) as caught:
        load(tmp_path, tokenizer_json(**changes))
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"model": NaN', "[" * 50_000])
def test_what_is_no_tokenizer_json(tmp_path, content):
    with pytest.raises(gpt2fast.InputError, match="tokenizer.json"):
        load(tmp_path, content)
