"""Starts the ranks of one of several machines: what a runner calls there."""

from __future__ import annotations

import argparse
import sys

from dsx.errors import DsxError
from dsx.launch.local import Launch, run_local


def main(arguments: list[str]) -> int:
    """Read the place of this machine, start its ranks, and give the exit status."""
    parser = argparse.ArgumentParser(prog="dsx.launch.agent", description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--nproc", type=int, required=True)
    parser.add_argument("--master-addr", required=True)
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    launch = Launch(
        program=tuple(given.program),
        nproc=given.nproc,
        as_module=given.module,
        nodes=given.nodes,
        node_rank=given.node_rank,
        master_addr=given.master_addr,
        master_port=given.master_port,
    )
    try:
        return run_local(launch, say=_say)
    except DsxError as error:
        _say(str(error))
        return 2


def _say(text: str) -> None:
    sys.stderr.write(f"dsx: {text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
