"""Chunks of text to code and back, by a model: many at a time, each by itself.

A chunk is cut into tokens, and each token is coded with the frequencies that the model gives it after those before it
in the chunk; the first one comes after the token that texts begin with.  A chunk beyond the model's context is read in
windows: where one is full, the next begins `stride` tokens further on.

Chunks share no context, and no preamble.  Measured with the demo model on 120,000 bytes of tales: to begin every chunk
of 4,096 bytes after 32 to 384 tokens from the beginning of the file changed the code by -0.05 to +0.07 %.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as List
from copy import copy
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpt2fast._internal.numerics import numerics_version
from gpt2fast.compression.container import ModelRecord, varint
from gpt2fast.errors import InputError, InputTypeError, NonFiniteError, UnknownTokenError
from gpt2fast.kernels.coding import Decoder, Encoder
from gpt2fast.model.gpt2 import GPT2
from gpt2fast.model.pairing import beginning, shared_vocabulary
from gpt2fast.scheduler import LOGITS, Need, Scheduler, Sequence
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["Codec", "Model", "Progress"]

# Chunks that are encoded side by side: a pass of 256 tokens takes few of them, however short they are.
_ENCODED = 4
# A chunk whose code is longer than what was coded so many tokens after its beginning is given up.
_PATIENCE = 256


#: What is told how many bytes are done, and how many tokens that took.
Progress = Callable[[int, int], object]


class Model(Protocol):
    """A `gpt2fast.LanguageModel`: a network with its tokenizer."""

    model: GPT2
    tokenizer: Tokenizer


class Codec:
    """What turns chunks into code and code into chunks: a model, its tokens and how its windows go on.

    Raises InputTypeError for what is no language model, and InputError for one whose logits are not the same on every
    machine (on a GPU, or with gemm="blas"), or while functions change what it computes.
    """

    def __init__(self, lm: Model, *, stride: int | None = None, first_id: int | None = None, batch: int = 32) -> None:
        model, tokenizer = getattr(lm, "model", None), getattr(lm, "tokenizer", None)
        if not isinstance(model, GPT2) or not isinstance(tokenizer, Tokenizer):
            raise InputTypeError(
                f"lm is of type {type(lm).__name__}; expected a language model, as gpt2fast.load gives"
            )
        if model.gemm != "panel":
            raise InputError(
                f"the model multiplies with {model.gemm!r}; compression takes one on the CPU with gemm='panel', whose "
                "results are the same on every machine"
            )
        _check_unchanged(model)
        self._model = model
        self._tokenizer = tokenizer
        self._batch = batch
        self._n_vocab = shared_vocabulary(model, tokenizer)
        self._stride = max(model.config.n_ctx // 2, 1) if stride is None else stride
        begin = beginning(model, tokenizer) if first_id is None else first_id
        self._first_id = 0 if begin is None else begin
        #: How many tokens were coded and decoded so far.
        self.tokens = 0

    @cached_property
    def record(self) -> ModelRecord:
        """What a file says of the model, its tokens and windows."""
        return ModelRecord(
            numerics_version,
            self._model.dtype,
            self._model.cache_dtype,
            self._first_id,
            self._stride,
            self._model.sha256(),
            _tokens_of(self._tokenizer, self._n_vocab)[1],
        )

    def for_record(self, record: ModelRecord) -> Codec:
        """The codec of the same model that reads what was written under `record`.

        Raises InputError, which says what differs, where it was another model.
        """
        mine = self.record
        for what, theirs, ours, advice in (
            ("version {} of the arithmetic", record.numerics_version, mine.numerics_version, "another gpt2fast"),
            ("a model kept as {}", record.dtype, mine.dtype, f"dtype={record.dtype!r}"),
            ("a cache kept as {}", record.cache_dtype, mine.cache_dtype, f"cache_dtype={record.cache_dtype!r}"),
            ("a tokenizer with SHA-256 {}", record.tokenizer.hex(), mine.tokenizer.hex(), "its tokenizer"),
            ("a model with SHA-256 {}", record.model.hex(), mine.model.hex(), "that model"),
        ):
            if theirs != ours:
                wrote, have = what.format(theirs), what.format(ours)
                raise InputError(f"the file was written with {wrote}, and this is {have}: take {advice}")
        n_ctx = self._model.config.n_ctx
        if not 1 <= record.stride <= n_ctx:
            raise InputError(f"the file's windows go on by {record.stride} tokens; the model's context is {n_ctx}")
        if record.first_id >= self._n_vocab:
            raise InputError(f"the file's first token is {record.first_id}; the model has {self._n_vocab} tokens")
        if (record.stride, record.first_id) == (self._stride, self._first_id):
            return self
        other = copy(self)
        other._stride, other._first_id = record.stride, record.first_id
        other.__dict__["record"] = record
        return other

    def encode(self, chunks: List[bytes], progress: Progress | None = None) -> list[bytes | None]:
        """The code of each of `chunks`; None where the model makes it no shorter, or has no tokens for its bytes.

        `progress` is called now and then with the bytes of them that are coded, and the tokens.
        Raises NonFiniteError where the model's logits are not finite, and InputError within its `hooks`.
        """
        _check_unchanged(self._model)
        coded = [self._encoded(chunk) for chunk in chunks]
        read = [chunk for chunk in coded if chunk is not None]
        for _ in self._encoding.run(*read):
            if progress is not None:
                progress(sum(chunk.size for chunk in read), sum(chunk.done for chunk in read))
        self.tokens += sum(chunk.done for chunk in coded if chunk is not None)
        return [None if chunk is None else chunk.code for chunk in coded]

    def decode(self, codes: List[tuple[bytes, int]], progress: Progress | None = None) -> list[bytes]:
        """The chunk of each code, which is given with the chunk's size.

        `progress` is called now and then with the bytes of them that are decoded, and the tokens.
        Raises InputError where a code is none of a chunk of that size, and within the model's `hooks`.
        """
        _check_unchanged(self._model)
        chunks = [DecodedChunk(self._first_id, code, size, self._tokens, self._stride) for code, size in codes]
        for number, _ in enumerate(self._decoding.run(*chunks)):
            if progress is not None and number % 256 == 255:
                progress(sum(len(chunk.content) for chunk in chunks), sum(chunk.next_output for chunk in chunks))
        self.tokens += sum(chunk.next_output for chunk in chunks)
        return [bytes(chunk.content) for chunk in chunks]

    @cached_property
    def _encoding(self) -> Scheduler[Any]:
        return Scheduler(self._model, n_vocab=self._n_vocab, background=_ENCODED)

    @cached_property
    def _decoding(self) -> Scheduler[Any]:
        return Scheduler(self._model, n_vocab=self._n_vocab, slots=self._batch)

    @property
    def _tokens(self) -> List[bytes]:
        return _tokens_of(self._tokenizer, self._n_vocab)[0]

    def _encoded(self, chunk: bytes) -> EncodedChunk | None:
        """The chunk as a sequence of tokens; None where they do not give its bytes back."""
        ids = self._tokenizer.encode_ordinary(chunk)
        tokens = self._tokens
        try:
            pieces = [tokens[id] for id in ids]
        except IndexError:  # a token that the model does not know
            return None
        if b"".join(pieces) != chunk or not all(pieces):
            return None
        lengths = np.cumsum([len(piece) for piece in pieces])
        return EncodedChunk(self._first_id, ids, lengths, self._stride, self._model.num_threads)


def _check_unchanged(model: GPT2) -> None:
    if model.has_hooks:
        raise InputError("functions change what the model computes (see GPT2.hooks): no other run would read the code")


@lru_cache(maxsize=4)
def _tokens_of(tokenizer: Tokenizer, n_vocab: int) -> tuple[List[bytes], bytes]:
    """The bytes of every token, none of an id that has no token; and their SHA-256."""
    tokens = []
    digest = hashlib.sha256()
    for id in range(n_vocab):
        try:
            token = tokenizer.decode_single_token_bytes(id)
        except UnknownTokenError:
            token = b""
        tokens.append(token)
        digest.update(varint(len(token)) + token)
    return tokens, digest.digest()


class EncodedChunk(Sequence):
    """A chunk on its way into code; `lengths` are the bytes of its first tokens together."""

    background = True

    def __init__(
        self, first_id: int, ids: List[int], lengths: npt.NDArray[np.int64], stride: int, num_threads: int
    ) -> None:
        super().__init__([first_id, *ids[:-1]])
        #: How many tokens are coded.
        self.done = 0
        #: All of the code; None until it is there, or where it became no shorter than the text.
        self.code: bytes | None = None
        self._targets = np.array(ids, np.int64)
        self._lengths = lengths
        self._stride = stride
        self._num_threads = num_threads
        self._given_up = False
        self._encoder = Encoder()

    @property
    def size(self) -> int:
        """How many bytes are coded."""
        return int(self._lengths[self.done - 1]) if self.done else 0

    @property
    def next_output(self) -> int:
        """The place of the id before the next one to be coded."""
        return self.done

    @property
    def complete(self) -> bool:
        """Whether all is coded, or the chunk given up."""
        return self._given_up or self.done == len(self._targets)

    def need(self, start: int, stop: int) -> Need:
        return LOGITS

    def take(self, values: Any) -> None:
        count = self._encoder.encode(
            values, self._targets[self.done : self.done + len(values)], num_threads=self._num_threads
        )
        self.done += count
        if count < len(values):
            raise NonFiniteError("the logits are not finite")
        if self.done >= _PATIENCE and len(self._encoder) >= self._lengths[self.done - 1]:
            self._given_up = True
        elif self.done == len(self._targets):
            self.code = self._encoder.finish()

    def slide(self, n_ctx: int) -> None:
        self.dropped += self._stride


class DecodedChunk(Sequence):
    """A chunk on its way out of code, `size` bytes of it in the end."""

    def __init__(self, first_id: int, code: bytes, size: int, tokens: List[bytes], stride: int) -> None:
        super().__init__([first_id])
        #: The bytes so far.
        self.content = bytearray()
        self._size = size
        self._tokens = tokens
        self._stride = stride
        self._decoder = Decoder(code)

    @property
    def next_output(self) -> int:
        """The place of the last id."""
        return len(self.ids) - 1

    @property
    def complete(self) -> bool:
        """Whether all bytes are there."""
        return len(self.content) == self._size

    def need(self, start: int, stop: int) -> Need:
        return LOGITS

    def take(self, values: Any) -> None:
        id = self._decoder.decode(values[-1])
        if id == -1:
            raise NonFiniteError("the logits are not finite")
        token = self._tokens[id] if id >= 0 else b""
        if not token or len(self.content) + len(token) > self._size:
            raise InputError(f"the code of a chunk of {self._size} bytes is none: no encoder wrote it")
        self.content += token
        self.ids.append(id)

    def slide(self, n_ctx: int) -> None:
        self.dropped += self._stride
