"""`zmq` and `zmq-tcp` against the simplest correct pyzmq script on this machine: throughput, with ratios and a target.

The plain side is what a careful author writes in an afternoon: an XPUB socket with XPUB_NODROP, so that it blocks
instead of dropping, which waits for as many subscriptions as there are readers; one SUB socket per reader; high-water
marks as deep as our channel; `send` and `recv`. With `--frames` it receives with `copy=False` from 128 KiB on, as the
backend does. Both sides run in the same round, in fresh processes. Every reader looks at the first byte of every
message and counts; a run that lost a message gives no figure.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import tempfile
from collections.abc import Iterator

import _common
import zmq
from _common import BODY, MARKER, Row

from ipcbench.backend import Address
from ipcbench.backends.zmq.backend import ZmqIpc, ZmqTcp
from ipcbench.spec import ChannelSpec
from ipcbench.util.clock import now_ns

DEPTH = 64
AT_LEAST_RATIO = 0.9
TRANSPORTS = {"ipc": ZmqIpc, "tcp": ZmqTcp}
_FRAME_BYTES = 2**17
_LINGER_MS = 10_000
_numbers = itertools.count()


def publish(transport: str, address: Address, size: int, seconds: float) -> Iterator[int | None]:
    """Role: our writer; returns the messages of the window."""
    with TRANSPORTS[transport]().open_writer(address) as writer:
        body, marker = bytes([BODY]) * size, bytes([MARKER]) + bytes(size - 1)
        write, batch = writer.write, _common.batch_of(size)
        yield

        def send(last: bool) -> None:
            if last:
                write(marker)
                return
            for _ in range(batch):
                write(body)

        yield _common.send_for(send, seconds, size)


def subscribe(transport: str, address: Address, index: int) -> Iterator[tuple[int, int, int] | None]:
    """Role: our reader; returns (messages, first receipt ns, last receipt ns) of the window."""
    with TRANSPORTS[transport]().open_reader(address, index) as reader:
        read = reader.read
        yield
        while not read()[0]:
            pass
        view = read()
        first, count = now_ns(), 1
        while not view[0]:
            view = read()
            count += 1
        yield count, first, now_ns()


def plain_publish(endpoint: str, readers: int, size: int, seconds: float) -> Iterator[int | None]:
    """Role: the plain writer."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.xpub_nodrop = 1
        publisher.xpub_verbose = 1
        publisher.sndhwm = DEPTH
        publisher.linger = _LINGER_MS
        publisher.bind(endpoint)
        body, marker = bytes([BODY]) * size, bytes([MARKER]) + bytes(size - 1)
        batch = _common.batch_of(size)
        yield
        for _ in range(readers):
            publisher.recv()

        def send(last: bool) -> None:
            if last:
                publisher.send(marker)
                return
            for _ in range(batch):
                publisher.send(body)

        yield _common.send_for(send, seconds, size)


def plain_subscribe(endpoint: str, frames: bool) -> Iterator[tuple[int, int, int] | None]:
    """Role: a plain reader; returns (messages, first receipt ns, last receipt ns) of the window."""
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.rcvhwm = DEPTH
        subscriber.linger = 0
        subscriber.connect(endpoint)
        subscriber.subscribe(b"")
        yield
        yield _take_frames(subscriber) if frames else _take(subscriber)


def _take(subscriber: zmq.Socket[bytes]) -> tuple[int, int, int]:
    while not subscriber.recv()[0]:
        pass
    message = subscriber.recv()
    first, count = now_ns(), 1
    while not message[0]:
        message = subscriber.recv()
        count += 1
    return count, first, now_ns()


def _take_frames(subscriber: zmq.Socket[bytes]) -> tuple[int, int, int]:
    while not subscriber.recv(copy=False).buffer[0]:
        pass
    view = subscriber.recv(copy=False).buffer
    first, count = now_ns(), 1
    while not view[0]:
        view = subscriber.recv(copy=False).buffer
        count += 1
    return count, first, now_ns()


def ours_per_s(transport: str, size: int, readers: int, seconds: float) -> float:
    """Return messages per second that every reader of our channel got."""
    backend = TRANSPORTS[transport]()
    name = f"ipcb-peers-{os.getpid()}-{next(_numbers)}"
    address = backend.create(ChannelSpec(name, readers=readers, max_message_bytes=size, depth=DEPTH))
    try:
        takers = [(subscribe, (transport, address, index)) for index in range(readers)]
        sent, *received = _common.run_group([(publish, (transport, address, size, seconds)), *takers], seconds)
    finally:
        backend.destroy(address)
    return _common.throughput_per_s(sent, received)


def plain_per_s(transport: str, size: int, readers: int, seconds: float, frames: bool) -> float:
    """Return messages per second that every plain reader got."""
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as folder:
        endpoint = f"ipc://{folder}/s"
        if transport == "tcp":
            with socket.create_server(("127.0.0.1", 0)) as server:
                endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        takers = [(plain_subscribe, (endpoint, frames and size >= _FRAME_BYTES)) for _ in range(readers)]
        sent, *received = _common.run_group([(plain_publish, (endpoint, readers, size, seconds)), *takers], seconds)
    return _common.throughput_per_s(sent, received)


def main() -> int:
    """Compare every transport, size and number of readers; print one table per transport."""
    parser = _common.make_parser(__doc__.splitlines()[0], "64,1KiB,16KiB,256KiB,4MiB")
    parser.add_argument(
        "--transport", nargs="+", choices=list(TRANSPORTS), default=list(TRANSPORTS), help="default: all"
    )
    parser.add_argument(
        "--frames", action="store_true", help="let the plain side receive large messages without a copy"
    )
    options = parser.parse_args()
    tables = {}
    for transport in options.transport:
        rows = []
        for size, readers in itertools.product(options.sizes, options.readers):
            what = _common.size_label(size, readers)
            row = Row(what, "messages/s", TRANSPORTS[transport].name, "plain pyzmq", at_least=AT_LEAST_RATIO)
            case = (transport, size, readers, options.seconds)

            def ours(case: tuple[str, int, int, float] = case) -> float:
                return ours_per_s(*case)

            def theirs(case: tuple[str, int, int, float] = case) -> float:
                return plain_per_s(*case, options.frames)

            rows.append(_common.compare(row, ours, theirs, options.rounds))
        _common.print_rows(f"Throughput beside plain pyzmq over {transport}", rows)
        tables[transport] = rows
    _common.write_json(options.json, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
