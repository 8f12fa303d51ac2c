"""Tokenizer files: read into what a tokenizer is made of, and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpt2fast._bpe import Bpe
from gpt2fast._internal.arguments import path_name
from gpt2fast.errors import InputError, MissingFileError
from gpt2fast.tokenizer import declared
from gpt2fast.tokenizer.json_files import integer, read
from gpt2fast.tokenizer.special import END_OF_TEXT, AddedToken
from gpt2fast.tokenizer.tokenizer_json import read_tokenizer_json

__all__ = ["TokenizerFiles", "check_writable", "read_directory", "read_vocab_and_merges"]

_TOKENIZER_JSON = "tokenizer.json"
_CONFIG, *_LEGACY = declared.FILES
# A line of merges.txt that is no merge, for programs that skip the first one.
_VERSION = "#version: 0.2\n"


class TokenizerFiles(NamedTuple):
    """What a tokenizer is made of, and where it came from."""

    #: The contents of vocab.json and merges.txt.
    vocabulary: bytes
    merges: bytes
    #: The added tokens by their text.
    added: dict[str, AddedToken]
    #: What to call the two in messages.
    vocabulary_source: str = "vocabulary"
    merges_source: str = "merges"
    #: The texts of the tokens before a text and after it.
    bos: str | None = None
    eos: str | None = None
    #: Whether a space is put before a text that begins with none.
    add_prefix_space: bool = False
    #: The names of the files that were read and their bytes; none where they were not one directory's.
    originals: tuple[tuple[str, bytes], ...] = ()

    def build(self) -> Bpe:
        """The encoder, which finds no added tokens yet.  Raises InputError that names the file and the key or line that
        is not acceptable."""
        try:
            return Bpe(self.vocabulary, self.merges, [(text, token.id) for text, token in self.added.items()])
        except ValueError as error:
            kind, message = error.args
            source = self.vocabulary_source if kind == "vocabulary" else self.merges_source
            raise InputError(f"{source}: {message}") from None

    def save(self, directory: str | Path) -> None:
        """Write the files into `directory`, each of which appears whole or not at all: those that were read, as they
        were, else vocab.json, merges.txt and tokenizer_config.json.

        Raises as `check_writable` does.
        """
        from gpt2fast._internal.atomic import atomic_write

        contents = self.contents()
        check_writable(directory, contents)
        Path(directory).mkdir(parents=True, exist_ok=True)
        for file, content in contents.items():
            with atomic_write(Path(directory) / file) as out:
                out.write(content)

    def contents(self) -> dict[str, bytes]:
        """The files by their names."""
        originals = dict(self.originals)
        config: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer"}
        if _TOKENIZER_JSON in originals:
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        if self.bos is not None:
            config["bos_token"] = self.bos
        if self.eos is not None:
            config["eos_token"] = self.eos
        if originals:
            # Without a class transformers takes the directory for a tokenizer's only beside a model's config.json.
            return {_CONFIG: _json(config), **originals}
        config["add_prefix_space"] = self.add_prefix_space
        config["added_tokens_decoder"] = {
            str(token.id): {
                "content": text,
                "lstrip": token.lstrip,
                "normalized": token.normalized,
                "rstrip": token.rstrip,
                "single_word": token.single_word,
                "special": token.special,
            }
            for text, token in sorted(self.added.items(), key=lambda item: item[1].id)
        }
        return {"vocab.json": self.vocabulary, "merges.txt": self.merges, _CONFIG: _json(config)}


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def check_writable(directory: str | Path, contents: Mapping[str, bytes]) -> None:
    """Raises InputError where `directory` holds files of another tokenizer that would be read with those of `contents`,
    or instead of them."""
    folder = Path(path_name(directory))
    for file in (_TOKENIZER_JSON, *_LEGACY):
        if file not in contents and (folder / file).exists():
            raise InputError(
                f"{folder / file}: belongs to another tokenizer and would change this one; remove it, or save "
                "into another directory"
            )


def read_vocab_and_merges(vocab: str | Path, merges: str | Path, specials: tuple[str, ...] = ()) -> TokenizerFiles:
    """The files vocab.json and merges.txt.

    `<|endoftext|>` is special where the vocabulary has it, as are the names of `specials`, which must be in it.  Raises
    MissingFileError, and InputError where a name of `specials` is not in the vocabulary.
    """
    vocab, merges = Path(path_name(vocab)), Path(path_name(merges))
    vocabulary = read(vocab)
    ids = _ids(vocabulary)
    found: dict[str, AddedToken] = {}
    for text in dict.fromkeys((*specials, END_OF_TEXT)):
        if text in ids:
            found[text] = AddedToken(integer(ids[text], f"{vocab}: the id of token {text!r}"))
        elif text in specials:
            raise InputError(f"{vocab}: there is no token {text!r}, which was named as special")
    return TokenizerFiles(vocabulary, read(merges), found, str(vocab), str(merges))


def _ids(vocabulary: bytes) -> dict[str, Any]:
    try:
        ids = json.loads(vocabulary)
    except (ValueError, RecursionError):
        ids = {}  # the encoder's own reader says where it is wrong
    return ids if isinstance(ids, dict) else {}


def read_directory(directory: str | Path) -> TokenizerFiles:
    """The tokenizer of a model directory: tokenizer.json where there is one, else vocab.json and merges.txt; with what
    tokenizer_config.json, special_tokens_map.json and added_tokens.json say of its tokens."""
    directory = Path(path_name(directory))
    if (directory / _TOKENIZER_JSON).is_file():
        files, ids = _of_tokenizer_json(directory / _TOKENIZER_JSON)
        names = [_TOKENIZER_JSON]
    elif (directory / "vocab.json").is_file() or (directory / "merges.txt").is_file():
        names = ["vocab.json", "merges.txt"]
        files = read_vocab_and_merges(directory / names[0], directory / names[1])
        ids = _ids(files.vocabulary)
    elif not directory.is_dir():
        raise MissingFileError(f"{directory}: there is no such directory")
    else:
        raise MissingFileError(f"{directory}: there is neither a tokenizer.json nor a vocab.json with merges.txt")
    said = declared.read_declared(directory, has_tokenizer_json=_TOKENIZER_JSON in names)
    names += [name for name in declared.FILES if (directory / name).is_file()]
    return files._replace(
        added=declared.declare(files.added, ids, said),
        bos=said.bos if said.bos is not None else files.bos,
        eos=said.eos if said.eos is not None else files.eos,
        add_prefix_space=files.add_prefix_space if said.add_prefix_space is None else said.add_prefix_space,
        originals=tuple((name, read(directory / name)) for name in names),
    )


def _of_tokenizer_json(path: Path) -> tuple[TokenizerFiles, dict[str, Any]]:
    said = read_tokenizer_json(path)
    files = TokenizerFiles(
        json.dumps(said.vocabulary).encode(),
        (_VERSION + "\n".join(said.merges)).encode("utf-8", "surrogatepass"),
        said.added,
        f"{path}: model.vocab",
        f"{path}: model.merges",
        said.before,
        said.after,
        said.add_prefix_space,
    )
    return files, said.vocabulary
