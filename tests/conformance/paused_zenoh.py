"""A program that pauses the reader of 100 messages of zenoh, and prints the numbers of those that came.

    python tests/conformance/paused_zenoh.py alone|ipcbench BYTES

`alone` is zenoh by itself, with its congestion control BLOCK, whose transport closes when a put has waited 0.1 s.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import zenoh

from ipcbench import Address, get_backend
from ipcbench.errors import EndOfStream, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.testing.agents.client import until

LAST = 2**32 - 1
PATIENCE_S = 30.0
COUNT = 100


def session(end: str, path: str, wait_us: int) -> Any:
    """Open a session that has nothing but this socket, and closes a transport when a put has waited for so long."""
    block = {"block": {"wait_before_close": wait_us}}
    ends: dict[str, Any] = {"listen": {"endpoints": []}, "connect": {"endpoints": [], "timeout_ms": -1}}
    ends["connect"] |= {"exit_on_failure": False, "retry": {"period_init_ms": 10, "period_max_ms": 10}}
    ends[end]["endpoints"] = [f"unixsock-stream/{path}"]
    settings = {
        "mode": "peer",
        **ends,
        "open": {"return_conditions": {"connect_scouted": False, "declares": False}},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {"link": {"tx": {"queue": {"congestion_control": block}}}, "shared_memory": {"enabled": False}},
    }
    return zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))


def subscribe(path: str, most: int, out: Connection) -> None:
    """Send the numbers of what comes, up to the last one."""
    with session("connect", path, 100_000) as peer:
        subscriber = peer.declare_subscriber("messages", zenoh.handlers.FifoChannel(most))
        number, numbers = -1, []
        while number != LAST:
            number = int.from_bytes(subscriber.recv().payload.to_bytes()[:4], "little")
            numbers.append(number)
        out.send(numbers)


def read_all(address: Address, out: Connection) -> None:
    """Open the channel's reader and send the numbers of what it gets."""
    numbers = []
    with get_backend("zenoh")().open_reader(address, 0) as reader:
        while True:
            try:
                numbers.append(int.from_bytes(reader.read(PATIENCE_S)[:4], "little"))
            except EndOfStream:
                break
    out.send(numbers)


@contextmanager
def paused(process: Any) -> Iterator[None]:
    """Stop a process, and let it go on at the end of the block."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@contextmanager
def reading(target: Any, *args: object) -> Iterator[tuple[Any, Connection]]:
    """Start a process; give it, and where it sends to."""
    context = multiprocessing.get_context("spawn")
    received, sent = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*args, sent), daemon=True)
    process.start()
    sent.close()
    try:
        yield process, received
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def alone(folder: str, size_bytes: int) -> list[int]:
    """Return the numbers that arrived, though every put has returned. The last is put after zenoh has reconnected."""
    path = f"{folder}/s"
    with session("listen", path, 100_000) as peer, reading(subscribe, path, COUNT) as (process, connection):
        publisher = peer.declare_publisher("messages", congestion_control=zenoh.CongestionControl.BLOCK)
        assert until(lambda: publisher.matching_status.matching, PATIENCE_S)
        with paused(process):
            for number in range(COUNT):
                publisher.put(number.to_bytes(4, "little") + bytes(size_bytes - 4))
            assert until(lambda: not publisher.matching_status.matching, PATIENCE_S)
        assert until(lambda: publisher.matching_status.matching, PATIENCE_S)
        publisher.put(LAST.to_bytes(4, "little"))
        numbers: list[int] = connection.recv()
    return numbers[:-1]


def with_credit(size_bytes: int) -> list[int]:
    """Return the numbers that arrived in a channel of 20 messages, which was full when its reader went on."""
    backend = get_backend("zenoh")()
    address = backend.create(ChannelSpec(f"ipcb-zenoh-{os.getpid()}", max_message_bytes=size_bytes, depth=20))
    try:
        with reading(read_all, address) as (process, connection), backend.open_writer(address) as writer:
            writer.write(bytes(size_bytes), PATIENCE_S)
            count = 1
            with paused(process):
                try:
                    while True:
                        writer.write(count.to_bytes(4, "little") + bytes(size_bytes - 4), timeout_s=0.01)
                        count += 1
                except TransportTimeout:
                    assert count >= 20
            for number in range(count, COUNT):
                writer.write(number.to_bytes(4, "little") + bytes(size_bytes - 4), PATIENCE_S)
            writer.close()
            numbers: list[int] = connection.recv()
    finally:
        backend.destroy(address)
    return numbers


if __name__ == "__main__":
    size = int(sys.argv[2])
    if sys.argv[1] == "alone":
        with tempfile.TemporaryDirectory(prefix="ipcb-zenoh-") as place:
            print(json.dumps(alone(place, size)))
    else:
        print(json.dumps(with_credit(size)))
