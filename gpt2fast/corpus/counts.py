"""How many tokens a file would become."""

from __future__ import annotations

from contextlib import closing

from gpt2fast.corpus.batches import Cursor
from gpt2fast.corpus.dependencies import require
from gpt2fast.corpus.documents import Reading, read_batches
from gpt2fast.corpus.encoding import in_parts
from gpt2fast.corpus.inputs import Input
from gpt2fast.corpus.streams import ByteStream
from gpt2fast.tokenizer.encoding import Tokenizer

__all__ = ["count_tokens"]

_PART = 1 << 22


def count_tokens(source: Input, how: Reading, tokenizer: Tokenizer) -> int:
    """The number of ids of all documents of a file, without end-of-text between them; of a text file without separators
    that of its bytes, which need not be UTF-8.

    Raises as `read_batches` does.
    """
    for kind in (source.kind, source.compression):
        require(f"reading .{kind}", kind)
    if source.kind == "txt" and how.options.separator is None:
        return _count_text(source, how, tokenizer)
    count = 0
    for batch in read_batches(source, Cursor(), how):
        for part in in_parts(batch, tokenizer, how.options.allowed_special):
            ids, _ = tokenizer.encode_spans(
                part.data, part.spans, num_threads=how.num_threads, allowed_special=how.options.allowed_special
            )
            count += len(ids)
    return count


def _count_text(source: Input, how: Reading, tokenizer: Tokenizer) -> int:
    count, text, allowed = 0, b"", how.options.allowed_special
    with closing(ByteStream(source)) as stream:
        while block := stream.read(max(_PART, len(text))):
            text += block
            cut = tokenizer.last_cut(text, allowed_special=allowed)
            count, text = count + tokenizer.count(text[:cut], allowed_special=allowed), text[cut:]
    return count + tokenizer.count(text, allowed_special=allowed)
