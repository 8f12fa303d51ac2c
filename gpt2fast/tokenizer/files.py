"""Tokenizer files: vocab.json with merges.txt, and tokenizer.json, read into what the tokenizer is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from gpt2fast._bpe import Bpe
from gpt2fast.errors import InputError, MissingFileError
from gpt2fast.tokenizer.special import END_OF_TEXT, SpecialToken

__all__ = ["TokenizerFiles", "read_directory", "read_tokenizer_json", "read_vocab_and_merges"]


class TokenizerFiles(NamedTuple):
    """The contents of vocab.json and merges.txt, the special tokens by their text, and where they came from."""

    vocabulary: bytes
    merges: bytes
    specials: dict[str, SpecialToken]
    vocabulary_source: str = "vocabulary"
    merges_source: str = "merges"

    def build(self) -> Bpe:
        """The encoder.  Raises InputError that names the file and the key or line where they are not acceptable."""
        try:
            return Bpe(self.vocabulary, self.merges, [(text, token.id) for text, token in self.specials.items()])
        except ValueError as error:
            kind, message = error.args
            source = self.vocabulary_source if kind == "vocabulary" else self.merges_source
            raise InputError(f"{source}: {message}") from None

    def save(self, directory: str | Path) -> None:
        """Write vocab.json and merges.txt into `directory`; each appears whole or not at all."""
        from gpt2fast._internal.atomic import atomic_write

        vocabulary = self.vocabulary
        known = json.loads(vocabulary)
        missing = {text: token.id for text, token in self.specials.items() if text not in known}
        if missing:
            vocabulary = json.dumps({**known, **missing}, ensure_ascii=False).encode()
        Path(directory).mkdir(parents=True, exist_ok=True)
        for file, content in (("vocab.json", vocabulary), ("merges.txt", self.merges)):
            with atomic_write(Path(directory) / file) as out:
                out.write(content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, expected a file") from None


def read_vocab_and_merges(vocab: str | Path, merges: str | Path, specials: tuple[str, ...] = ()) -> TokenizerFiles:
    """The files vocab.json and merges.txt.

    `<|endoftext|>` is special where the vocabulary has it, as are the names of `specials`, which must be in it.  Raises
    MissingFileError, and InputError where a name of `specials` is not in the vocabulary.
    """
    vocab, merges = Path(vocab), Path(merges)
    vocabulary = _read(vocab)
    try:
        ids = json.loads(vocabulary)
    except (ValueError, RecursionError):
        ids = {}  # the encoder's own reader says where it is wrong
    if not isinstance(ids, dict):
        ids = {}
    found: dict[str, SpecialToken] = {}
    for text in dict.fromkeys((*specials, END_OF_TEXT)):
        token_id = ids.get(text)
        if isinstance(token_id, int) and 0 <= token_id < 2**31:
            found[text] = SpecialToken(token_id)
        elif text in specials:
            raise InputError(f"{vocab}: there is no token {text!r}, which was named as special")
    return TokenizerFiles(vocabulary, _read(merges), found, str(vocab), str(merges))


def read_directory(directory: str | Path) -> TokenizerFiles:
    """The tokenizer of a model directory: tokenizer.json where there is one, else vocab.json and merges.txt."""
    directory = Path(directory)
    if (directory / "tokenizer.json").is_file():
        return read_tokenizer_json(directory / "tokenizer.json")
    if (directory / "vocab.json").is_file() or (directory / "merges.txt").is_file():
        return read_vocab_and_merges(directory / "vocab.json", directory / "merges.txt")
    if not directory.is_dir():
        raise MissingFileError(f"{directory}: there is no such directory")
    raise MissingFileError(f"{directory}: there is neither a tokenizer.json nor a vocab.json with merges.txt")


def read_tokenizer_json(path: str | Path) -> TokenizerFiles:
    """A Hugging Face tokenizer.json of a byte-level BPE with GPT-2's split (GPT-2, RoBERTa, OPT, GPT-Neo …).

    Raises InputError that names the setting where the file asks for anything else.
    """
    path = Path(path)
    try:
        content = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(content).__name__}")

    def part(name: str) -> dict[str, Any]:
        value = content.get(name)
        if not isinstance(value, dict):
            raise InputError(f"{path}: {name} is {value!r:.60}; expected a JSON object")
        return value

    def require(where: str, values: dict[str, Any], key: str, *allowed: Any) -> None:
        value = values.get(key, allowed[0])
        if value not in allowed:
            raise InputError(f"{path}: {where}.{key} is {value!r:.60}; only {allowed[0]!r} is supported")

    model, split = part("model"), part("pre_tokenizer")
    require("normalizer", {"normalizer": content.get("normalizer")}, "normalizer", None)
    require("pre_tokenizer", split, "type", "ByteLevel")
    require("pre_tokenizer", split, "add_prefix_space", False)
    require("pre_tokenizer", split, "use_regex", True)
    require("model", model, "type", "BPE")
    for key, allowed in (
        ("dropout", (None, 0, 0.0)),
        ("continuing_subword_prefix", (None, "")),
        ("end_of_word_suffix", (None, "")),
        ("byte_fallback", (False, None)),
        ("ignore_merges", (False, None)),
    ):
        require("model", model, key, *allowed)
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise InputError(f"{path}: model.merges is {merges!r:.60}; expected a list")
    lines = []
    for i, pair in enumerate(merges):
        if isinstance(pair, list) and all(isinstance(symbol, str) for symbol in pair):
            pair = " ".join(pair)
        if not isinstance(pair, str) or "\n" in pair:
            raise InputError(f"{path}: model.merges[{i}] is {pair!r:.60}; expected a pair of symbols")
        lines.append(pair)
    return TokenizerFiles(
        json.dumps(model.get("vocab")).encode(),
        ("#version: 0.2\n" + "\n".join(lines)).encode("utf-8", "surrogatepass"),
        _added_tokens(content.get("added_tokens") or [], path),
        f"{path}: model.vocab",
        f"{path}: model.merges",
    )


def _added_tokens(added: Any, path: Path) -> dict[str, SpecialToken]:
    if not isinstance(added, list):
        raise InputError(f"{path}: added_tokens is {added!r:.60}; expected a list")
    found = {}
    for i, token in enumerate(added):
        where = f"{path}: added_tokens[{i}]"
        if not isinstance(token, dict):
            raise InputError(f"{where} is {token!r:.60}; expected a JSON object")
        text, token_id = token.get("content"), token.get("id")
        if not isinstance(text, str) or not text:
            raise InputError(f"{where}.content is {text!r}; expected the token's text")
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 2**31:
            raise InputError(f"{where}.id is {token_id!r}; expected a token id")
        if token.get("single_word"):
            raise InputError(f"{where}: single_word is not supported")
        found[text] = SpecialToken(token_id, bool(token.get("lstrip")), bool(token.get("rstrip")))
    return found
