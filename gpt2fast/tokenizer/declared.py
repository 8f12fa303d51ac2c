"""What the small files beside a vocabulary say of its tokens: tokenizer_config.json, special_tokens_map.json and
added_tokens.json, as Hugging Face's libraries of all years have written and read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from gpt2fast.errors import InputError
from gpt2fast.tokenizer.json_files import integer, json_object, text_of
from gpt2fast.tokenizer.special import AddedToken

__all__ = ["FILES", "Declared", "added_token", "declare", "read_declared"]

#: The files, in the order in which they are looked at.
FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

# The names that special tokens go by, in the order in which they are added; others end in `_token`.
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
# tokenizer.json says all of a tokenizer of these classes; the others are made anew from vocabulary and merges.
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")


class Declared(NamedTuple):
    """What the files say."""

    #: Tokens with the ids that they were given, by the file and place that say so.
    added: list[tuple[str, str, AddedToken]]
    #: Texts of special tokens, with what is said of each.
    special: dict[str, AddedToken]
    #: The texts of the tokens before a text and after it.
    bos: str | None
    eos: str | None
    #: None where nothing is said.
    add_prefix_space: bool | None


def read_declared(directory: Path, *, has_tokenizer_json: bool) -> Declared:
    """What the files in `directory` say, where there are any.  Raises InputError that names file and key."""
    config = json_object(directory / FILES[0])
    source = str(directory / FILES[0])
    added: list[tuple[str, str, AddedToken]] = []
    values = dict(config)
    if "added_tokens_decoder" in config:
        decoder = config["added_tokens_decoder"]
        if not isinstance(decoder, dict):
            raise InputError(f"{source}: added_tokens_decoder is {decoder!r:.60}; expected a JSON object")
        for key, token in decoder.items():
            where = f"{source}: added_tokens_decoder[{key!r}]"
            if not key.isdecimal():
                raise InputError(f"{where}: expected a token id")
            added.append((where, *added_token(token, where, int(key))))
        special = _special(values, source)
    else:
        # The other two count only where the first has no list of tokens: they came before it had one.
        of_map = json_object(directory / FILES[1])
        values.update(of_map)
        special = _special(config, source) | _special(of_map, str(directory / FILES[1]))
        for text, id in json_object(directory / FILES[2]).items():
            where = f"{directory / FILES[2]}: {text!r}"
            token = AddedToken(integer(id, where), special=text in special, normalized=text not in special)
            added.append((where, text_of(text, where), token))
    added.sort(key=lambda entry: entry[2].id)
    prefix = config.get("add_prefix_space")
    if not isinstance(prefix, (bool, type(None))):
        raise InputError(f"{source}: add_prefix_space is {prefix!r:.60}; expected true or false")
    tokenizer_class = config.get("tokenizer_class")
    if has_tokenizer_json and isinstance(tokenizer_class, str) and tokenizer_class.removesuffix("Fast") in _GENERIC:
        prefix = None
    bos, eos = (_text(values.get(name), f"{source}: {name}") for name in ("bos_token", "eos_token"))
    return Declared(added, special, bos, eos, prefix)


def declare(tokens: dict[str, AddedToken], ids: dict[str, int], declared: Declared) -> dict[str, AddedToken]:
    """The added tokens of a vocabulary, `ids` by text: those of tokenizer.json, `tokens`, and what is declared.

    A special token that is in neither gets the next id, as transformers gives it one.  Raises InputError where a token
    has another id already.
    """
    found = dict(tokens)
    for where, text, token in declared.added:
        known = found[text].id if text in found else ids.get(text)
        if known is not None and known != token.id:
            raise InputError(f"{where}: {text!r} has the id {token.id} here and {known} in the vocabulary")
        found[text] = token
    size = len(ids.keys() | found.keys())
    for text, token in declared.special.items():
        if text in found:
            old = found[text]
            found[text] = AddedToken(
                old.id, old.lstrip, old.rstrip, single_word=old.single_word, normalized=old.normalized
            )
        else:
            token.id = ids.get(text, size)
            size += token.id == size
            found[text] = token
    return found


def added_token(values: Any, where: str, id: int | None = None) -> tuple[str, AddedToken]:
    """The text of a token and what a JSON object says of it; `id` where the object does not say it.

    Raises InputError, beginning with `where`.
    """
    if not isinstance(values, dict):
        raise InputError(f"{where} is {values!r:.60}; expected a JSON object")
    flags = {}
    for name in ("lstrip", "rstrip", "single_word", "special", "normalized"):
        flag = values.get(name)
        if not isinstance(flag, (bool, type(None))):
            raise InputError(f"{where}.{name} is {flag!r:.60}; expected true or false")
        flags[name] = bool(flag)
    if values.get("normalized") is None:
        flags["normalized"] = not flags["special"]
    id = integer(values.get("id"), f"{where}.id") if id is None else id
    return text_of(values.get("content"), f"{where}.content"), AddedToken(id, **flags)


def _special(values: dict[str, Any], source: str) -> dict[str, AddedToken]:
    """The special tokens that a file names, by their texts; their ids are not known yet."""
    found: dict[str, AddedToken] = {}

    def add(value: Any, where: str) -> None:
        if isinstance(value, dict):
            text, token = added_token({**value, "special": True}, where, -1)
            found.setdefault(text, token)
        elif value is not None:
            found.setdefault(text_of(value, where), AddedToken(-1))

    others = [name for name in values if name.endswith("_token") and name not in _NAMES]
    for name in _NAMES:
        add(values.get(name), f"{source}: {name}")
    for name in others:
        if isinstance(values[name], (str, dict)):  # add_bos_token and the like are switches
            add(values[name], f"{source}: {name}")
    for name in _LISTS:
        several = values.get(name) or []
        if isinstance(several, dict):
            several = list(several.values())
        if not isinstance(several, list):
            raise InputError(f"{source}: {name} is {several!r:.60}; expected a list of tokens")
        for i, value in enumerate(several):
            add(value, f"{source}: {name}[{i}]")
    return found


def _text(value: Any, where: str) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return None if value is None else text_of(value, where)
