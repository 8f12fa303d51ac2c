"""Text to GPT-2's token ids and back: `Tokenizer`, a drop-in for `tiktoken.Encoding`.

The split and the merge loop are Rust (`gpt2fast._bpe`).  From the top down:

- `names`             tokenizers of other names, as tiktoken's callers ask for them
- `encoding`          `Tokenizer` and `get_encoding`: defaults, special tokens, errors
- `decode_stream`     ids one by one, text as soon as whole characters exist
- `unstable`          `encode_with_unstable`
- `arrow`             columns of texts to columns of ids
- `gpt2_files`        GPT-2's own vocabulary, which is compiled in
- `files`             tokenizers in files, read and written: vocab.json with merges.txt, or
- `tokenizer_json`    tokenizer.json
- `declared`          the small files beside them, which name added and special tokens
- `json_files`        values in such files, checked
- `special`           added tokens, and which special ones a text may hold
- `inputs`            texts and ids that callers give, checked
"""

from __future__ import annotations

from gpt2fast.tokenizer.encoding import DecodeStream, Tokenizer, get_encoding
from gpt2fast.tokenizer.encoding import _restore as _restore  # older pickles look for it here

TYPE_CHECKING = False  # as typing has it, which takes long to load
if TYPE_CHECKING:
    from typing import Any

    from gpt2fast.tokenizer.names import encoding_for_model, list_encoding_names

__all__ = ["DecodeStream", "Tokenizer", "encoding_for_model", "get_encoding", "list_encoding_names"]


def __getattr__(name: str) -> Any:
    if name not in ("encoding_for_model", "list_encoding_names"):
        raise AttributeError(f"module 'gpt2fast.tokenizer' has no attribute {name!r}")
    from gpt2fast.tokenizer import names

    return getattr(names, name)
