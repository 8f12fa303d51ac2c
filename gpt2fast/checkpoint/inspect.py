"""What `gpt2fast inspect` shows: the tensors of a safetensors file or a checkpoint directory, without reading them."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

from gpt2fast import safetensors as st
from gpt2fast._internal.arguments import path_name
from gpt2fast.checkpoint.config import Config
from gpt2fast.checkpoint.names import expected_shapes
from gpt2fast.checkpoint.weights import Checkpoint
from gpt2fast.errors import Error, MissingFileError
from gpt2fast.safetensors.dtypes import SUB_BYTE, numpy_dtype

__all__ = ["FileInfo", "Report", "TensorInfo", "inspect", "render_json", "render_text"]

_LONGEST_VALUE = 160  # characters of a metadata value that the text shows


@dataclass(frozen=True)
class TensorInfo:
    """One tensor, as the header of its file describes it."""

    name: str
    #: The format's name of its type.
    dtype: str
    shape: tuple[int, ...]
    #: Size of its values in bytes.
    nbytes: int
    #: Where its values begin, in bytes from the start of the file.
    offset: int
    #: Whether it can be used where it is when the file is mapped; else it is copied.
    aligned: bool
    #: The name of its file.
    file: str

    @property
    def size(self) -> int:
        """The number of its elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class FileInfo:
    """One safetensors file."""

    name: str
    nbytes: int
    #: The length of the header in bytes, without the eight that give this length.
    header_nbytes: int
    metadata: dict[str, str]


@dataclass(frozen=True)
class Report:
    """What a file, or the files of a checkpoint directory, hold."""

    path: str
    files: tuple[FileInfo, ...]
    #: File by file, in the order of their data.
    tensors: tuple[TensorInfo, ...]
    #: Of a directory with the config.json of a GPT-2, else None.
    config: Config | None = None
    #: The parameters of that network, a tied head counted once.
    num_parameters: int | None = None
    #: Why the directory cannot be loaded as a GPT-2; None where it can, and for a file.
    problem: str | None = None

    @property
    def size(self) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


def inspect(path: str | os.PathLike[str]) -> Report:
    """The tensors, metadata and, for a checkpoint directory, configuration at `path`; no values are read.

    A directory may have one `model.safetensors` or an index and shards, and its config.json may be missing or of
    another model: what keeps it from being loaded as a GPT-2 becomes `problem`, not an error.

    Raises MissingFileError where there is no such file or directory, or no safetensors file in it, and the errors of
    `gpt2fast.safetensors.load_file` for a file that is malformed.

    >>> import tempfile
    >>> import numpy as np
    >>> directory = tempfile.TemporaryDirectory()
    >>> st.save_file({"w": np.zeros((2, 3), np.float16)}, os.path.join(directory.name, "m.safetensors"))
    >>> inspect(os.path.join(directory.name, "m.safetensors")).tensors[0].shape
    (2, 3)
    >>> directory.cleanup()
    """
    directory = Path(path_name(path))
    if not os.path.isdir(directory):
        file, tensors = _inspect_file(directory)
        return Report(str(directory), (file,), tuple(tensors))
    files, tensors = [], []
    for shard in _files(directory):
        file, found = _inspect_file(shard)
        files.append(file)
        tensors += found
    config, count, problem = None, None, None
    try:
        config = Config.from_pretrained(directory)
        with Checkpoint(directory) as checkpoint:
            config = checkpoint.config  # which knows whether the head is tied
    except Error as error:
        problem = str(error)
    if config is not None:
        count = sum(prod(shape) for shape in expected_shapes(config).values())
    return Report(str(directory), tuple(files), tuple(tensors), config, count, problem)


def _files(directory: Path) -> list[Path]:
    single = directory / st.SINGLE_NAME
    if single.is_file():
        return [single]
    if (directory / st.INDEX_NAME).exists():
        return list(dict.fromkeys(st.read_index(directory).values()))
    raise MissingFileError(f"{directory}: there is neither {st.SINGLE_NAME} nor {st.INDEX_NAME}")


def _inspect_file(path: Path) -> tuple[FileInfo, list[TensorInfo]]:
    with st.safe_open(path) as file:
        start = file.data_start
        tensors = [
            TensorInfo(
                name=name,
                dtype=entry.dtype,
                shape=entry.shape,
                nbytes=entry.end - entry.begin,
                offset=start + entry.begin,
                aligned=entry.dtype in SUB_BYTE or (start + entry.begin) % numpy_dtype(entry.dtype).alignment == 0,
                file=path.name,
            )
            for name, entry in file.entries.items()
        ]
        end = start + max((entry.end for entry in file.entries.values()), default=0)
        return FileInfo(path.name, end, start - 8, file.metadata()), tensors


def render_json(report: Report) -> str:
    """The report as one JSON object, with the keys of `Report` and the totals; ends with a newline."""
    content = asdict(report)
    content["config"] = None if report.config is None else report.config.to_dict()
    content["size"], content["nbytes"] = report.size, report.nbytes
    return json.dumps(content, indent=2) + "\n"


def render_text(report: Report) -> str:
    """The report as a table for people, then what it amounts to; ends with a newline.

    Names and metadata come from the file: whatever is not printable in them is escaped, so that it cannot reach the
    terminal as a command.
    """
    several = len(report.files) > 1
    rows: list[tuple[str, ...]] = [("name", "dtype", "shape", "bytes", "offset", "aligned", "file")]
    for tensor in report.tensors:
        numbers = (str(list(tensor.shape)), f"{tensor.nbytes:,}", f"{tensor.offset:,}")
        aligned = "yes" if tensor.aligned else "no"
        rows.append((_printable(tensor.name), tensor.dtype, *numbers, aligned, _printable(tensor.file)))
    if not several:
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in (3, 4) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += ["", *_totals(report)]
    for file in report.files:
        for name, value in file.metadata.items():
            shown = _printable(value[:_LONGEST_VALUE]) + ("..." if len(value) > _LONGEST_VALUE else "")
            lines.append(f"metadata{f' of {_printable(file.name)}' if several else ''}: {_printable(name)} = {shown}")
    if report.config is not None:
        c = report.config
        lines.append(
            f"GPT-2: n_layer={c.n_layer} n_head={c.n_head} n_embd={c.n_embd} n_inner={c.n_inner} n_ctx={c.n_ctx} "
            f"vocab_size={c.vocab_size} activation_function={c.activation_function} "
            f"{'tied' if c.tie_word_embeddings else 'untied'} head, {report.num_parameters:,} parameters"
        )
    if report.problem is not None:
        lines.append(f"cannot be loaded as a GPT-2: {_printable(report.problem)}")
    return "\n".join(lines) + "\n"


def _totals(report: Report) -> list[str]:
    types = Counter(tensor.dtype for tensor in report.tensors)
    counted = ", ".join(f"{count:,} {dtype}" for dtype, count in types.most_common())
    lines = [
        f"{_count(len(report.tensors), 'tensor')}{f' ({counted})' if counted else ''}, "
        f"{_count(report.size, 'element')}, {_count(report.nbytes, 'byte')} of data"
    ]
    for file in report.files:
        lines.append(f"{_printable(file.name)}: {_count(file.nbytes, 'byte')}, {file.header_nbytes:,} of them header")
    misaligned = sum(not tensor.aligned for tensor in report.tensors)
    if misaligned:
        lines.append(f"{misaligned:,} of {_count(len(report.tensors), 'tensor')} not aligned: copied when mapped")
    return lines


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
