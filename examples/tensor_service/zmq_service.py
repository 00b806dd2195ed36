"""The tensor service, in `zmq_service.py` with sockets of zmq and msgpack, in `rpc_service.py` with ipcbench's calls.

    python examples/tensor_service/zmq_service.py --calls 200

The two files differ in 20 lines.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys

import msgpack
import numpy as np
import zmq
from service import Array, Service, digest, inputs, plan


def serve(name: str) -> None:
    """Serve until a client says that it is enough."""
    methods = Service().methods
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(f"ipc://@{name}")
    while True:
        method, shape, data = msgpack.unpackb(socket.recv())
        if method == "stop":
            break
        result = methods[method](np.frombuffer(data, np.float32).reshape(shape))
        socket.send(msgpack.packb([result.shape, result.tobytes()]))


class Client:
    """Calls the methods."""

    def __init__(self, name: str) -> None:
        self._socket = zmq.Context().socket(zmq.REQ)
        self._socket.connect(f"ipc://@{name}")

    def call(self, method: str, array: Array) -> Array:
        """Call a method and return its result."""
        self._socket.send(msgpack.packb([method, array.shape, array.tobytes()]))
        shape, data = msgpack.unpackb(self._socket.recv())
        return np.frombuffer(data, np.float32).reshape(shape)

    def stop(self) -> None:
        """End the server."""
        self._socket.send(msgpack.packb(["stop", (), b""]))
        self._socket.close()


def main() -> None:
    """Call the methods in turn, and print what came of it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=400)
    calls, name = parser.parse_args().calls, f"tensors-{os.getpid()}"
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(name,))
    server.start()
    client, arguments = Client(name), inputs()
    digests = [digest(client.call(method, arguments[method])) for method in plan(calls)]
    client.stop()
    server.join()
    sys.stdout.write(json.dumps({"calls": calls, "digest": sum(digests)}) + "\n")


if __name__ == "__main__":
    main()
