"""What callers of the tokenizer may pass as texts, ids and dtypes, turned into what the Rust half takes, or refused."""

from __future__ import annotations

import codecs

from gpt2fast._internal.arguments import index, listed
from gpt2fast.errors import InputError, InputTypeError

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TypeAlias

    import numpy as np
    import numpy.typing as npt

    #: str, or anything that holds bytes: bytes, bytearray, memoryview, mmap.
    Text: TypeAlias = Any

__all__ = [
    "as_batch",
    "as_id",
    "as_ids",
    "as_list_of_ids",
    "as_spanned_text",
    "as_text",
    "as_texts",
    "id_dtype",
    "is_unicode",
    "no_errors",
    "no_text",
    "no_texts",
]

# A vocabulary of this size or less has ids of 16 bits.
_U16 = 1 << 16


def no_text(text: Any, name: str = "text") -> InputTypeError:
    """The error for something that is no text."""
    return InputTypeError(f"{name} is of type {type(text).__name__}; expected str or contiguous bytes")


def no_texts(texts: Sequence[Any]) -> InputTypeError:
    """The error that names the first of `texts` that is no text."""
    for i, text in enumerate(texts):
        try:
            as_text(text)
        except InputTypeError:
            return no_text(text, f"texts[{i}]")
    return InputTypeError("texts changed while they were encoded")


def as_text(text: Text, strict: bool = False) -> Text:
    """`text` as str, bytes or a contiguous memoryview of bytes.

    Raises InputTypeError where it is none of these and, with `strict`, InputError where bytes are not UTF-8.
    """
    if isinstance(text, str):
        return text
    if not isinstance(text, bytes):
        try:
            text = memoryview(text).cast("B")
        except TypeError:
            raise no_text(text) from None
    if strict:
        try:
            codecs.decode(text, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"the text is not UTF-8: {error.reason} at byte {error.start}") from None
    return text


def no_errors(errors: Any) -> InputError | InputTypeError:
    """The error for what is no name of an error handler of `bytes.decode`."""
    if not isinstance(errors, str):
        return InputTypeError(f"errors is of type {type(errors).__name__}; expected str")
    return InputError(f"errors is {errors!r:.60}; expected 'replace', 'strict', 'ignore' …")


def as_texts(texts: Iterable[Text]) -> Sequence[Text]:
    """`texts` as a list or tuple.  Raises InputTypeError for a single text, whose characters are not meant."""
    if isinstance(texts, (list, tuple)):
        return texts
    if isinstance(texts, (str, bytes)):
        raise InputTypeError(f"texts is one {type(texts).__name__}; expected a list of texts")
    return listed("texts", texts, "a list of texts")


def as_spanned_text(text: Text) -> Text:
    """`text` as `as_text` makes it.  Raises InputError for a str with lone surrogates, too, of which UTF-8 has none."""
    if isinstance(text, str) and not is_unicode(text):
        raise InputError("the text holds a lone surrogate, which has no place in UTF-8; its spans are not defined")
    return as_text(text)


def is_unicode(text: str) -> bool:
    """Whether `text` holds no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_ids(tokens: Any) -> Any:
    """`tokens` as the decoder takes them: a list or tuple, or a contiguous array of uint16 or uint32."""
    if isinstance(tokens, (list, tuple)):
        return tokens
    dtype = getattr(tokens, "dtype", None)
    if dtype is None or not hasattr(dtype, "kind"):  # not NumPy's
        if isinstance(tokens, (str, bytes)):
            raise InputTypeError(f"tokens is of type {type(tokens).__name__}; expected a list of token ids")
        return listed("tokens", tokens, "a list of token ids")
    if dtype.kind not in "iu" and tokens.size:
        raise InputTypeError(f"tokens are of type {dtype}; expected integers")
    if tokens.ndim != 1:
        raise InputError(f"tokens has {tokens.ndim} dimensions; expected one")
    if dtype in ("uint16", "uint32"):
        return tokens if tokens.flags.c_contiguous else tokens.copy()
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < 2**32):
        return tokens.tolist()  # the error will name the id
    return tokens.astype("uint32", order="C", copy=False)


def as_list_of_ids(tokens: Any) -> list[int]:
    """`tokens` as a list of ints.  Raises InputTypeError that names the first that is none, as 1.5 or "5"."""
    return [as_id(token, f"tokens[{i}]") for i, token in enumerate(as_ids(tokens))]


def as_id(token: Any, name: str) -> int:
    """`token` as an int.  Raises InputTypeError, which calls it `name`, where it is no whole number."""
    try:
        return index(token)
    except TypeError:
        raise InputTypeError(
            f"{name} is {token!r:.60}, of type {type(token).__name__}; token ids are integers"
        ) from None


def as_batch(batch: Any) -> list[Any]:
    """`batch` as a list.  Raises InputTypeError where it cannot be gone through, as None."""
    if isinstance(batch, (str, bytes)):
        raise InputTypeError(f"batch is of type {type(batch).__name__}; expected lists of token ids")
    return listed("batch", batch, "lists of token ids")


def id_dtype(dtype: npt.DTypeLike | None, n_vocab: int) -> np.dtype[Any]:
    """`dtype` as that of an array of ids: uint16 or uint32; for None the narrower one that has room for them.

    Raises InputError where it is another one, or has no room for `n_vocab` ids.
    """
    import numpy as np

    try:
        wanted = np.dtype(np.uint16 if n_vocab <= _U16 else np.uint32) if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        raise InputTypeError(f"dtype is {dtype!r}; expected uint16 or uint32") from None
    if wanted not in (np.uint16, np.uint32) or (wanted == np.uint16 and n_vocab > _U16):
        raise InputError(f"dtype is {wanted.name!r}; {n_vocab} tokens need {'uint16 or ' * (n_vocab <= _U16)}uint32")
    return wanted
