"""A program with a fault: a client calls a server over ZeroMQ, and both record. With `--mended`, the fault is mended.

Usage: faulty.py FAULT TRACE [--mended]; it prints how long the calls took, in ns, from the first to the last.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np
import zmq

from ipcbench import trace

_CALLS = {"relay": 60, "msgpack": 12, "tiny": 2000, "slow server": 100, "slow first call": 200, "neighbour": 200,
          "late server": 200}  # fmt: skip
_LATE_S = 2.0
"""After its start, until the late server binds its address."""
_DELAY_S = 0.005
"""Of the relay, each way."""
_WORK_S, _ITEM_S = 0.001, 0.00006
"""Of the server, for a call, and for each item of tiny ones."""
_THINK_S = {"msgpack": 0.01, "tiny": 0.0}
"""Of the client between calls; 1 ms otherwise."""


def work(seconds: float) -> None:
    """Compute for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def serve(fault: str, mended: bool, address: str, folder: str, ready: Any) -> None:
    """Answer calls until an empty one."""
    trace.start(folder, service="server")
    server = zmq.Context.instance().socket(zmq.REP)
    if fault == "late server" and not mended:
        threading.Event().wait(_LATE_S)
    server.bind(address)
    ready.set()
    is_first = True
    while True:
        parts = server.recv_multipart(copy=False)
        received_ns = time.monotonic_ns()
        context = bytes(parts[0].buffer)
        if not context:
            server.send(b"")
            break
        with trace.serve(context, "work", "", received_ns, received_ns) as call:
            if fault == "msgpack" and not mended:
                array = np.frombuffer(msgpack.unpackb(parts[1].buffer, max_bin_len=2**30)["x"], np.float32).copy()
                reply = [msgpack.packb({"x": array.tobytes()})]
            elif fault == "tiny":
                count = len(parts[1].buffer) // 8
                work(count * _ITEM_S)
                reply = [bytes(8 * count)]
            else:
                slow = {"slow server": 0.01, "slow first call": 2.0 * is_first}.get(fault, 0.0)
                work(0.0 if fault == "slow server" and mended else _WORK_S + slow * (not mended))
                reply = [parts[1]]
            is_first = False
            call.replying(sum(len(bytes(part) if isinstance(part, bytes) else part.buffer) for part in reply))
            server.send_multipart(reply, copy=False)
    server.close(0)
    trace.stop()


def relay(near: socket.socket, far: int) -> None:
    """Pass bytes on, each after a delay."""

    def pump(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(2**20):
            threading.Event().wait(_DELAY_S)
            target.sendall(data)

    client, _ = near.accept()
    server = socket.create_connection(("127.0.0.1", far))
    thread = threading.Thread(target=pump, args=(server, client), daemon=True)
    thread.start()
    pump(client, server)


def call_all(fault: str, mended: bool, client: Any) -> int:
    """Make the calls, and return how long they took."""
    count, merged = _CALLS[fault], 100 if fault == "tiny" and mended else 1
    array = np.ones(2**22 if fault == "msgpack" else 2**10, np.float32)
    begin_ns = time.monotonic_ns()
    for _ in range(count // merged):
        work(_THINK_S.get(fault, 0.001))
        with trace.call("work") as call:
            if fault == "msgpack" and not mended:
                parts = [msgpack.packb({"x": array.tobytes()})]
            else:
                parts = [bytes(8 * merged)] if fault == "tiny" else [memoryview(array).cast("B")]
            call.serialized(sum(map(len, parts)))
            client.send_multipart([call.context(), *parts], copy=fault != "msgpack")
            call.sent()
            reply = client.recv_multipart(copy=False)
            call.received(sum(len(part.buffer) for part in reply))
            if fault == "msgpack" and not mended:
                np.frombuffer(msgpack.unpackb(reply[0].buffer, max_bin_len=2**30)["x"], np.float32).copy()
    return time.monotonic_ns() - begin_ns


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Have processes that never rest beside the block."""
    spinning = [multiprocessing.Process(target=work, args=(3600.0,), daemon=True) for _ in range(count)]
    for each in spinning:
        each.start()
    yield
    for each in spinning:
        each.kill()
        each.join()


def main(fault: str, folder: str, mended: bool) -> int:
    """Run the program, and return how long its calls took, in ns."""
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory() as place, socket.socket() as near, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        is_relayed = fault == "relay" and not mended
        address = f"tcp://127.0.0.1:{port}" if is_relayed else f"ipc://{place}/s"
        if is_relayed:
            free.close()
            near.bind(("127.0.0.1", 0))
            near.listen()
            threading.Thread(target=relay, args=(near, port), daemon=True).start()
        ready = multiprocessing.Event()
        server = multiprocessing.Process(target=serve, args=(fault, mended, address, folder, ready))
        server.start()
        if fault != "late server" or mended:
            ready.wait()
        trace.start(folder, service="client")
        client = zmq.Context.instance().socket(zmq.REQ)
        client.connect(f"tcp://127.0.0.1:{near.getsockname()[1]}" if is_relayed else address)
        if fault not in {"slow first call", "late server"} or mended:
            warm_up(client, fault, mended)
        with neighbours((os.cpu_count() or 1) if fault == "neighbour" and not mended else 0):
            took_ns = call_all(fault, mended, client)
        client.send_multipart([b"", b""])
        client.recv()
        client.close(0)
        server.join()
        trace.stop()
    return took_ns


def warm_up(client: Any, fault: str, mended: bool) -> None:
    """Make a call that is not recorded, so that connections and memory are there."""
    size = 2**24 if fault == "msgpack" else 64
    body: Any = msgpack.packb({"x": bytes(size)}) if fault == "msgpack" and not mended else bytes(size)
    client.send_multipart([bytes(40), body])
    client.recv_multipart()


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], "--mended" in sys.argv))
