"""The pages keep their word: links lead somewhere, named commands and sessions exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib

from dsx.testing import write_distribution

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
FOREIGN = """
from dsx.plugin import OPTIMIZER, Component, PluginSpec, hookimpl

@hookimpl
def dsx_plugin():
    return PluginSpec(name="{name}", api=1, summary="stands on no page")

@hookimpl
def dsx_components():
    yield Component(OPTIMIZER, "{name}", load="torch.optim:SGD")
"""


def pages(root):
    yield from (root / name for name in ("README.md", "CONTRIBUTING.md"))
    yield from sorted((root / "docs").rglob("*.md"))
    yield from sorted((root / "packages").glob("*/README.md"))
    yield root / "native" / "README.md"
    yield from sorted((root / "examples").rglob("README.md"))


def anchors(page) -> set[str]:
    """The headings of a page, as links name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere(root) -> None:
    lost = []
    for page in pages(root):
        for target, heading in LINK.findall(page.read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:", target):
                continue
            place = page.parent / target if target else page
            if not place.exists() or (heading and heading not in anchors(place)):
                lost.append(f"{page.relative_to(root)}: {target}#{heading}")
    assert not lost, "\n".join(lost)


def test_named_sessions_exist(root) -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", (root / "noxfile.py").read_text(), flags=re.MULTILINE))
    for page in (*pages(root), root / ".ci" / "run"):
        for command in re.findall(r"\bnox -s ((?:[\w.()]+ ?)+)", page.read_text(encoding="utf-8")):
            named = {word.partition("(")[0] for word in command.split()} - {"NAME"}
            assert named <= sessions, f"{page.relative_to(root)}: nox -s {command}"


def test_named_commands_exist(root) -> None:
    reference = (root / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"^## dsx (.+)$", reference, flags=re.MULTILINE))
    groups = {command.partition(" ")[0] for command in commands if " " in command}
    named = [root / "README.md", *(root / "docs" / f"{name}.md" for name in ("guide", "plugins", "write-a-plugin"))]
    for page in named:
        text = page.read_text(encoding="utf-8")
        shell = "\n".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
        written = "\n".join([text, *(f"    {line}" for line in shell.splitlines())])
        found = re.findall(r"(?:^    |`|&& )dsx (?:--\S+ \S+ )?([a-z]+)(?: ([a-z]+))?", written, flags=re.MULTILINE)
        assert found, page.name
        for first, second in found:
            asked = f"{first} {second}".strip() if first in groups and second else first
            assert asked in commands | groups, f"{page.name}: dsx {asked}"


def test_every_package_has_a_line_in_the_table(root, folders) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    for folder in folders:
        name = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"]
        assert re.search(rf"^\| \[?`{name}`", readme, flags=re.MULTILINE), name


def test_generated_pages_are_fresh(root, tmp_path) -> None:
    """They stand as the code says when every package is installed, and speak of nothing else that is found here."""
    modules = {"installed_plugin.py": FOREIGN.format(name="installed"), "named_plugin.py": FOREIGN.format(name="named")}
    write_distribution(tmp_path, "foreign", modules=modules, entry_points={"foreign": "installed_plugin"})
    (tmp_path / "pyproject.toml").write_text('[tool.dsx]\nplugins = ["named_plugin"]\n', encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "DSX_PLUGINS": "named_plugin", "COLUMNS": "40"}
    command = [sys.executable, str(root / "docs" / "generate.py"), "--check"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_schema_serves_an_editor(root) -> None:
    """Each key is explained, each reference leads somewhere, and a misspelled key is refused."""
    text = (root / "docs" / "reference" / "config.schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    assert set(re.findall(r'"#/\$defs/(\w+)"', text)) == set(schema["$defs"])
    for section in (schema, *schema["$defs"].values()):
        assert section["additionalProperties"] is False
        for key, value in section["properties"].items():
            told = value.get("description") or schema["$defs"][value["$ref"].rpartition("/")[2]]["description"]
            assert told, f"{section['title']}: {key}"


def test_decisions_are_numbered_and_indexed(root) -> None:
    decisions = sorted((root / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    index = (root / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    assert all(path.name in index for path in decisions)
