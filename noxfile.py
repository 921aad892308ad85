"""Every task that a person or CI runs. `nox -l` lists them; `nox -s NAME -- arguments` runs one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
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
EXAMPLE, EXAMPLE_NAME = ROOT / "examples" / "third_party_plugin", "acme-sparse-adam"
COMPILER = re.compile(
    r"([\w+]+-)*"
    r"(cc|c\+\+|cpp|c89|c99|gcc|g\+\+|gfortran|f77|f95|clang|clang\+\+|icc|icx|icpc|icpx|tcc|nvcc|hipcc|rustc|cargo|go"
    r"|as|ar|ranlib|ld|gold|lld|mold|collect2|make|gmake|ninja|cmake|meson|bazel|ccache)"
    r"([-.\d][\w.-]*)?"
)
"""Names of programs that compile, link or drive a build, with the prefix of a target or a version at the end."""
WHERE_VERSIONS_MATTER = (
    *(
        "packages/core/tests/test_" + subject + "*.py"
        for subject in ("plugin", "registry", "config", "cli", "planning")
    ),
    *("packages/core/tests/test_" + subject + "*.py" for subject in ("testing", "checkpoint", "observe", "launch")),
    *("packages/zero/tests/test_zero_" + subject + "*.py" for subject in ("config", "section", "parity", "checkpoint")),
)
"""Where pluggy, pydantic, typer, rich, pytest, hypothesis and numpy are met; the rest of the tests meets torch."""
STRANGERS = ("acme-sparse-adam", "acme-second-adam")
"""Names of the packages that ``third_party`` has written."""
PEERS = ("deepspeed==0.19.8",)
PEER_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1", "DS_BUILD_OPS": "0"}


def install(session: nox.Session, *arguments: str, pins: str = "constraints.txt") -> None:
    """Install at the versions of this file."""
    session.install("-c", str(ROOT / pins), *arguments)


def sources(folder: Path) -> Iterator[Path]:
    """The files that decide what a package's wheel holds, in a fixed order."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(part.match(pattern) for part in (inside, *inside.parents) for pattern in BUILT):
            yield path


def wheel(session: nox.Session, name: str, *, folder: Path | None = None) -> str:
    """The wheel of one package, built once per content of its sources; of another project where a folder is given."""
    folder = folder or PACKAGES[name]
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


def plugins_in(session: nox.Session) -> list[str]:
    """The distributions in the session's environment that offer plugins, left there by an earlier run."""
    asked = "import importlib.metadata as m; print(*{p.dist.name for p in m.entry_points(group='dsx')})"
    return str(session.run("python", "-c", asked, silent=True, log=False)).split()


def uninstall(session: nox.Session, *distributions: str) -> None:
    """Remove these distributions from the session's environment."""
    if distributions:
        session.run("python", "-m", "pip", "uninstall", "--yes", "--quiet", *distributions)


def install_wheels(
    session: nox.Session, *names: str, also: tuple[str, ...] = (), pins: str = "constraints.txt"
) -> None:
    """Install these packages as their users get them, and nothing else of dsx."""
    built = [wheel(session, name) for name in names]
    uninstall(session, *plugins_in(session))
    install(session, *built, *also, pins=pins)
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


def pytest(session: nox.Session, *arguments: str, env: Mapping[str, str] | None = None) -> None:
    """Run pytest on all cores with one thread a process: more of them than cores only wait for each other."""
    session.run("pytest", "-n", "auto", *arguments, env={"OMP_NUM_THREADS": "1", **(env or {})})


def no_compiler(session: nox.Session) -> dict[str, str]:
    """A PATH of the session's programs and the system's, without what compiles, links or drives a build."""
    programs = Path(session.virtualenv.location) / "programs"
    shutil.rmtree(programs, ignore_errors=True)
    programs.mkdir()
    for folder in filter(None, os.environ["PATH"].split(os.pathsep)):
        for program in Path(folder).glob("*"):
            link = programs / program.name
            if not COMPILER.fullmatch(program.name) and os.access(program, os.X_OK) and not link.is_symlink():
                link.symlink_to(program)
    environment = {"PATH": str(programs)}
    names = ("cc", "gcc", "c++", "g++", "clang", "nvcc", "ld", "as", "make", "cmake", "ninja")
    asked = f"import shutil; found = [n for n in {names} if shutil.which(n)]; assert not found, found"
    session.run("python", "-c", asked, env=environment, log=False)
    session.log(f"on PATH there is no {', '.join(names)}")
    return environment


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
    """The core and one plugin, from wheels, with nothing else of dsx and no compiler: the tests of both."""
    install_wheels(session, "core", plugin, also=TEST_TOOLS)
    environment = no_compiler(session)
    pytest(session, "packages/core/tests", str(PACKAGES[plugin] / "tests"), *session.posargs, env=environment)


@nox.session
def without_native(session: nox.Session) -> None:
    """Every Python package from wheels, with neither the native one nor a compiler: tests and a short training."""
    names = [name for name in PACKAGES if name != "native"]
    install_wheels(session, *names, also=(*TEST_TOOLS, "matplotlib"))
    environment = no_compiler(session)
    # The core's own tests without the native package are run by every other `alone`.
    folders = [str(PACKAGES[name] / "tests") for name in names if name != "core"]
    pytest(session, *folders, *session.posargs, env=environment)
    out = Path(session.virtualenv.location) / "quickstart"
    script = ("examples/quickstart/quickstart.py", "--steps", "20", "--out", str(out))
    session.run("python", *script, env=environment)


@nox.session
def third_party(session: nox.Session) -> None:
    """A stranger's plugin, from an empty folder and wheels: written, installed, tested, checked, trained, removed."""
    install_wheels(session, "core", also=("mypy", *TEST_TOOLS))
    first, second = STRANGERS
    what_is_left = "tests/together/what_is_left.py"
    with tempfile.TemporaryDirectory() as folder:
        session.run("python", "-m", "benchmarks.stranger", folder, first)
        siblings = [wheel(session, name) for name in PLUGINS]
        session.install("--no-index", "--no-deps", *siblings)
        session.run("python", "-m", "benchmarks.stranger", folder, second)
    session.run("python", what_is_left)
    uninstall(session, first, second)
    session.run("python", what_is_left, "--gone", first, second)
    pytest(session, *(str(path) for path in (ROOT / "tests").glob("test_extensions*.py")), *session.posargs)


@nox.session
def together(session: nox.Session) -> None:
    """Every package and the example of a third party, from wheels: plugin by plugin, then with each taken away."""
    install_wheels(session, *PACKAGES, also=TEST_TOOLS)
    example = wheel(session, EXAMPLE.name, folder=EXAMPLE)
    session.install("--no-index", "--no-deps", "--force-reinstall", example)
    pytest(session, "tests/together", *session.posargs)
    pytest(session, "-c", str(EXAMPLE / "pyproject.toml"), str(EXAMPLE / "tests"))
    gone: list[str] = []
    for name in ("dsx-native", "dsx-zero", EXAMPLE_NAME):
        gone.append(name)
        uninstall(session, name)
        session.run("python", "tests/together/what_is_left.py", "--gone", *gone)


@nox.session
def oldest(session: nox.Session) -> None:
    """The lowest versions that the packages declare: the tests that meet them, or those named: `-- packages/core`."""
    install_wheels(session, "core", "zero", also=TEST_TOOLS, pins="constraints-oldest.txt")
    files = sorted(str(path) for pattern in WHERE_VERSIONS_MATTER for path in ROOT.glob(pattern))
    pytest(session, *(session.posargs or files))


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
    """dsx beside its peers: `nox -s bench -- parity bytes adam start train plugins [--short]`. A peer is compiled."""
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
