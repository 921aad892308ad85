"""Writes docs/reference/ from the code: every configuration key, every hook. With --check, only compares."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from dsx.config.compose import compose
from dsx.config.section import Section, key_of
from dsx.plugin import hooks
from dsx.plugin.manager import plugin_manager

REFERENCE = Path(__file__).parent / "reference"
GENERATED = "<!-- written by docs/generate.py: `nox -s docs` -->\n"


def default_of(info: FieldInfo) -> str:
    """The default as it would stand in a file, or a dash where it is a section of its own."""
    if info.is_required():
        return "required"
    default = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, Section):
        return "–"
    if isinstance(default, bool) or default is None:
        return {True: "true", False: "false", None: "none"}[default]
    return f"`{default}`" if str(default) else '`""`'


def in_markdown(text: str) -> str:
    """A docstring's text for a page."""
    return text.replace("``", "`")


def section_of(annotation: object) -> type[Section] | None:
    """The section that a field holds, if it holds one."""
    parts = getattr(annotation, "__args__", (annotation,))
    return next((part for part in parts if isinstance(part, type) and issubclass(part, Section)), None)


def tables(model: type[Section], path: str) -> Iterator[str]:
    """The table of one section, then those of the sections in it."""
    inner = []
    title = path or "Top level"
    summary = in_markdown(inspect.getdoc(model) or "")
    yield f"\n## {title}\n\n{summary}\n\n| key | default | meaning |\n|---|---|---|\n"
    for name, info in model.model_fields.items():
        key = key_of(model, name)
        meaning = in_markdown(" ".join((info.description or "").replace("|", "\\|").split()))
        yield f"| `{key}` | {default_of(info)} | {meaning} |\n"
        section = section_of(info.annotation)
        if section is not None:
            inner.append((section, f"{path}.{key}" if path else key))
    for section, where in inner:
        yield from tables(section, where)


def configuration() -> str:
    """The page of configuration keys."""
    head = "# Configuration keys\n\nKeys are DeepSpeed's; those that only dsx has say so.\n"
    return GENERATED + head + "".join(tables(compose(plugin_manager()), ""))


def every_hook() -> str:
    """The page of hooks."""
    parts = [GENERATED, "# Every hook\n"]
    for name in re.findall(r"^def (dsx_\w+)", inspect.getsource(hooks), flags=re.MULTILINE):
        function = getattr(hooks, name)
        arguments = ", ".join(inspect.signature(function).parameters)
        doc = in_markdown(inspect.getdoc(function) or "")
        doc = re.sub(r"^(Called|Arguments|Returns|Example):", r"- *\1:*", doc, flags=re.MULTILINE)
        parts.append(f"\n## `{name}({arguments})`\n\n{doc}\n")
    return "".join(parts)


def main() -> int:
    """Write the pages, or say which are stale. Gives the exit status."""
    pages = {"configuration.md": configuration(), "hooks.md": every_hook()}
    stale = [name for name, text in pages.items() if not current(name, text)]
    if "--check" in sys.argv[1:]:
        print(f"stale: {', '.join(stale)}: run nox -s docs" if stale else "docs/reference is fresh")  # noqa: T201
        return 1 if stale else 0
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    return 0


def current(name: str, text: str) -> bool:
    """Whether a page stands as the code says."""
    path = REFERENCE / name
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
