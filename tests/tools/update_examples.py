"""Write into pages of README and docs/ what their examples print today: after a change that is meant to change them.

    python tests/tools/update_examples.py docs/guides/generate.md …

Only what `test_documentation.py` would refuse is rewritten; look at the difference before you keep it.  In a new
example put `?` where its output shall be.  What differs from run to run, or between CPU levels, becomes `…` by hand.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("package", "support")]
from test_documentation import (  # noqa: E402
    ROOT,
    Block,
    agree,
    blocks,
    commands,
    is_left_out,
    prepare,
    printed_by,
    shown_after,
    written_by,
)

#: Columns that a statement and its output may take together on one line.
_WIDTH = 100

#: Lines of a page that others take the place of: the first, the one behind the last, and what comes there.
Edit = tuple[int, int, list[str]]


def edits_of_python(block: Block, names: dict[str, object], page: list[str]) -> list[Edit]:
    """What to change in a block of Python for its comments to be what its statements print."""
    edits = []
    for statement in ast.parse(block.body).body:
        shown = shown_after(block.body.splitlines(), statement)
        printed = printed_by(statement, names, "page")
        if printed and shown and not agree(shown, printed):
            first = block.line + (statement.end_lineno or 0) - 2
            end = first + 1
            while page[end].startswith("#"):
                end += 1
            code = page[first].encode()[: statement.end_col_offset].decode()
            output = printed.rstrip("\n").split("\n")
            if len(output) == 1 and len(code) + len(output[0]) + 4 <= _WIDTH:
                edits.append((first, end, [f"{code}  # {output[0]}".rstrip()]))
            else:
                edits.append((first, end, [code, *(f"# {line}".rstrip() for line in output)]))
    return edits


def edits_of_console(block: Block, directory: Path) -> list[Edit]:
    """What to change in a block of commands for the lines below each to be what it writes."""
    lines: list[str] = []
    for (command, shown), (printed, _) in zip(commands(block), written_by(block, directory), strict=True):
        output = shown if not shown or agree(shown, printed) else printed.strip("\n")
        lines += [*f"$ {command}".split("\n"), *(output.split("\n") if output else [])]
    first = block.line - 1
    return [(first, first + len(block.body.splitlines()), lines)]


def update(page: Path, directory: Path) -> None:
    """Run a page's examples in `directory` and rewrite what they show."""
    text = page.read_text(encoding="utf-8").split("\n")
    names: dict[str, object] = {"__name__": "__main__"}
    edits: list[Edit] = []
    for block in blocks(page):
        if is_left_out(block):
            continue
        if block.title is not None:
            (directory / block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            edits += edits_of_python(block, names, text)
        elif block.language == "console":
            edits += edits_of_console(block, directory)
    for first, end, lines in reversed(edits):
        text[first:end] = lines
    page.write_text("\n".join(text), encoding="utf-8")


def main() -> None:
    """Update the pages that are named on the command line."""
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    if not pages:
        sys.exit(__doc__)
    for page in pages:
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(prepare(Path(directory), os.environ))
            update(page, Path.cwd())
            os.chdir(ROOT)
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
