"""Imports run one way, in the order of folders that ARCHITECTURE.md states, and never in a
circle.
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "regbench"


def order() -> list[str]:
    """Read the order of the folders from ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    found = re.search(r"^A folder imports from those before it alone: (.*?)\.$", text, re.M)
    assert found is not None
    return re.findall(r"`(\w+)", found[1])


def modules() -> dict[str, Path]:
    """Map the name of each module of the package to its file."""
    folders = [path.resolve() for path in PACKAGE.iterdir() if path.is_dir()]
    found = {}
    for start in [PACKAGE, *folders]:
        for path in start.glob("*.py") if start == PACKAGE else start.rglob("*.py"):
            root = PACKAGE if path.is_relative_to(PACKAGE) else ROOT
            name = ".".join(("regbench", *path.relative_to(root).with_suffix("").parts))
            found[name.removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Name what a file imports from the package, inside functions and for type annotations too."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = members & set(known)
            found |= submodules if len(submodules) == len(members) else submodules | {node.module}
    return found & set(known)


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Map each module to what it imports."""
    known = modules()
    return {name: imported(path, known) for name, path in known.items()}


def place(name: str) -> int:
    """Return how late a module comes: the modules that every folder may use come first."""
    room = name.split(".")[1] if "." in name else name
    if room == "__main__":
        return len(order())
    if room in ("regbench", "audit", "pytest_plugin"):  # what users import from Python
        room = "api"
    return order().index(room) if room in order() else -1


def test_no_folder_imports_from_one_that_comes_after_it(imports: dict[str, set[str]]) -> None:
    upwards = []
    for name in imports:
        later = [other for other in imports[name] if place(other) > place(name)]
        upwards += [f"{name} imports {other}" for other in later]
    assert not upwards
    in_order = ("methods.vicreg", "benchmark.run", "cli.train")
    places = [place(f"regbench.{name}") for name in in_order]
    assert places == sorted(set(places))


def test_no_modules_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
    assert len(imports) > 200
