"""The project's own Python files and their syntax trees, for the architecture tests."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "store", "serving", "gateway", "sandbox", "learner", "hone")


@cache
def source_files() -> tuple[Path, ...]:
    """Every Python file of the packages."""
    return tuple(sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of one file."""
    return ast.parse(path.read_text(), filename=str(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a file, nested ones too."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def relative(path: Path) -> str:
    """The path as it is written in documents."""
    return str(path.relative_to(ROOT))
