"""GPT-2's byte-level BPE tokenizer, with the interface of tiktoken's Encoding and more.

The work is done in Rust (`gpt2fast._bpe`); here are the defaults, the policy for special tokens and the error messages.
"""

from __future__ import annotations

from gpt2fast import _bpe
from gpt2fast._internal.arguments import listed, path_name
from gpt2fast._internal.threads import resolve_num_threads
from gpt2fast.errors import InputError, InputTypeError, UnknownTokenError
from gpt2fast.tokenizer.decode_stream import DecodeStream
from gpt2fast.tokenizer.gpt2_files import GPT2Files
from gpt2fast.tokenizer.inputs import (
    as_batch,
    as_id,
    as_ids,
    as_list_of_ids,
    as_spanned_text,
    as_text,
    as_texts,
    id_dtype,
    no_errors,
    no_text,
    no_texts,
)
from gpt2fast.tokenizer.special import END_OF_TEXT, SpecialTokens

# Large modules of the standard library are loaded by what needs them: typing and pathlib alone take several times as
# long as all that happens before the first text is encoded.
TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    from gpt2fast.tokenizer.files import TokenizerFiles
    from gpt2fast.tokenizer.inputs import Text
    from gpt2fast.tokenizer.special import Allowed, Disallowed

__all__ = ["GPT2_NAMES", "DecodeStream", "Tokenizer", "get_encoding"]

#: The names of GPT-2's tokenizer.
GPT2_NAMES = ("gpt2", "r50k_base")
_LONG_TEXT = 1 << 14  # bytes
_NONE: frozenset[str] = frozenset()  # the default of `allowed_special`: `is` finds it in no time
# By name, however it was passed: a tokenizer pickles as its name only where there is one of that name.
_encodings: dict[str, Tokenizer] = {}


def get_encoding(name: str = "gpt2") -> Tokenizer:
    """The tokenizer of GPT-2, which ships with this package; "r50k_base" is another name for the same ids.

    Raises InputError where the name is another one.

    >>> get_encoding("gpt2").encode("hello world")
    [31373, 995]
    """
    if not isinstance(name, str) or name not in GPT2_NAMES:
        raise InputError(f"unknown encoding {name!r}; expected one of {', '.join(map(repr, GPT2_NAMES))}")
    if name not in _encodings:
        _encodings.setdefault(name, Tokenizer(GPT2Files(), name=name))  # another thread may have been quicker
    return _encodings[name]


class Tokenizer:
    """Text to token ids and back, exactly as tiktoken and the published GPT-2 encoder do it.

    Made by `get_encoding`, `from_files` or `from_pretrained`.  Immutable; safe to use from several threads, after a
    fork, and to pickle.  Texts are str, or bytes-like: bytes need not be UTF-8 (a byte that is not counts as one
    character that is no letter, number or space), and every byte survives the round trip.

    A model directory may have added tokens to the vocabulary.  Those that are not special are found wherever they
    stand, by every call; special ones only where `allowed_special` says so, because they steer a model.  No call puts a
    token before a text or after it, as some of Hugging Face's tokenizers do: see `bos_token_id`.
    """

    def __init__(self, files: TokenizerFiles | GPT2Files, *, name: str) -> None:
        #: What this tokenizer is called.
        self.name = name
        self._files = files
        self._plain = files.build()  # finds no added tokens
        self._special = SpecialTokens(self._plain, files.added, files.add_prefix_space)
        self._bpe = self._special.encoder(frozenset())
        # At hand for `encode`, whose usual case is quick.
        self._encode = self._bpe.encode
        self._only_special = self._special.only
        self._sorted: list[bytes] | None = None

    @classmethod
    def from_files(cls, vocab: str | Path, merges: str | Path, *, special_tokens: Sequence[str] = ()) -> Tokenizer:
        """The tokenizer of a vocab.json and a merges.txt.

        `<|endoftext|>` is a special token where the vocabulary has it; `special_tokens` names further ones.  Raises
        MissingFileError, and InputError that names the file and the key or line where they are not acceptable.
        """
        from pathlib import Path

        from gpt2fast.tokenizer.files import read_vocab_and_merges

        specials = tuple(listed("special_tokens", special_tokens, "a sequence of texts"))
        name = Path(path_name(vocab)).parent.name or "vocab"
        return cls(read_vocab_and_merges(vocab, merges, specials), name=name)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Tokenizer:
        """The tokenizer of a model directory: tokenizer.json, or vocab.json with merges.txt.

        Any byte-level BPE with GPT-2's split is read (GPT-2, RoBERTa, OPT, GPT-Neo …), with the added tokens and the
        begin and end of texts that tokenizer_config.json, special_tokens_map.json and added_tokens.json name.  Raises
        MissingFileError, and InputError that names a setting that is not supported.
        """
        from pathlib import Path

        from gpt2fast.tokenizer.files import read_directory

        return cls(read_directory(directory), name=Path(directory).resolve().name)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the tokenizer's files into `directory`, which `from_pretrained` and transformers' AutoTokenizer read;
        each file appears whole or not at all.

        What was read from a directory is written as it was; else these are vocab.json, merges.txt and
        tokenizer_config.json.  Raises InputError where the directory holds a file of another tokenizer, such as a
        tokenizer.json, that would be read with them.
        """
        self._files.save(directory)

    def check_saving(self, directory: str | Path) -> None:
        """Raises InputError where `save_pretrained` would, and writes nothing."""
        from gpt2fast.tokenizer.files import check_writable

        check_writable(directory, self._files.contents())

    def __repr__(self) -> str:
        return f"<Tokenizer {self.name!r}: {self.n_vocab} tokens>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.name in GPT2_NAMES and self is get_encoding(self.name):
            return get_encoding, (self.name,)
        return _restore, (self._files, self.name)

    def __copy__(self) -> Tokenizer:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokenizer:
        return self

    # Encoding

    def encode_ordinary(self, text: Text) -> list[int]:
        """The ids of `text`, where special tokens are ordinary text.

        >>> get_encoding("gpt2").encode_ordinary("<|endoftext|>")
        [27, 91, 437, 1659, 5239, 91, 29]
        """
        try:
            return self._encode(text)
        except TypeError:
            raise no_text(text) from None

    def encode(
        self,
        text: Text,
        *,
        allowed_special: Allowed = _NONE,
        disallowed_special: Disallowed = "all",
        strict: bool = False,
    ) -> list[int]:
        """The ids of `text`.

        A special token such as `<|endoftext|>` steers a model, so text from outside must not produce one unnoticed:
        by default text that contains one is refused.  `allowed_special={"<|endoftext|>"}` (or "all") makes it the
        special id; `disallowed_special=()` makes it ordinary text.  With `strict`, bytes must be UTF-8.

        Raises InputError where the text contains a disallowed special token or, with `strict`, invalid UTF-8.

        >>> enc = get_encoding("gpt2")
        >>> enc.encode("hello <|endoftext|>", allowed_special="all")
        [31373, 220, 50256]
        >>> enc.encode(b"caf\\xe9")
        [66, 1878, 165]
        """
        if (
            allowed_special is _NONE
            and isinstance(disallowed_special, str)
            and disallowed_special == "all"
            and isinstance(text, str)
            and self._only_special is not None
            and self._only_special not in text
        ):
            return self._encode(text)  # the usual case, without the general one's detours
        text = as_text(text, strict)
        allowed = self._special.allowed_in((text,), allowed_special, disallowed_special)
        return self._special.encoder(allowed).encode(text)

    def encode_to_numpy(
        self,
        text: Text,
        *,
        allowed_special: Allowed = _NONE,
        disallowed_special: Disallowed = "all",
        dtype: npt.DTypeLike | None = None,
        num_threads: int | None = 1,
    ) -> npt.NDArray[Any]:
        """The ids of `text` as a NumPy array, uint32 as tiktoken gives it unless `dtype` says "uint16".

        Raises as `encode` does, and InputError where the ids do not fit `dtype`.
        """
        import numpy as np

        text = as_text(text)
        allowed = self._special.allowed_in((text,), allowed_special, disallowed_special)
        dtype = id_dtype(np.uint32 if dtype is None else dtype, self.n_vocab)
        ids, _ = self._flat(self._special.encoder(allowed), [text], dtype, num_threads)
        return ids

    def encode_ordinary_batch(self, text: Iterable[Text], *, num_threads: int | None = None) -> list[list[int]]:
        """The ids of each text, where special tokens are ordinary text."""
        texts = as_texts(text)
        try:
            return self._bpe.encode_batch(texts, resolve_num_threads(num_threads))
        except TypeError:
            raise no_texts(texts) from None

    def encode_batch(
        self,
        text: Iterable[Text],
        *,
        num_threads: int | None = None,
        allowed_special: Allowed = _NONE,
        disallowed_special: Disallowed = "all",
    ) -> list[list[int]]:
        """The ids of each text; see `encode` for special tokens."""
        texts = [as_text(one) for one in as_texts(text)]
        num_threads = resolve_num_threads(num_threads)
        allowed = self._special.allowed_in(texts, allowed_special, disallowed_special)
        return self._special.encoder(allowed).encode_batch(texts, num_threads)

    def encode_batch_flat(
        self,
        texts: Iterable[Text],
        *,
        num_threads: int | None = None,
        dtype: npt.DTypeLike | None = None,
        allowed_special: Allowed = _NONE,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """All ids in one array, and int64 offsets: text i is `ids[offsets[i]:offsets[i + 1]]`.

        Special tokens are ordinary text, unless `allowed_special`, "all" or a set of them, names them.  The dtype is
        uint16 where the vocabulary fits, else uint32, unless `dtype` names one of them.  Other Python threads run
        meanwhile.

        >>> ids, offsets = get_encoding("gpt2").encode_batch_flat(["hello world", "", "hi"])
        >>> ids.tolist(), ids.dtype.name, offsets.tolist()
        ([31373, 995, 5303], 'uint16', [0, 2, 2, 3])
        """
        texts = as_texts(texts)
        try:
            return self._flat(self._allowing(allowed_special), texts, id_dtype(dtype, self.n_vocab), num_threads)
        except TypeError:
            raise no_texts(texts) from None

    def _flat(
        self, bpe: _bpe.Bpe, texts: Sequence[Text], dtype: np.dtype[Any], num_threads: int | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        import numpy as np

        ids, offsets = bpe.encode_batch_flat(texts, dtype.itemsize == 4, resolve_num_threads(num_threads))
        return np.frombuffer(ids, dtype), np.frombuffer(offsets, np.int64)

    def encode_spans(
        self,
        data: Any,
        spans: npt.ArrayLike,
        *,
        num_threads: int | None = None,
        dtype: npt.DTypeLike | None = None,
        allowed_special: Allowed = _NONE,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """As `encode_batch_flat`, for texts in one buffer, as in Arrow: text i is `data[spans[i]:spans[i + 1]]`.

        Nothing is copied.  Raises InputError where spans overlap or are not within the data.

        >>> ids, offsets = get_encoding("gpt2").encode_spans(b"hello worldhi", [0, 11, 13])
        >>> ids.tolist(), offsets.tolist()
        ([31373, 995, 5303], [0, 2, 3])
        """
        import numpy as np

        try:
            array = np.asarray(spans)
            spans = np.ascontiguousarray(array.astype(np.int64, casting="same_kind" if array.size else "unsafe"))
        except (ValueError, TypeError, OverflowError):
            raise InputTypeError("spans is no array of whole numbers") from None
        if spans.ndim != 1 or not len(spans):
            raise InputError(
                f"spans has the shape {spans.shape}; expected one dimension, and one more than there are texts"
            )
        wanted, threads = id_dtype(dtype, self.n_vocab), resolve_num_threads(num_threads)
        bpe = self._allowing(allowed_special)
        try:
            ids, offsets = bpe.encode_spans(data, spans, wanted.itemsize == 4, threads)
        except TypeError:
            raise no_text(data, "data") from None
        except ValueError as error:
            i = int(error.args[0])
            raise InputError(f"text {i} is data[{spans[i]}:{spans[i + 1]}], which is not within the data") from None
        return np.frombuffer(ids, wanted), np.frombuffer(offsets, np.int64)

    def encode_with_offsets(
        self, text: Text, *, allowed_special: Allowed = _NONE
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of `text` and for each the span (start, end) of its characters in a str, of its bytes in bytes.

        Special tokens are ordinary text, unless `allowed_special`, "all" or a set of them, names them; white space that
        an added token takes is part of its span.  Where a token ends inside a character, it and the next share that
        character.

        >>> get_encoding("gpt2").encode_with_offsets("a 🙂")
        ([64, 32485], [(0, 1), (1, 3)])
        """
        return self._allowing(allowed_special).encode_with_offsets(as_spanned_text(text))

    def encode_with_offsets_flat(
        self, text: Text, *, allowed_special: Allowed = _NONE
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """As `encode_with_offsets`, in arrays: the ids, uint32 (T,), and their spans, int64 (T, 2).

        Other Python threads run meanwhile, however long the text.

        >>> ids, spans = get_encoding("gpt2").encode_with_offsets_flat("a 🙂")
        >>> ids.tolist(), spans.tolist()
        ([64, 32485], [[0, 1], [1, 3]])
        """
        import numpy as np

        ids, spans = self._allowing(allowed_special).encode_with_offsets_flat(as_spanned_text(text))
        return np.frombuffer(ids, np.uint32), np.frombuffer(spans, np.int64).reshape(-1, 2)

    def encode_with_unstable(
        self, text: str, *, allowed_special: Allowed = _NONE, disallowed_special: Disallowed = "all"
    ) -> tuple[list[int], list[list[int]]]:
        """The ids that stay whatever text follows, and the sequences of ids that the rest may turn into.

        As tiktoken's, and as costly: meant for short texts.
        """
        from gpt2fast.tokenizer.unstable import split_unstable

        text = as_text(text)
        allowed = self._special.allowed_in((text,), allowed_special, disallowed_special)
        return split_unstable(self._plain, self._special.encoder(allowed).parts(text), self._sorted_tokens())

    def encode_single_token(self, text_or_bytes: str | bytes) -> int:
        """The id of the token, special or not, that is exactly this text.  Raises UnknownTokenError (a KeyError)."""
        added = self._files.added.get(text_or_bytes) if isinstance(text_or_bytes, str) else None
        if added is not None:
            return added.id
        token = as_text(text_or_bytes)
        if isinstance(token, str):
            token = token.encode("utf-8", "surrogatepass")  # no token has a surrogate
        found = self._bpe.id_of(bytes(token))
        if found is None:
            raise UnknownTokenError(f"{text_or_bytes!r} is not a token of {self.name!r}")
        return found

    def count(self, text: Text, *, allowed_special: Allowed = _NONE) -> int:
        """The number of ids of `text`, where special tokens are ordinary text but for those of `allowed_special`."""
        bpe = self._bpe if allowed_special is _NONE else self._allowing(allowed_special)
        try:
            return bpe.count(text)
        except TypeError:
            raise no_text(text) from None

    def count_batch(
        self, texts: Iterable[Text], *, num_threads: int | None = None, allowed_special: Allowed = _NONE
    ) -> list[int]:
        """The number of ids of each text, where special tokens are ordinary text but for those of `allowed_special`."""
        texts = as_texts(texts)
        try:
            return self._allowing(allowed_special).count_batch(texts, resolve_num_threads(num_threads))
        except TypeError:
            raise no_texts(texts) from None

    def last_cut(self, text: Text, *, allowed_special: Allowed = _NONE) -> int:
        """The last place, in bytes, where a text that goes on can be cut in two, whose ids are then those of the whole,
        whatever follows; 0 where there is none.  `allowed_special` is that of the call that will encode them.

        >>> get_encoding("gpt2").last_cut("Once upon a ti")
        11
        """
        return self._allowing(allowed_special).last_cut(as_text(text))

    def _allowing(self, allowed_special: Allowed) -> _bpe.Bpe:
        """The encoder that takes these special tokens for themselves and others for text."""
        try:
            none = not allowed_special
        except ValueError:  # an array of several
            raise InputTypeError("allowed_special is an array; expected 'all' or a collection of texts") from None
        if none:
            return self._bpe
        return self._special.encoder(self._special.allowed_in((), allowed_special, ()))

    def split(self, text: Text) -> list[Any]:
        """The pieces of `text` that GPT-2's pattern finds, before any merging: str for str, bytes for bytes.

        >>> get_encoding("gpt2").split("Hello's  world")
        ['Hello', "'s", ' ', ' world']
        """
        pieces = self._bpe.split(as_text(text))
        return [piece.decode() for piece in pieces] if isinstance(text, str) else pieces

    # Decoding

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of the ids, a list or a NumPy array.  Raises UnknownTokenError, naming the id and its place."""
        ids = as_ids(tokens)
        try:
            return self._bpe.decode(ids)
        except KeyError as error:
            position, token = error.args
            raise UnknownTokenError(f"tokens[{position}] is {token}; {self._range()}") from None
        except (OverflowError, TypeError):
            # One of them is no id at all: the first of those is named.
            for position, token in enumerate(as_list_of_ids(ids)):
                self._token(token, f"tokens[{position}]")
            raise InputTypeError("tokens changed while they were decoded") from None

    def decode(self, tokens: Iterable[int], errors: str = "replace") -> str:
        """The text of the ids.

        Ids can cut characters: bytes that are not UTF-8 become U+FFFD, or what `errors` says as in `bytes.decode`;
        `decode_bytes` loses nothing.

        >>> get_encoding("gpt2").decode([31373, 995])
        'hello world'
        """
        utf8 = self.decode_bytes(tokens)
        # bytes.decode begins with small characters, and moves all of them when it meets a large one.
        text = _bpe.wide_string(utf8) if len(utf8) >= _LONG_TEXT else None
        try:
            return utf8.decode("utf-8", errors=errors) if text is None else text
        except UnicodeDecodeError:
            raise
        except (LookupError, ValueError):
            raise no_errors(errors) from None

    def decode_single_token_bytes(self, token: int) -> bytes:
        """The bytes of one token, special or not.  Raises UnknownTokenError (a KeyError)."""
        return self._token(as_id(token, "token"), "token")

    def _token(self, token: int, name: str) -> bytes:
        found = self._bpe.token(token) if 0 <= token < 2**32 else None
        if found is None:
            raise UnknownTokenError(f"{name} is {token}; {self._range()}")
        return found

    def decode_tokens_bytes(self, tokens: Iterable[int]) -> list[bytes]:
        """The bytes of each token.

        >>> get_encoding("gpt2").decode_tokens_bytes([31373, 995])
        [b'hello', b' world']
        """
        return [self._token(token, f"tokens[{i}]") for i, token in enumerate(as_list_of_ids(tokens))]

    def decode_with_offsets(self, tokens: Iterable[int]) -> tuple[str, list[int]]:
        """The text of the ids, and for each the index of the first character that has bytes of it.

        Raises UnicodeDecodeError where the ids are not whole characters together.
        """
        length, offsets, parts = 0, [], self.decode_tokens_bytes(tokens)
        for part in parts:
            inside = 0x80 <= part[0] < 0xC0
            offsets.append(max(0, length - inside))
            length += sum(not 0x80 <= byte < 0xC0 for byte in part)
        return b"".join(parts).decode(), offsets

    def decode_batch(
        self, batch: Iterable[Iterable[int]], *, errors: str = "replace", num_threads: int | None = None
    ) -> list[str]:
        """The text of each list of ids, as `decode` makes it; long batches on several threads."""
        lists = [as_ids(tokens) for tokens in as_batch(batch)]
        try:
            return self._bpe.decode_batch(lists, errors, resolve_num_threads(num_threads))
        except (LookupError, OverflowError, TypeError, ValueError):
            return [self.decode(tokens, errors) for tokens in lists]  # raises the error that names what is wrong

    def decode_bytes_batch(self, batch: Iterable[Iterable[int]], *, num_threads: int | None = None) -> list[bytes]:
        """The bytes of each list of ids, as `decode_bytes` makes them; long batches on several threads."""
        lists = [as_ids(tokens) for tokens in as_batch(batch)]
        try:
            return self._bpe.decode_batch(lists, None, resolve_num_threads(num_threads))
        except (LookupError, OverflowError, TypeError):
            return [self.decode_bytes(tokens) for tokens in lists]  # raises the error that names what is wrong

    def decode_stream(self, errors: str = "replace") -> DecodeStream:
        """A decoder that takes ids one by one and gives text as soon as whole characters exist."""
        return DecodeStream(self, errors)

    # The vocabulary

    @property
    def n_vocab(self) -> int:
        """The number of tokens, special ones included."""
        return self._bpe.n_vocab

    @property
    def max_token_value(self) -> int:
        """The highest id."""
        return self._bpe.n_vocab - 1

    @property
    def eot_token(self) -> int:
        """The id of the token that ends a text, `<|endoftext|>` where no file names another; as `eos_token_id`, but
        raises UnknownTokenError (a KeyError) where there is none."""
        if self.eos_token_id is None:
            raise UnknownTokenError(f"{self.name!r} has no special token {END_OF_TEXT!r}, and names no eos_token")
        return self.eos_token_id

    @property
    def bos_token_id(self) -> int | None:
        """The id of the token that comes before a text, None where there is none.

        It is the `bos_token` that the tokenizer's files name, else the token that the post-processor of a
        tokenizer.json puts first, else `<|endoftext|>`.  `encode` does not put it there: scores and generation begin
        from it, unless the model's configuration says otherwise.

        >>> get_encoding("gpt2").bos_token_id
        50256
        """
        return self._id_of_special(self._files.bos)

    @property
    def eos_token_id(self) -> int | None:
        """The id of the token that ends a text, None where there is none: the `eos_token` that the tokenizer's files
        name, else the token that a post-processor puts last, else `<|endoftext|>`."""
        return self._id_of_special(self._files.eos)

    def _id_of_special(self, text: str | None) -> int | None:
        token = self._files.added.get(END_OF_TEXT if text is None else text)
        return None if token is None else token.id

    @property
    def _special_tokens(self) -> dict[str, int]:
        """The ids of the special tokens by their texts, under the name that scripts for tiktoken take them from."""
        return dict(self._special.ids)

    @property
    def special_tokens_set(self) -> set[str]:
        """The texts of the special tokens."""
        return set(self._special.ids)

    def is_special_token(self, token: int) -> bool:
        """Whether the id is a special token's."""
        return as_id(token, "token") in self._special.ids.values()

    def is_added_token(self, token: int) -> bool:
        """Whether the id is an added token's, special or not."""
        wanted = as_id(token, "token")
        return any(wanted == added.id for added in self._files.added.values())

    def token_byte_values(self) -> list[bytes]:
        """The bytes of all ordinary tokens, sorted."""
        return list(self._sorted_tokens())

    def byte_symbols(self) -> list[str]:
        """The 256 characters that stand for bytes in vocab.json and merges.txt, by byte."""
        return _bpe.byte_symbols()

    def _sorted_tokens(self) -> list[bytes]:
        if self._sorted is None:
            ids = (i for i in range(self.n_vocab) if not self._bpe.is_added(i))
            self._sorted = sorted(self._bpe.token(i) or b"" for i in ids)
        return self._sorted

    def _range(self) -> str:
        return f"{self.name!r} has the ids 0 to {self.max_token_value}"


def _restore(files: TokenizerFiles | GPT2Files, name: str) -> Tokenizer:
    return Tokenizer(files, name=name)
