"""What tracing costs a call: in a loop, and inside a ZeroMQ round trip over ipc, beside other recorders, in one run.

Usage: python benchmarks/trace_overhead.py [--calls 4000] [--turns 5]. Recorders that are not installed are named and
left out. Modes take turns, so that drift of the machine hits all alike; a figure is the best turn in the loop. In round
trips plain and traced calls take turns in short blocks, with wrapped sockets and with a budget one by one, since they
differ by less than what a machine drifts by in a second; there the figure is the difference of the medians.
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
from ipcbench.clock import now_ns
from ipcbench.trace.recorder import calibrate

Stages = tuple[Callable[[], bytes], Callable[[bytes], bytes], Callable[[bytes], object]]
"""What a call consists of: make a request, exchange it, read the answer."""
Call = Callable[[Callable[[], bytes], Callable[[bytes], bytes], Callable[[bytes], object]], None]
"""Carries out one four-stage call."""

PAYLOAD = b"x" * 64
WARM_UP_CALLS = 200
BLOCK_TRIPS = 25

to_close: list[Callable[[], object]] = []
"""What ends the recorder of the last turn."""


def bare(make: Callable[[], bytes], exchange: Callable[[bytes], bytes], read: Callable[[bytes], object]) -> None:
    read(exchange(make()))


def by_recorder(recorder: trace.Recorder) -> Call:
    def one(make: Callable[[], bytes], exchange: Callable[[bytes], bytes], read: Callable[[bytes], object]) -> None:
        with recorder.call("Echo") as call:
            request = make()
            call.serialized(len(request))
            call.sent()
            answer = exchange(request)
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

    def one(make: Callable[[], bytes], exchange: Callable[[bytes], bytes], read: Callable[[bytes], object]) -> None:
        begin = now_ns()
        bare(make, exchange, read)
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

    def one(make: Callable[[], bytes], exchange: Callable[[bytes], bytes], read: Callable[[bytes], object]) -> None:
        with tracer.start_as_current_span("Echo"):
            with tracer.start_as_current_span("serialize"):
                request = make()
            with tracer.start_as_current_span("send"):
                pass
            with tracer.start_as_current_span("wait"):
                answer = exchange(request)
            with tracer.start_as_current_span("deserialize"):
                read(answer)

    return one


def by_viztracer() -> Call:
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0, max_stack_depth=0)
    tracer.start()
    to_close.append(tracer.stop)
    to_close.append(tracer.clear)

    def one(make: Callable[[], bytes], exchange: Callable[[bytes], bytes], read: Callable[[bytes], object]) -> None:
        with tracer.log_event("Echo"), tracer.log_event("serialize"):
            request = make()
        with tracer.log_event("wait"):
            answer = exchange(request)
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


def by_turns_ns(
    calls: dict[str, Callable[[], object]], count: int, middle: Callable[[list[int]], float] = statistics.median
) -> dict[str, float]:
    """Return the middle of the times of each kind of call, made one after the other in turn."""
    times: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            begin = now_ns()
            call()
            times[name].append(now_ns() - begin)
    return {name: middle(some) for name, some in times.items()}


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
        while (took := by_turns_ns({"": lambda: sum(numbers)}, 20)[""]) < 1000 * wanted_us:  # noqa: B023 # called here
            numbers = range(max(len(numbers) + 50, round(len(numbers) * 1000 * wanted_us / took)))

        def plain(numbers: range = numbers) -> None:
            sum(numbers)

        def traced(numbers: range = numbers) -> None:
            with recorder.call("work") as call:
                call.serialized(1)
                call.sent()
                sum(numbers)
                call.received(1)

        turns = max(200, 3 * count * 30 // wanted_us)
        by_turns_ns({"plain": plain, "traced": traced}, turns // 4)  # it finds its period
        ns = by_turns_ns({"plain": plain, "traced": traced}, turns, trimmed_mean)
        added = ns["traced"] - ns["plain"]
        print(f"{ns['plain'] / 1000:16.1f} µs{added:+16.0f} ns{100 * added / ns['plain']:+8.2f} %")
    trace.stop()


def trimmed_mean(times: list[int]) -> float:
    """Return the mean of all but the largest twentieth, which others on the machine have disturbed."""
    return statistics.fmean(sorted(times)[: len(times) * 19 // 20])


def in_loop_ns(call: Call, count: int) -> float:
    """Return the time of one call whose stages do nothing; the first ones, which make a file, are not in it."""
    stages: Stages = (lambda: PAYLOAD, lambda same: same, lambda same: same)
    for _ in range(WARM_UP_CALLS):
        call(*stages)
    begin = now_ns()
    for _ in range(count):
        call(*stages)
    return (now_ns() - begin) / count


def in_round_trips_ns(call: Call, socket: zmq.Socket[bytes], count: int) -> tuple[list[int], list[int]]:
    """Return the times of plain round trips and of traced ones.

    They take turns in blocks of a few ms: short enough that both meet the same machine, and long enough that a traced
    trip comes after a traced one, as in an application.
    """

    def exchange(request: bytes) -> bytes:
        socket.send(request)
        return socket.recv()

    stages: Stages = (lambda: msgpack.packb(PAYLOAD), exchange, msgpack.unpackb)
    plain_ns: list[int] = []
    traced_ns: list[int] = []
    for _ in range(count // BLOCK_TRIPS):
        for some, times in ((bare, plain_ns), (call, traced_ns)):
            for _ in range(BLOCK_TRIPS):
                begin = now_ns()
                some(*stages)
                times.append(now_ns() - begin)
    return plain_ns, traced_ns


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
        ("viztracer, 4 events", "viztracer", by_viztracer),
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
    plain_ns: dict[str, list[int]] = {}
    traced_ns: dict[str, list[int]] = {}
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
                    plain, traced = in_round_trips_ns(call, socket, chosen.calls)
                    plain_ns.setdefault(mode, []).extend(plain)
                    traced_ns.setdefault(mode, []).extend(traced)
            prepared("nothing", every["nothing"])
            socket.send(b"")
            socket.recv()
        server.join()
        measure_wrapping(folder, chosen.calls // 2)
        measure_budget(folder, chosen.calls)
    costs = calibrate()
    print(f"a four-stage call alone, in ns: recorded {costs.recorded_ns:,.0f}, tallied {costs.timed_ns:,.0f}, "
          f"counted {costs.counted_ns:,.0f}")  # fmt: skip
    trip_us = statistics.median(plain_ns["nothing"]) / 1000
    print(f"a round trip of {len(PAYLOAD)} bytes without tracing: p50 {trip_us:.1f} µs")
    print(f"{'':36}{'in a loop, ns':>16}{'p50 added, µs':>16}{'':>9}{'p99, µs':>10}")
    for mode, turns in loops.items():
        base = statistics.median(plain_ns[mode])
        added = statistics.median(traced_ns[mode]) - base
        tail = statistics.quantiles(traced_ns[mode], n=100)[98]
        print(
            f"{mode:36}{min(turns) - min(loops['nothing']):16,.0f}{added / 1000:16.2f}{100 * added / base:8.1f}%"
            f"{tail / 1000:10.1f}"
        )


if __name__ == "__main__":
    main()
