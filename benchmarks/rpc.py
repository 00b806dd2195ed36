"""What a call costs beside what people use: echoes of an array, by turns, as ratios to `rpc` over shm.

    python benchmarks/rpc.py [--turns 15] [--sizes 1KiB,1MiB,64MiB] [--neighbours 0,1,2]

Each way has a server process of its own; one client calls them in turns, in alternating order, for as many calls as
take about 50 ms a turn. A payload is float32 and goes both ways; the client checks its last item. The figure of a turn
is the median of its calls; a ratio is the median over turns of `other / rpc`, with the 95 % interval of the signs.

Ways: `rpc` (arguments and results copied out of the transport), `rpc view` (`copy=False` on both sides), `rpc place`
(both sides make their arrays in the transport's memory), `pack` (one contiguous message over shm: encoded, then
written), `zmq+msgpack`, `zmq multipart` (raw frames, copy=False), `pipe` (multiprocessing.Connection, raw bytes),
`grpc` (a Unix socket, raw bytes; needs grpcio). `rpc zmq`, `rpc tcp` … are rpc over other transports.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Client as PipeClient
from multiprocessing.connection import Listener
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import psutil
import zmq

from ipcbench import Address, ChannelSpec, get_backend, rpc
from ipcbench.errors import TransportError
from ipcbench.util.units import format_duration_ns, parse_bytes
from ipcbench.workload.codec import Pickle5

sys.path.insert(0, str(Path(__file__).parent))
from ring import sign_interval

_TURN_NS = 50_000_000
_MOST_BYTES = 2**26 + 2**16

Echo = Callable[[Any], Any]
"""Sends an array, and returns it as it came back: an array, or its bytes."""


def _name(backend: str) -> str:
    return f"bench-{backend}-{os.getppid() if multiprocessing.parent_process() else os.getpid()}"


def serve_rpc(folder: str, backend: str) -> None:
    server = rpc.Server(backend, _name(backend), max_bytes=_MOST_BYTES, depth=4)

    @server.method
    def echo(array: Any) -> Any:
        return array

    @server.method(copy=False)
    def view(array: Any) -> Any:
        return array

    @server.method(copy=False, out=True)
    def place(array: Any, out: Any) -> Any:
        made = out(array.shape, array.dtype)
        made[-1:] = array[-1:]
        return made

    server.serve()


@contextmanager
def client_rpc(folder: str, backend: str, method: str = "echo") -> Iterator[Echo]:
    with rpc.connect(_name(backend), timeout_s=30, copy=method == "echo") as client:

        def call(array: Any) -> Any:
            if method == "place":
                made = client.empty(array.shape, array.dtype)
                made[-1:] = array[-1:]
                array = made
            return client.call(method, array)

        yield call


def serve_pack(folder: str) -> None:
    backend, codec = get_backend("shm")(), Pickle5()
    there, back = pack_addresses(folder, make=False)
    with backend.open_reader(there, 0) as reader, backend.open_writer(back) as writer, suppress(TransportError):
        while True:
            writer.write(codec.encode(codec.decode(reader.read())))


def pack_addresses(folder: str, make: bool) -> list[Any]:
    path = Path(folder) / "pack"
    if make:
        backend = get_backend("shm")()
        names = [f"ipcb-{_name('pack')}-{end}" for end in "ab"]
        made = [backend.create(ChannelSpec(name, max_message_bytes=_MOST_BYTES, depth=4)) for name in names]
        path.with_suffix(".tmp").write_bytes(msgpack.packb([address.as_dict() for address in made]))
        path.with_suffix(".tmp").rename(path)
    while not path.exists():
        pass
    return [Address.from_dict(values) for values in msgpack.unpackb(path.read_bytes())]


@contextmanager
def client_pack(folder: str) -> Iterator[Echo]:
    backend, codec = get_backend("shm")(), Pickle5()
    there, back = pack_addresses(folder, make=True)
    with backend.open_writer(there) as writer, backend.open_reader(back, 0) as reader:

        def call(array: Any) -> Any:
            writer.write(codec.encode(array))
            return codec.decode(reader.read()).copy()

        yield call
    backend.destroy(there)
    backend.destroy(back)


def serve_zmq(folder: str, is_raw: bool) -> None:
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(f"ipc://{folder}/zmq-{is_raw}")
    while True:
        if is_raw:
            socket.send_multipart(socket.recv_multipart(copy=False), copy=False)
        else:
            method, shape, data = msgpack.unpackb(socket.recv())
            array = np.frombuffer(data, np.float32).reshape(shape)
            socket.send(msgpack.packb([method, array.shape, array.tobytes()]))


@contextmanager
def client_zmq(folder: str, is_raw: bool) -> Iterator[Echo]:
    socket = zmq.Context().socket(zmq.REQ)
    socket.connect(f"ipc://{folder}/zmq-{is_raw}")

    def call(array: Any) -> Any:
        if is_raw:
            socket.send_multipart([b"echo", array], copy=False)
            return np.frombuffer(socket.recv_multipart(copy=False)[1], np.float32)
        socket.send(msgpack.packb(["echo", array.shape, array.tobytes()]))
        return np.frombuffer(msgpack.unpackb(socket.recv())[2], np.float32)

    yield call
    socket.close()


def serve_pipe(folder: str) -> None:
    with Listener(f"{folder}/pipe", "AF_UNIX") as listener, listener.accept() as connection, suppress(EOFError):
        while True:
            connection.send_bytes(connection.recv_bytes())


@contextmanager
def client_pipe(folder: str) -> Iterator[Echo]:
    while not Path(f"{folder}/pipe").exists():
        pass
    with PipeClient(f"{folder}/pipe", "AF_UNIX") as connection:

        def call(array: Any) -> Any:
            connection.send_bytes(array.data)
            return np.frombuffer(connection.recv_bytes(), np.float32)

        yield call


_GRPC = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def serve_grpc(folder: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    class Echoes(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

    server = grpc.server(ThreadPoolExecutor(2), options=_GRPC)
    server.add_generic_rpc_handlers((Echoes(),))
    server.add_insecure_port(f"unix:{folder}/grpc")
    server.start()
    server.wait_for_termination()


@contextmanager
def client_grpc(folder: str) -> Iterator[Echo]:
    import grpc

    with grpc.insecure_channel(f"unix:{folder}/grpc", options=_GRPC) as channel:
        method = channel.unary_unary("/bench/echo")
        grpc.channel_ready_future(channel).result(30)
        yield lambda array: np.frombuffer(method(array.tobytes()), np.float32)


Way = tuple[Callable[..., None], tuple[Any, ...], Callable[..., Any], tuple[Any, ...]]

WAYS: dict[str, Way] = {
    "rpc": (serve_rpc, ("shm",), client_rpc, ("shm",)),
    "rpc view": (serve_rpc, ("shm",), client_rpc, ("shm", "view")),
    "rpc place": (serve_rpc, ("shm",), client_rpc, ("shm", "place")),
    "pack": (serve_pack, (), client_pack, ()),
    "zmq+msgpack": (serve_zmq, (False,), client_zmq, (False,)),
    "zmq multipart": (serve_zmq, (True,), client_zmq, (True,)),
    "pipe": (serve_pipe, (), client_pipe, ()),
    "grpc": (serve_grpc, (), client_grpc, ()),
    **{f"rpc {name}": (serve_rpc, (name,), client_rpc, (name,)) for name in ("zmq", "zmq-tcp", "tcp", "pipe", "lmdb")},
}


def turn_ns(call: Echo, array: Any, count: int) -> float:
    """Return the median time of a call of this turn."""
    times, last = [], float(array[-1])
    for _ in range(count):
        begin_ns = perf_counter_ns()
        reply = call(array)
        times.append(perf_counter_ns() - begin_ns)
        assert len(reply) == len(array), (len(reply), len(array))
        assert float(reply[-1]) == last
    return median(times)


def burn() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--sizes", default="1KiB,1MiB,64MiB")
    parser.add_argument("--neighbours", default="0")
    parser.add_argument("--ways", default="rpc,rpc view,rpc place,pack,zmq+msgpack,zmq multipart,pipe,grpc")
    arguments = parser.parse_args()
    ways = arguments.ways.split(",")
    for count in map(int, arguments.neighbours.split(",")):
        with processes([(burn, ())] * count):
            for size in arguments.sizes.split(","):
                with tempfile.TemporaryDirectory() as folder:
                    servers = {(WAYS[way][0], (folder, *WAYS[way][1])) for way in ways}
                    with processes(servers):
                        compare(folder, ways, parse_bytes(size), arguments.turns, f"{size}, {count} neighbours")


@contextmanager
def processes(works: Iterable[tuple[Callable[..., None], tuple[Any, ...]]]) -> Iterator[None]:
    """Have processes do some work during the block."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=work, args=arguments, daemon=True) for work, arguments in works]
    for process in started:
        process.start()
    yield
    for process in started:
        process.terminate()
        process.join()


def compare(folder: str, ways: list[str], size_bytes: int, turns: int, title: str) -> None:
    array = np.arange(size_bytes // 4, dtype=np.float32)
    with ExitStack() as stack:
        calls = {way: stack.enter_context(WAYS[way][2](folder, *WAYS[way][3])) for way in ways}
        counts = {}
        for way, call in calls.items():
            turn_ns(call, array, 2)
            counts[way] = max(1, min(500, round(_TURN_NS / turn_ns(call, array, 3))))
        psutil.cpu_times_percent()
        figures: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(turns):
            for way in ways if turn % 2 else ways[::-1]:
                figures[way].append(turn_ns(calls[way], array, counts[way]))
    stolen = psutil.cpu_times_percent().steal
    print(f"\n{title} (stolen {stolen:.1f} %)\n{'':14}{'p50':>10}   / {ways[0]}   95 % interval")
    for way in ways:
        ratios = [own / base for own, base in zip(figures[way], figures[ways[0]], strict=True)]
        low, high = sign_interval(ratios)
        print(f"{way:14}{format_duration_ns(median(figures[way])):>10}{median(ratios):8.2f}   {low:.2f} to {high:.2f}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
