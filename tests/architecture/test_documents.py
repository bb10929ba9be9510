"""Documents are held to the tree: no dead link, no module left out, no key undocumented."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from source_tree import PACKAGES, ROOT, relative, source_files, tree_of

from hone.config_reference import configuration_reference

DOCUMENTS = sorted(
    path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
# Parts of a declared package that are packages of their own, and the standard library's own neighbours.
TRANSITIVE_BY_DESIGN = {"starlette", "click", "huggingface-hub"}
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_lead_somewhere(document):
    """Every relative link in a document points at something that exists."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            continue
        if not (document.parent / target.split("#")[0]).exists():
            dead.append(target)
    assert dead == []


def test_architecture_names_only_what_exists():
    """Every file or folder that ARCHITECTURE.md names is in the tree."""
    named = set(
        re.findall(r"`((?:{}|migrations|deploy|docs|tests)/[\w./-]*)`".format("|".join(PACKAGES)), ARCHITECTURE)
    )
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_architecture_names_every_module():
    """Every module of the packages is named in ARCHITECTURE.md (a folder's own __init__ goes without saying)."""
    left_out = [
        relative(path)
        for path in source_files()
        if path.name not in {"__init__.py", "__main__.py"} and f"`{relative(path)}`" not in ARCHITECTURE
    ]
    assert left_out == []


def test_configuration_reference_is_current():
    """docs/configuration.md is what `make docs` writes, so every key is documented."""
    assert (ROOT / "docs/configuration.md").read_text() == configuration_reference()


def test_every_dependency_has_its_reason():
    """Each direct dependency in pyproject.toml has a line in docs/dependencies.md."""
    listed = (ROOT / "docs/dependencies.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    names = re.findall(
        r'"([A-Za-z][\w-]*)(?:\[[\w,]+\])?(?:[><=~]=?[\w.,<>=]*)?"', project.split("[project.scripts]")[0]
    )
    packages = {name for name in names if name not in {"hone", "Apache-2", "LICENSE", "README", "setuptools"}}
    known = {name.lower() for name in re.findall(r"`([\w-]+)`", listed)}
    assert {name.lower() for name in packages} - known - {"wheel"} == set()


def test_every_noun_is_in_the_glossary():
    """Each noun of the design has its line in docs/glossary.md, with the file that defines it."""
    glossary = (ROOT / "docs/glossary.md").read_text()
    for path in re.findall(r"`(core/\w+\.py)`", glossary):
        assert (ROOT / path).exists(), path
    for noun in (
        "Base", "Policy", "PolicyVersion", "Checkpoint", "Probe", "Variant", "Drafter", "Deployment", "Task",
        "Domain", "Episode", "EpisodeGroup", "Trajectory", "Turn", "PolicySpan", "Verdict", "Reward",
        "TrainingSample", "Experiment", "Release",
    ):  # fmt: skip
        assert f"**{noun}**" in glossary, noun


def test_documents_do_not_name_this_machine():
    """No document or source names the absolute folder in which this checkout lies."""
    found = [
        relative(path)
        for path in [*DOCUMENTS, *source_files(), *Path(ROOT / "deploy").rglob("*.*")]
        if f"{ROOT}/" in path.read_text()
    ]
    assert found == []


def test_every_import_is_a_declared_dependency():
    """What the packages import is declared in pyproject.toml itself, not had by way of another package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    names = {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for line in declared}
    owners = packages_distributions()
    undeclared = set()
    for path in source_files():
        for node in ast.walk(tree_of(path)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for top in {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names) - set(PACKAGES):
                found = {owner.lower().replace("_", "-") for owner in owners.get(top, [top])}
                if not found & (names | TRANSITIVE_BY_DESIGN):
                    undeclared.add(f"{relative(path)}: {top}")
    assert undeclared == set()
