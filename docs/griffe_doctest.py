"""A Griffe extension for the reference pages: the examples of docstrings become fenced blocks.

Docstrings here are plain Markdown, but for the lines that begin with `>>>`, which Markdown takes for a quotation inside
a quotation inside a quotation.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

#: An example: a `>>>` line at the margin, and all lines up to an empty one.
_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Puts fences around the examples in the docstrings of every object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the object's docstring, where it has one."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
