"""Throw-away distributions on disk: as if a package had been installed, without pip or network."""

from __future__ import annotations

import base64
import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

_NOTHING: Mapping[str, str] = {}


def write_distribution(
    folder: str | Path,
    name: str,
    *,
    modules: Mapping[str, str],
    entry_points: Mapping[str, str] = _NOTHING,
    version: str = "1.0",
    requires: Sequence[str] = (),
) -> Path:
    """Write an installed distribution into a folder, which is given back; put that on ``sys.path`` or PYTHONPATH.

    modules: source by path, such as ``{"acme/__init__.py": "", "acme/plugin.py": "..."}``. entry_points: those of the
    group ``dsx``, ``{"acme": "acme.plugin"}``; another group is named in front, ``{"pytest11/acme": "acme.fixtures"}``.
    Afterwards ``importlib.metadata`` finds it, here and in child processes. Several may share a folder. The same name
    again replaces the metadata; a package folder without ``__init__.py`` is a namespace, as everywhere in Python.
    """
    place = Path(folder)
    info = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version}.dist-info"
    for old in place.glob(f"{info.split('-')[0]}-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    files = {_inside(path): text for path, text in modules.items()}
    files[f"{info}/METADATA"] = _metadata(name, version, requires)
    files[f"{info}/INSTALLER"] = "dsx.testing\n"
    if entry_points:
        files[f"{info}/entry_points.txt"] = _entry_points(entry_points)
    for path, text in files.items():
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    record = [_recorded(path, text) for path, text in files.items()]
    (place / info / "RECORD").write_text("\n".join([*record, f"{info}/RECORD,,", ""]), encoding="utf-8")
    importlib.invalidate_caches()
    return place


def top_level(modules: Mapping[str, str]) -> Iterator[str]:
    """Names under which these files are imported: ``acme`` for ``acme/plugin.py`` and for ``acme.py``."""
    yield from dict.fromkeys(PurePosixPath(path).parts[0].removesuffix(".py") for path in modules)


def _inside(path: str) -> str:
    """The path, if it stays within the folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise ValueError(f"module path {path!r} leaves the folder: wanted one like 'acme/plugin.py'")
    return str(pure)


def _metadata(name: str, version: str, requires: Sequence[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {other}" for other in requires), ""])


def _entry_points(entry_points: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name, value in entry_points.items():
        group, separator, short = name.rpartition("/")
        groups.setdefault(group if separator else "dsx", []).append(f"{short} = {value}")
    return "\n".join(line for group, lines in groups.items() for line in (f"[{group}]", *lines, ""))


def _recorded(path: str, text: str) -> str:
    data = text.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"
