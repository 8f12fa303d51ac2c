"""GPT-2's own vocabulary, which is part of this package: its encoder is compiled in, its files are only for saving."""

from __future__ import annotations

import os

from gpt2fast._bpe import Bpe
from gpt2fast.tokenizer.special import END_OF_TEXT, AddedToken

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from pathlib import Path
    from typing import ClassVar

    from gpt2fast.tokenizer.files import TokenizerFiles

__all__ = ["GPT2Files"]

_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "gpt2")


class GPT2Files:
    """What GPT-2's tokenizer is made of, with the interface of `TokenizerFiles`; its files are known to be good."""

    #: The added tokens by their text.
    added: ClassVar = {END_OF_TEXT: AddedToken(50256)}
    bos = eos = END_OF_TEXT
    add_prefix_space = False

    def build(self) -> Bpe:
        """The encoder; test_vocabulary_files.py proves that it is what building it from the files comes to."""
        return Bpe.gpt2()

    def contents(self) -> dict[str, bytes]:
        """The files by their names: vocab.json, merges.txt and tokenizer_config.json."""
        return self._files().contents()

    def save(self, directory: str | Path) -> None:
        """Write these files into `directory`; each appears whole or not at all."""
        self._files().save(directory)

    def _files(self) -> TokenizerFiles:
        from gpt2fast.tokenizer.files import read_vocab_and_merges

        vocab, merges = (os.path.join(_DIRECTORY, file) for file in ("vocab.json", "merges.txt"))
        return read_vocab_and_merges(vocab, merges)._replace(bos=self.bos, eos=self.eos)
