"""A program: loads a plugin once, in a process that has imported what dsx imports, and says what that did and took."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import dsx.api  # noqa: F401  (what a training imports anyway is not the plugin's cost)
from dsx.authoring.check.findings import judged, wrong
from dsx.authoring.check.journal import Journal
from dsx.authoring.check.process import BEGIN, LOADING
from dsx.authoring.check.state import REMEDIES, State
from dsx.authoring.check.target import Target
from dsx.plugin.discovery import GROUP

AREA = "leaks"


def load(target: Target) -> Any:
    """The plugin, as its entry point gives it."""
    return importlib.metadata.EntryPoint(target.name, target.load, GROUP).load()


def cause_of(error: BaseException, target: Target) -> str:
    """What an import raised, and the line of the plugin that it came from."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if target.top in (*file.parts, file.stem):
            place = f" (at {file.name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"importing {target.load} raised {type(error).__name__}: {error}{place}"


def main(request: str) -> None:
    """Load the plugin named in a file, and write to its journal seconds, new modules, and what the import left."""
    data = json.loads(Path(request).read_text(encoding="utf-8"))
    target = Target.read(data["target"])
    journal = Journal(Path(data["journal"]))
    before, modules = State.now(), set(sys.modules)
    sys.stderr.write(f"{BEGIN}\n")
    sys.stderr.flush()
    journal.may("import")
    said = io.StringIO()
    began, worked = perf_counter(), process_time()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            load(target)
    except BaseException as error:  # noqa: BLE001  (SystemExit, too, is an answer)
        remedy = "mend the import; what is optional belongs in a function or a component"
        journal.tell(wrong("contract", "import", cause_of(error, target), remedy))
        journal.answer({"broken": True})
    else:
        seconds, processor = perf_counter() - began, process_time() - worked
        journal.answer({"wall": seconds, "processor": processor, "modules": sorted(set(sys.modules) - modules)})
    if data["look"]:
        for subject, changes in before.changes().items():
            good = "an import changes nothing"
            journal.tell(judged(AREA, f"import: {subject}", changes, good=good, remedy=REMEDIES[subject]))
        text = [f"wrote {said.getvalue().strip()!r:.200}"] if said.getvalue().strip() else []
        remedy = "print nothing at import, and warn of nothing; dsx_report is asked how the plugin fares"
        journal.tell(judged(AREA, "import: output", text, good="an import is silent", remedy=remedy))
    journal.done(LOADING)


if __name__ == "__main__":
    main(sys.argv[1])
