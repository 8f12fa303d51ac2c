"""MkDocs hooks: README's figures and the commands' help in the pages, so that they are written down once.

In a page the comment `<!-- README: Figures -->` becomes that section of README, `<!-- chart: COLUMN; TITLE -->` a bar
chart of that column of the first of its tables that has it, and `<!-- commands -->` the --help of every command.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parent.parent / "README.md"


def section(name: str) -> str:
    """The text of README's section of this name, its links made relative to this directory."""
    match = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", README.read_text(encoding="utf-8"), re.M | re.S)
    if match is None:
        raise ValueError(f"README.md has no section {name!r}")
    return match[1].replace("](docs/", "](").strip()


def column(name: str) -> list[tuple[str, float]]:
    """The labels and numbers of a column of a table in README's figures; rows without a number are left out."""
    header: list[str] = []
    found: list[tuple[str, float]] = []
    for line in README.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            header = []
        elif not header:
            header = cells
        elif name in header and re.match(r"[\d,.]+", number := cells[header.index(name)]):
            label = re.sub(r"[`*]", "", cells[0])
            found.append((label, float(re.match(r"[\d,.]+", number)[0].replace(",", ""))))  # type: ignore[index]
    if not found:
        raise ValueError(f"README.md has no table with a column {name!r}")
    return found


def chart(name: str, title: str) -> str:
    """A bar chart (SVG) of a column, in the colours of the page."""
    rows = column(name)
    most = max(value for _, value in rows)
    parts = [f'<text x="0" y="16" font-size="14" font-weight="600">{escape(title)}</text>']
    for i, (label, value) in enumerate(rows):
        y, width = 34 + 38 * i, 330 * value / most
        kind = "ours" if label.startswith("gpt2fast") else "theirs"
        parts.append(f'<text x="0" y="{y + 10}" font-size="12">{escape(label)}</text>')
        parts.append(f'<rect class="{kind}" x="0" y="{y + 15}" width="{width:.0f}" height="13"/>')
        parts.append(f'<text x="{width + 6:.0f}" y="{y + 26}" font-size="12">{value:g}</text>')
    height = 40 + 38 * len(rows)
    head = f'<svg class="drawing" viewBox="0 0 400 {height}" width="400" role="img" aria-label="{escape(title)}">'
    return "".join([head, *parts, "</svg>"])


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
    markdown = re.sub(r"<!-- README: (.+?) -->", lambda match: section(match[1]), markdown)
    return re.sub(r"<!-- chart: (.+?); (.+?) -->", lambda match: chart(match[1], match[2]), markdown)
