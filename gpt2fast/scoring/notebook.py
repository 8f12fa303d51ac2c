"""A scored text as notebooks show it: each token the more coloured the less probable it was."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["render_fragment"]

# A surprisal from which on the colour grows no deeper.
_MOST_BITS = 16.0


def render_fragment(tokens: Iterable[tuple[str | bytes, float]], summary: str) -> str:
    """HTML of the texts of tokens, with their surprisals in bits, over one line that sums them up.

    >>> render_fragment([("a<b", 8.0)], "1 token")
    '<div><small>1 token</small><div style="white-space:pre-wrap"><span title="8.00 bits" \
style="background:rgb(230 90 20/.50)">a&lt;b</span></div></div>'
    """
    spans = []
    for text, bits in tokens:
        shown = text if isinstance(text, str) else text.decode("utf-8", "backslashreplace")
        share = f"{min(bits / _MOST_BITS, 1.0):.2f}".lstrip("0")
        spans.append(
            f'<span title="{bits:.2f} bits" style="background:rgb(230 90 20/{share})">{html.escape(shown)}</span>'
        )
    return f'<div><small>{html.escape(summary)}</small><div style="white-space:pre-wrap">{"".join(spans)}</div></div>'
