"""MkDocs hooks: the commands' help and the package's parts in the pages, so that they are written down once.

In a page the comment `<!-- commands -->` becomes the --help of every command, and `<!-- packages -->` the table of the
package's parts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "gpt2fast" / "README.md"


def packages() -> str:
    """The table of who may import whom, in Markdown."""
    match = re.search(r"(?:^\|.*\n)+", PACKAGES.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise ValueError(f"{PACKAGES} has no table")
    return match[0]


def helped(*arguments: str) -> str:
    """What `gpt2fast … --help` writes."""
    environment = os.environ | {"COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "gpt2fast", *arguments, "--help"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def commands() -> str:
    """A section for each command of the shell: its help."""
    names = re.findall(r"^    (\w+)  ", helped(), re.MULTILINE)
    return "\n".join(f"## {name}\n\n```text\n{helped(name)}```\n" for name in names)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put in what a page asks for; called by MkDocs."""
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", commands())
    return markdown.replace("<!-- packages -->", packages())
