"""The rules of `explain`: what is looked at, from which value on it is said, how it is said, what to do about it.

Every rule looks at one cell and returns an observation, or None where the fact was not measured. Each threshold stands
once, in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ipcbench.analysis.summary.cells import CellSummary, SettingSummary, Summary
from ipcbench.analysis.summary.facts import held_ratio, reader_skew_ratio, waiting_core_ratio
from ipcbench.analysis.summary.wording import size_words
from ipcbench.util.units import format_duration_ns, format_significant

MIN_COPY_BYTES = 64 * 1024
"""For smaller payloads a call costs more than a copy does."""
MIN_GROWTH_RATIO = 4.0
"""Two sizes closer than this say little about what a byte costs."""
_IDLE_RATIO = 0.5
"""A reader that is offered less than this share of what it could take mostly waits."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A fact of one cell: its value, the figures behind it, and the sentence that states them."""

    value: float
    figures: Mapping[str, float]
    """By name, with the unit in it; `value` follows from them."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Place:
    """A cell and where it stands."""

    summary: Summary
    family: tuple[SettingSummary, ...]
    setting: SettingSummary
    cell: CellSummary

    def named(self) -> str:
        """Return payload and backend: `dict of 1,000 entries over shm`."""
        return f"{self.cell.setting.payload} of {size_words(self.cell.setting)} over {self.cell.backend}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing worth saying of a run."""

    name: str
    threshold: float
    """It is said of a cell whose value is above this."""
    unit: Literal["times", "share"]
    means: str
    """What the value is."""
    observe: Callable[[Place], Observation | None]
    action: str


def _decoding(place: Place) -> Observation | None:
    decode, latency = place.cell.decode_p50_ns, place.cell.latency_p50_ns
    if decode is None or latency is None:
        return None
    ratio = decode / latency.estimate
    return Observation(
        ratio,
        {"decode_p50_ns": decode, "latency_p50_ns": latency.estimate},
        f"Decoding takes longer than transport: {place.named()}, {format_duration_ns(decode)} to decode against "
        f"{format_duration_ns(latency.estimate)} one way, {_times(ratio)}.",
    )


def _spinning(place: Place) -> Observation | None:
    share, offered = waiting_core_ratio(place.cell.trials), place.setting.rate_per_s
    most = place.cell.throughput_per_s
    if share is None or offered is None or (most is not None and offered > _IDLE_RATIO * most):
        return None
    return Observation(
        share,
        {"reader_core_ratio": share, "offered_rate_per_s": offered},
        f"Waiting burns a core: {place.named()}, each reader uses {_percent(share)} of a core at "
        f"{format_significant(offered)} messages/s.",
    )


def _oversubscribed(place: Place) -> Observation | None:
    cores = place.summary.info.machine.get("usable_cores")
    if isinstance(cores, bool) or not isinstance(cores, int | float) or cores <= 0:
        return None
    processes = place.cell.setting.readers + 1
    return Observation(
        processes / cores,
        {"processes_count": processes, "usable_cores_count": float(cores)},
        f"Oversubscription takes part in the ranking: {processes} processes share {cores:g} cores, so a latency holds "
        "waiting for a core.",
    )


def _copies(place: Place) -> Observation | None:
    cell, floor = place.cell, place.summary.info.floor
    size = cell.setting.payload_bytes
    bandwidth = floor.memcpy_bytes_per_s.get(str(size)) if floor is not None else None
    if not bandwidth or size < MIN_COPY_BYTES or cell.writer_cpu_ns is None or cell.reader_cpu_ns is None:
        return None
    copy_ns, path_ns = 1e9 * size / bandwidth, cell.writer_cpu_ns + cell.reader_cpu_ns
    copies = path_ns / copy_ns
    return Observation(
        copies,
        {"writer_cpu_ns": cell.writer_cpu_ns, "reader_cpu_ns": cell.reader_cpu_ns, "memory_copy_ns": copy_ns},
        f"A message costs more than one copy: {place.named()}, writer and one reader together use "
        f"{format_duration_ns(path_ns)} of CPU time a message, {format_significant(copies)} times what one copy of it "
        f"takes ({format_duration_ns(copy_ns)}).",
    )


def _fixed_cost(place: Place) -> Observation | None:
    """Observe, of the smallest size of a backend, which share of its time per message does not depend on the size."""
    rates = [
        (cell.setting.payload_bytes, cell.throughput_per_s)
        for one in place.family
        for cell in one.cells
        if cell.backend == place.cell.backend and cell.throughput_per_s
    ]
    small = place.cell.setting.payload_bytes
    larger = [(size, rate) for size, rate in rates if size >= MIN_GROWTH_RATIO * max(1, small)]
    if not larger or small != min(size for size, _ in rates) or not place.cell.throughput_per_s:
        return None
    size, rate = min(larger)
    small_ns, large_ns = 1e9 / place.cell.throughput_per_s, 1e9 / rate
    share = max(0.0, min(1.0, (small_ns * size - large_ns * small) / ((size - small) * small_ns)))
    return Observation(
        share,
        {"small_ns": small_ns, "large_ns": large_ns, "small_bytes": small, "large_bytes": size},
        f"Small messages pay for the call, not for the bytes: {place.named()}, {_percent(share)} of the "
        f"{format_duration_ns(small_ns)} a message of {small:,} B takes is there whatever its size "
        f"({size:,} B take {format_duration_ns(large_ns)}).",
    )


def _tail(place: Place) -> Observation | None:
    p50, p99 = place.cell.latency_p50_ns, place.cell.latency_p99_ns
    if p50 is None or p99 is None:
        return None
    ratio = p99.estimate / p50.estimate
    return Observation(
        ratio,
        {"latency_p50_ns": p50.estimate, "latency_p99_ns": p99.estimate},
        f"The tail is far above the median: {place.named()}, one-way p99 {format_duration_ns(p99.estimate)} against "
        f"p50 {format_duration_ns(p50.estimate)}, {_times(ratio)}.",
    )


def _back_pressure(place: Place) -> Observation | None:
    share, most = held_ratio(place.cell.trials), place.cell.throughput_per_s
    if share is None or most is None:
        return None
    return Observation(
        share,
        {"writer_held_ratio": share, "throughput_per_s": most},
        f"The writer is held back: {place.named()}, flat out it waits inside write, for room or for a core, "
        f"{_percent(share)} of the time, at {format_significant(most)} messages/s.",
    )


def _slow_reader(place: Place) -> Observation | None:
    found = reader_skew_ratio(place.cell.trials)
    if found is None:
        return None
    ratio, role = found
    return Observation(
        ratio,
        {"slowest_of_fastest_reader_p50_ratio": ratio},
        f"One reader is later than another: {place.named()}, the one-way p50 of the slowest reader (mostly {role}) is "
        f"{_times(ratio)} that of the fastest.",
    )


def _times(ratio: float) -> str:
    return f"{format_significant(ratio)} times"


def _percent(share: float) -> str:
    return f"{format_significant(100.0 * share)} %"


RULES: tuple[Rule, ...] = (
    Rule(
        "oversubscription",
        1.0,
        "times",
        "processes per usable core",
        _oversubscribed,
        "Repeat with fewer readers or on more cores before you trust the order; compare CPU time, which suffers less.",
    ),
    Rule(
        "decoding dominates",
        1.0,
        "times",
        "decode p50 over one-way latency p50",
        _decoding,
        "Change what is sent before you change the transport: --codec msgpack, or --payload ndarray with --codec "
        "pickle5.",
    ),
    Rule(
        "spinning",
        0.5,
        "share",
        "share of a core that a reader uses while it mostly waits",
        _spinning,
        "If those cores have other work, wait by blocking: --wait block, where `ipcbench list` offers it.",
    ),
    Rule(
        "copies",
        2.0,
        "times",
        "CPU time of writer and one reader over that of one copy of the payload",
        _copies,
        "Prefer a transport with zero-copy reads: `ipcbench recommend` with --needs zero-copy.",
    ),
    Rule(
        "small messages",
        0.8,
        "share",
        "share of the time per message that does not depend on its size",
        _fixed_cost,
        "Put several small messages into one where latency allows it.",
    ),
    Rule(
        "tail",
        10.0,
        "times",
        "one-way latency p99 over p50",
        _tail,
        "Plan by p99, not by p50; `ipcbench doctor` says what disturbs this machine, --pin auto keeps processes in "
        "place.",
    ),
    Rule(
        "back-pressure",
        0.5,
        "share",
        "share of the time that the writer is held inside write, flat out",
        _back_pressure,
        "Make readers faster or fewer; a larger --depth only helps against bursts.",
    ),
    Rule(
        "slow reader",
        2.0,
        "times",
        "one-way p50 of the slowest reader over that of the fastest",
        _slow_reader,
        "A lossless channel goes at the pace of its slowest reader: give each a core (--pin auto), or use latest_value "
        "if only the newest counts.",
    ),
)
"""What is said of a run, in this order."""
