"""MkDocs hooks: README's figures and the commands' help in the pages, so that they are written down once.

In a page the comment `<!-- README: Figures -->` becomes that section of README, `<!-- table: COLUMN -->` the first of
its tables that has such a column, `<!-- chart: COLUMN; TITLE -->` a bar chart of that column, and `<!-- commands -->`
the --help of every command.
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


def table(name: str) -> str:
    """The first table of README that has a column of this name, in Markdown."""
    for match in re.finditer(r"(?:^\|.*\n)+", README.read_text(encoding="utf-8"), re.MULTILINE):
        header = match[0].splitlines()[0].strip("|").split("|")
        if name in (cell.strip() for cell in header):
            return match[0].rstrip()
    raise ValueError(f"README.md has no table with a column {name!r}")


def column(name: str) -> list[tuple[str, float]]:
    """The labels and numbers of a column of a table in README; rows that begin with no number there are left out."""
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table(name).splitlines())
    place = header.index(name)
    found = [(row[0], re.match(r"[\d,.]+", row[place])) for row in rows]
    return [(re.sub(r"[`*]", "", label), float(match[0].replace(",", ""))) for label, match in found if match]


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
    markdown = re.sub(r"<!-- table: (.+?) -->", lambda match: table(match[1]), markdown)
    return re.sub(r"<!-- chart: (.+?); (.+?) -->", lambda match: chart(match[1], match[2]), markdown)
