"""A program: imports plugins one after the other and writes what each calls itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dsx.authoring.check.journal import Journal
from dsx.authoring.check.loading import load
from dsx.authoring.check.subject import examine
from dsx.authoring.check.target import Target
from dsx.plugin import PluginSpec


def main(request: str) -> None:
    """Ask the plugins that a file names."""
    data = json.loads(Path(request).read_text(encoding="utf-8"))
    journal = Journal(Path(data["journal"]))
    for target in map(Target.read, data["targets"]):
        journal.may(target.load)
        try:
            spec = {item.hook: item.function for item in examine(load(target))}["dsx_plugin"]()
        except BaseException:  # noqa: BLE001  (a broken plugin has no name)
            continue
        if isinstance(spec, PluginSpec):
            journal.answer({"name": spec.name, "target": target.plain()})
    journal.done("names")


if __name__ == "__main__":
    main(sys.argv[1])
