"""Writes docs/reference/ from the code: configuration, hooks, kinds, components, commands, public names.

With --check, only compares. The pages speak of the packages of this repository, which must all be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from difflib import unified_diff
from itertools import islice
from pathlib import Path

from pages import commands, components, configuration, hooks, kinds, public

REFERENCE = Path(__file__).parent / "reference"
GENERATED = "<!-- written by docs/generate.py: `nox -s docs` -->\n"
SHOWN = 40
"""Lines of difference that are shown for a stale page."""
PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "components.md": components.page,
    "config.schema.json": configuration.schema,
    "configuration.md": configuration.page,
    "hooks.md": hooks.page,
    "kinds.md": kinds.page,
    "public.md": public.page,
}


def text_of(name: str) -> str:
    """The whole file; JSON has no place for a word about itself."""
    return (GENERATED if name.endswith(".md") else "") + PAGES[name]()


def written(name: str) -> str:
    """A page as it stands."""
    path = REFERENCE / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def difference(name: str, text: str) -> str:
    """What writing a page again would change; the beginning of it."""
    lines = unified_diff(written(name).splitlines(), text.splitlines(), f"{name} as it stands", "as the code says", n=0)
    return "\n".join(islice((line.rstrip("\n") for line in lines), SHOWN))


def main() -> int:
    """Write the pages, or say which are stale. Gives the exit status."""
    pages = {name: text_of(name) for name in PAGES}
    stale = [name for name, text in pages.items() if written(name) != text]
    lost = sorted(path.name for path in REFERENCE.iterdir() if path.name not in PAGES)
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(difference(name, pages[name]))  # noqa: T201
        told = f"stale: {', '.join([*stale, *lost])}: run nox -s docs"
        print(told if stale or lost else "docs/reference is fresh")  # noqa: T201
        return 1 if stale or lost else 0
    for name in stale:
        (REFERENCE / name).write_text(pages[name], encoding="utf-8")
    for name in lost:
        (REFERENCE / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
