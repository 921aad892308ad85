"""The page of configuration keys, and the JSON schema that an editor reads."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from dsx.config.compose import compose
from dsx.config.schema import json_schema
from dsx.config.section import Section, key_of
from pages.ours import our_plugins
from pages.spelling import cell, in_markdown

HEAD = """# Configuration keys

Keys are DeepSpeed's; those that only dsx has say so. An editor completes and checks them with
[config.schema.json](config.schema.json), see the [user guide](../guide.md#configure).
"""


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
        yield f"| `{key}` | {default_of(info)} | {cell(in_markdown(info.description or ''))} |\n"
        section = section_of(info.annotation)
        if section is not None:
            inner.append((section, f"{path}.{key}" if path else key))
    for section, where in inner:
        yield from tables(section, where)


def page() -> str:
    """The page of configuration keys."""
    return HEAD + "".join(tables(compose(our_plugins()), ""))


def schema() -> str:
    """The JSON schema of a file that our plugins read."""
    return json.dumps(json_schema(our_plugins()), indent=2, ensure_ascii=False) + "\n"
