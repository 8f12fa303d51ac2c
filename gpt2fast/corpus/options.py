"""What a job is asked to do, checked; and how its outputs are called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpt2fast._internal.arguments import one_of, real_number, utf8, whole_number
from gpt2fast.corpus.formats import FORMATS, Format
from gpt2fast.corpus.inputs import WORK_SUFFIX, path_of
from gpt2fast.errors import InputError
from gpt2fast.tokenizer.special import allowed_by

if TYPE_CHECKING:
    from gpt2fast.tokenizer.special import Allowed

__all__ = ["CorpusOptions", "Target"]

_EOT = ("none", "append", "prepend")
_ON_ERROR = ("error", "skip", "replace")


@dataclass(frozen=True)
class CorpusOptions:
    """How documents are found in the inputs and become tokens; see `tokenize_files` for each."""

    field: str = "text"
    separator: str | None = None
    eot: str = "none"
    val_fraction: float = 0.0
    seed: int = 0
    shard_tokens: int | None = None
    on_error: str = "error"
    allow_special: bool = False

    def __post_init__(self) -> None:
        utf8("field", self.field)
        if self.separator is not None:
            utf8("separator", self.separator)
            if "\n" in self.separator or "\r" in self.separator:
                raise InputError(f"separator is {self.separator!r}; expected one line, without its end")
        for name, value, expected in (("eot", self.eot, _EOT), ("on_error", self.on_error, _ON_ERROR)):
            one_of(name, value, expected)
        allowed_by(self.allow_special)
        real_number("val_fraction", self.val_fraction, least=0, most=1)
        if whole_number("seed", self.seed) >= 1 << 64:
            raise InputError(f"seed is {self.seed}; expected 0 to 2**64 - 1")
        if self.shard_tokens is not None:
            whole_number("shard_tokens", self.shard_tokens, least=1)

    @property
    def allowed_special(self) -> Allowed:
        """The special tokens that texts may hold, for the tokenizer's calls."""
        return allowed_by(self.allow_special)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the outputs: "train", and "val" where there is one; the only one there is has no name."""
        return ("train", "val") if self.val_fraction > 0 else ("",)


@dataclass(frozen=True)
class Target:
    """Where the outputs go: `directory`/`stem`, the split's name and the shard's number, and the format's suffix."""

    directory: str
    stem: str
    format: Format

    @classmethod
    def of(cls, out: str | os.PathLike[str], format: str | None) -> Target:
        """The target that `out` names: a file by its suffix, else a directory, whose files are called train and val.

        Raises InputError where the format is not known by name or suffix, or the two disagree.
        """
        path = path_of("out", out)
        if format is not None:
            one_of("format", format, FORMATS)
        stem, suffix = os.path.splitext(path)
        of_suffix = [name for name, one in FORMATS.items() if one.suffix == suffix]
        if path.endswith(os.sep) or os.path.isdir(path) or not of_suffix:
            if suffix and not of_suffix and not path.endswith(os.sep) and not os.path.isdir(path):
                suffixes = ", ".join(sorted({one.suffix for one in FORMATS.values()}))
                raise InputError(f"{path}: what to write is not known by its name; expected {suffixes} or a directory")
            if format is None:
                raise InputError(f"{path}: a directory says no format; expected one of {', '.join(FORMATS)}")
            return cls(path, "", FORMATS[format])
        if format is not None and format not in of_suffix:
            raise InputError(f"{path}: the format {format} has the suffix {FORMATS[format].suffix}")
        parent, name = os.path.split(stem)
        return cls(parent or ".", name, FORMATS[format or of_suffix[0]])

    def locks(self, splits: tuple[str, ...]) -> list[str]:
        """The directories that a job holds while it runs: where it works, and one for each final name, so that two jobs
        that would write the same file never run at the same time, however the file was named."""
        return sorted({self.work, *(self.path(split, None) + WORK_SUFFIX for split in splits)})

    @property
    def work(self) -> str:
        """The directory where the job keeps what it has done so far."""
        return os.path.join(self.directory, (self.stem or "tokenize") + self.format.suffix + WORK_SUFFIX)

    def path(self, split: str, shard: int | None) -> str:
        """The file of a shard, or of all tokens of the split where `shard` is None."""
        name = "_".join(filter(None, (self.stem, split or ("" if self.stem else "train"))))
        return os.path.join(self.directory, name + ("" if shard is None else f"_{shard:06d}") + self.format.suffix)

    def existing(self, splits: tuple[str, ...]) -> Iterator[str]:
        """The files there are that this job would write, were it long enough."""
        if not os.path.isdir(self.directory):
            return
        names = {os.path.basename(self.path(split, None)).removesuffix(self.format.suffix) for split in splits}
        for name in sorted(os.listdir(self.directory)):
            found = re.fullmatch(r"(.*?)(_\d{6,})?" + re.escape(self.format.suffix), name, re.DOTALL)
            if found and found[1] in names:
                yield os.path.join(self.directory, name)
