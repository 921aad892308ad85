"""What is public: it can be imported, it is documented, and it stands on the page that a change must touch."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys

import pytest

PACKAGES = ("dsx", "dsx.deprecations", "dsx.errors", "dsx.plugin", "dsx.testing")


def stands_first(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name, as ruff sorts ``__all__``."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted_and_can_be_imported(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(set(module.__all__), key=stands_first)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", [package for package in PACKAGES if package != "dsx.deprecations"])
def test_all_leaves_nothing_out(package: str) -> None:
    """A name without an underscore that is neither a module nor an import of something else's is public."""
    module = importlib.import_module(package)
    loose = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value) and getattr(value, "__module__", None) == package
    }
    assert loose <= set(module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_says_what_it_is(package: str) -> None:
    module = importlib.import_module(package)
    things = {name: getattr(module, name) for name in module.__all__}
    spoken = {name: thing for name, thing in things.items() if isinstance(thing, type) or inspect.isfunction(thing)}
    assert spoken
    # A dataclass without a docstring of its own is given one that repeats its fields.
    silent = [name for name, thing in spoken.items() if (thing.__doc__ or f"{name}(").startswith(f"{name}(")]
    assert not silent


@pytest.mark.parametrize("package", PACKAGES)
def test_each_stands_on_the_page(package: str, root) -> None:
    """The page is generated and compared elsewhere; here, that it lists each name under its package."""
    page = (root / "docs" / "reference" / "public.md").read_text(encoding="utf-8")
    section = re.search(rf"^## `{re.escape(package)}`$(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert section
    for name in importlib.import_module(package).__all__:
        assert re.search(rf"^(?:class |def )?{name}\b", section[1], flags=re.MULTILINE), name


@pytest.mark.parametrize("package", ["dsx", "dsx.testing"])
def test_the_names_of_a_lazy_package_load_nothing_before_they_are_used(package: str) -> None:
    code = f"import sys, {package}; {package}.__all__; dir({package}); print('torch' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False"


def test_the_pages_do_not_depend_on_where_they_are_made(root) -> None:
    """No address, no path, no version of what happens to be installed."""
    for page in sorted((root / "docs" / "reference").iterdir()):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"0x[0-9a-f]{6,}|/(?:home|tmp|usr|root|work)/|torch==|\+cpu", text), page.name
