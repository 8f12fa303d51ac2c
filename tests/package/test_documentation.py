"""Every example in the docstrings, in README and in docs/ runs, and shows what it says.

In a page these fenced blocks are run, in order, in a directory of the page's own:

- `python`: all of a page's blocks share their names.  The comments after a statement that prints are what it prints.
- `console`: a line that begins with `$ ` is given to bash; the lines below it are what it writes, to either stream.
  A command that fails must show how.  What was started in the background ends with the block.
- any language with `title="NAME"`: the block is the content of that file, which the page's examples can read.

`…` in what is shown stands for anything.  Space at the ends of lines does not matter.  A comment before a block can say
`<!-- needs: MODULE, MODULE -->`: the block is left out where one is not installed; or `<!-- not run: REASON -->`.
`update_examples.py` writes into a page what its examples print.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import importlib.util
import io
import os
import pkgutil
import re
import signal
import subprocess
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from paths import ROOT

import gpt2fast

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(gpt2fast.__path__, "gpt2fast.")
    if not module.name.endswith(("__main__", "_bpe")) and ".kernels" not in module.name
)
BLOCK = re.compile(
    r"(?:^<!--\ (?P<word>needs|not\ run):\ (?P<why>[^\n]+?)\ -->\n+)?"
    r"^```(?P<language>[\w-]*)(?P<info>[^\n]*)\n(?P<body>.*?)^```[ ]*$",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
MARK = "--- the next command ---"


@dataclass
class Block:
    """A fenced block of a page."""

    language: str
    body: str
    line: int
    title: str | None
    needs: list[str]
    not_run: bool


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        title = re.search(r'title="([^"]+)"', match["info"])
        found.append(
            Block(
                language=match["language"],
                body=match["body"],
                line=text.count("\n", 0, match.start("body")) + 1,
                title=title and title[1],
                needs=[name.strip() for name in match["why"].split(",")] if match["word"] == "needs" else [],
                not_run=match["word"] == "not run",
            )
        )
    return found


def agree(shown: str, printed: str) -> bool:
    """Whether what a page shows is what an example printed."""
    shown, printed = ("\n".join(line.rstrip() for line in text.strip("\n").splitlines()) for text in (shown, printed))
    return re.fullmatch(".*?".join(map(re.escape, shown.split("…"))), printed, re.DOTALL) is not None


def compare(place: str, code: str, shown: str, printed: str) -> None:
    """Fail where a page shows something else than what was printed."""
    if shown and not agree(shown, printed):
        pytest.fail(f"{place}: {code}\n--- shown\n{shown}\n--- printed\n{printed}", pytrace=False)


def shown_after(lines: list[str], statement: ast.stmt) -> str:
    """The comment at the end of a statement's last line, and those directly below it, without their signs."""
    end = statement.end_lineno or 0
    rest = lines[end - 1].encode()[statement.end_col_offset :].decode().strip()
    comments = [rest] if rest.startswith("#") else []
    for line in lines[end:]:
        if not line.startswith("#"):
            break
        comments.append(line)
    return "\n".join(re.sub("^# ?", "", comment) for comment in comments)


def is_left_out(block: Block) -> bool:
    """Whether a block cannot be run here."""
    return block.not_run or any(importlib.util.find_spec(module) is None for module in block.needs)


def printed_by(statement: ast.stmt, names: dict[str, object], page: str) -> str:
    """What a statement prints, run among `names`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module([statement], []), page, "exec"), names)
    return printed.getvalue()


def run_python(block: Block, names: dict[str, object], page: str) -> None:
    """Run the statements of a block one by one; what one prints must be what the comments after it show."""
    lines = block.body.splitlines()
    for statement in ast.parse(block.body).body:
        place = f"{page}:{block.line + statement.lineno - 1}"
        code = ast.unparse(statement)
        try:
            printed = printed_by(statement, names, page)
        except Exception as error:
            raise AssertionError(f"{place}: {code}") from error
        if printed:
            compare(place, code, shown_after(lines, statement), printed)


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with what the page shows below it."""
    found = []
    for part in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
        command, *rest = part.split("\n")
        while command.endswith("\\") and rest:
            command += "\n" + rest.pop(0)
        found.append((command, "\n".join(rest).strip("\n")))
    return found


def written_by(block: Block, directory: Path) -> list[tuple[str, str]]:
    """What each command of a block writes, and its exit status; all are run in one bash."""
    script = "".join(f'{command}\necho "$? {MARK}"\n' for command, _ in commands(block))
    with open(directory / ".written", "w+b") as written:
        # In a file and not a pipe, which a server left in the background would hold open.
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=directory, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        written.seek(0)
        return re.findall(rf"(.*?)(\d+) {MARK}\n", written.read().decode(), re.DOTALL)


def run_console(block: Block, directory: Path, page: str) -> None:
    """Run the commands of a block; what they write must be what the page shows."""
    pairs = commands(block)
    assert pairs, f"{page}:{block.line}: a console block without a line that begins with '$ '"
    for (command, shown), (printed, status) in zip(pairs, written_by(block, directory), strict=True):
        if status != "0" and not shown:
            pytest.fail(f"{page}:{block.line}: $ {command} ended with {status}\n{printed}", pytrace=False)
        compare(f"{page}:{block.line}", f"$ {command}", shown, printed)


def prepare(directory: Path, environment: MutableMapping[str, str]) -> Path:
    """An empty directory to work in; the environment gets this Python as `python`, and the command `gpt2fast`."""
    programs, work = directory / "programs", directory / "page"
    programs.mkdir()
    work.mkdir()
    for name, arguments in (("python", ""), ("gpt2fast", "-m gpt2fast ")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        (programs / name).chmod(0o755)
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(Path(gpt2fast.__file__).parent.parent)
    environment["COLUMNS"] = "100"
    environment["MPLBACKEND"] = "agg"
    environment["MPLCONFIGDIR"] = str(directory)
    return work


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The directory of `prepare`, as the current one."""
    environment = dict(os.environ)
    directory = prepare(tmp_path, environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(directory)
    return directory


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page, scratch):
    name = str(page.relative_to(ROOT))
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if is_left_out(block):
            continue
        if block.title is not None:
            (scratch / block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            run_python(block, names, name)
        elif block.language == "console":
            run_console(block, scratch, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_example_hides_from_being_run(page):
    for block in blocks(page):
        assert block.language not in {"", "bash", "sh", "shell", "py", "pycon", "python3"}, f"{page}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`((?:benchmarks|docs|gpt2fast|pyx|rust|tests)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"
    for name in re.findall(r"`((?:test|fuzz)_\w+\.py)`", text):
        assert len([*(ROOT / "tests").rglob(name)]) == 1, f"{page.name} names {name}"


def test_the_runner_notices_what_is_wrong(scratch):
    def block(language, body):
        return Block(language, body, 1, None, [], False)

    run_python(block("python", "print(1)  # 1\nprint('a b')\n# a …\n"), {}, "page")
    with pytest.raises(pytest.fail.Exception, match="page:2: print"):
        run_python(block("python", "x = 1\nprint(x)  # 2\n"), {}, "page")
    with pytest.raises(AssertionError, match="page:1: 1 / 0"):
        run_python(block("python", "1 / 0\n"), {}, "page")
    run_console(block("console", "$ echo a; echo b \\\n  c\na\nb …\n$ sleep 60 &\n"), scratch, "page")
    with pytest.raises(pytest.fail.Exception, match="echo a"):
        run_console(block("console", "$ echo a\nb\n"), scratch, "page")
    with pytest.raises(pytest.fail.Exception, match="ended with 127"):
        run_console(block("console", "$ no-such-program\n"), scratch, "page")


@pytest.mark.parametrize("name", ["gpt2fast", *MODULES])
def test_docstrings(name):
    try:
        module = importlib.import_module(name)
    except gpt2fast.MissingDependencyError as error:
        pytest.skip(str(error))
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
