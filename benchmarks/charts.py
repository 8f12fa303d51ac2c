"""Bar charts as SVG, for the benchmarks that draw one."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from html import escape
from pathlib import Path

COLOURS = ("#c2410c", "#64748b", "#0f766e", "#7c3aed", "#be185d", "#1d4ed8", "#a16207")


def bar_chart(path: Path, title: str, groups: Mapping[str, Mapping[str, float]], unit: str, note: str) -> None:
    """Write a bar for each value of each group; bars of one program, the first word of a name, share a colour.

    Within a group the longest bar is as wide as the chart, as values of two groups are of different things.
    """
    programs = dict.fromkeys(name.split()[0] for values in groups.values() for name in values)
    colours = dict(zip(programs, COLOURS, strict=False))
    parts: list[str] = []
    y = 50
    for group, values in groups.items():
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{escape(group)}</text>')
        for name, value in values.items():
            y += 20
            width = 350 * value / max(values.values())
            parts.append(f'<text x="20" y="{y}">{escape(name)}</text>')
            colour = colours[name.split()[0]]
            parts.append(f'<rect x="180" y="{y - 11}" width="{width:.0f}" height="14" fill="{colour}"/>')
            parts.append(f'<text x="{185 + width:.0f}" y="{y}">{value:.0f}{escape(unit)}</text>')
        y += 32
    for line in textwrap.wrap(note, 110):
        parts.append(f'<text x="10" y="{y}" font-size="10">{escape(line)}</text>')
        y += 14
    size = f'width="640" height="{y}" font-family="sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    shown = f'<text x="10" y="22" font-size="15">{escape(title)}</text>'
    path.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', shown, *parts, "</svg>\n"]))
