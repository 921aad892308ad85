"""The life of one rank of a test: environment, process group, function, answer."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.util
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

_PR_SET_PDEATHSIG = 1


def rank_main(connection: Connection, payload: bytes, stacks: str) -> None:
    """Run one rank and send (good, pickled result or traceback, time). The target of the forked process."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with Path(stacks).open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
        connection.send_bytes(pickle.dumps(_answer(payload)))
    sys.stdout.flush()
    sys.stderr.flush()


def _answer(payload: bytes) -> tuple[bool, bytes | str, float]:
    try:
        reference, args, environment, init = pickle.loads(payload)
        os.environ.clear()
        os.environ.update(environment)
        return True, pickle.dumps(_run(function_at(reference), args, init=init)), monotonic()
    except BaseException as error:  # noqa: BLE001  a rank that exits has failed too, and must say so
        when = monotonic()
        return False, "".join(traceback.format_exception(error)), when


def _run(function: Callable[..., Any], args: tuple[Any, ...], *, init: bool) -> Any:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if init:
        dist.init_process_group("gloo")
        dist.barrier()  # a rank that ends at once must not close its connections while others still open theirs
    result = function(*args)
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def function_at(reference: tuple[str, str, str]) -> Callable[..., Any]:
    """Import the test's module by name, or from its file where the name is not importable."""
    name, qualified, file = reference
    found: Any = _module(name, Path(file))
    for part in qualified.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def _module(name: str, file: Path) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return _load(name, file)
    known = getattr(module, "__file__", None)
    return module if known is not None and Path(known).resolve() == file else _load(name, file)


def _load(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
