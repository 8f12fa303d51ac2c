"""Imports go down the table of gpt2fast/README.md, or stay in their row, and never round in a circle.

Every import counts, also those inside functions and for type checkers.  A new package needs a row in that table.
"""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpt2fast"

#: From the top down; a package's name stands for all that is in it.
FLOORS = [
    set(re.findall(r"`(\w+)`", row.split("|")[1]))
    for row in re.findall(
        r"^\| `.*", (PACKAGE / "README.md").read_text(encoding="utf-8").split("`data/`")[0], re.MULTILINE
    )
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}


def module_name(path: Path, root: Path) -> str:
    """`cli.score` for cli/score.py, `cli` for cli/__init__.py, under the package's root."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {module_name(path, PACKAGE): path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"}
CYTHON = {module_name(path, ROOT / "pyx" / "gpt2fast"): path for path in (ROOT / "pyx" / "gpt2fast").rglob("*.pyx")}
MODULES = {*SOURCES, *CYTHON, "_bpe"}


def imported(path: Path) -> set[str]:
    """The modules of this package that a source file imports; the package itself is ''."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".pyx":
        modules = re.findall(r"^ *from (gpt2fast\S*) c?import ", text, re.MULTILINE)
        text = "\n".join(f"import {module}" for module in modules)
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from gpt2fast.cli import score` imports a module, `from gpt2fast.errors import Error` a name in one.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "gpt2fast":
                found.add(rest if rest in MODULES or not rest else rest.rpartition(".")[0])
    return found


GRAPH = {name: imported(path) for name, path in (SOURCES | CYTHON).items()}


def test_the_table_has_every_package_and_no_other():
    assert {name.partition(".")[0] for name in MODULES} == FLOOR.keys()


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_imports_go_down(name):
    floor = FLOOR[name.partition(".")[0]]
    for target in GRAPH[name]:
        if target == "":  # the public names: for the top rows only, which are users of the package like any other
            assert floor <= FLOOR["cli"], f"{name} imports the package's own front page"
        else:
            assert FLOOR[target.partition(".")[0]] >= floor, f"{name} imports {target}, which is above it"


def test_no_circles():
    # A package and its modules are one thing to each other, so its __init__ is left out.
    graph = {name: targets for name, targets in GRAPH.items() if name not in ("safetensors", "cli")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_no_circles_of_packages():
    packages: dict[str, set[str]] = {}
    for name, targets in GRAPH.items():
        package = name.partition(".")[0]
        packages.setdefault(package, set()).update({target.partition(".")[0] for target in targets} - {package, ""})
    try:
        TopologicalSorter(packages).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of packages: {' -> '.join(error.args[1])}")


def test_the_first_line_says_what_a_module_is():
    for name, path in SOURCES.items():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert docstring or not path.read_text(), f"{name} has no docstring"


def test_the_rust_core_knows_no_python():
    sources = ROOT / "rust" / "src"
    checked = [path for path in sources.rglob("*.rs") if "py" not in path.relative_to(sources).parts]
    assert len(checked) > 20
    for path in checked:
        if path.name not in ("py.rs", "lib.rs"):
            assert "pyo3" not in path.read_text(encoding="utf-8"), f"{path.name} knows PyO3"
