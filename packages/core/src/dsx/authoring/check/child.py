"""A program: runs one group of steps over a plugin in this process, and writes its journal as it goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dsx.authoring.check import answers, components, contract, leaving, living, numerics, sections
from dsx.authoring.check.findings import Finding, wrong
from dsx.authoring.check.journal import Journal
from dsx.authoring.check.loading import cause_of, load
from dsx.authoring.check.state import State
from dsx.authoring.check.subject import Subject, make_subject
from dsx.authoring.check.target import Target

Step = Callable[[Subject], Iterator[Finding]]

GROUPS: Mapping[str, Sequence[Step]] = {
    "contract": (
        contract.identity,
        contract.hooks,
        answers.answers,
        answers.idleness,
        sections.shapes,
        components.components,
        components.commands,
        sections.values,
        contract.clashes,
    ),
    "training": (
        leaving.leaks,  # first: what is left behind is seen in the first life of a process
        living.lives,
        numerics.variants,
        numerics.optimizers,
        numerics.schedules,
        numerics.codecs,
        numerics.partitioners,
        numerics.stores,
        numerics.parity,
        numerics.driver,
    ),
}
"""Group -> its steps in order. Each step stands alone: it may be the first that a process runs."""


def main(request: str) -> None:
    """Run the group that a file names."""
    data = json.loads(Path(request).read_text(encoding="utf-8"))
    journal = Journal(Path(data["journal"]), skip=data["skip"])
    steps = GROUPS[data["group"]]
    target = Target.read(data["target"])
    others = tuple(Target.read(other) for other in data["others"])
    journal.may("import")
    try:
        plugin = load(target)
        before = State.now()
    except BaseException as error:  # noqa: BLE001  (SystemExit, too, is an answer)
        journal.tell(wrong("contract", "import", cause_of(error, target), "mend the import"))
    else:
        subject = make_subject(target, plugin, others=others, journal=journal, config=data["config"], before=before)
        for step in steps:
            if step.__name__ not in data["done"]:
                run_step(step, subject)
                journal.done(step.__name__)
    journal.done(data["group"])


def run_step(step: Step, subject: Subject) -> None:
    """Write a step's findings; an error that leaves it is one more."""
    area: str = sys.modules[step.__module__].AREA
    if not subject.journal.begin(step.__name__, area=area):
        return
    try:
        for finding in step(subject):
            subject.journal.tell(finding)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the other steps are still run)
        found = f"it could not be finished: {type(error).__name__}: {error}"
        subject.journal.tell(wrong(area, step.__name__, found, "mend what the message names"))


if __name__ == "__main__":
    main(sys.argv[1])
