"""Every token knows which characters, or bytes, of the text are its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizer_reference import gpt2, reference

import gpt2fast

ENC = gpt2()
unicode_text = st.text(st.characters(exclude_categories=("Cs",)))


def character_spans(text, tokens):
    """The spans by definition: the characters that have a byte of the token."""
    owner = [i for i, character in enumerate(text) for _ in character.encode()]
    spans, at = [], 0
    for token in tokens:
        characters = owner[at : at + len(token)]
        spans.append((characters[0], characters[-1] + 1))
        at += len(token)
    return spans


@given(unicode_text)
@example("a 🙂🦊 é漢字 \u00a0 ")
@example("👨‍👩‍👧‍👦!")
def test_spans_of_characters(text):
    ids, spans = ENC.encode_with_offsets(text)
    assert ids == reference().encode_ordinary(text)
    assert spans == character_spans(text, ENC.decode_tokens_bytes(ids))


@given(st.binary())
def test_spans_of_bytes(data):
    ids, spans = ENC.encode_with_offsets(data)
    assert ids == ENC.encode_ordinary(data)
    assert [data[start:end] for start, end in spans] == ENC.decode_tokens_bytes(ids)
    assert [start for start, _ in spans] + [len(data)] == [0, *(end for _, end in spans)]


@given(unicode_text)
def test_decoding_gives_the_same_starts(text):
    ids, spans = ENC.encode_with_offsets(text)
    decoded, starts = ENC.decode_with_offsets(ids)
    assert (decoded, starts) == reference().decode_with_offsets(ids)
    assert decoded == text
    assert starts == [start for start, _ in spans]


@given(st.one_of(unicode_text, st.binary()))
@example("a 🙂🦊 é漢字 \u00a0 ")
@example("")
def test_arrays_of_the_same(text):
    ids, spans = ENC.encode_with_offsets_flat(text)
    assert (ids.dtype, spans.dtype, spans.shape) == (np.uint32, np.int64, (len(ids), 2))
    assert (ids.tolist(), list(map(tuple, spans.tolist()))) == ENC.encode_with_offsets(text)


def test_ids_that_cut_characters_have_no_text():
    with pytest.raises(UnicodeDecodeError):
        ENC.decode_with_offsets([8582])
    with pytest.raises(UnicodeDecodeError):
        reference().decode_with_offsets([8582])


def test_special_tokens_are_text_here():
    assert ENC.encode_with_offsets("<|endoftext|>")[1][-1] == (12, 13)
    assert ENC.encode_with_offsets("") == ([], [])


def test_lone_surrogates_have_no_spans():
    with pytest.raises(gpt2fast.InputError, match="lone surrogate"):
        ENC.encode_with_offsets("a\ud800")
    with pytest.raises(gpt2fast.InputError, match="lone surrogate"):
        ENC.encode_with_offsets_flat("a\ud800")
