"""The life of one rank: runs the user's script, and leaves a short account where the launcher reads it if it fails.

Run as ``python -m dsx.launch.rank_script [-m] SCRIPT ARGS``. Imports nothing but the standard library, so that a rank
starts as fast as the script alone.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun's agent looks for a rank's last words."""

FRAMES = 16
"""Innermost calls that a traceback shows."""

PATIENCE = 5.0
"""Seconds that a failed rank is given to end in order; a thread or a device must not keep it."""

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Run the script as ``python`` would, with ``sys.argv`` and ``sys.path`` as it would see them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                line_buffering=True, write_through=False
            )  # lines of several ranks do not mix, and are seen at once
    as_module = arguments[0] == "-m"
    sys.argv = arguments[1:] if as_module else arguments
    sys.path[0] = os.getcwd() if as_module else str(Path(sys.argv[0]).resolve().parent)
    try:
        if as_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            _leave(f"exit status {error.code}", "")
        raise
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BaseException as error:  # noqa: BLE001  whatever ends a rank is reported
        _leave(f"{type(error).__name__}: {error}", _format(error))
        _end_soon()
        sys.exit(1)


def _leave(message: str, text: str) -> None:
    """Write in the form that torchrun's agent reads, with a time finer than its own."""
    file = os.environ.get(ERROR_FILE)
    if file is None:
        sys.stderr.write(text)
        return
    now = time.time()
    extra = {"py_callstack": text, "timestamp": str(int(now)), "time": now}
    Path(file).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


def _format(error: BaseException) -> str:
    """The traceback from the script's first line on, its middle left out where it is long."""
    return "".join(traceback.format_exception(type(error), error, _in_script(error.__traceback__), limit=-FRAMES))


def _in_script(trace: TracebackType | None) -> TracebackType | None:
    ours = (__file__, runpy.__file__)
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in ours or trace.tb_frame.f_code.co_filename.startswith("<frozen runpy")
    ):
        trace = trace.tb_next
    return trace


def _end_soon() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    timer = threading.Timer(PATIENCE, os._exit, args=(1,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    main(sys.argv[1:])
