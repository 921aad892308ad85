"""A project folder, put where Python finds it as an installer would put it: without pip, a build or the network."""

from __future__ import annotations

import tomllib
from pathlib import Path

from dsx.errors import PluginError
from dsx.testing.distributions import write_distribution


def install_project(project: Path, *, into: Path) -> Path:
    """Copy a project's modules into a folder and write its metadata there; gives the folder, for PYTHONPATH.

    The modules are those in ``src``, or the packages beside the pyproject.toml. Raises PluginError where that file has
    no name or version.
    """
    file = project / "pyproject.toml"
    if not file.is_file():
        raise PluginError(
            f"found no pyproject.toml in {project}, wanted the folder of a project\n    what to do: name its folder"
        )
    data = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    if "name" not in data or "version" not in data:
        raise PluginError(
            f"{file} has no project.name or no project.version, wanted both\n    what to do: write both into the file"
        )
    groups = data.get("entry-points", {})
    points = {
        name if group == "dsx" else f"{group}/{name}": value
        for group, named in groups.items()
        for name, value in named.items()
    }
    return write_distribution(
        into,
        data["name"],
        modules=_modules(project),
        entry_points=points,
        version=data["version"],
        requires=tuple(data.get("dependencies", ())),
    )


def _modules(project: Path) -> dict[str, str]:
    """Path -> text of each file of its packages; text files are all that plugins are made of."""
    root = project / "src" if (project / "src").is_dir() else project
    packages = [path for path in sorted(root.iterdir()) if (path / "__init__.py").is_file() or path.suffix == ".py"]
    files = [file for path in packages for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    kept = (file for file in files if file.is_file() and "__pycache__" not in file.parts)
    return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in kept}
