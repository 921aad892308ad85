"""The page "Write a plugin in ten minutes" is done from top to bottom in an empty folder, line by line.

Four of its lines need a network or an environment of their own, and are done otherwise: the environment is the one that
runs the tests, and ``pip install -e`` leaves what pip would leave, the metadata with its entry point and the sources on
the path. All others run as they stand.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest

from dsx.testing import write_distribution

NAME = "acme-sparse-adam"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Walk:
    """A reader who does what the page says."""

    home: Path
    here: Path
    said: list[tuple[str, str]] = field(default_factory=list)
    """Each line of the shell blocks, and what it printed."""

    def do(self, language: str, file: str, text: str) -> None:
        """One block: run, compared with the file that it quotes, or written to its file."""
        if language == "sh":
            for line in text.splitlines():
                otherwise = OTHERWISE.get(line)
                self.said.append((line, self.run(line) if otherwise is None else otherwise(self)))
        elif file.startswith(f"{NAME}/"):
            assert text in (self.home / file).read_text(encoding="utf-8"), f"{file} does not hold this:\n{text}"
        else:
            assert language in ("json", "toml", "python"), f"nothing runs a block of {language}:\n{text}"
            assert file, f"a block that is no command belongs to a file:\n{text}"
            (self.home / file).parent.mkdir(parents=True, exist_ok=True)
            (self.home / file).write_text(text, encoding="utf-8")

    def run(self, line: str) -> str:
        """What a line prints, in the folder that the lines before have gone to."""
        where = self.home / ".where"
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("DSX_", "PYTEST_"))}
        environment |= {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"])),
            "PYTHONPATH": os.pathsep.join((str(self.home / "site"), str(self.home / NAME / "src"))),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "WHERE": str(where),
        }
        script = f'set -eu\n{line}\npwd > "$WHERE"'
        finished = subprocess.run(
            ["sh", "-c", script], cwd=self.here, env=environment, capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, f"{line}\n{finished.stdout}{finished.stderr}"
        self.here = Path(where.read_text(encoding="utf-8").strip())
        return finished.stdout + finished.stderr

    def installed_already(self) -> str:
        """The core and what its tests need."""
        return f"dsx-core {metadata.version('dsx-core')}, pytest {metadata.version('pytest')}"

    def install_editable(self) -> str:
        """What ``pip install -e`` leaves: metadata here, and the sources where they are (see ``run``)."""
        project = tomllib.loads((self.home / NAME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        write_distribution(
            self.home / "site",
            project["name"],
            modules={},
            entry_points=project["entry-points"]["dsx"],
            version=project["version"],
            requires=project["dependencies"],
        )
        return ""


OTHERWISE: Mapping[str, Callable[[Walk], str]] = {
    "python3 -m venv .venv": lambda walk: sys.prefix,
    ". .venv/bin/activate": lambda walk: "",
    'pip install "dsx-core[testing]"': Walk.installed_already,
    f"pip install -e {NAME}": Walk.install_editable,
}


@pytest.mark.timeout(600)  # a dozen commands, among them all tests and the check of the package
def test_every_block_of_the_page_does_what_it_says(tmp_path: Path, root: Path) -> None:
    walk = Walk(home=tmp_path, here=tmp_path)
    page = (root / "docs" / "write-a-plugin.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(page)
    assert len(blocks) * 2 == page.count("```"), "a fence that the search for blocks does not see"
    for language, file, text in blocks:
        walk.do(language, file, text)
    lines = [line for line, _ in walk.said]
    assert set(OTHERWISE) <= set(lines), "a line that is done otherwise is not on the page any more"

    def said(line: str) -> list[str]:
        return [text for known, text in walk.said if known.startswith(line)]

    assert "gathered.py" in said("dsx plugin new")[0]
    assert re.search(r"acme_sparse_adam .* active .* section acme_sparse_adam", said("dsx plugins")[0])
    tested, spoiled = said("pytest")
    assert " passed" in tested
    assert "failed" not in tested
    assert "acme_sparse_adam_step=gathered" in spoiled
    assert spoiled.endswith("found, with variant, size and dtype\n")
    assert "0 wrong" in said("dsx plugin check")[0]
    assert re.search(r"report_every\W+10\W.*as often as steps_per_print", said("dsx config explain")[0])
    (trained,) = said("dsx run")
    assert re.search(r"step 10 \| [\d.]+ % of the gradients' elements are not zero", trained)
    assert "step 20 | loss" in trained
    assert re.search(r"mypkg .* active .* optimizer careful", said("dsx plugins")[1])
    assert re.search(r"mypkg.* blocked", said("DSX_PLUGINS_BLOCK=")[0])
    assert "careful has rate 1e-04" in walk.run("python -c '" + CAREFUL + "'")


CAREFUL = """
import dsx, torch
config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "careful"}}
with dsx.initialize(model=torch.nn.Linear(2, 1), config=config)[0] as engine:
    print(f"careful has rate {engine.get_lr()[0]:.0e}")
"""
"""The last step: what the project's own plugin adds can be used."""
