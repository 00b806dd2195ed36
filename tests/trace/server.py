"""A program: a traced server over ZeroMQ whose every answer takes 5 ms of work (an empty message's none), until `end`.

Usage: server.py ADDRESS FOLDER key|wrap.
"""

from __future__ import annotations

import sys

import msgpack
import zmq

from ipcbench import trace
from ipcbench.util.clock import now_ns

WORK_NS = 5_000_000


def work(duration_ns: int) -> None:
    until = now_ns() + duration_ns
    while now_ns() < until:
        pass


def context_of(request: bytes) -> object:
    return msgpack.unpackb(request) if len(request) > 3 else None


def by_key(socket: zmq.Socket[bytes]) -> None:
    for call in trace.requests(socket.recv, "Compute", context_of):
        if call.request == b"end":
            break
        work(WORK_NS if call.request else 0)
        call.replying(10)
        socket.send(b"x" * 10)


def by_wrapping(socket: zmq.Socket[bytes]) -> None:
    trace.wrap(socket, "echo", propagate=True)
    while (request := socket.recv()) != b"end":
        work(WORK_NS if request else 0)
        socket.send(request[:10])


def main(address: str, folder: str, way: str) -> None:
    trace.start(folder, service="server")
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.rcvtimeo = 60_000  # a client that is gone sends no end
        socket.bind(address)
        (by_wrapping if way == "wrap" else by_key)(socket)
        socket.send(b"")
    trace.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
