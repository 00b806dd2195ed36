"""The tensor service, in `zmq_service.py` with sockets of zmq and msgpack, in `rpc_service.py` with ipcbench's calls.

    python examples/tensor_service/rpc_service.py --calls 200

The two files differ in 20 lines.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys

from service import Array, Service, digest, inputs, plan

from ipcbench import rpc


def serve(name: str) -> None:
    """Serve until a client says that it is enough."""
    server = rpc.Server("shm", name)
    for method, work in {"stop": server.stop, **Service().methods}.items():
        server.method(work, name=method)
    server.serve()


class Client:
    """Calls the methods."""

    def __init__(self, name: str) -> None:
        self._client = rpc.connect(name, timeout_s=60)

    def call(self, method: str, array: Array) -> Array:
        """Call a method and return its result."""
        return self._client.call(method, array)

    def stop(self) -> None:
        """End the server."""
        self._client.stop()
        self._client.close()


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
