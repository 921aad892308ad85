"""The page of hooks: each with its arguments, its five lines, and its example as code."""

from __future__ import annotations

import inspect
import re
import textwrap

from dsx.plugin import hooks
from pages.spelling import in_markdown, signature_of

HEAD = """# Every hook

An implementation may take fewer arguments than the hook, by name. Each example is the body of an implementation in a
module that begins with `from dsx.plugin import *`; a test asks every one of them.
[What hooks are and how they are called](../plugins.md)
"""
WIDTH = 120


def names() -> list[str]:
    """Hooks in the order of a life: planning, building, state, care."""
    return re.findall(r"^def (dsx_\w+)", inspect.getsource(hooks), flags=re.MULTILINE)


def example_of(name: str) -> str:
    """The code after ``Example:``."""
    code = (inspect.getdoc(getattr(hooks, name)) or "").partition("\nExample:")[2]
    return textwrap.dedent(code.strip("\n")) if code.startswith("\n") else code.strip()


def wrapped(line: str) -> str:
    """A long signature over three lines, as a formatter has it."""
    if len(line) < WIDTH:
        return line
    name, _, rest = line.partition("(")
    arguments, _, result = rest.rpartition(")")
    return f"{name}(\n    {arguments}\n){result}"


def page() -> str:
    """The page of hooks."""
    parts = [HEAD]
    for name in names():
        function = getattr(hooks, name)
        arguments = ", ".join(inspect.signature(function).parameters)
        doc = in_markdown((inspect.getdoc(function) or "").partition("\nExample:")[0])
        doc = re.sub(r"^(Called|Arguments|Returns):", r"- *\1:*", doc, flags=re.MULTILINE)
        whole = wrapped(f"def {name}{signature_of(function)}")
        parts.append(f"\n## `{name}({arguments})`\n\n{doc}\n\n```python\n@hookimpl\n{whole}:\n")
        parts.append(textwrap.indent(example_of(name), "    ") + "\n```\n")
    return "".join(parts)
