"""One version for all packages, and siblings that pin each other to it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

import dsx


def projects(folders):
    return {folder: tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in folders}


def test_versions_are_equal(folders) -> None:
    versions = {project["name"]: project["version"] for project in projects(folders).values()}
    assert set(versions.values()) == {dsx.__version__}, versions


def test_distributions_are_named_after_their_folders(folders) -> None:
    assert {folder.name: project["name"] for folder, project in projects(folders).items()} == {
        folder.name: f"dsx-{folder.name}" for folder in folders
    }


def test_siblings_pin_each_other_exactly(folders) -> None:
    for project in projects(folders).values():
        extras = project.get("optional-dependencies", {}).values()
        wanted = [*project.get("dependencies", ()), *(requirement for extra in extras for requirement in extra)]
        siblings = [requirement for requirement in wanted if requirement.startswith("dsx-")]
        assert all(re.fullmatch(rf"dsx-[a-z]+=={re.escape(dsx.__version__)}", s) for s in siblings), siblings


def test_a_plugin_depends_on_the_core_and_on_no_other_plugin(folders) -> None:
    for folder, project in projects(folders).items():
        siblings = {r.partition("=")[0] for r in project["dependencies"] if r.startswith("dsx-")}
        assert siblings == (set() if folder.name == "core" else {"dsx-core"}), folder.name


def test_the_core_offers_every_plugin_as_an_extra(folders) -> None:
    found = projects(folders)
    core = next(project for folder, project in found.items() if folder.name == "core")
    plugins = {folder.name for folder in found if folder.name != "core"}
    offered = {name: set(wanted) for name, wanted in core["optional-dependencies"].items() if name != "testing"}
    pins = {name: f"dsx-{name}=={dsx.__version__}" for name in plugins}
    assert offered == {**{name: {pin} for name, pin in pins.items()}, "all": set(pins.values())}


def test_packages_agree_on_python_licence_and_torch(folders) -> None:
    found = projects(folders).values()
    assert {project["requires-python"] for project in found} == {">=3.11"}
    assert {project["license"] for project in found} == {"Apache-2.0"}
    bounds = {r for project in found for r in project["dependencies"] if re.match(r"torch\b", r)}
    assert len(bounds) <= 1, bounds


def pins(file: Path) -> dict[str, str]:
    """Exact versions by name; each line is one, or a comment."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), lines
    names = [line.partition("==")[0].lower() for line in lines]
    assert len(names) == len(set(names))
    return {line.partition("==")[0]: line.partition("==")[2] for line in lines}


def test_constraints_name_one_exact_version_each(root) -> None:
    assert pins(root / "constraints.txt")["torch"] == "2.13.0"


def test_the_oldest_constraints_are_the_declared_lower_bounds(folders, root) -> None:
    """What users may have and `nox -s oldest` tries: every bound of every package, torch's excepted (see the file)."""
    bounds: dict[str, set[Version]] = {}
    for project in projects(folders).values():
        extras = project.get("optional-dependencies", {}).values()
        for text in (*project.get("dependencies", ()), *(wanted for extra in extras for wanted in extra)):
            wanted = Requirement(text)
            if not wanted.name.startswith("dsx-"):
                (bound,) = wanted.specifier
                assert bound.operator == ">=", f"{text}: wanted a lower bound and nothing else"
                bounds.setdefault(wanted.name, set()).add(Version(bound.version))
    assert all(len(versions) == 1 for versions in bounds.values()), bounds
    oldest = {name: Version(version) for name, version in pins(root / "constraints-oldest.txt").items()}
    tested = {name: Version(version) for name, version in pins(root / "constraints.txt").items()}
    assert oldest.keys() == bounds.keys()
    assert oldest.pop("torch") == tested["torch"] >= bounds.pop("torch").pop()
    assert oldest == {name: versions.pop() for name, versions in bounds.items()}
    assert all(tested[name] >= version for name, version in oldest.items())
