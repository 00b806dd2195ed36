"""What is drawn against the payload's size: each quantity with its unit, how it is read, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ipcbench.analysis.summary.cells import CellSummary, Setting
from ipcbench.render.charts import Axis, Marks
from ipcbench.stats.estimates import Interval
from ipcbench.util.units import format_significant


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is drawn against the size."""

    key: str
    title: str
    reading: str
    y: Axis
    what: str
    """Before the value when a point is pointed at."""
    value: Callable[[CellSummary], Interval | None]
    """In the unit of the axis."""
    marks: Marks = "band"


def scaled(interval: Interval | None, factor: float) -> Interval | None:
    """Return the interval in another unit."""
    if interval is None:
        return None
    low, estimate, high = (factor * one for one in (interval.low, interval.estimate, interval.high))
    return Interval(low, estimate, high, interval.level)


def _exact(value: float | None, factor: float) -> Interval | None:
    return None if value is None else Interval(value * factor, value * factor, value * factor)


def _throughput(cell: CellSummary) -> Interval | None:
    interval = scaled(cell.throughput_interval_per_s, 1e-3)
    return interval if interval is not None else _exact(cell.throughput_per_s, 1e-3)


def _memory_share(cell: CellSummary) -> Interval | None:
    share, rate, interval = cell.memory_bandwidth_ratio, cell.throughput_per_s, cell.throughput_interval_per_s
    if share is None or not rate or interval is None:
        return _exact(share, 100.0)
    return scaled(interval, 100.0 * share / rate)


def _decode_share(cell: CellSummary) -> Interval | None:
    """Return decoding as a share of delivery and decoding together, %; the interval is that of the latency alone."""
    decode, p50 = cell.decode_p50_ns, cell.latency_p50_ns
    if decode is None or p50 is None or decode <= 0:
        return None
    low, middle, high = (100.0 * decode / (decode + one) for one in (p50.high, p50.estimate, p50.low))
    return Interval(low, middle, high)


QUANTITIES = (
    Quantity(
        "latency",
        "One-way latency",
        "Receipt − intended send time of paced messages, median over all readers and rounds; lower is better.",
        Axis("One-way latency, p50", "µs", log=True),
        "one-way p50",
        lambda cell: scaled(cell.latency_p50_ns, 1e-3),
    ),
    Quantity(
        "round-trip",
        "Round trip",
        "From a send to the last reader's reply, one message at a time; lower is better.",
        Axis("Round trip, p50", "µs", log=True),
        "round trip p50",
        lambda cell: scaled(cell.round_trip_p50_ns, 1e-3),
    ),
    Quantity(
        "throughput",
        "Throughput",
        "Messages per second that every reader got while the writer wrote as fast as it could; higher is better.",
        Axis("Throughput to each reader", "k messages/s", log=True),
        "throughput",
        _throughput,
    ),
    Quantity(
        "memory-share",
        "Share of the memory-copy ceiling",
        "Payload bytes per second to one reader as a share of what one core copies in memory at that size. Above 100 % "
        "nothing is copied: readers look at the writer's memory.",
        Axis("Share of one core's memory copy", "%", log=True),
        "of a memory copy",
        _memory_share,
    ),
    Quantity(
        "decode-share",
        "Share of deserialization",
        "Decoding one payload as a share of delivering and decoding it, medians of both. Where it is high, another "
        "transport changes little and another codec much.",
        Axis("Decoding, of latency + decoding", "%", log=False),
        "decoding is",
        _decode_share,
    ),
)


def skew_quantity(skew_ratios: Mapping[tuple[Setting, str], float]) -> Quantity:
    """Return how the readers of a cell differ, as a quantity; `skew_ratios` is by (setting, backend)."""
    return Quantity(
        "reader-skew",
        "Slowest against fastest reader",
        "Median latency of a round's slowest reader over that of its fastest, median over the rounds; 1 is fair.",
        Axis("Slowest / fastest reader, p50", "×", log=True),
        "slowest / fastest",
        lambda cell: _exact(skew_ratios.get((cell.setting, cell.backend)), 1.0),
    )


def further_lines(quantity: Quantity, cell: CellSummary) -> Iterator[str]:
    """Yield what else is said of a cell when its point is pointed at."""
    if quantity.key == "latency" and cell.latency_p99_ns is not None:
        yield f"one-way p99: {format_significant(cell.latency_p99_ns.estimate / 1e3)} µs"
    if quantity.key in {"throughput", "memory-share"} and cell.throughput_bytes_per_s is not None:
        yield f"{format_significant(cell.throughput_bytes_per_s / 1e6)} MB/s"
    if quantity.key == "decode-share" and cell.decode_p50_ns is not None and cell.latency_p50_ns is not None:
        decode, latency = (format_significant(one / 1e3) for one in (cell.decode_p50_ns, cell.latency_p50_ns.estimate))
        yield f"{decode} µs decoding, {latency} µs one-way"
