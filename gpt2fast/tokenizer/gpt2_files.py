"""GPT-2's own vocabulary, which is part of this package: its encoder is compiled in, its files are only for saving."""

from __future__ import annotations

import os

from gpt2fast._bpe import Bpe
from gpt2fast.tokenizer.special import END_OF_TEXT, SpecialToken

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GPT2Files"]

_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "gpt2")


class GPT2Files:
    """What GPT-2's tokenizer is made of, with the interface of `TokenizerFiles`; its files are known to be good."""

    def __init__(self) -> None:
        #: The special tokens by their text.
        self.specials = {END_OF_TEXT: SpecialToken(50256)}

    def build(self) -> Bpe:
        """The encoder; test_vocabulary_files.py proves that it is what building it from the files comes to."""
        return Bpe.gpt2()

    def save(self, directory: str | Path) -> None:
        """Write vocab.json and merges.txt into `directory`; each appears whole or not at all."""
        from gpt2fast.tokenizer.files import read_vocab_and_merges

        vocab, merges = (os.path.join(_DIRECTORY, file) for file in ("vocab.json", "merges.txt"))
        read_vocab_and_merges(vocab, merges).save(directory)
