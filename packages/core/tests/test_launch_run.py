"""``dsx run`` with real ranks: results, arguments, failures, signals, ports; no child is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dsx.launch.fan_out import fan_out

HANG = """
import os, sys, time
print("up", os.environ["RANK"], os.getpid())
mode = sys.argv[1]
while os.environ["RANK"] == "1" and not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
if os.environ["RANK"] == "1":
    if mode == "raise":
        raise ValueError("boom")
    if mode == "exit":
        sys.exit(3)
    if mode == "kill":
        os.kill(os.getpid(), 9)
time.sleep(300)
"""

SHOW = """
import os, sys, json
print(json.dumps([os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["OMP_NUM_THREADS"], sys.argv, sys.path[0]]))
"""


def _environment() -> dict[str, str]:
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _start(*arguments: str) -> subprocess.Popen[str]:
    code = "import sys; from dsx.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "run", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(), start_new_session=True
    )


def _finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    with process:  # closes the pipes and waits, whatever happens
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, out, err


def _script(tmp_path: Path, text: str) -> str:
    file = tmp_path / "script.py"
    file.write_text(text)
    return str(file)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_gone(pids: Sequence[int]) -> list[int]:
    until = time.monotonic() + 10
    while time.monotonic() < until and any(map(_alive, pids)):
        time.sleep(0.05)
    return [pid for pid in pids if _alive(pid)]


def test_arguments_and_environment_reach_each_rank(tmp_path: Path) -> None:
    script = _script(tmp_path, SHOW)
    status, out, err = _finish(_start("--nproc", "2", script, "--lr", "0.1", "-n", "5"))
    assert (status, len(out.splitlines())) == (0, 2), err
    for rank, line in enumerate(sorted(out.splitlines())):
        assert line.startswith(f'["{rank}", "2", "')
        assert line.endswith(f'["{script}", "--lr", "0.1", "-n", "5"], "{tmp_path}"]')
    assert err.count("OMP_NUM_THREADS") == 1


@pytest.mark.parametrize(
    ("mode", "status", "first"),
    [
        ("raise", 1, "rank 1 of 3 failed first: ValueError: boom"),
        ("exit", 3, "rank 1 of 3 failed first: exit status 3"),
        ("kill", 137, "rank 1 of 3 failed first: killed by SIGKILL"),
    ],
)
def test_one_rank_dies_and_none_stays(tmp_path: Path, mode: str, status: int, first: str) -> None:
    """B74: all children gone within 10 s, the first failure's status, its traceback first."""
    process = _start("-n", "3", _script(tmp_path, HANG), mode, str(tmp_path / "go"))
    pids = _pids(process, 3)
    (tmp_path / "go").touch()
    start = time.monotonic()
    code, _, err = _finish(process)
    assert time.monotonic() - start < 10
    assert code == status
    assert _wait_gone(pids) == []
    lines = [line for line in err.splitlines() if "OMP_NUM_THREADS" not in line]
    assert lines[0].endswith(first) or first in lines[0]
    if mode == "raise":
        assert lines[2] == "Traceback (most recent call last):"
        assert lines[3].strip().startswith(f'File "{tmp_path}/script.py", line ')


def _pids(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    assert all(lines), _finish(process)
    return [int(line.split()[2]) for line in lines]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ending_the_launcher_ends_the_ranks(tmp_path: Path, number: signal.Signals) -> None:
    """B74: the launcher is told to end, interrupted, or killed outright."""
    process = _start("-n", "2", _script(tmp_path, HANG), "hang", str(tmp_path / "go"))
    pids = _pids(process, 2)
    process.send_signal(number)
    code, _, err = _finish(process)
    assert code != 0
    assert _wait_gone(pids) == []
    assert "Traceback" not in err


def test_two_launches_at_once_and_a_port_that_is_taken(tmp_path: Path) -> None:
    """B75: launches without a port do not meet; a taken port is refused at once."""
    script = _script(tmp_path, "import torch.distributed as d; d.init_process_group('gloo'); d.barrier(); print('met')")
    both = [_start("-n", "2", script), _start("-n", "2", script)]
    for status, out, err in map(_finish, both):
        assert (status, out.count("met")) == (0, 2), err
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, _, err = _finish(_start("-n", "2", "--master-port", str(port), script))
    assert status == 1
    assert f"port {port} cannot be used" in err


def test_a_module_and_a_dry_run(tmp_path: Path) -> None:
    status, out, err = _finish(_start("-n", "1", "-m", "this"))
    assert (status, "beautiful" in out.lower()) == (0, True), err
    hosts = tmp_path / "hosts"
    hosts.write_text("w0 slots=2\nw1 slots=2\n")
    options = ["--hostfile", str(hosts), "--include", "w1:1", "--runner", "slurm", "--dry-run"]
    status, out, err = _finish(_start(*options, "train.py", "--x"))
    if status == 0:  # where there is an srun
        assert "--nodelist w1" in out
    else:
        assert "no program 'srun'" in err


def test_wrong_calls_are_explained(tmp_path: Path) -> None:
    status, _, err = _finish(_start("-n", "2", str(tmp_path / "none.py")))
    assert (status, "found no script" in err) == (1, True)
    status, _, err = _finish(_start("--nnodes", "2", _script(tmp_path, SHOW)))
    assert (status, "give --node-rank" in err) == (1, True)


def test_commands_side_by_side() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(300)"]
    start = time.monotonic()
    assert fan_out([sleeper, [sys.executable, "-c", "raise SystemExit(4)"], sleeper]) == 4
    assert fan_out([[sys.executable, "-c", "pass"]] * 2) == 0
    assert fan_out([sleeper, [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]]) == 137
    assert time.monotonic() - start < 20


def test_two_machines_meet_at_a_port(tmp_path: Path) -> None:
    script = _script(tmp_path, SHOW.replace("[os.", '[os.environ["LOCAL_RANK"], os.'))
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    options = ["-n", "2", "--nnodes", "2", "--master-addr", "localhost", "--master-port", str(port)]
    both = [_start(*options, "--node-rank", str(number), script) for number in range(2)]
    for number, (status, out, err) in enumerate(map(_finish, both)):
        assert status == 0, err
        starts = [f'["0", "{2 * number}", "4"', f'["1", "{2 * number + 1}", "4"']
        assert [line[:14] for line in sorted(out.splitlines())] == starts
