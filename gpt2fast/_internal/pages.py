"""What all pages share: their style, and text as HTML."""

from __future__ import annotations

import html
from functools import cache
from importlib.resources import files

__all__ = ["as_html", "base_style", "decoded", "escaped"]


@cache
def base_style() -> str:
    """The style sheet of colours, letters and the bar with a token's numbers."""
    return (files("gpt2fast._internal") / "page.css").read_text(encoding="utf-8")


def as_html(text: str) -> str:
    """The text as HTML shows it, also within quotation marks.

    HTML cannot hold control characters; pictures of them, which Unicode has, stand for them.

    >>> as_html("<b>\\0")
    '&lt;b&gt;␀'
    """
    return html.escape("".join(chr(0x2400 + ord(c)) if c < " " and c not in "\t\n\r" else c for c in text))


def decoded(text: str | bytes) -> str:
    r"""The text, of bytes in UTF-8; a byte that is not UTF-8 is \xNN."""
    return text if isinstance(text, str) else text.decode("utf-8", "backslashreplace")


def escaped(text: str | bytes) -> str:
    r"""The text in one line: what cannot be printed is escaped as in Python, and so are backslashes.

    >>> escaped("a\n")
    'a\\n'
    """
    if isinstance(text, bytes):
        # Byte by byte where it is no text, so that a byte and an escape of the same look differ.
        text = text.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    else:
        text = text.replace("\\", "\\\\")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
