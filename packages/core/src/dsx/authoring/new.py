"""A new plugin's package, written from the template that lies beside this file.

Its files end in ``.txt``, so that no tool takes them for ours. In their text ``{{name}}`` is the distribution and
``{{module}}`` what is imported; a folder ``MODULE`` takes the module's name.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import importlib.util
import keyword
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path

from dsx.errors import PluginError

SUFFIX = ".txt"
OURS = "dsx"
"""Distributions of this name, or that begin with it and a dash, are dsx's own."""


def write_package(name: str, *, into: Path) -> Path:
    """Write a complete plugin package into the folder ``into``/``name``, which is given back.

    name: of its distribution, such as ``acme-sparse-adam``; what is imported, and what configurations name, is
    ``acme_sparse_adam``. Raises PluginError, with nothing written, for a name that cannot be one or is taken, and where
    the folder holds something. A write that fails half-way leaves nothing either.
    """
    module = module_of(name)
    _refuse_taken(name, module)
    target = Path(into) / name
    _refuse_place(target)
    files = package_files(name, module=module)
    scratch = target.parent / f".{name}-{os.getpid()}"
    try:
        scratch.mkdir()
        for path, text in files.items():
            file = scratch / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        if target.exists():
            target.rmdir()  # it is empty, and not every system renames onto an empty folder
        scratch.rename(target)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise _refusal(
            f"{target} cannot be written: {error.strerror or error}", "choose another place with --into"
        ) from error
    return target


def module_of(name: str) -> str:
    """What is imported of a distribution of this name. Raises PluginError where the name cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise _refusal(
            f"{name!r} is no name of a distribution, wanted letters, digits, dashes, dots or underscores, "
            "with a letter or digit at both ends",
            "give one such as acme-sparse-adam",
        )
    module = re.sub(r"[-_.]+", "_", name).lower()
    if keyword.iskeyword(module) or not module.isidentifier():
        raise _refusal(
            f"{name!r} gives the module {module!r}, which Python cannot import: it is "
            + ("a keyword" if keyword.iskeyword(module) else "no identifier"),
            f"give a name that begins with a letter, such as acme-{name}",
        )
    return module


def package_files(name: str, *, module: str) -> Mapping[str, str]:
    """Path -> text of every file of the package, as it is written for this name."""
    template = importlib.resources.files("dsx.authoring") / "template"
    found: dict[str, str] = {}
    for path, file in _walk(template):
        text = file.read_text(encoding="utf-8")
        written = path.removesuffix(SUFFIX).replace("MODULE", module)
        found[written] = text.replace("{{name}}", name).replace("{{module}}", module)
    return found


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            yield prefix + entry.name, entry


def _refuse_taken(name: str, module: str) -> None:
    """Everything in the package is named for it, so the name must be free as each of these."""
    other = f"give another, such as acme-{name}"
    if module == OURS or module.startswith(f"{OURS}_"):
        raise _refusal(
            f"{name!r} is taken: names that begin with dsx are dsx's own", other.replace(f"-{name}", "-metrics")
        )
    owner = _taken_in_dsx(module)
    if owner:
        raise _refusal(f"{name!r} is taken: {module!r} is {owner}", other)
    spec = importlib.util.find_spec(module)
    if module in sys.stdlib_module_names or (spec is not None and spec.origin is not None):
        where = "Python itself" if module in sys.stdlib_module_names else str(spec.origin if spec else "")
        raise _refusal(f"{name!r} is taken: there is a module {module!r} already, in {where}", other)
    normal = re.sub(r"[-_.]+", "-", name).lower()
    for distribution in importlib.metadata.distributions():
        known = str(distribution.metadata["Name"] or "")
        if re.sub(r"[-_.]+", "-", known).lower() == normal:
            raise _refusal(f"{name!r} is taken: {known} {distribution.version} is installed here", other)


def _taken_in_dsx(module: str) -> str:
    """What dsx, or one of its distributions, calls so already; nothing where none does."""
    from dsx.builtin import optimizers
    from dsx.config.root import DsxConfig
    from dsx.plugin.catalog import COMPONENTS, GONE, SECTIONS

    known = [name for each in optimizers.components() for name in (each.name, *each.aliases)]
    if module in {name.lower() for name in (*known, *COMPONENTS["optimizer"])}:
        return "an optimizer of dsx"
    if module in DsxConfig.model_fields or module in SECTIONS or module in GONE:
        return "a key of dsx's configuration"
    if module in {"core", *(each.removeprefix(f"{OURS}-") for each in SECTIONS.values())}:
        return "a plugin of dsx"
    return ""


def _refuse_place(target: Path) -> None:
    if not target.parent.is_dir():
        raise _refusal(f"{target.parent} is no folder", "make it first, or name another with --into")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise _refusal(
            f"{target} is there already, and is no folder", "move it away, or choose another place with --into"
        )
    if target.is_dir() and any(target.iterdir()):
        raise _refusal(f"{target} is there already, and not empty", "move it away, or choose another place with --into")


def _refusal(what: str, remedy: str) -> PluginError:
    return PluginError(f"{what}; nothing was written\n    what to do: {remedy}")
