"""A tensor service: a server, its clients, five methods of very different sizes, over a transport of your choice.

    python examples/tensor_service/service.py --transport zmq --calls 200 --trace trace/

The transport is a Backend of ipcbench, so changing it means changing one word. `ipcbench.trace` records the calls on
both sides. With `--clients 3`, three client processes share the server, which handles one request at a time.

A message is a name in 16 bytes, the number of columns, the 40 bytes that join the two sides' records, and the array,
float32. The client works on each answer before it calls again, as applications do.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import secrets
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # NumPy reads it when imported; client and server must not compete for cores

import numpy as np  # noqa: E402

from ipcbench import ChannelSpec, get_backend, trace  # noqa: E402
from ipcbench.errors import EndOfStream, IpcbenchError  # noqa: E402

Array = np.ndarray[Any, np.dtype[np.float32]]

_HEAD = struct.Struct("=16sq40s")
_LONGEST_S = 60.0
_TABLE_ROWS = 4096
LARGEST_BYTES = 2**22 + _HEAD.size


class Packer:
    """Packs messages into one buffer and unpacks them into arrays that it keeps, so that a call allocates nothing."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(LARGEST_BYTES))
        self._floats: Array = np.frombuffer(self._buffer, dtype=np.float32, offset=_HEAD.size)
        self._arrays: dict[tuple[str, int], Array] = {}

    def pack(self, name: str, array: Array) -> memoryview:
        """Return a message: name, columns, the array. It is valid until the next `pack`."""
        _HEAD.pack_into(self._buffer, 0, name.encode(), array.shape[-1] if array.ndim > 1 else 0, b"")
        self._floats[: array.size] = array.reshape(-1)
        return self._buffer[: _HEAD.size + array.nbytes]

    def stamp(self, context: bytes) -> None:
        """Put a call's context into the message."""
        self._buffer[_HEAD.size - len(context) : _HEAD.size] = context

    def unpack(self, view: memoryview) -> tuple[str, Array]:
        """Return the name and a copy of the array, valid until the next array of that name and size."""
        raw, columns, _ = _HEAD.unpack_from(view)
        name = raw.rstrip(b"\0").decode()
        received: Array = np.frombuffer(view, dtype=np.float32, offset=_HEAD.size)
        if (name, received.size) not in self._arrays:
            self._arrays[name, received.size] = np.empty_like(received)
        array = self._arrays[name, received.size]
        array[:] = received
        return name, array.reshape(-1, columns) if columns else array


class Service:
    """The methods of the server. Arrays are float32."""

    def __init__(self) -> None:
        generator = np.random.default_rng(1)
        self._table: Array = generator.standard_normal((_TABLE_ROWS, 256), dtype=np.float32)
        self._weights: Array = generator.standard_normal((512, 512), dtype=np.float32)
        self._product: Array = np.empty((512, 512), dtype=np.float32)
        self._result: Array = generator.standard_normal((1024, 1024), dtype=np.float32)
        self.methods = {
            "Ping": lambda array: array,
            "Lookup": self._lookup,
            "Upload": self._upload,
            "Matmul": self._matmul,
            "Download": lambda _: self._result,
        }

    def _lookup(self, keys: Array) -> Array:
        """256 keys (1 KiB) → the first quarter of each key's row (64 KiB)."""
        rows: Array = self._table[keys.astype(np.int64) % _TABLE_ROWS, :64]
        return rows

    def _upload(self, array: Array) -> Array:
        """256 KiB → their mean and deviation."""
        return np.array([array.mean(), array.std()], dtype=np.float32)

    def _matmul(self, matrix: Array) -> Array:
        """1 MiB → 1 MiB: a layer of a network."""
        np.matmul(matrix, self._weights, out=self._product)
        return np.maximum(self._product, 0.0, out=self._product)


Request = tuple[int, memoryview, int, int]
"""Whose it is, the message, when it was asked for, and when it was there."""


def _receive(number: int, reader: Any) -> Iterator[Request]:
    """Yield a client's requests until it has closed."""
    while True:
        asked_ns = trace.now_ns()
        try:
            request = reader.read(_LONGEST_S)
        except EndOfStream:
            return
        yield number, request, asked_ns, trace.now_ns()


def receive(readers: list[Any]) -> Iterator[Request]:
    """Yield the requests of all clients, one at a time, as they arrive: a thread waits for each client."""
    if len(readers) == 1:
        yield from _receive(0, readers[0])
        return
    arrived: queue.SimpleQueue[tuple[Request, threading.Event] | None] = queue.SimpleQueue()

    def wait(number: int) -> None:
        handled = threading.Event()
        for request in _receive(number, readers[number]):
            arrived.put((request, handled))
            handled.wait()  # the message is valid until the next one is read
            handled.clear()
        arrived.put(None)

    for number in range(len(readers)):
        threading.Thread(target=wait, args=(number,), daemon=True).start()
    left = len(readers)
    while left:
        arrival = arrived.get()
        if arrival is None:
            left -= 1
            continue
        request, handled = arrival
        yield request
        handled.set()


def serve(transport: str, channels: list[tuple[Any, Any]], folder: str) -> None:
    """Serve until all clients have closed; each has a channel to the server and one back."""
    os.setsid()  # a separate session, as a server has: the system divides CPU time among sessions
    if folder:
        trace.start(folder, service="server")
    service, packer = Service(), Packer()
    backend = get_backend(transport)()
    with ExitStack() as stack:
        readers = [stack.enter_context(backend.open_reader(there, 0)) for there, _ in channels]
        writers = [stack.enter_context(backend.open_writer(back)) for _, back in channels]
        for number, request, asked_ns, received_ns in receive(readers):
            replies = writers[number]
            raw, _, context = _HEAD.unpack_from(request)
            name = raw.rstrip(b"\0").decode()
            with trace.serve(context, name, "", received_ns, asked_ns) as call:
                method, array = packer.unpack(request)
                work = service.methods[method]
                result = work(array)
                reply = packer.pack(method, result)
                call.replying(len(reply))
                replies.write(reply, _LONGEST_S)
    trace.stop()


def inputs() -> dict[str, Array]:
    """Return the argument of each method."""
    generator = np.random.default_rng(2)
    return {
        "Ping": np.zeros(0, dtype=np.float32),
        "Lookup": generator.integers(0, _TABLE_ROWS, 256).astype(np.float32),
        "Upload": generator.standard_normal(2**16, dtype=np.float32),
        "Matmul": generator.standard_normal((512, 512), dtype=np.float32),
        "Download": np.zeros(1, dtype=np.float32),
    }


def plan(calls: int) -> Iterator[str]:
    """Yield the methods in the order of the calls, mostly small ones."""
    mix = ["Ping"] * 6 + ["Lookup"] * 6 + ["Upload"] * 4 + ["Matmul"] * 2 + ["Download"] * 2
    order = np.random.default_rng(3).permutation(np.resize(np.array(mix), calls))
    yield from order.tolist()


def digest(array: Array) -> float:
    """Do the client's own work on a result."""
    return float(np.tanh(array[: 2**14]).sum())


class Client:
    """Calls the methods."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self._writer = writer
        self._reader = reader
        self._packer = Packer()

    def call(self, method: str, array: Array) -> Array:
        """Call a method and return its result."""
        with trace.call(method) as call:
            request = self._packer.pack(method, array)
            call.serialized(len(request))
            self._packer.stamp(call.context())
            self._writer.write(request, _LONGEST_S)
            call.sent()
            reply = self._reader.read(_LONGEST_S)
            call.received(len(reply))
            result = self._packer.unpack(reply)[1]
            call.buffers(array)
            call.reply_buffers(result)
            return result


def drive(transport: str, there: Any, back: Any, calls: int, folder: str, together: Any, seconds: Any) -> None:
    """Be a client: warm up, wait for the other clients, call; put how long the calls took, in s."""
    backend, arguments = get_backend(transport)(), inputs()
    with backend.open_writer(there) as writer, backend.open_reader(back, 0) as reader:
        client = Client(writer, reader)
        for method in [*arguments] * 3:  # use everything once before timing starts
            digest(client.call(method, arguments[method]))
        together.wait(_LONGEST_S)
        if folder:
            trace.start(folder, service="client")
        begin = time.perf_counter()
        for method in plan(calls):
            digest(client.call(method, arguments[method]))
        seconds.put(time.perf_counter() - begin)
        trace.stop()


def run(transport: str, calls: int, folder: str = "", clients: int = 1) -> float:
    """Run server and clients; return how long the calls of the slowest client took, in s, start-up not included."""
    backend, token = get_backend(transport)(), f"ipcb-{secrets.token_hex(4)}"
    processes = multiprocessing.get_context("spawn")
    together, seconds = processes.Barrier(clients), processes.Queue()
    with ExitStack() as stack:
        addresses = []
        for number in range(2 * clients):
            channel = ChannelSpec(name=f"{token}-{number}", max_message_bytes=LARGEST_BYTES, depth=2)
            addresses.append(backend.create(channel))
            stack.callback(backend.destroy, addresses[-1])
        channels = list(zip(addresses[::2], addresses[1::2], strict=True))
        first, *others = [(transport, *ends, calls, folder, together, seconds) for ends in channels]
        started = [processes.Process(target=serve, args=(transport, channels, folder))]
        started += [processes.Process(target=drive, args=arguments) for arguments in others]
        for process in started:
            process.start()
            stack.callback(process.join, _LONGEST_S)
        drive(*first)
        return max(seconds.get(timeout=_LONGEST_S) for _ in channels)


def main() -> None:
    """Run as the command line says, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transport", default="zmq", help="a backend of ipcbench: zmq, zmq-tcp, shm, pipe")
    parser.add_argument("--calls", type=int, default=400, help="of each client")
    parser.add_argument(
        "--clients",
        type=int,
        choices=range(1, 65),
        default=1,
        metavar="N",
        help="that share the server, each a process",
    )
    parser.add_argument("--trace", default="", metavar="DIR", help="record the calls of both sides there")
    options = parser.parse_args()
    try:
        backend = get_backend(options.transport)
        backend.probe()
    except IpcbenchError as error:
        parser.exit(2, f"{error}\n")
    if backend.capabilities.launcher != "spawn":
        parser.exit(2, f"{options.transport} cannot be used here: its endpoints do not open in plain processes\n")
    seconds = run(options.transport, options.calls, options.trace, options.clients)
    result = {"transport": options.transport, "clients": options.clients, "calls": options.calls}
    sys.stdout.write(json.dumps({**result, "seconds": round(seconds, 6)}) + "\n")


if __name__ == "__main__":
    main()
