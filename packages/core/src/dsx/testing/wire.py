"""Bytes that this process has put on the wire, as the kernel counts them: no other process disturbs the count."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from time import monotonic, sleep

from dsx.errors import DsxError

_BYTES_ACKED = 120
"""Where Linux's ``struct tcp_info`` keeps the bytes that the other side has acknowledged."""


def bytes_acknowledged() -> int:
    """Payload bytes over all open TCP connections of this process. Linux only."""
    if not sys.platform.startswith("linux"):
        raise DsxError(f"found {sys.platform}; the kernel's count of TCP bytes is read on Linux only")
    return sum(_acknowledged(connection) for connection in _connections())


def settled_bytes(*, quiet: float = 0.05, patience: float = 2.0) -> int:
    """The same, once it has not changed for ``quiet`` seconds: acknowledgements come a little late."""
    until = monotonic() + patience
    before = bytes_acknowledged()
    while monotonic() < until:
        sleep(quiet)
        now = bytes_acknowledged()
        if now == before:
            break
        before = now
    return before


def _connections() -> Iterator[socket.socket]:
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue  # closed since it was listed
        try:
            found = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with found:
            if found.type == socket.SOCK_STREAM and found.family in (socket.AF_INET, socket.AF_INET6):
                yield found


def _acknowledged(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int(struct.unpack_from("=Q", info, _BYTES_ACKED)[0]) if len(info) >= _BYTES_ACKED + 8 else 0
