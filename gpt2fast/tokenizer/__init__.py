"""Text to GPT-2's token ids and back: `Tokenizer`, a drop-in for `tiktoken.Encoding`.

The split and the merge loop are Rust (`gpt2fast._bpe`).  From the top down:

- `encoding`          `Tokenizer` and `get_encoding`: defaults, special tokens, errors
- `decode_stream`     ids one by one, text as soon as whole characters exist
- `unstable`          `encode_with_unstable`
- `arrow`             columns of texts to columns of ids
- `gpt2_files`        GPT-2's own vocabulary, which is compiled in
- `files`             vocabularies in files: vocab.json with merges.txt, tokenizer.json
- `special`           special tokens, and `special_patterns`, how they are found in texts
- `inputs`            texts and ids that callers give, checked
"""

from __future__ import annotations

from gpt2fast.tokenizer.encoding import DecodeStream, Tokenizer, get_encoding
from gpt2fast.tokenizer.encoding import _restore as _restore  # older pickles look for it here

__all__ = ["DecodeStream", "Tokenizer", "get_encoding"]
