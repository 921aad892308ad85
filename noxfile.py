"""Every task that a person or CI runs. `nox -l` lists them; `nox -s NAME -- arguments` runs one."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent.resolve()
KEPT_WHEELS = ROOT / ".nox" / "wheels"
PACKAGES = {
    folder.name: folder
    for folder in (*sorted((ROOT / "packages").iterdir()), ROOT / "native")
    if (folder / "pyproject.toml").is_file()
}
PLUGINS = [name for name in PACKAGES if name != "core"]
BUILT = ("build", "dist", "*.egg-info", "__pycache__", "*.so")
TEST_TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
BUILD_TOOLS = ("cmake", "ninja", "pybind11")
LINT_TOOLS = ("ruff", "import-linter")
PEERS = ("deepspeed==0.19.8",)
PEER_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1", "DS_BUILD_OPS": "0"}


def install(session: nox.Session, *arguments: str) -> None:
    """Install at the versions of constraints.txt."""
    session.install("-c", str(ROOT / "constraints.txt"), *arguments)


def sources(folder: Path) -> Iterator[Path]:
    """The files that decide what a package's wheel holds, in a fixed order."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(part.match(pattern) for part in (inside, *inside.parents) for pattern in BUILT):
            yield path


def wheel(session: nox.Session, name: str) -> str:
    """The wheel of one package, built once per content of its sources."""
    folder = PACKAGES[name]
    digest = hashlib.sha256(str(sys.implementation.cache_tag).encode())
    for path in (ROOT / "LICENSE", *sources(folder)):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    kept = KEPT_WHEELS / f"{name}-{digest.hexdigest()[:16]}"
    if not kept.is_dir():
        with tempfile.TemporaryDirectory() as scratch:
            # A copy, because setuptools leaves a build/ beside the sources and packs what is still in it.
            tree, made = Path(scratch) / name, Path(scratch) / "wheels"
            shutil.copytree(folder, tree, ignore=shutil.ignore_patterns(*BUILT))
            shutil.copy(ROOT / "LICENSE", tree)
            session.run("python", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(made), str(tree), silent=True)
            for older in KEPT_WHEELS.glob(f"{name}-*"):
                shutil.rmtree(older)
            shutil.copytree(made, kept)
    return str(next(kept.glob("*.whl")))


def install_wheels(session: nox.Session, *names: str, also: tuple[str, ...] = ()) -> None:
    """Install these packages as their users get them, and nothing else of dsx."""
    built = [wheel(session, name) for name in names]
    install(session, *built, *also)
    # The version does not change while we develop, so pip would keep yesterday's files.
    session.install("--no-deps", "--force-reinstall", "--no-index", *built)
    wanted = {f"dsx-{name}" for name in names}
    session.run(
        "python",
        "-c",
        "import importlib.metadata as m;"
        "found = {d.name for d in m.distributions() if d.name.startswith('dsx-')};"
        f"assert found == {wanted!r}, found",
        silent=True,
    )


def install_editable(session: nox.Session, *also: str) -> None:
    """Install the Python packages from the tree and the native one as a wheel."""
    editable = [argument for name in PACKAGES if name != "native" for argument in ("-e", str(PACKAGES[name]))]
    native = [wheel(session, "native")] if "native" in PACKAGES else []
    install(session, *editable, *native, *TEST_TOOLS, *also)
    if native:
        session.install("--no-deps", "--force-reinstall", "--no-index", *native)


def pytest(session: nox.Session, *arguments: str) -> None:
    """Run pytest with one thread a process: more of them than cores only wait for each other."""
    session.run("pytest", *arguments, env={"OMP_NUM_THREADS": "1"})


@nox.session
def quickstart(session: nox.Session) -> None:
    """Train a small GPT on real text, as a newcomer would: `nox -s quickstart [-- --steps 20]`."""
    install_wheels(session, *PACKAGES, also=("matplotlib",))
    session.run("python", "examples/quickstart/quickstart.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Every test of every package: `nox -s tests [-- pytest arguments]`."""
    install_editable(session, "matplotlib")
    pytest(session, *session.posargs)


@nox.session(venv_backend="none")
def dev(session: nox.Session) -> None:
    """Make .venv: editable packages and every tool, for an editor and for running pytest by hand."""
    python = ROOT / ".venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    session.run(sys.executable, "-m", "venv", str(ROOT / ".venv"), external=True)
    editable = [argument for folder in PACKAGES.values() for argument in ("-e", str(folder))]
    tools = [*TEST_TOOLS, *BUILD_TOOLS, *LINT_TOOLS, "mypy", "towncrier", "nox", "matplotlib"]
    command = [str(python), "-m", "pip", "install", "-c", str(ROOT / "constraints.txt"), *editable, *tools]
    session.run(*command, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format and the law of imports; needs no torch."""
    install(session, *LINT_TOOLS)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", env={"PYTHONPATH": os.pathsep.join(str(p / "src") for p in PACKAGES.values())})


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over the packages, the benchmarks, the examples and this file."""
    dependencies = ("torch", "numpy", "pydantic", "pluggy", "rich", "typer", "pytest", "hypothesis", "matplotlib")
    install(session, "mypy", "nox", *dependencies)
    session.run("mypy", *session.posargs)


@nox.session
def native(session: nox.Session) -> None:
    """Build the native library with CMake, run its C++ tests, then its Python tests against the wheel."""
    install(session, *BUILD_TOOLS)
    session.run("cmake", "--preset", "default", f"-DPython_EXECUTABLE={session.bin}/python")
    session.run("cmake", "--build", "--preset", "default")
    session.run("ctest", "--preset", "default")
    install_wheels(session, "core", "native", also=TEST_TOOLS)
    pytest(session, "native/tests", *session.posargs)


@nox.session
@nox.parametrize("plugin", PLUGINS, ids=PLUGINS)
def alone(session: nox.Session, plugin: str) -> None:
    """The core and one plugin, from wheels, with nothing else of dsx: the tests of both."""
    install_wheels(session, "core", plugin, also=TEST_TOOLS)
    pytest(session, "packages/core/tests", str(PACKAGES[plugin] / "tests"), *session.posargs)


@nox.session
def without_native(session: nox.Session) -> None:
    """Every Python package from wheels, without the native one: the tests and a short training."""
    names = [name for name in PACKAGES if name != "native"]
    install_wheels(session, *names, also=(*TEST_TOOLS, "matplotlib"))
    pytest(session, *(str(PACKAGES[name] / "tests") for name in names), *session.posargs)
    session.run("python", "examples/quickstart/quickstart.py", "--steps", "20", "--out", session.create_tmp())


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every wheel into dist/."""
    (ROOT / "dist").mkdir(exist_ok=True)
    for name in PACKAGES:
        session.log(shutil.copy(wheel(session, name), ROOT / "dist"))


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated pages of docs/reference/; with `-- --check`, fail where one is stale."""
    install_editable(session)
    session.run("python", "docs/generate.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """dsx beside its peers: `nox -s bench -- parity bytes adam start train [--short]`. Needs a compiler, for a peer."""
    install_wheels(session, *PACKAGES)
    install(session, *PEERS, "ninja")
    session.run("python", "-m", "benchmarks", *session.posargs, env=PEER_ENVIRONMENT)


@nox.session(venv_params=["--system-site-packages"])
def gpu(session: nox.Session) -> None:
    """On a machine with a GPU and a torch that drives it: the quickstart on CUDA, in a minute."""
    built = [wheel(session, name) for name in PACKAGES]
    session.install(*built, "matplotlib")
    session.install("--no-deps", "--force-reinstall", "--no-index", *built)
    session.run("python", "examples/quickstart/quickstart.py", "--steps", "60", *session.posargs)
