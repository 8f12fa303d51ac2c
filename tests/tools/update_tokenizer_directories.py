"""Writes tests/data/tokenizer/directories.json: tokenizers as they lie in model directories, and the ids that
transformers and tokenizers give for them.

    pip install "transformers==5.24.*" "tokenizers==0.23.*" && python tests/tools/update_tokenizer_directories.py

The vocabulary, of the 256 bytes and a few merges, is the same in all; files hold it as "VOCAB" and "MERGES".
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

PATH = Path(__file__).parent.parent / "data" / "tokenizer" / "directories.json"
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TIKTOKEN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
MERGES = ["t h", "th e", "Ġ the", "k i", "n g", "ki ng", "Ġ king", "i n", "! !"]

TEXTS = [
    "",
    " ",
    "the king",
    " the  king\n\nthe king ",
    "a cat, cats concat; cat's _cat cat9 cat\u0301",
    "see  <mask> there <mask>\n <mask>the",
    "<r>  the <r>\t<r>the",
    "<s>the king</s><pad> the",
    "in New York, New  York, newNew York!",
    "abc bcd abcd xbc",
    "日本語 日本 café é\u00a0the",
    "🙂<|endoftext|>🙂 the<|endoftext|>the",
    "'s 're the's\r\n\tthe",
    "wait! wait!! wait!!!",
    "<user>the king<bot> <user> \u3000<mask>",
    "12 34th kingking kings",
    "\n<mask>\n",
    "<image> dignums dollars undignums",
]


def byte_symbols() -> list[str]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte if byte in plain else 0x100 + others.index(byte)) for byte in range(256)]


VOCAB = {symbol: i for i, symbol in enumerate(sorted(byte_symbols()))}
VOCAB |= {merge.replace(" ", ""): 256 + i for i, merge in enumerate(MERGES)}
SIZE = len(VOCAB)


def token(text: str, id: int, **flags: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False} | flags
    return {"id": id, "content": text, **flags}


def tokens(*texts: str, first: int = SIZE, **flags: bool) -> list[dict[str, Any]]:
    return [token(text, first + i, **flags) for i, text in enumerate(texts)]


def tokenizer_json(*added: dict[str, Any], **parts: Any) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": "VOCAB",
            "merges": "MERGES",
        },
    } | parts


def byte_level(**changes: Any) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True} | changes


def split(pattern: str, **changes: Any) -> dict[str, Any]:
    one = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} | changes
    return {"type": "Sequence", "pretokenizers": [one, byte_level(use_regex=False)]}


def template(before: str | None, after: str | None, ids: dict[str, int]) -> dict[str, Any]:
    special = {text: {"id": text, "ids": [id], "tokens": [text]} for text, id in ids.items()}
    single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if before:
        single.insert(0, {"SpecialToken": {"id": before, "type_id": 0}})
    if after:
        single.append({"SpecialToken": {"id": after, "type_id": 0}})
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}


GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
GPT2 = {"tokenizer_class": "GPT2Tokenizer"}
ENDS = [token("<s>", SIZE, special=True), token("</s>", SIZE + 1, special=True)]
PLAIN = {"vocab.json": {**VOCAB, "<|endoftext|>": SIZE}, "merges.txt": "MERGES"}
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
FIRST = {text: i for i, text in enumerate(["<s>", "<pad>", "</s>", "<unk>"])}

CASES: dict[str, dict[str, Any]] = {
    "words that are not special": {
        "tokenizer.json": tokenizer_json(*tokens("dignums", "New York", "日本", "🙂", "dignums dollars")),
        "tokenizer_config.json": GENERIC,
    },
    "normalized ones come second": {
        "tokenizer.json": tokenizer_json(*tokens("abc", "cat", normalized=True), *tokens("bcd", first=SIZE + 2)),
        "tokenizer_config.json": GENERIC,
    },
    "white space beside tokens": {
        "tokenizer.json": tokenizer_json(
            token("<mask>", SIZE, lstrip=True, special=True),
            token("<r>", SIZE + 1, rstrip=True),
            token("<user>", SIZE + 2, lstrip=True, rstrip=True, special=True),
            token(" king", SIZE + 3, normalized=True),
        ),
        "tokenizer_config.json": GENERIC,
    },
    "words of their own": {
        "tokenizer.json": tokenizer_json(
            token("cat", SIZE, single_word=True, normalized=True),
            token("kings", SIZE + 1, single_word=True, lstrip=True),
            token("日本", SIZE + 2, single_word=True, special=True),
        ),
        "tokenizer_config.json": GENERIC,
    },
    "a space before texts": {
        "tokenizer.json": tokenizer_json(
            *tokens("<mask>", "<user>", special=True),
            *tokens("cat", "New York", first=SIZE + 2, normalized=True),
            pre_tokenizer=byte_level(add_prefix_space=True),
        ),
        "tokenizer_config.json": GENERIC | {"add_prefix_space": True},
    },
    "a space before texts, says the file of a class that makes its own split": {
        "tokenizer.json": tokenizer_json(*tokens("<mask>", special=True), *tokens("cat", first=SIZE + 1)),
        "tokenizer_config.json": GPT2
        | {"add_prefix_space": True, "bos_token": "<mask>", "eos_token": "<mask>", "unk_token": "<mask>"},
    },
    "no space before texts, says the file of a class that makes its own split": {
        "tokenizer.json": tokenizer_json(
            *tokens("<|endoftext|>", special=True), pre_tokenizer=byte_level(add_prefix_space=True)
        ),
        "tokenizer_config.json": GPT2 | {"add_prefix_space": False},
    },
    "split by GPT-2's pattern": {
        "tokenizer.json": tokenizer_json(*tokens("cat"), pre_tokenizer=split(PATTERN)),
        "tokenizer_config.json": GENERIC,
    },
    "split by GPT-2's pattern, the matches kept": {
        "tokenizer.json": tokenizer_json(pre_tokenizer=split(PATTERN, behavior="Removed", invert=True)),
        "tokenizer_config.json": GENERIC,
    },
    "split by tiktoken's pattern": {
        "tokenizer.json": tokenizer_json(pre_tokenizer=split(TIKTOKEN)),
        "tokenizer_config.json": GENERIC,
    },
    "a sequence of one": {
        "tokenizer.json": tokenizer_json(
            normalizer={"type": "Sequence", "normalizers": []},
            pre_tokenizer={"type": "Sequence", "pretokenizers": [byte_level()]},
        ),
        "tokenizer_config.json": GENERIC,
    },
    "RoBERTa's post-processor": {
        "tokenizer.json": tokenizer_json(
            *ENDS,
            token("<mask>", SIZE + 2, lstrip=True, special=True),
            post_processor={
                "type": "RobertaProcessing",
                "sep": ["</s>", SIZE + 1],
                "cls": ["<s>", SIZE],
                "trim_offsets": True,
                "add_prefix_space": False,
            },
        ),
        "tokenizer_config.json": GENERIC,
    },
    "a template with a beginning": {
        "tokenizer.json": tokenizer_json(*ENDS, post_processor=template("<s>", None, {"<s>": SIZE})),
        "tokenizer_config.json": GENERIC,
    },
    "a template with both ends, in a sequence": {
        "tokenizer.json": tokenizer_json(
            *ENDS,
            post_processor={
                "type": "Sequence",
                "processors": [byte_level(), template("<s>", "</s>", {"<s>": SIZE, "</s>": SIZE + 1})],
            },
        ),
        "tokenizer_config.json": GENERIC,
    },
    "an end that is not said to be special": {
        "tokenizer.json": tokenizer_json(*tokens("<s>", "</s>", "<user>")),
        "tokenizer_config.json": GENERIC | {"eos_token": "</s>", "extra_special_tokens": ["<user>"]},
    },
    "padding that is not there": {
        "tokenizer.json": tokenizer_json(*tokens("<|endoftext|>", special=True)),
        "tokenizer_config.json": GPT2 | {"pad_token": "<pad>", "image_token": "<image>"},
    },
    "padding that is a byte": {
        "tokenizer.json": tokenizer_json(
            token("!", VOCAB["!"], special=True), token("<|endoftext|>", SIZE, special=True)
        ),
        "tokenizer_config.json": GENERIC | {"pad_token": "!", "eos_token": "<|endoftext|>"},
    },
    "words that are there": {
        "tokenizer.json": tokenizer_json(
            token("king", VOCAB["king"], normalized=True), token("the", VOCAB["the"]), *tokens("cat", "cats")
        ),
        "tokenizer_config.json": GENERIC,
    },
    "vocab.json, added_tokens.json and special_tokens_map.json": {
        **PLAIN,
        "added_tokens.json": {"<bot>": SIZE + 2, "<user>": SIZE + 1, "dignums": SIZE + 4, "<mask>": SIZE + 3},
        "special_tokens_map.json": {
            "bos_token": "<|endoftext|>",
            "eos_token": {
                "content": "<|endoftext|>",
                "lstrip": False,
                "normalized": True,
                "rstrip": False,
                "single_word": False,
            },
            "mask_token": {
                "content": "<mask>",
                "lstrip": True,
                "normalized": True,
                "rstrip": False,
                "single_word": False,
            },
            "additional_special_tokens": ["<user>", "<bot>"],
        },
        "tokenizer_config.json": GPT2,
    },
    "vocab.json and added_tokens_decoder": {
        **PLAIN,
        "tokenizer_config.json": GPT2
        | {
            "bos_token": "<|endoftext|>",
            "eos_token": "</s>",
            "pad_token": {
                "__type": "AddedToken",
                "content": "<pad>",
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            },
            "add_prefix_space": True,
            "added_tokens_decoder": {
                str(one.pop("id")): one
                for one in (
                    token("<|endoftext|>", SIZE, special=True),
                    token("</s>", SIZE + 1, special=True),
                    token("<pad>", SIZE + 2, special=True),
                    token("<mask>", SIZE + 3, lstrip=True, special=True),
                    token("cat", SIZE + 4, single_word=True, normalized=True),
                    token("New York", SIZE + 5, normalized=True),
                )
            },
        },
        "special_tokens_map.json": {"eos_token": "<|endoftext|>", "additional_special_tokens": ["<user>"]},
        "added_tokens.json": {
            "</s>": SIZE + 1,
            "<pad>": SIZE + 2,
            "<mask>": SIZE + 3,
            "cat": SIZE + 4,
            "New York": SIZE + 5,
        },
    },
    "vocab.json that begins with the special tokens": {
        "vocab.json": FIRST | {text: id + len(FIRST) for text, id in VOCAB.items()},
        "merges.txt": "MERGES",
        "tokenizer_config.json": GPT2 | NAMED,
        "special_tokens_map.json": NAMED,
    },
    "vocab.json and special tokens without a place": {
        **PLAIN,
        "tokenizer_config.json": GPT2 | {"additional_special_tokens": ["<user>", "<bot>"], "pad_token": "<pad>"},
    },
    "vocab.json and nothing else": {**PLAIN, "tokenizer_config.json": GPT2},
}


def filled(value: Any) -> Any:
    """The contents of a file, with the vocabulary in the place of its name."""
    if value == "VOCAB":
        return VOCAB
    if value == "MERGES":
        return [merge.split(" ") for merge in MERGES]
    return {key: filled(one) for key, one in value.items()} if isinstance(value, dict) else value


def write(directory: Path, files: dict[str, Any]) -> None:
    """The files of a case, and a config.json for AutoTokenizer."""
    for name, content in files.items():
        if name == "merges.txt":
            (directory / name).write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
        else:
            (directory / name).write_text(json.dumps(filled(content), ensure_ascii=False))
    (directory / "config.json").write_text('{"model_type": "gpt2"}')


def expected(files: dict[str, Any]) -> dict[str, Any]:
    """What transformers makes of the files."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), files)
        tokenizer = AutoTokenizer.from_pretrained(name)
        as_text = AutoTokenizer.from_pretrained(name, split_special_tokens=True)
        # Those that are only named as special count as such, too.
        named = [AddedToken(text, special=True) for text in tokenizer.all_special_tokens]
        as_text.add_tokens(named, special_tokens=True)
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
        if files["tokenizer_config.json"] == GENERIC:
            own = Tokenizer.from_file(f"{name}/tokenizer.json")
            assert [own.encode(text, add_special_tokens=False).ids for text in TEXTS] == ids
        return {
            "size": len(tokenizer),
            "special": sorted(tokenizer.all_special_tokens),
            "bos": tokenizer.bos_token_id,
            "eos": tokenizer.eos_token_id,
            "begin": tokenizer.encode("", add_special_tokens=True),
            "ids": ids,
            "special as text": [as_text.encode(text, add_special_tokens=False) for text in TEXTS],
        }


def main() -> None:
    cases = {name: {"files": files, **expected(files)} for name, files in CASES.items()}
    content = {"VOCAB": VOCAB, "MERGES": MERGES, "texts": TEXTS, "cases": cases}
    lines = json.dumps(content, ensure_ascii=False).replace("], [", "],\n[").replace('{"files"', '\n{"files"')
    PATH.write_text(lines + "\n")


if __name__ == "__main__":
    main()
