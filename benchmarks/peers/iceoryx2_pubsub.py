"""iceoryx2's Python publish/subscribe, set up to lose nothing; run as a script, it prints that package's figures.

No overflow, a publisher that retries until a message is delivered, no history, one publisher, and a subscriber buffer
with as many samples as the ring has slots. The loops use the package's public interface in its cheapest form: a loaned
slice filled by `ctypes.memmove`; the sample's pointer as a `ctypes` array (zero-copy) or by `ctypes.string_at` (copy).
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common
import _native
from _common import MARKER, Role

from ipcbench.util.units import format_significant

_POLLS_BEFORE_YIELD = 200
_numbers = itertools.count()


def why_not() -> str:
    """Return why iceoryx2 cannot be measured here; empty if it can be."""
    if importlib.util.find_spec("iceoryx2") is None:
        return "Python package iceoryx2 is not installed; pip install 'iceoryx2>=0.10'"
    return ""


class Service:
    """A service in a separate domain: it shares nothing with other users of iceoryx2 on the host."""

    def __init__(self, domain: str, topic: str, size_bytes: int, buffer: int, subscribers: int) -> None:
        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Error)
        config = iox.config.default()
        config.global_cfg.prefix = iox.FileName.new(f"{domain}_")
        config.global_cfg.root_path = iox.Path.new(f"{tempfile.gettempdir()}/{domain}/")
        builder = iox.NodeBuilder.new().config(config).signal_handling_mode(iox.SignalHandlingMode.Disabled)
        self._node = builder.create(iox.ServiceType.Ipc)
        self._service = (
            self._node.service_builder(iox.ServiceName.new(topic))
            .publish_subscribe(iox.Slice[ctypes.c_uint8])
            .enable_safe_overflow(False)
            .history_size(0)
            .max_publishers(1)
            .max_subscribers(subscribers)
            .subscriber_max_buffer_size(buffer)
            .subscriber_max_borrowed_samples(2)
            .open_or_create()
        )
        self._retry = iox.BackpressureStrategy.RetryUntilDelivered
        self._size_bytes, self._buffer = size_bytes, buffer

    def publisher(self) -> Any:
        """Return the publisher."""
        builder = self._service.publisher_builder().backpressure_strategy(self._retry)
        return builder.initial_max_slice_len(self._size_bytes).max_loaned_samples(1).create()

    def subscriber(self) -> Any:
        """Return a subscriber."""
        return self._service.subscriber_builder().buffer_size(self._buffer).create()


def _wait_for(receive: Callable[[], Any]) -> Any:
    """Poll until there is a sample; after a while, yield the core between polls."""
    for _ in range(_POLLS_BEFORE_YIELD):
        sample = receive()
        if sample is not None:
            return sample
    while True:
        os.sched_yield()
        sample = receive()
        if sample is not None:
            return sample


def publish(service: tuple[Any, ...], seconds: float, filled: int) -> Role:
    """Role: the publisher of a throughput run, which fills so many bytes; returns the messages of the window."""
    opened = Service(*service)
    publisher, size = opened.publisher(), service[2]
    loan, memmove = publisher.loan_slice_uninit, ctypes.memmove
    yield
    publisher.update_connections()

    def write(message: bytes) -> None:
        sample = loan(size)
        memmove(sample.payload_ptr, message, filled)
        sample.assume_init().send()

    yield _common.send_for(write, size, seconds)


def subscribe(service: tuple[Any, ...], copy: bool) -> Role:
    """Role: a subscriber of a throughput run."""
    opened = Service(*service)
    receive, size = opened.subscriber().receive, service[2]
    at, string_at = (ctypes.c_uint8 * size).from_address, ctypes.string_at
    sample: Any = None

    def read() -> Any:
        nonlocal sample  # its memory is valid only as long as it is kept
        sample = receive() or _wait_for(receive)
        return string_at(sample.payload_ptr, size) if copy else at(sample.payload_ptr)

    yield
    _common.take(read)
    yield _common.take(read)


def _two_ways(there: tuple[Any, ...], back: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Return (keep alive, publisher of `there`, subscriber of `back`)."""
    out, into = Service(*there), Service(*back)
    return (out, into), out.publisher(), into.subscriber()


def ping(there: tuple[Any, ...], back: tuple[Any, ...], seconds: float) -> Role:
    """Role: the measuring side of a ping-pong, polling; returns the median half round trip in ns."""
    _held, publisher, subscriber = _two_ways(there, back)
    size = there[2]
    loan, receive, memmove, string_at = (
        publisher.loan_slice_uninit,
        subscriber.receive,
        ctypes.memmove,
        ctypes.string_at,
    )
    message = bytes(size)
    yield
    publisher.update_connections()

    def round_trips() -> None:
        for _ in range(_common.ROUND_TRIPS_PER_BLOCK):
            sample = loan(size)
            memmove(sample.payload_ptr, message, size)
            sample.assume_init().send()
            answer = receive()
            while answer is None:
                answer = receive()
            string_at(answer.payload_ptr, size)

    half_ns = _common.half_round_trip_ns(round_trips, seconds)
    message = bytes([MARKER]) * size
    round_trips()
    yield half_ns


def echo(there: tuple[Any, ...], back: tuple[Any, ...]) -> Role:
    """Role: the answering side of a ping-pong (`there` is the way from here), until a block that ends with a marker."""
    _held, publisher, subscriber = _two_ways(there, back)
    size = there[2]
    loan, receive, memmove, string_at = (
        publisher.loan_slice_uninit,
        subscriber.receive,
        ctypes.memmove,
        ctypes.string_at,
    )
    yield
    publisher.update_connections()
    message, turns = b"\0", 0
    while not message[0] or turns % _common.ROUND_TRIPS_PER_BLOCK:
        sample = receive()
        if sample is None:
            continue
        turns += 1
        message = string_at(sample.payload_ptr, size)
        answer = loan(size)
        memmove(answer.payload_ptr, message, size)
        answer.assume_init().send()
    yield


def clean(domain: str) -> None:
    """Remove what a domain has left."""
    shutil.rmtree(Path(tempfile.gettempdir()) / domain, ignore_errors=True)
    for path in Path("/dev/shm").glob(f"{domain}_*"):
        path.unlink(missing_ok=True)


def throughput(
    size_bytes: int, buffer: int, readers: int, seconds: float, *, copy: bool, filled: int | None = None
) -> float:
    """Return messages per second that every subscriber got; the publisher fills all of a message, or so many bytes.

    Raises:
        GroupFailed: a process failed, or a message was lost.
    """
    domain = f"ipcb-iox-{os.getpid()}-{next(_numbers)}"
    service = (domain, "stream", size_bytes, buffer, readers)
    try:
        filling = size_bytes if filled is None else filled
        roles = [(publish, (service, seconds, filling)), *[(subscribe, (service, copy))] * readers]
        sent, *received = _common.run_group(roles, seconds)
    finally:
        clean(domain)
    return _common.throughput_per_s(sent, received)


def half_round_trip_ns(size_bytes: int, seconds: float) -> float:
    """Return the median half round trip of two services, both sides polling and copying in and out.

    Raises:
        GroupFailed: a process failed.
    """
    domain = f"ipcb-iox-{os.getpid()}-{next(_numbers)}"
    there, back = ((domain, topic, size_bytes, 2, 1) for topic in ("there", "back"))
    try:
        half_ns, _ = _common.run_group([(ping, (there, back, seconds)), (echo, (back, there))], seconds)
    finally:
        clean(domain)
    return float(half_ns)


def main() -> int:
    """Print iceoryx2's figures as a Markdown table."""
    options = _common.make_parser(__doc__.splitlines()[0], "64,1KiB,4MiB").parse_args()
    if why_not():
        print(f"skipped: {why_not()}")
        return 0
    print("| messages/s | reading | median | min-max |\n|---|---|---:|---:|")
    figures = []
    for size in options.sizes:
        for readers in options.readers:
            for copy in (False, True):
                slots = _native.ring_slots(size, 64)
                rates = [throughput(size, slots, readers, options.seconds, copy=copy) for _ in range(options.rounds)]
                figures.append({"size_bytes": size, "readers": readers, "copy": copy, "messages_per_s": rates})
                shown = [format_significant(value) for value in (statistics.median(rates), min(rates), max(rates))]
                how = "copied out" if copy else "zero-copy"
                print(
                    f"| {_common.size_label(size, readers)} | {how} | {shown[0]} | {shown[1]}-{shown[2]} |", flush=True
                )
    _common.write_json(options.json, {"iceoryx2": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
