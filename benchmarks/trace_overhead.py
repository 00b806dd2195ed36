"""What tracing costs a call: in a loop, and inside a ZeroMQ round trip over ipc, beside other recorders, in one run.

Usage: python benchmarks/trace_overhead.py [--calls 4000] [--turns 5]. Recorders that are not installed are named and
left out. Modes take turns, so that drift of the machine hits all alike; a figure is the best turn in the loop. In round
trips, and under a budget, plain and traced calls differ by less than what a machine drifts by in a second. There blocks
of a few milliseconds take turns, and the figure is the median of the differences between neighbouring blocks (of their
medians in round trips; of their means under a budget, where some calls cost more than others), with its standard error.

With IPCBENCH_PURE=1 in the environment the recorder is the one in Python.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgpack
import zmq

from ipcbench import trace
from ipcbench.trace.record.hot import IS_C
from ipcbench.trace.record.recorder import calibrate
from ipcbench.util.clock import now_ns

Make = Callable[[], bytes]
Send = Callable[[bytes], object]
Receive = Callable[[], bytes]
Read = Callable[[bytes], object]
Stages = tuple[Make, Send, Receive, Read]
Call = Callable[[Make, Send, Receive, Read], None]
"""Carries out a call of four stages."""

PAYLOAD = b"x" * 64
WARM_UP_CALLS = 200
BLOCK_TRIPS = 25
BLOCK_NS = 10_000_000
"""How long a block of calls under a budget lasts, about."""

to_close: list[Callable[[], object]] = []
"""What ends the recorder of the last turn."""


def bare(make: Make, send: Send, receive: Receive, read: Read) -> None:
    send(make())
    read(receive())


def by_recorder(recorder: trace.Recorder) -> Call:
    def one(make: Make, send: Send, receive: Receive, read: Read) -> None:
        with recorder.call("Echo") as call:
            request = make()
            call.serialized(len(request))
            send(request)
            call.sent()
            answer = receive()
            call.received(len(answer))
            read(answer)

    return one


def by_decorator(recorder: trace.Recorder) -> Call:
    return trace.traced("Echo")(bare)


def by_logging(folder: Path) -> Call:
    logger = logging.Logger("traced")
    handler = logging.FileHandler(folder / "calls.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)

    def one(make: Make, send: Send, receive: Receive, read: Read) -> None:
        begin = now_ns()
        bare(make, send, receive, read)
        logger.info("Echo %d ns", now_ns() - begin)

    return one


def by_opentelemetry() -> Call:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Forget(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    to_close.append(provider.shutdown)
    provider.add_span_processor(BatchSpanProcessor(Forget()))
    tracer = provider.get_tracer("overhead")

    def one(make: Make, send: Send, receive: Receive, read: Read) -> None:
        with tracer.start_as_current_span("Echo"):
            with tracer.start_as_current_span("serialize"):
                request = make()
            with tracer.start_as_current_span("send"):
                send(request)
            with tracer.start_as_current_span("wait"):
                answer = receive()
            with tracer.start_as_current_span("deserialize"):
                read(answer)

    return one


def by_viztracer() -> Call:
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0, max_stack_depth=0)
    tracer.start()
    to_close.append(tracer.stop)
    to_close.append(tracer.clear)

    def one(make: Make, send: Send, receive: Receive, read: Read) -> None:
        with tracer.log_event("Echo"), tracer.log_event("serialize"):
            request = make()
        with tracer.log_event("send"):
            send(request)
        with tracer.log_event("wait"):
            answer = receive()
        with tracer.log_event("deserialize"):
            read(answer)

    return one


def serve(address: str, way: str = "plain", folder: str = "") -> None:
    """Answer every message with itself, until an empty one."""
    if way != "plain":
        trace.start(folder, service="server")
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.bind(address)
        wrap_as(way, socket)
        while request := socket.recv():
            socket.send(request)
        socket.send(b"")
    trace.stop()


def wrap_as(way: str, socket: zmq.Socket[bytes]) -> None:
    if way != "plain":
        trace.wrap(socket, propagate=way == "propagate")


def by_turns_ns(calls: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """Return the median of the times of each kind of call, made one after the other in turn."""
    times: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            begin = now_ns()
            call()
            times[name].append(now_ns() - begin)
    return {name: statistics.median(some) for name, some in times.items()}


def measure_wrapping(folder: Path, count: int) -> None:
    """Print what wrapped sockets add to a round trip, both sides wrapped and recording every message."""
    sockets, servers = {}, []
    with zmq.Context() as context:
        trace.stop()
        for way in ("plain", "wrapped", "propagate"):
            address = f"ipc://{folder}/{way}"
            made = multiprocessing.get_context("spawn").Process(target=serve, args=(address, way, str(folder / "two")))
            made.start()
            servers.append(made)
            sockets[way] = context.socket(zmq.REQ)
            sockets[way].connect(address)
        trace.start(folder / "two", service="client")

        def trip(socket: zmq.Socket[bytes]) -> Callable[[], object]:
            def call() -> None:
                socket.send(PAYLOAD)
                socket.recv()

            return call

        for way, socket in sockets.items():
            wrap_as(way, socket)
            trip(socket)()
        medians = by_turns_ns({way: trip(socket) for way, socket in sockets.items()}, count)
        for socket in sockets.values():
            socket.send(b"")
            socket.recv()
            socket.close()
        trace.stop()
        for made in servers:
            made.join()
    print(f"\nwrapped sockets: a round trip of {len(PAYLOAD)} bytes, both sides recording, by turns")
    for way, ns in medians.items():
        print(f"{way:36}{ns / 1000:16.1f}{(ns - medians['plain']) / 1000:+16.2f} µs")


def measure_budget(folder: Path, count: int) -> None:
    """Print what a budget of 1 % adds to calls of some lengths.

    Every other call is traced; the budget, a share of all time, is half of that of calls one after the other.
    """
    recorder = trace.start(folder / "budget of calls", budget=0.005)
    print("\nbudget=0.005, every other call traced (0.01 of those): four stages around work of some length, by turns")
    for wanted_us in (30, 100, 1000):
        numbers = range(1000)
        while (took := round(by_turns_ns({"": lambda: sum(numbers)}, 300)[""])) < 1000 * wanted_us:  # noqa: B023 # called here
            numbers = range(max(len(numbers) + 50, round(len(numbers) * 1000 * wanted_us / took)))

        def plain(numbers: range = numbers) -> None:
            sum(numbers)

        def traced(numbers: range = numbers) -> None:
            with recorder.call("work") as call:
                call.serialized(1)
                call.sent()
                sum(numbers)
                call.received(1)

        pairs_count = max(10, BLOCK_NS // took)
        blocks_count = count // 20
        for _ in range(blocks_count // 4):
            mean_pair_ns(plain, traced, pairs_count)  # it finds its period
        blocks = [mean_pair_ns(plain, traced, pairs_count) for _ in range(blocks_count)]
        base_ns = statistics.median(base for base, _ in blocks)
        added_ns, error_ns = median_and_error([traced_ns - base for base, traced_ns in blocks])
        print(f"{base_ns / 1000:16.1f} µs{added_ns:+16.0f} ± {error_ns:.0f} ns{100 * added_ns / base_ns:+8.2f} %")
    trace.stop()


def mean_pair_ns(plain: Callable[[], object], traced: Callable[[], object], count: int) -> tuple[float, float]:
    """Return the mean times of two kinds of calls, made in turn."""
    plain_ns = traced_ns = 0
    for _ in range(count):
        begin = now_ns()
        plain()
        middle = now_ns()
        traced()
        traced_ns += now_ns() - middle
        plain_ns += middle - begin
    return plain_ns / count, traced_ns / count


def median_and_error(values: list[float]) -> tuple[float, float]:
    """Return the median and its standard error, from the quartiles as of normal values."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, 1.253 * (high - low) / 1.349 / len(values) ** 0.5


def in_loop_ns(call: Call, count: int) -> float:
    """Return the time of one call whose stages do nothing; the first ones, which make a file, are not in it."""
    stages: Stages = (lambda: PAYLOAD, len, lambda: PAYLOAD, len)
    for _ in range(WARM_UP_CALLS):
        call(*stages)
    begin = now_ns()
    for _ in range(count):
        call(*stages)
    return (now_ns() - begin) / count


class Trips:
    """Round trips of one mode, plain and traced.

    Attributes:
        plain_ns, traced_ns: all of them.
        added_ns: how much longer the median of each traced block is than that of its neighbour.
    """

    def __init__(self) -> None:
        self.plain_ns: list[int] = []
        self.traced_ns: list[int] = []
        self.added_ns: list[float] = []

    def make(self, call: Call, socket: zmq.Socket[bytes], count: int) -> None:
        """Make so many of both, in turn.

        A block is short enough that both meet the same machine, and long enough that a traced trip comes after a traced
        one, as in an application.
        """
        stages: Stages = (lambda: msgpack.packb(PAYLOAD), socket.send, socket.recv, msgpack.unpackb)
        for number in range(count // BLOCK_TRIPS):
            medians = {}
            for is_traced in (number % 2 == 0, number % 2 == 1):
                some = call if is_traced else bare
                times = []
                for _ in range(BLOCK_TRIPS):
                    begin = now_ns()
                    some(*stages)
                    times.append(now_ns() - begin)
                (self.traced_ns if is_traced else self.plain_ns).extend(times)
                medians[is_traced] = statistics.median(times)
            self.added_ns.append(medians[True] - medians[False])


def modes(folder: Path) -> dict[str, Callable[[], Call]]:
    """Name of a mode → what prepares it, directly before its turn."""
    found: dict[str, Callable[[], Call]] = {
        "nothing": lambda: bare,
        "trace, disabled, decorator": lambda: by_decorator(trace.start(folder / "off")),
        "trace, every call": lambda: by_recorder(trace.start(folder / "all")),
        "trace, sample=16": lambda: by_recorder(trace.start(folder / "some", sample=16)),
        "trace, budget=0.01": lambda: by_recorder(trace.start(folder / "budget", budget=0.01)),
        "trace, budget=0.01, decorator": lambda: by_decorator(trace.start(folder / "deco", budget=0.01)),
        "logging, one line": lambda: by_logging(folder),
    }
    for name, module, prepare in (
        ("opentelemetry-sdk, batch, 5 spans", "opentelemetry", by_opentelemetry),
        ("viztracer, 5 events", "viztracer", by_viztracer),
    ):
        if find_spec(module) is None:
            print(f"{module} is not installed and left out")
        else:
            found[name] = prepare
    return found


def prepared(name: str, prepare: Callable[[], Call]) -> Call:
    trace.stop()
    while to_close:
        to_close.pop(0)()
    call = prepare()
    if "disabled" in name:
        trace.stop()
    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--turns", type=int, default=5)
    chosen = parser.parse_args()
    loops: dict[str, list[float]] = {}
    trips: dict[str, Trips] = {}
    with tempfile.TemporaryDirectory(prefix="ipcb-trace-") as name, zmq.Context() as context:
        folder = Path(name)
        address = f"ipc://{folder}/echo"
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(address,))
        server.start()
        with context.socket(zmq.REQ) as socket:
            socket.connect(address)
            every = modes(folder)
            for _ in range(chosen.turns):
                for mode, prepare in every.items():
                    call = prepared(mode, prepare)
                    loops.setdefault(mode, []).append(in_loop_ns(call, chosen.calls))
                    trips.setdefault(mode, Trips()).make(call, socket, chosen.calls)
            prepared("nothing", every["nothing"])
            socket.send(b"")
            socket.recv()
        server.join()
        measure_wrapping(folder, chosen.calls // 2)
        measure_budget(folder, chosen.calls)
    costs = calibrate()
    print(f"a four-stage call alone, in {'C' if IS_C else 'Python'}, in ns: recorded {costs.recorded_ns:,.0f}, "
          f"tallied {costs.timed_ns:,.0f}, counted {costs.counted_ns:,.0f}")  # fmt: skip
    trip_us = statistics.median(trips["nothing"].plain_ns) / 1000
    print(f"a round trip of {len(PAYLOAD)} bytes without tracing: p50 {trip_us:.1f} µs")
    print(f"{'':36}{'in a loop, ns':>16}{'p50 added, µs':>20}{'':>9}{'p99, µs':>10}")
    for mode, turns in loops.items():
        base_ns = statistics.median(trips[mode].plain_ns)
        added_ns, error_ns = median_and_error(trips[mode].added_ns)
        tail = statistics.quantiles(trips[mode].traced_ns, n=100)[98]
        print(
            f"{mode:36}{min(turns) - min(loops['nothing']):16,.0f}{added_ns / 1000:13.2f} ± {error_ns / 1000:.2f}"
            f"{100 * added_ns / base_ns:8.1f}%{tail / 1000:10.1f}"
        )


if __name__ == "__main__":
    main()
