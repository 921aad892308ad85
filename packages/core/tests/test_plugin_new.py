"""`dsx plugin new`: the package that it writes, the names that it refuses, and that a failure leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dsx.authoring.new import module_of, write_package
from dsx.authoring.project import install_project
from dsx.errors import PluginError

EXAMPLE = Path(__file__).parents[3] / "examples" / "third_party_plugin"
NAME = "acme-sparse-adam"
LEFT_BY_TOOLS = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "build", "dist", ".hypothesis")


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file by its path, but what tools leave behind."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part in LEFT_BY_TOOLS or part.endswith(".egg-info") for part in path.relative_to(folder).parts)
    }


def test_the_example_is_what_it_writes(tmp_path: Path) -> None:
    """Change the template, then write the example anew; its text is never edited by hand alone."""
    written, shown = files_of(write_package(NAME, into=tmp_path)), files_of(EXAMPLE)
    assert sorted(written) == sorted(shown)
    assert [path for path in written if written[path] != shown[path]] == []


def test_every_name_in_the_package_follows_from_its_own(tmp_path: Path) -> None:
    folder = write_package("My.Odd_plugin", into=tmp_path)
    assert folder == tmp_path / "My.Odd_plugin"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == "My.Odd_plugin"
    assert project["project"]["entry-points"]["dsx"] == {"my_odd_plugin": "my_odd_plugin.plugin"}
    assert project["tool"]["setuptools"]["package-data"] == {"my_odd_plugin": ["py.typed"]}
    for path, data in files_of(folder).items():
        text = path + data.decode()
        assert "acme" not in text.lower(), path
        assert "{{" not in text, path
        assert "MODULE" not in text, path
        if path.endswith(".py"):
            compile(data, path, "exec")


def test_another_package_is_found_and_its_tests_pass(tmp_path: Path) -> None:
    folder = write_package("my-plugin", into=tmp_path)
    site = install_project(folder, into=tmp_path / "site")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DSX_", "PYTEST_"))}
    environment |= {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "skipped" not in finished.stdout
    assert " passed" in finished.stdout


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert (write_package(NAME, into=tmp_path) / "pyproject.toml").is_file()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is no name of a distribution"),
        ("-acme", "is no name of a distribution"),
        ("acme adam", "is no name of a distribution"),
        ("../acme", "is no name of a distribution"),
        ("acmé", "is no name of a distribution"),
        ("class", "it is a keyword"),
        ("2fast", "it is no identifier"),
        ("dsx", "are dsx's own"),
        ("dsx-adam", "are dsx's own"),
        ("DSX.adam", "are dsx's own"),
        ("json", "there is a module 'json' already"),
        ("torch", "there is a module 'torch' already"),
        ("PyTest", "there is a module 'pytest' already"),
        ("dsx_core", "are dsx's own"),
        ("typing.extensions", "there is a module 'typing_extensions' already"),
        ("lamb", "'lamb' is an optimizer of dsx"),
        ("SparseAdam", "'sparseadam' is an optimizer of dsx"),
        ("optimizer", "'optimizer' is a key of dsx's configuration"),
        ("zero-optimization", "'zero_optimization' is a key of dsx's configuration"),
        ("zero", "'zero' is a plugin of dsx"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(PluginError, match=said) as caught:
        write_package(name, into=tmp_path)
    assert "what to do: give" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_distribution_that_is_installed_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install_project(write_package("my-plugin", into=tmp_path), into=tmp_path / "site")
    for module in (site / "my_plugin").rglob("*.py"):
        module.unlink()
    (site / "my_plugin" / "kernels").rmdir()
    (site / "my_plugin" / "py.typed").unlink()
    (site / "my_plugin").rmdir()
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(PluginError, match=r"'My_Plugin' is taken: my-plugin 0\.1\.0 is installed here"):
        write_package("My_Plugin", into=tmp_path)


def test_a_place_that_is_taken_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "mine").write_text("kept")
    with pytest.raises(PluginError, match="not empty"):
        write_package(NAME, into=tmp_path)
    assert files_of(tmp_path) == {f"{NAME}/mine": b"kept"}
    (tmp_path / "my-plugin").write_text("a file")
    with pytest.raises(PluginError, match="is no folder"):
        write_package("my-plugin", into=tmp_path)
    with pytest.raises(PluginError, match="make it first"):
        write_package(NAME, into=tmp_path / "nowhere")
    assert sorted(files_of(tmp_path)) == [f"{NAME}/mine", "my-plugin"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write = Path.write_text

    def full(self: Path, *arguments: object, **options: object) -> int:
        if len(written) == 5:
            raise OSError(28, "No space left on device")
        written.append(self)
        return write(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(PluginError, match="cannot be written: No space left on device; nothing was written"):
        write_package(NAME, into=tmp_path)
    assert len(written) == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "acme", "acme.adam", "Acme__Adam-2", "a1"])
def test_names_that_pass(name: str) -> None:
    assert module_of(name).isidentifier()
