"""The latest metrics in Prometheus' text format, over HTTP."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dsx.errors import PluginError


def metric_name(name: str) -> str:
    """A metric's name as Prometheus allows it: ``Train/loss`` is ``dsx_train_loss``."""
    return "dsx_" + re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def page(values: Mapping[str, float], *, step: int) -> str:
    """All values as gauges, with the step they are of as ``dsx_step``."""
    rows = {"dsx_step": float(step)} | {metric_name(name): float(value) for name, value in values.items()}
    return "".join(f"# TYPE {name} gauge\n{name} {_number(value)}\n" for name, value in rows.items())


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")


class PrometheusMonitor:
    """Serves ``/metrics`` from a thread of its own until it is closed."""

    def __init__(self, *, port: int = 9464, address: str = "127.0.0.1") -> None:
        self._values: dict[str, float] = {}
        self._page = ""
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = monitor._page.encode() if found else b"metrics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: each visit would be a line among the training's."""

        try:
            self._server = ThreadingHTTPServer((address, port), Handler)
        except OSError as error:
            raise PluginError(
                f"monitor 'prometheus' cannot listen on {address}:{port} ({error.strerror}): "
                "set prometheus.port to a free port, or to 0 for any"
            ) from error
        self.port = int(self._server.server_address[1])
        """The port it listens on."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="dsx-prometheus", daemon=True
        )
        self._thread.start()

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Replace these values; others stay as they were last written."""
        self._values |= values
        self._page = page(self._values, step=step)

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
