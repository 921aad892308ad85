"""The examples in the docstrings of hooks, as plugins that can be asked."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import dsx.plugin
from dsx.plugin import Claim, PluginSpec, hookimpl, hooks, sets

HOOKS = tuple(sorted(name for name in vars(hooks) if name.startswith("dsx_")))
NAME = "acme"
"""What the examples call themselves."""
OWNED = {"dsx_make_driver": "driver", "dsx_make_loop": "loop"}
"""The resource whose owner is asked, so that an example is asked at all."""


def example_of(hook: str) -> str:
    """The code after ``Example:``, on the same line or indented under it."""
    doc = inspect.getdoc(getattr(hooks, hook)) or ""
    _, found, code = doc.partition("\nExample:")
    assert found, f"{hook} has no example"
    return textwrap.dedent(code.strip("\n")) if code.startswith("\n") else code.strip()


def source_of(hook: str) -> str:
    """The implementation whose body the example is, with the hook's arguments."""
    arguments = ", ".join(inspect.signature(getattr(hooks, hook)).parameters)
    return f"def {hook}({arguments}):\n{textwrap.indent(example_of(hook), '    ')}\n"


def implementation(hook: str) -> Callable[..., Any]:
    """The example as a function that knows the names of ``dsx.plugin`` and no others."""
    names: dict[str, Any] = {name: getattr(dsx.plugin, name) for name in dsx.plugin.__all__}
    exec(compile(source_of(hook), f"<example of {hook}>", "exec", dont_inherit=True), names)
    return names[hook]  # type: ignore[no-any-return]


def plugin_of(*wanted: str) -> ModuleType:
    """A plugin of these examples. It says who it is, and owns what it must own to be asked."""
    module = ModuleType("acme_dsx")
    for hook in wanted:
        setattr(module, hook, hookimpl(implementation(hook)))
    if "dsx_plugin" not in wanted:
        module.dsx_plugin = hookimpl(lambda: PluginSpec(name=NAME, api=1, summary="one example"))  # type: ignore[attr-defined]
    resources = [resource for hook, resource in OWNED.items() if hook in wanted]
    if resources:
        assert "dsx_claims" not in wanted

        def dsx_claims() -> list[Claim]:
            return [sets(resource, NAME, why="the example is asked") for resource in resources]

        module.dsx_claims = hookimpl(dsx_claims)  # type: ignore[attr-defined]
    return module
