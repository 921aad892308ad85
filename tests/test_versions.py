"""One version for all packages, and siblings that pin each other to it."""

from __future__ import annotations

import re
import tomllib

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


def test_constraints_name_one_exact_version_each(root) -> None:
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), lines
    names = [line.partition("==")[0].lower() for line in lines]
    assert len(names) == len(set(names))
    assert "torch==2.13.0" in lines
