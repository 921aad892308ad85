"""What a stranger does: from an empty folder and wheels to a package of his own whose tests are green, step by step.

``python -m benchmarks.stranger FOLDER NAME…`` does it with the Python that runs it and prints how long each step took.
Only the standard library is used here, so that an environment with nothing but a wheel of the core is enough.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

WRITE, INSTALL, TESTS = "dsx plugin new", "pip install", "its tests"
GREEN = (WRITE, INSTALL, TESTS)
"""The steps that lead to green tests."""


class StepFailed(Exception):
    """A step ended with an error, or did not say what it must; the text is what it wrote."""


def run(command: Sequence[str], *, folder: Path, wanted: Sequence[str] = ()) -> str:
    """What a command wrote, from this folder. Raises StepFailed where it fails or leaves out what is wanted."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    missing = [text for text in wanted if text not in done.stdout]
    if done.returncode or missing:
        fault = f"ended with {done.returncode}" if done.returncode else f"did not say {missing}"
        raise StepFailed(f"{' '.join(command)} {fault}:\n{done.stdout[-6000:]}")
    return done.stdout


def steps(python: Path, name: str) -> Mapping[str, tuple[Sequence[str], str]]:
    """Each step's command, and the folder below the stranger's in which he gives it."""
    dsx, pip = str(python.parent / "dsx"), (str(python), "-m", "pip")
    return {
        WRITE: ((dsx, "plugin", "new", name), "."),
        INSTALL: ((*pip, "install", "--quiet", f"./{name}"), "."),
        TESTS: ((str(python), "-m", "pytest", "-q"), name),
        "its types": ((str(python), "-m", "mypy", "--strict", "src"), name),
        "dsx plugins": ((dsx, "plugins"), "."),
        "dsx plugin check": ((dsx, "plugin", "check", name), "."),
    }


def walk(python: Path, folder: Path, name: str, *, only: Sequence[str] = ()) -> dict[str, float]:
    """Take the steps in this folder, all or only some; the seconds of each. Raises StepFailed at the first to fail."""
    took = {}
    for step, (command, inside) in steps(python, name).items():
        if only and step not in only:
            continue
        started = time.perf_counter()
        run(command, folder=folder / inside, wanted=[name] if step == "dsx plugins" else [])
        took[step] = time.perf_counter() - started
    return took


def main(arguments: Sequence[str]) -> None:
    """Walk for each name and print what each step took."""
    folder, *names = arguments
    for name in names:
        took = walk(Path(sys.executable), Path(folder), name)
        for step, seconds in took.items():
            print(f"{name}: {step:<18} {seconds:6.1f} s")
        print(f"{name}: from dsx plugin new to green tests {sum(took[step] for step in GREEN) / 60:.2f} min")


if __name__ == "__main__":
    main(sys.argv[1:])
