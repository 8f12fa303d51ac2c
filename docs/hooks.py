"""MkDocs hooks: README's figures and the commands' help in the pages, so that they are written down once.

In a page the comment `<!-- README: Figures -->` becomes that section of README, `<!-- table: COLUMN -->` the first of
its tables that has such a column, `<!-- commands -->` the --help of every command, and `<!-- packages -->` the table
of the package's parts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PACKAGES = ROOT / "gpt2fast" / "README.md"


def section(name: str) -> str:
    """The text of README's section of this name, its links made relative to this directory."""
    match = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", README.read_text(encoding="utf-8"), re.M | re.S)
    if match is None:
        raise ValueError(f"README.md has no section {name!r}")
    return match[1].replace("](docs/", "](").strip()


def table(name: str) -> str:
    """The first table of README that has a column of this name, in Markdown."""
    for match in re.finditer(r"(?:^\|.*\n)+", README.read_text(encoding="utf-8"), re.MULTILINE):
        header = match[0].splitlines()[0].strip("|").split("|")
        if name in (cell.strip() for cell in header):
            return match[0].rstrip()
    raise ValueError(f"README.md has no table with a column {name!r}")


def packages() -> str:
    """The table of who may import whom, in Markdown."""
    match = re.search(r"(?:^\|.*\n)+", PACKAGES.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise ValueError(f"{PACKAGES} has no table")
    return match[0]


def helped(*arguments: str) -> str:
    """What `gpt2fast … --help` writes."""
    environment = os.environ | {"COLUMNS": "80", "PYTHONPATH": str(README.parent)}
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
    markdown = markdown.replace("<!-- packages -->", packages())
    markdown = re.sub(r"<!-- README: (.+?) -->", lambda match: section(match[1]), markdown)
    return re.sub(r"<!-- table: (.+?) -->", lambda match: table(match[1]), markdown)
