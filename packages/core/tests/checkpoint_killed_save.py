"""Run by test_checkpoint_kill: saves over an existing checkpoint, killed at the n-th change to the file system.

Each n is a forked child that dies by SIGKILL; the parent then loads what is there and prints one JSON line.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from checkpoint_worlds import Holder, single

from dsx.checkpoint.load import load
from dsx.checkpoint.save import save

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def whole(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3, 5), value), "b": torch.full((7,), value)}


def write(root: Path, *, tag: str, value: float) -> None:
    save(root, tag=tag, parts=[Holder(whole(value), rank=0, size=1).part()], group=single(), client_state={"v": value})


def kill_at(moment: int) -> None:
    """Die at the moment-th event that changes a file or waits for the disk, before it happens."""
    counter = iter(range(1, 1_000_000))

    def step(name: str) -> None:
        if next(counter) == moment:
            print(name, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
            step(event)

    os.fsync = lambda descriptor: step("os.fsync")
    sys.addaudithook(audit)


def found(root: Path) -> float:
    """The value that a load gives, after checking that weights and client state are of one save."""
    holder = Holder(whole(0.0), rank=0, size=1)
    loaded = load(root, parts=[holder.part()], group=single())
    value = loaded.client_state["v"]
    assert holder.equals(whole(value)), "weights and client state are of different saves"
    return float(value)


def attempt(base: Path, moment: int, tag: str) -> dict[str, Any]:
    root = base / f"{tag}-{moment}"
    write(root, tag="first", value=1.0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        kill_at(moment)
        write(root, tag=tag, value=2.0)
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        where = pipe.read().strip()
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    report = {"tag": tag, "moment": moment, "where": where, "killed": killed, "value": found(root)}
    write(root, tag=tag, value=3.0)  # the next save works, whatever lies about
    report["next"] = found(root)
    report["left"] = sorted(entry.name for entry in root.iterdir())
    shutil.rmtree(root)
    return report


def main() -> None:
    base = Path(sys.argv[1])
    os.fsync = lambda descriptor: None  # a killed process loses nothing that the kernel has
    assert threading.active_count() == 1
    for tag in ("first", "second"):
        moment, killed = 1, True
        while killed:
            report = attempt(base, moment, tag)
            print(json.dumps(report), flush=True)
            killed, moment = report["killed"], moment + 1


if __name__ == "__main__":
    main()
