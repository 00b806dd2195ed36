"""From the trials of a cell to its figures: latency, throughput, time inside calls, CPU time, waiting, reader skew."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from ipcbench.errors import StoreError
from ipcbench.results.model import EndpointResult, TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import UNCOUNTED_OF_TURN, Mode
from ipcbench.stats.bootstrap import (
    REPLICATES,
    RoundSamples,
    median_estimate,
    pooled_quantile,
    quantile_estimates,
    time_blocks,
)
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Estimate, FloatArray, IntArray, Interval

_SEED = 20_240_229
"""Of every bootstrap, so that the same run always gives the same intervals."""
_BLOCKS_PER_ROUND = 10
_MIN_SAMPLES_PER_BLOCK = 4
_MIN_NS = 1e-3
"""Stands in for a median of 0, which a coarse clock can give and which has no logarithm."""

_MAX_TURNS = 60
"""If a round has more turns, neighbouring turns are merged."""


@dataclass(frozen=True, slots=True)
class CellFigures:
    """The figures of one backend at one setting; None where there were no samples, or too few."""

    latency_p50: Estimate | None
    """One-way latency, ns: all samples of all readers and rounds of the paced trials."""
    latency_p99: Estimate | None
    """The same of the windows in one piece only, since turns would cut stalls off."""
    samples_count: int
    """Number of latencies; of round trips if only those were measured."""
    round_trip_p50: Estimate | None
    """From a send to the last reader's reply, ns: all samples of all rounds of the pingpong trials."""
    round_trip_p99: Estimate | None
    throughput: Estimate | None
    """Messages per second that every reader got: median of the rounds of the saturate trials. None if there is only one
    round and it has no samples."""
    throughput_rounds_per_s: tuple[float, ...]
    read_p50_ns: float | None
    """Time inside `read` while saturated, waiting included: median over readers and rounds of their medians."""
    write_p50_ns: float | None
    """Time inside `write` while saturated, back-pressure included."""
    decode_p50_ns: float | None
    """Time to decode one payload: median over readers, rounds and modes of their medians."""
    writer_cpu_ns: float | None
    """User and system CPU time per message in the saturate trials."""
    reader_cpu_ns: float | None
    """Like `writer_cpu_ns`, mean over the readers."""
    unreadable_count: int
    """Trials whose samples are missing or damaged."""

    @property
    def message_time(self) -> Estimate | None:
        """Return the time per message while saturated, s: the inverse of the throughput."""
        rate = self.throughput
        if rate is None:
            return None
        rounds = {name: -logs for name, logs in rate.rounds.items()}
        return replace(rate, value=1.0 / rate.value, deviations=-rate.deviations, rounds=rounds)


def scaled(interval: Interval, factor: float) -> Interval:
    """Return the interval in another unit."""
    return Interval(interval.low * factor, interval.estimate * factor, interval.high * factor)


def inverted(interval: Interval) -> Interval:
    """Return the interval of the inverse: of a rate for a time, of A / B for B / A."""
    return Interval(1.0 / interval.high, 1.0 / interval.estimate, 1.0 / interval.low)


def _of_mode(trials: Sequence[TrialResult], mode: Mode) -> list[TrialResult]:
    """Return the trials of one mode, without those for the tail."""
    return [trial for trial in trials if trial.spec.mode == mode and not trial.spec.tail]


def generator_of(backend: str, purpose: str, size: int) -> np.random.Generator:
    """Return a generator for one figure of one cell, so that another cell in the run does not change its interval."""
    return np.random.default_rng([_SEED, zlib.crc32(f"{backend} {purpose}".encode()), size])


def cell_figures(run: Run, trials: Sequence[TrialResult]) -> CellFigures:
    """Return the figures of one cell.

    Args:
        run: the run that holds the samples.
        trials: the sound trials of one backend at one setting, of all modes.
    """
    paced, pingpong, saturate = (_of_mode(trials, mode) for mode in ("paced", "pingpong", "saturate"))
    rounds, unreadable = _rounds(run, paced, _latency_columns)
    p50 = _quantile(rounds, 0.5, "latency")
    if p50 is not None:
        p50 = replace(p50, rounds=dict(_log_figures(run, rounds)))
    whole, unreadable_tails = _rounds(run, [trial for trial in trials if trial.spec.tail], _latency_columns)
    p99 = _tail(whole or [part for part in rounds if part[0].spec.turns == 1], p50, "latency")
    trips, unreadable_trips = _rounds(run, pingpong, _round_trip_columns)
    trip_p50 = _quantile(trips, 0.5, "round trip")
    # one in so many round trips, not of the time: a turn that a stall cuts short has few of them
    trip_p99 = _tail([(trial, replace(part, by_turns=False)) for trial, part in trips], trip_p50, "round trip")
    if trip_p50 is not None:
        trip_p50 = replace(trip_p50, rounds=dict(_log_figures(run, trips)))
    rates = {round_name(run.info.run_id, trial): trial.throughput_per_s for trial in saturate if trial.throughput_per_s}
    readers = [reader for trial in saturate for reader in trial.readers]
    writers = [trial.writer for trial in saturate if trial.writer is not None]
    decodes = [reader.decode for trial in trials for reader in trial.readers]
    throughput = _throughput(run, saturate, rates)
    p50, trip_p50, throughput = (
        each and replace(each, of=trials[0].spec.backend) for each in (p50, trip_p50, throughput)
    )
    return CellFigures(
        latency_p50=p50,
        latency_p99=p99,
        samples_count=sum(samples.values.size for _, samples in rounds or trips),
        round_trip_p50=trip_p50,
        round_trip_p99=trip_p99,
        throughput=throughput,
        throughput_rounds_per_s=tuple(rates.values()),
        read_p50_ns=_median(reader.call.p50_ns for reader in readers if reader.call is not None),
        write_p50_ns=_median(writer.call.p50_ns for writer in writers if writer.call is not None),
        decode_p50_ns=_median(decode.p50_ns for decode in decodes if decode is not None),
        writer_cpu_ns=_cpu_per_message_ns(writers),
        reader_cpu_ns=_cpu_per_message_ns(readers),
        unreadable_count=unreadable + unreadable_tails + unreadable_trips,
    )


def figure_of(run: Run, trials: Sequence[TrialResult], mode: Mode) -> float | None:
    """Return the figure of one mode that `cell_figures` gives for the trials, without what is known of its error.

    That is the p50 of the one-way latency (paced) or of the round trip (pingpong) in ns, or messages per second.
    """
    those = _of_mode(trials, mode)
    if mode == "saturate":
        return _median(trial.throughput_per_s for trial in those if trial.throughput_per_s)
    rounds, _ = _rounds(run, those, _latency_columns if mode == "paced" else _round_trip_columns)
    return pooled_quantile([samples for _, samples in rounds], 0.5) if rounds else None


def _cell_generator(trial: TrialResult, purpose: str) -> np.random.Generator:
    return generator_of(trial.spec.backend, purpose, trial.spec.size)


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(median(known)) if known else None


def _cpu_per_message_ns(endpoints: Sequence[EndpointResult]) -> float | None:
    messages = sum(endpoint.messages_count for endpoint in endpoints)
    return sum(map(_cpu_s, endpoints)) * 1e9 / messages if messages else None


def _log_figures(run: Run, rounds: Sequence[tuple[TrialResult, RoundSamples]]) -> Iterator[tuple[str, FloatArray]]:
    """Yield the name of each round and the logarithms of the medians of its turns, or of its own if it has none."""
    for trial, samples in rounds:
        turns = [samples.values[samples.blocks == turn] for turn in range(samples.blocks.max() + 1)]
        medians = [samples.quantile(0.5)]  # also of turns of which the thinning has left some without a sample
        if trial.spec.turns > 1 and all(turn.size for turn in turns):
            medians = [float(np.median(turn)) for turn in turns]
        yield round_name(run.info.run_id, trial), np.log(np.maximum(medians, _MIN_NS))


def round_name(run_id: str, trial: TrialResult) -> str:
    """Return a name that no round of another run has."""
    return f"{run_id} {trial.spec.round_index}"


def _quantile(rounds: Sequence[tuple[TrialResult, RoundSamples]], probability: float, purpose: str) -> Estimate | None:
    if not rounds:
        return None
    samples, generator = [part for _, part in rounds], _cell_generator(rounds[0][0], purpose)
    return quantile_estimates(samples, (probability,), generator)[0]


def _tail(rounds: Sequence[tuple[TrialResult, RoundSamples]], p50: Estimate | None, purpose: str) -> Estimate | None:
    """Return the p99, which is at least the median; None if there are too few rounds to tell how they differ."""
    p99 = _quantile(rounds, 0.99, purpose) if len(rounds) >= MIN_CLAIM_ROUNDS else None
    if p99 is None or p50 is None:
        return p99
    return replace(p99, value=max(p99.value, p50.value), least=p50.value)


def round_p50_ns(run: Run, trial: TrialResult) -> float | None:
    """Return the median of a paced or pingpong trial as it enters the figures; None without usable samples."""
    rounds, _ = _rounds(run, [trial], _latency_columns if trial.spec.mode == "paced" else _round_trip_columns)
    return rounds[0][1].quantile(0.5) if rounds else None


def _latency_columns(trial: TrialResult) -> list[tuple[str, str]]:
    roles = [reader.role for reader in trial.readers if reader.latency is not None]
    return [(f"{role}.latency_ns", f"{role}.received_ns") for role in roles]


def _round_trip_columns(trial: TrialResult) -> list[tuple[str, str]]:
    return [("writer.round_trip_ns", "writer.sent_ns")]


def _rounds(
    run: Run, trials: Sequence[TrialResult], columns_of: Callable[[TrialResult], list[tuple[str, str]]]
) -> tuple[list[tuple[TrialResult, RoundSamples]], int]:
    """Return the samples of each round, all endpoints together, and the number of rounds without usable samples.

    Args:
        run: the run that holds the samples.
        trials: one per round.
        columns_of: names of (durations, their moments) per endpoint; empty if the trial has no such figure.
    """
    rounds: list[tuple[TrialResult, RoundSamples]] = []
    unreadable = 0
    for trial in trials:
        names = columns_of(trial)
        if not names:
            continue
        try:
            columns = run.samples(trial.trial_id, tuple(name for pair in names for name in pair))
            values = np.concatenate([columns[name] for name, _ in names]).astype(np.float64)
            moments = np.concatenate([columns[name] for _, name in names])
        except (StoreError, KeyError):
            unreadable += 1
            continue
        fits = all(_fits(trial, len(columns[name])) for name, _ in names)
        if not fits or values.size == 0 or values.size != moments.size or float(np.median(values)) <= 0.0:
            unreadable += 1
            continue
        if trial.spec.turns > 1:
            blocks = np.concatenate([_turn_blocks(trial, len(columns[name])) for name, _ in names])
            counted = np.concatenate([counted_in_turns(trial, len(columns[name])) for name, _ in names])
            values, blocks = values[counted], blocks[counted]
        else:
            count = max(2, min(_BLOCKS_PER_ROUND, values.size // len(names) // _MIN_SAMPLES_PER_BLOCK))
            blocks = time_blocks(moments, count)
        rounds.append((trial, RoundSamples(values, blocks, by_turns=trial.spec.turns > 1)))
    return rounds, unreadable


def _fits(trial: TrialResult, count: int) -> bool:
    """Return whether a column of that length can be what the trial says that it stored of each turn."""
    kept = trial.kept_counts
    return not kept or (len(kept) == len(trial.turn_counts) and min(kept) > 0 and sum(kept) == count)


def _turn_blocks(trial: TrialResult, count: int) -> IntArray:
    """Return the turn number of each of `count` thinned messages, with neighbouring turns merged if there are too
    many.
    """
    turns, _, counts = _places(trial, count)
    return turns * min(len(counts), _MAX_TURNS) // len(counts)


def counted_in_turns(trial: TrialResult, count: int) -> npt.NDArray[np.bool_]:
    """Return which of `count` thinned messages enter figures: in paced turns, not the first few of each, which meet
    the caches and the cores as the turns of others have left them.
    """
    if trial.spec.mode != "paced" or trial.spec.turns == 1:
        return np.ones(count, dtype=bool)
    turns, places, counts = _places(trial, count)
    counted: npt.NDArray[np.bool_] = places >= np.minimum(UNCOUNTED_OF_TURN, counts // 2)[turns]
    return counted


def _places(trial: TrialResult, count: int) -> tuple[IntArray, IntArray, IntArray]:
    """Return the turn of each of `count` thinned messages, its place in that turn, and how many messages turns have."""
    counts = np.array(trial.turn_counts or (-(-count // trial.spec.turns),) * trial.spec.turns, dtype=np.int64)
    ends = np.cumsum(counts)
    if trial.kept_counts:
        kept = np.array(trial.kept_counts, dtype=np.int64)
        turn = np.repeat(np.arange(len(kept)), kept)
        places = np.arange(count) - (np.cumsum(kept) - kept)[turn]
        return turn, places * (-(-counts // kept))[turn], counts
    messages = np.arange(count) * -(-int(ends[-1]) // count)
    turns: IntArray = np.minimum(np.searchsorted(ends, messages, side="right"), len(counts) - 1)
    return turns, messages - (ends - counts)[turns], counts


def _throughput(run: Run, trials: Sequence[TrialResult], rates: Mapping[str, float]) -> Estimate | None:
    if not rates:
        return None
    blocks = _block_rates(run, trials[0]) if len(rates) == 1 else np.zeros(0)
    estimate = rounds_estimate(rates, _cell_generator(trials[0], "throughput"), blocks.tolist())
    if estimate is None:
        return None
    turns = {round_name(run.info.run_id, trial): trial.turn_rates_per_s for trial in trials}
    return replace(estimate, rounds={name: np.log(turns[name] or (rate,)) for name, rate in rates.items()})


def rounds_estimate(
    figures: Mapping[str, float], generator: np.random.Generator, blocks: Sequence[float] = ()
) -> Estimate | None:
    """Return the median of a figure that each round has once, with its rounds; see `median_estimate`."""
    estimate = median_estimate(list(figures.values()), generator, blocks)
    return None if estimate is None else replace(estimate, rounds=_logs(figures))


def _logs(figures: Mapping[str, float]) -> dict[str, FloatArray]:
    return {name: np.log([figure]) for name, figure in figures.items()}


def _block_rates(run: Run, trial: TrialResult) -> FloatArray:
    """Return messages per second in each turn of a saturate trial; without turns, kept messages per second in each
    tenth of its window, from the first reader's receipts.
    """
    if trial.turn_rates_per_s:
        return np.array(trial.turn_rates_per_s)
    try:
        received = run.samples(trial.trial_id, ("reader-0.received_ns",))["reader-0.received_ns"]
    except (StoreError, KeyError):
        return np.zeros(0)
    if received.size <= 2 * _BLOCKS_PER_ROUND:
        return np.zeros(0)
    edges = np.linspace(0, received.size - 1, _BLOCKS_PER_ROUND + 1).astype(np.int64)
    durations = np.diff(received[edges]).astype(np.float64)
    rates: FloatArray = 1e9 * np.diff(edges)[durations > 0] / durations[durations > 0]
    return rates


# Figures that no table has a column for


def _cpu_rounds_ns(trials: Sequence[TrialResult]) -> dict[str, float]:
    """Return the CPU time per message of the writer and all readers together, ns, in each round."""
    rounds = {}
    for trial in _of_mode(trials, "saturate"):
        parts = [_cpu_s(part) / part.messages_count for part in trial.endpoints if part.messages_count > 0]
        if trial.endpoints and len(parts) == len(trial.endpoints) and sum(parts) > 0.0:
            rounds[str(trial.spec.round_index)] = 1e9 * sum(parts)
    return rounds


def cpu_estimate(trials: Sequence[TrialResult]) -> Estimate | None:
    """Return the CPU time per message of the writer and all readers together, ns.

    As in the tables, it is all CPU time over all messages of all rounds; replicates draw rounds. None with fewer than
    two rounds.
    """
    rounds = _cpu_rounds_ns(trials)
    if len(rounds) < 2:
        return None
    generator, readers = _cell_generator(trials[0], "cpu"), trials[0].spec.readers
    parts = np.array([_cpu_and_messages(trial) for trial in _of_mode(trials, "saturate")])
    picks = generator.integers(len(parts), size=(REPLICATES, len(parts)))
    value = float(_cpu_ns(parts.sum(axis=0), readers))
    deviations = np.log(_cpu_ns(parts[picks].sum(axis=1), readers)) - np.log(value)
    log_variance = float(np.var(np.log(list(rounds.values())), ddof=1)) / len(rounds)
    return Estimate(value, deviations, log_variance, len(rounds) - 1.0, len(rounds), _logs(rounds))


def waiting_core_ratio(trials: Sequence[TrialResult]) -> float | None:
    """Return the share of a core that a reader uses in paced trials, where it mostly waits; near 1 it spins.

    Mean over the readers, median over the rounds.
    """
    return _median(
        fmean(shares)
        for trial in _of_mode(trials, "paced")
        if (shares := [_cpu_s(reader) / span for reader in trial.readers if (span := _span_s(trial, reader)) > 0.0])
    )


def held_ratio(trials: Sequence[TrialResult]) -> float | None:
    """Return the share of the time of saturate trials that the writer spends inside `write` without using the CPU.

    There it waits for room in the channel, or for a core. Median over the rounds; 0 to 1. The stamped calls may be
    longer than the others: it is at most the time that the writer does not use the CPU.
    """
    shares = []
    for trial, writer in ((trial, trial.writer) for trial in _of_mode(trials, "saturate")):
        if writer is not None and writer.call is not None and (span_s := _span_s(trial, writer)) > 0.0:
            inside_s = min(span_s, 1e-9 * writer.call.mean_ns * writer.messages_count)
            shares.append(max(0.0, inside_s - _cpu_s(writer)) / span_s)
    return _median(shares)


def slowest_reader_ns(trials: Sequence[TrialResult]) -> float | None:
    """Return the latency p50 of the slowest reader of paced trials, ns: median over the rounds."""
    return _median(max(times.values()) for times in _reader_times(trials))


@dataclass(frozen=True, slots=True)
class ReaderSkew:
    """Latency p50 of a round's slowest reader over that of its fastest."""

    median: float
    """Over the rounds."""
    in_three_of_four: float
    """At least this in three of four rounds: their lower quartile."""
    slowest: str
    """The reader that is the slowest most often."""


def reader_skew(trials: Sequence[TrialResult]) -> ReaderSkew | None:
    """Return how far the readers of each round are apart; None without paced trials."""
    rounds = list(_reader_times(trials))
    if not rounds:
        return None
    slowest = [max(times, key=lambda role: times[role]) for times in rounds]
    ratios = sorted(max(times.values()) / min(times.values()) for times in rounds)
    return ReaderSkew(median(ratios), ratios[len(ratios) // 4], max(sorted(set(slowest)), key=slowest.count))


def _reader_times(trials: Sequence[TrialResult]) -> Iterator[dict[str, float]]:
    """Yield reader → latency p50, ns, of each paced trial."""
    for trial in _of_mode(trials, "paced"):
        times = {reader.role: reader.latency.p50_ns for reader in trial.readers if reader.latency is not None}
        if times and min(times.values()) > 0.0:
            yield times


def _cpu_and_messages(trial: TrialResult) -> tuple[float, float, float, float]:
    """Return CPU seconds and messages of the writer, then of all readers together."""
    writers, readers = [part for part in trial.endpoints if part.role == "writer"], trial.readers
    return (
        sum(map(_cpu_s, writers)),
        float(sum(writer.messages_count for writer in writers)),
        sum(map(_cpu_s, readers)),
        float(sum(reader.messages_count for reader in readers)),
    )


def _cpu_ns(sums: FloatArray, readers: int) -> FloatArray:
    """Return ns per message of the writer and `readers` readers; `sums` has shape (…, 4), see `_cpu_and_messages`."""
    writer_s, written, reader_s, read = np.maximum(sums, [0.0, 1.0, 0.0, 1.0]).T
    per_message: FloatArray = np.maximum(1e9 * (writer_s / written + readers * reader_s / read), 1e-3)
    return per_message


def _cpu_s(endpoint: EndpointResult) -> float:
    return endpoint.usage.user_cpu_s + endpoint.usage.system_cpu_s


def _span_s(trial: TrialResult, endpoint: EndpointResult) -> float:
    """Return how long an endpoint's window was, without the pauses between turns."""
    return trial.spec.window_s if trial.spec.turns > 1 else (endpoint.last_ns - endpoint.first_ns) * 1e-9
