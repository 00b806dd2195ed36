"""An HTTP server that answers /metrics with the sums of a folder that may still grow."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ipcbench.errors import ConfigError, StoreError
from ipcbench.trace.exporters.prometheus import CONTENT_TYPE, Totals
from ipcbench.trace.live.watch import Watch


class Metrics:
    """The sums of a folder; each look reads only what is new."""

    def __init__(self, folder: Path) -> None:
        self._watch = Watch(folder)
        self._totals = Totals()
        self._lock = threading.Lock()

    def text(self) -> str:
        """Return the sums as they are now.

        Raises:
            StoreError: the folder cannot be read.
        """
        with self._lock:
            for calls in self._watch.new_calls():
                self._totals.add(calls)
            for growth in self._watch.growths():
                self._totals.add_histogram(growth)
            return self._totals.text()


def make_server(folder: Path, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server that is bound and not yet running; port 0 takes a free one.

    Raises:
        ConfigError: the address cannot be bound.
    """
    metrics = Metrics(folder)

    class Handler(BaseHTTPRequestHandler):
        """Answers GET /metrics."""

        def do_GET(self) -> None:
            """Send the sums."""
            if self.path.partition("?")[0] not in {"/metrics", "/"}:
                self.send_error(404)
                return
            try:
                data = metrics.text().encode(errors="replace")
            except StoreError as error:
                self.send_error(500, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # as in the base class
            """Say nothing of each scrape."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError("--port", f"{host}:{port}", f"an address that can be bound: {error}") from error
    server.daemon_threads = True
    return server
