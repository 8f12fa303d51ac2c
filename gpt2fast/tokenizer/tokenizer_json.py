"""Hugging Face's tokenizer.json, as far as it says a byte-level BPE with GPT-2's split: whatever else it asks for is
refused by name, as it would change ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpt2fast.errors import InputError
from gpt2fast.tokenizer.declared import added_token
from gpt2fast.tokenizer.json_files import json_object
from gpt2fast.tokenizer.special import AddedToken

__all__ = ["TokenizerJson", "read_tokenizer_json"]

_CONTRACTIONS = ("'s|'t|'re|'ve|'m|'ll|'d", "'(?:[sdmt]|ll|ve|re)", "(?:'s|'t|'re|'ve|'m|'ll|'d)")
_WORDS = r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|"
_SPACES = (r"\s+(?!\S)|\s+", r"\s++$|\s+(?!\S)|\s", r"\s+$|\s+(?!\S)|\s")
#: GPT-2's split pattern, as GPT-2, tokenizers and tiktoken write it; that a match is possessive changes nothing.
PATTERNS = frozenset(first + _WORDS + last for first in _CONTRACTIONS for last in _SPACES)


class TokenizerJson(NamedTuple):
    """What a tokenizer.json says."""

    #: The ids of the tokens by their texts in byte symbols.
    vocabulary: dict[str, Any]
    #: "left right" each.
    merges: list[str]
    added: dict[str, AddedToken]
    #: Whether a space is put before a text that begins with none.
    add_prefix_space: bool
    #: The texts of the tokens that a post-processor puts before a text and after it.
    before: str | None
    after: str | None


def read_tokenizer_json(path: Path) -> TokenizerJson:
    """The tokenizer of a tokenizer.json.  Raises InputError that names the setting where it is none of these."""
    content = json_object(path, required=True)

    def part(name: str) -> dict[str, Any]:
        value = content.get(name)
        if not isinstance(value, dict):
            raise InputError(f"{path}: {name} is {value!r:.60}; expected a JSON object")
        return value

    model = part("model")
    normalizers = list(_steps(content.get("normalizer"), "normalizers", f"{path}: normalizer"))
    if normalizers:
        raise InputError(f"{normalizers[0][0]} is {normalizers[0][1].get('type')!r:.60}; only null is supported")
    add_prefix_space = _split(part("pre_tokenizer"), f"{path}: pre_tokenizer")
    before, after = _template(content.get("post_processor"), f"{path}: post_processor")
    where = f"{path}: model"
    _require(where, model, "type", "BPE")
    for key, allowed in (
        ("dropout", (None, 0, 0.0)),
        ("continuing_subword_prefix", (None, "")),
        ("end_of_word_suffix", (None, "")),
        ("byte_fallback", (False, None)),
        ("ignore_merges", (False, None)),
    ):
        _require(where, model, key, *allowed)
    if not isinstance(model.get("vocab"), dict):
        raise InputError(f"{where}.vocab is {model.get('vocab')!r:.60}; expected a JSON object of tokens and their ids")
    return TokenizerJson(
        model["vocab"],
        _merges(model.get("merges"), f"{where}.merges"),
        _added_tokens(content.get("added_tokens"), f"{path}: added_tokens"),
        add_prefix_space,
        before,
        after,
    )


def _require(where: str, values: dict[str, Any], key: str, *allowed: Any) -> None:
    value = values.get(key, allowed[0])
    # 1 is True, and 0 False: neither is meant.
    if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
        raise InputError(f"{where}.{key} is {value!r:.60}; only {allowed[0]!r} is supported")


def _steps(value: Any, key: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The steps of a part of tokenizer.json, each with its place: one, none, or those of a sequence, listed as
    `key`."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise InputError(f"{where} is {value!r:.60}; expected a JSON object or null")
    if value.get("type") != "Sequence":
        yield where, value
        return
    steps = value.get(key)
    if not isinstance(steps, list):
        raise InputError(f"{where}.{key} is {steps!r:.60}; expected a list")
    for i, step in enumerate(steps):
        if step is None:
            raise InputError(f"{where}.{key}[{i}] is null; expected a JSON object")
        yield from _steps(step, key, f"{where}.{key}[{i}]")


def _split(pre_tokenizer: dict[str, Any], where: str) -> bool:
    """Whether a space is put before texts; the rest must come to GPT-2's split."""
    steps = list(_steps(pre_tokenizer, "pretokenizers", where))
    *splits, (last, byte_level) = steps or [(where, {"type": "Sequence of nothing"})]
    _require(last, byte_level, "type", "ByteLevel")
    for place, split in splits:
        if split.get("type") != "Split":
            raise InputError(f"{place}.type is {split.get('type')!r:.60}; only 'ByteLevel' is supported")
        pattern = split.get("pattern")
        written = pattern.get("Regex") if isinstance(pattern, dict) else None
        if not isinstance(written, str) or written.replace("}++", "}+").replace("]++", "]+") not in PATTERNS:
            raise InputError(f"{place}.pattern is {pattern!r:.200}; only GPT-2's split pattern is supported")
        # The pattern matches every text whole, so nothing is left to be removed.
        if split.get("behavior") not in ("Isolated", "isolated"):
            removed = split.get("behavior") in ("Removed", "removed") and split.get("invert") is True
            if not removed:
                raise InputError(f"{place}.behavior is {split.get('behavior')!r:.60}; only 'Isolated' is supported")
    add_prefix_space = byte_level.get("add_prefix_space", False)
    if not splits:
        _require(last, byte_level, "use_regex", True)
    elif add_prefix_space is not False:
        raise InputError(f"{last}.add_prefix_space is {add_prefix_space!r:.60} after a Split; only False is supported")
    if not isinstance(add_prefix_space, bool):
        raise InputError(f"{last}.add_prefix_space is {add_prefix_space!r:.60}; expected true or false")
    return add_prefix_space


def _template(post_processor: Any, where: str) -> tuple[str | None, str | None]:
    """The texts of the tokens that are put before a text and after it."""
    before: str | None = None
    after: str | None = None
    for place, step in _steps(post_processor, "processors", where):
        kind = step.get("type")
        if kind in ("RobertaProcessing", "BertProcessing"):
            pairs = [step.get("cls"), step.get("sep")]
            texts = [pair[0] for pair in pairs if isinstance(pair, list) and pair and isinstance(pair[0], str)]
            if len(texts) < len(pairs):
                raise InputError(f"{place}: cls and sep are {pairs!r:.80}; expected a token and its id each")
            before, after = texts
        elif kind == "TemplateProcessing":
            single = step.get("single")
            if not isinstance(single, list) or not all(isinstance(piece, dict) for piece in single):
                raise InputError(f"{place}.single is {single!r:.80}; expected a list of JSON objects")
            names = [_special_token(piece) for piece in single]
            if None in names:
                text = names.index(None)
                before = next(iter(names[:text]), before)
                after = next(reversed(names[text + 1 :]), after)
        elif kind != "ByteLevel":
            raise InputError(f"{place}.type is {kind!r:.60}; expected ByteLevel, TemplateProcessing, RobertaProcessing")
    return before, after


def _special_token(piece: dict[str, Any]) -> str | None:
    token = piece.get("SpecialToken")
    text = token.get("id") if isinstance(token, dict) else None
    return text if isinstance(text, str) else None


def _merges(merges: Any, where: str) -> list[str]:
    if not isinstance(merges, list):
        raise InputError(f"{where} is {merges!r:.60}; expected a list")
    lines = []
    for i, pair in enumerate(merges):
        if isinstance(pair, list) and all(isinstance(symbol, str) for symbol in pair):
            pair = " ".join(pair)
        if not isinstance(pair, str) or "\n" in pair:
            raise InputError(f"{where}[{i}] is {pair!r:.60}; expected a pair of symbols")
        lines.append(pair)
    return lines


def _added_tokens(added: Any, where: str) -> dict[str, AddedToken]:
    if not isinstance(added, (list, type(None))):
        raise InputError(f"{where} is {added!r:.60}; expected a list")
    found: dict[str, AddedToken] = {}
    texts: dict[int, str] = {}
    for i, values in enumerate(added or []):
        text, token = added_token(values, f"{where}[{i}]")
        if text in found and found[text].id != token.id:
            raise InputError(f"{where}[{i}]: {text!r} has the id {token.id} here and {found[text].id} before")
        if texts.setdefault(token.id, text) != text:
            raise InputError(f"{where}[{i}].id is {token.id}, which is that of {texts[token.id]!r}, too")
        found[text] = token
    return found
