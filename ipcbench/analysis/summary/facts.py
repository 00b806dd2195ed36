"""Facts of one cell's trials that no table has a column for: all CPU time, cores used while waiting, slow readers."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from statistics import fmean, median

import numpy as np

from ipcbench.analysis.summary.figures import SEED
from ipcbench.results.model import EndpointResult, TrialResult
from ipcbench.spec import Mode
from ipcbench.stats.bootstrap import REPLICATES
from ipcbench.stats.estimates import Estimate, FloatArray


def cpu_rounds_ns(trials: Sequence[TrialResult]) -> tuple[float, ...]:
    """Return the CPU time per message of the writer and all readers together, ns, of each saturated trial."""
    found = []
    for trial in _of_mode(trials, "saturate"):
        parts = [_cpu_s(one) / one.messages_count for one in trial.endpoints if one.messages_count > 0]
        if trial.endpoints and len(parts) == len(trial.endpoints) and sum(parts) > 0.0:
            found.append(1e9 * sum(parts))
    return tuple(found)


def cpu_estimate(trials: Sequence[TrialResult]) -> Estimate | None:
    """Return the CPU time per message of the writer and all readers together, ns: that of the tables, all CPU time over
    all messages of all rounds; its replicates are of the rounds. None with fewer than two rounds.
    """
    rounds = cpu_rounds_ns(trials)
    if len(rounds) < 2:
        return None
    spec = trials[0].spec
    generator = np.random.default_rng([SEED, zlib.crc32(f"{spec.backend} cpu".encode()), spec.size])
    parts = np.array([_cpu_and_messages(one) for one in _of_mode(trials, "saturate")])
    picks = generator.integers(len(parts), size=(REPLICATES, len(parts)))
    value = float(_cpu_ns(parts.sum(axis=0), spec.readers))
    deviations = np.log(_cpu_ns(parts[picks].sum(axis=1), spec.readers)) - np.log(value)
    log_variance = float(np.var(np.log(rounds), ddof=1)) / len(rounds)
    return Estimate(value, deviations, log_variance, len(rounds) - 1.0, len(rounds))


def waiting_core_ratio(trials: Sequence[TrialResult]) -> float | None:
    """Return the share of a core that one reader uses in paced trials, where it mostly waits: mean over the readers,
    median over the rounds. Near 1 it spins.
    """
    return _median(
        fmean(shares)
        for trial in _of_mode(trials, "paced")
        if (shares := [_cpu_s(one) / span for one in trial.readers if (span := _span_s(one)) > 0.0])
    )


def held_ratio(trials: Sequence[TrialResult]) -> float | None:
    """Return the share of the time of saturated trials that the writer spends inside `write` without using the CPU:
    held back by a full channel, or waiting for a core. Median over the rounds; 0 to 1.
    """
    shares = []
    for trial in _of_mode(trials, "saturate"):
        writer = trial.writer
        span_s = _span_s(writer) if writer is not None else 0.0
        if writer is not None and writer.call is not None and span_s > 0.0:
            inside_s = 1e-9 * writer.call.mean_ns * writer.messages_count
            shares.append(min(1.0, max(0.0, (inside_s - _cpu_s(writer)) / span_s)))
    return _median(shares)


def reader_skew_ratio(trials: Sequence[TrialResult]) -> tuple[float, str] | None:
    """Return how many times the latency p50 of the fastest reader that of the slowest is (median over the rounds), and
    which reader is the slowest most often; None with a single reader.
    """
    ratios, slowest = [], []
    for trial in _of_mode(trials, "paced"):
        times = {one.role: one.latency.p50_ns for one in trial.readers if one.latency is not None}
        if len(times) > 1 and min(times.values()) > 0.0:
            ratios.append(max(times.values()) / min(times.values()))
            slowest.append(max(times, key=lambda role: times[role]))
    return (median(ratios), max(sorted(set(slowest)), key=slowest.count)) if ratios else None


def stamped_count(trials: Sequence[TrialResult], kind: str) -> int:
    """Return how many trials bear a stamp that begins with `kind`: `noisy`, `oversubscribed` …"""
    return sum(any(note.startswith(kind) for note in one.notes) for one in trials)


def unsteady_count(trials: Sequence[TrialResult]) -> int:
    """Return how many trials have an endpoint whose window's two halves disagree."""
    return sum(not all(part.steady for part in one.endpoints) for one in trials)


def _of_mode(trials: Sequence[TrialResult], mode: Mode) -> list[TrialResult]:
    return [one for one in trials if one.spec.mode == mode]


def _cpu_and_messages(trial: TrialResult) -> tuple[float, float, float, float]:
    """Return CPU seconds and messages of the writer, then of all readers together."""
    writers, readers = [one for one in trial.endpoints if one.role == "writer"], trial.readers
    return (
        sum(map(_cpu_s, writers)),
        float(sum(one.messages_count for one in writers)),
        sum(map(_cpu_s, readers)),
        float(sum(one.messages_count for one in readers)),
    )


def _cpu_ns(sums: FloatArray, readers: int) -> FloatArray:
    """Return ns a message, of the writer and `readers` readers; `sums` has shape (…, 4), see `_cpu_and_messages`."""
    writer_s, written, reader_s, read = np.maximum(sums, [0.0, 1.0, 0.0, 1.0]).T
    per_message: FloatArray = np.maximum(1e9 * (writer_s / written + readers * reader_s / read), 1e-3)
    return per_message


def _cpu_s(one: EndpointResult) -> float:
    return one.usage.user_cpu_s + one.usage.system_cpu_s


def _span_s(one: EndpointResult) -> float:
    return (one.last_ns - one.first_ns) * 1e-9


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(median(found)) if found else None
