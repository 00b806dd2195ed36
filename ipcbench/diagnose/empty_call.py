"""What an empty call takes of each side's time here: two processes call over ZeroMQ, and record as a user's would.

It costs more than its steps in a loop of their own: whoever was waiting finds cold caches.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zmq

from ipcbench import trace
from ipcbench.replay.clients import read_traffic
from ipcbench.util.clock import now_ns

_CALLS = 300
_SIZE_BYTES = 8
_PATIENCE_MS = 10_000
"""Nobody waits longer for the other one, whatever became of it."""


@dataclass(frozen=True, slots=True)
class EmptyCall:
    """What one of many calls took at the median, in ns: between two of them, before the request left, after the reply
    came, and at the server; and what was between them, which is transport.
    """

    gap_ns: float = 0.0
    before_ns: float = 0.0
    after_ns: float = 0.0
    server_ns: float = 0.0
    away_ns: float = 0.0


def measure_empty_call() -> EmptyCall:
    """Return what an empty call takes; nothing where that cannot be measured."""
    with tempfile.TemporaryDirectory(prefix="ipcbench-") as folder:
        command = [sys.executable, "-m", __name__, folder]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=2 * _PATIENCE_MS / 1000)
        except (OSError, subprocess.SubprocessError):
            return EmptyCall()
        (calls,) = read_traffic(Path(folder)).threads
    columns = calls.gap_ns, calls.before_ns, calls.after_ns, calls.server_ns, calls.away_ns
    return EmptyCall(*(max(0.0, float(np.median(column))) for column in columns))


def _socket(kind: int) -> zmq.Socket[bytes]:
    made: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    made.setsockopt(zmq.RCVTIMEO, _PATIENCE_MS)
    made.setsockopt(zmq.LINGER, 0)
    return made


def _serve(folder: str, address: str) -> None:
    """Answer requests until an empty one."""
    trace.start(folder, service="server")
    with _socket(zmq.REP) as server:
        server.bind(address)
        while True:
            parts = server.recv_multipart(copy=False)
            received_ns = now_ns()
            context = bytes(parts[0].buffer)
            if not context:
                break
            with trace.serve(context, "empty", "", received_ns, received_ns) as call:
                reply = [bytes(len(part.buffer)) for part in parts[1:]]
                call.replying(sum(map(len, reply)))
                server.send_multipart(reply, copy=False)
        server.send(b"")
    trace.stop()


def _call(folder: str, address: str) -> None:
    trace.start(folder, service="client")
    with _socket(zmq.REQ) as client:
        client.connect(address)
        for _ in range(_CALLS):
            with trace.call("empty") as call:
                request = [bytes(_SIZE_BYTES)]
                call.serialized(sum(map(len, request)))
                client.send_multipart([call.context(), *request])
                call.sent()
                reply = client.recv_multipart(copy=False)
                call.received(sum(len(part.buffer) for part in reply))
        client.send(b"")
        client.recv()
    trace.stop()


def _main(folder: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ipcbench-") as place:
        address = f"ipc://{place}/s"
        child = os.fork()
        if not child:
            try:
                _serve(folder, address)
            finally:
                os._exit(0)
        _call(folder, address)
        os.waitpid(child, 0)


if __name__ == "__main__":
    _main(sys.argv[1])
