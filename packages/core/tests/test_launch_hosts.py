"""Machines, slots, filters, and the commands of each runner as text."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dsx.errors import LaunchError
from dsx.launch.hostfile import choose_slots, parse_hostfile, read_hostfile, visible_devices
from dsx.launch.runners import MpiRunner, SlurmRunner, SshRunner

HOSTS = {"w0": (0, 1, 2, 3), "w1": (0, 1, 2, 3)}
ENVIRONMENT = {
    "MASTER_ADDR": "w0",
    "MASTER_PORT": "2345",
    "DSX_KERNELS": "adam_step=torch",
    "CUDA_VISIBLE_DEVICES": "7",
    "PATH": "/bin",
    "SECRET": "hidden",
}


def test_hostfile() -> None:
    text = "# two machines\n\nw0 slots=4   # the first\n  w1   slots = 4\nspare slots=0\n"
    assert parse_hostfile(text) == {**HOSTS, "spare": ()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w0 slots=4\nw1", "line 2: found 'w1'; wanted 'host slots=N'"),
        ("w0 slots=four", "line 1"),
        ("w0 slots=1\nw0 slots=2", "line 2: machine 'w0' is given twice"),
        ("", "names no slot"),
        ("w0 slots=0", "names no slot"),
    ],
)
def test_hostfiles_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        parse_hostfile(text)


def test_a_hostfile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot read the hostfile"):
        read_hostfile(tmp_path / "none")


@pytest.mark.parametrize(
    ("include", "exclude", "wanted"),
    [
        ("", "", HOSTS),
        ("w1:0,2", "", {"w1": (0, 2)}),
        ("w1@w0:3", "", {"w0": (3,), "w1": (0, 1, 2, 3)}),
        ("", "w0", {"w1": (0, 1, 2, 3)}),
        ("", "w0:0@w1:1,2,3", {"w0": (1, 2, 3), "w1": (0,)}),
    ],
)
def test_filters(include: str, exclude: str, wanted: dict[str, tuple[int, ...]]) -> None:
    assert choose_slots(HOSTS, include=include, exclude=exclude) == wanted


@pytest.mark.parametrize(
    ("include", "exclude", "message"),
    [
        ("w0", "w1", "give one of them"),
        ("w2", "", "no machine 'w2'"),
        ("w1:4", "", "has no slot 4; it has 4 slots"),
        ("w1:x", "", "wanted numbers"),
        ("", "w0@w1", "no slot is left"),
    ],
)
def test_filters_that_make_no_sense(include: str, exclude: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        choose_slots(HOSTS, include=include, exclude=exclude)


def test_slots_count_among_the_visible_devices() -> None:
    """B73: devices 0 and 2 are visible: two slots, and no talk of a slot 2."""
    assert visible_devices((0, 1), given="0,2") == "0,2"
    assert visible_devices((1,), given="0,2") == "2"
    assert visible_devices((0, 2), given=None) == "0,2"
    with pytest.raises(LaunchError, match="slots run from 0 to 1"):
        visible_devices((2,), given="0,2")


def test_srun_starts_the_chosen_tasks_on_the_chosen_machine() -> None:
    """B72: slots 0 and 2 of w1: two tasks, node list w1 alone, no flag of another starter."""
    nodes = choose_slots(HOSTS, include="w1:0,2")
    (command,) = SlurmRunner().commands(nodes=nodes, program=["train.py", "--lr", "1"], environment=ENVIRONMENT)
    start = command.index("srun")
    assert command[start + 1 : start + 9] == [
        "--nodes",
        "1",
        "--ntasks",
        "2",
        "--ntasks-per-node",
        "2",
        "--nodelist",
        "w1",
    ]
    assert "CUDA_VISIBLE_DEVICES=0,2" in command[:start]
    assert command[-3:] == ["train.py", "--lr", "1"]
    assert "SECRET" not in " ".join(command)


def test_ssh_starts_one_agent_a_machine() -> None:
    nodes = {"w0": (0, 1), "w1": (1, 3)}
    commands = SshRunner().commands(nodes=nodes, program=["-m", "job", "a b"], environment=ENVIRONMENT)
    assert [command[-2] for command in commands] == ["w0", "w1"]
    first, second = (shlex.split(command[-1]) for command in commands)
    for number, line in enumerate((first, second)):
        at = line.index("--nodes")
        assert line[at : at + 6] == ["--nodes", "2", "--node-rank", str(number), "--nproc", "2"]
        assert line[-7:] == ["--master-addr", "w0", "--master-port", "2345", "-m", "job", "a b"]
        assert "DSX_KERNELS=adam_step=torch" in line
    assert not any(word.startswith("CUDA_VISIBLE_DEVICES") for word in first)
    assert "CUDA_VISIBLE_DEVICES=1,3" in second


def test_mpirun_starts_one_process_a_rank() -> None:
    (command,) = MpiRunner().commands(nodes=HOSTS, program=["train.py"], environment=ENVIRONMENT)
    assert command[:5] == ["mpirun", "-n", "8", "--host", "w0:4,w1:4"]
    assert command[command.index("MASTER_ADDR=w0") - 1 : command.index("MASTER_ADDR=w0") + 1] == [
        "-x",
        "MASTER_ADDR=w0",
    ]
    assert command[-1] == "train.py"


@pytest.mark.parametrize("runner", [SlurmRunner(), MpiRunner()])
def test_one_command_needs_equal_machines(runner: SlurmRunner | MpiRunner) -> None:
    with pytest.raises(LaunchError, match="w0 1, w1 2: make them equal"):
        runner.commands(nodes={"w0": (0,), "w1": (0, 1)}, program=["x.py"], environment=ENVIRONMENT)


def test_a_program_that_is_absent_scores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for runner in (SshRunner(), SlurmRunner(), MpiRunner()):
        score = runner.available()
        assert score.value == 0
        assert runner.program in score.why
