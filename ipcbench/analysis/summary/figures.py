"""From the trials of one cell to its figures: latency, throughput, time inside calls, CPU, each over all its rounds."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipcbench.errors import StoreError
from ipcbench.results.model import EndpointResult, TrialResult
from ipcbench.results.store import Run
from ipcbench.stats.bootstrap import RoundSamples, median_estimate, quantile_estimates, time_blocks
from ipcbench.stats.estimates import Estimate, FloatArray, IntArray

SEED = 20_240_229
"""Of every bootstrap: the same run always gives the same intervals."""

_BLOCKS_PER_ROUND = 10
_MIN_SAMPLES_PER_BLOCK = 4
_LEAST_NS = 1e-3
"""For a median of 0, which a coarse clock can give, in place of minus infinity."""
_MAX_TURNS = 60
"""Of more turns in a round, neighbours are taken together."""


@dataclass(frozen=True, slots=True)
class CellFigures:
    """The figures of one backend at one setting; None where nothing was measured or too little for that figure."""

    latency_p50: Estimate | None
    """One-way latency, ns: all samples of all readers of all rounds of the paced trials."""
    latency_p99: Estimate | None
    latency_rounds_ns: tuple[float, ...]
    """The median of each round."""
    samples_count: int
    """How many latencies that is; of round trips if only those were measured."""
    round_trip_p50: Estimate | None
    """From a send to the last reader's reply, ns: all samples of all rounds of the pingpong trials."""
    round_trip_p99: Estimate | None
    round_trip_rounds_ns: tuple[float, ...]
    throughput: Estimate | None
    """Messages per second that every reader got; median of the rounds of the saturate trials. None if one round without
    samples is all there is."""
    throughput_rounds_per_s: tuple[float, ...]
    read_p50_ns: float | None
    """Time inside `read` while saturated, waiting included: median over readers and rounds of their medians."""
    write_p50_ns: float | None
    """Time inside `write` while saturated, back-pressure included."""
    decode_p50_ns: float | None
    """Time to decode one payload: median over readers, rounds and modes of their medians."""
    writer_cpu_ns: float | None
    """User and system CPU time per message of the saturate trials."""
    reader_cpu_ns: float | None
    """As `writer_cpu_ns`, mean over the readers."""
    unreadable_count: int
    """Trials whose samples are missing or damaged."""


def cell_figures(run: Run, trials: Sequence[TrialResult]) -> CellFigures:
    """Return the figures of one cell.

    Args:
        run: where the samples are read from.
        trials: those of one backend at one setting that are ok, of both modes.
    """
    paced = [one for one in trials if one.spec.mode == "paced"]
    saturate = [one for one in trials if one.spec.mode == "saturate"]
    rounds, unreadable = _rounds(run, paced, _latency_columns)
    p50, p99 = _p50_p99([samples for _, samples in rounds], paced, "latency")
    if p50 is not None:
        p50 = replace(p50, turns=dict(_turns(run, rounds)))
    pingpong = [one for one in trials if one.spec.mode == "pingpong"]
    trips, unreadable_trips = _rounds(run, pingpong, _round_trip_columns)
    trip_p50, trip_p99 = _p50_p99([samples for _, samples in trips], pingpong, "round trip")
    rates = [one.throughput_per_s for one in saturate if one.throughput_per_s]
    readers = [one for trial in saturate for one in trial.readers]
    writers = [one.writer for one in saturate if one.writer is not None]
    return CellFigures(
        latency_p50=p50,
        latency_p99=p99,
        latency_rounds_ns=_medians(rounds),
        samples_count=sum(one.values.size for _, one in rounds or trips),
        round_trip_p50=trip_p50,
        round_trip_p99=trip_p99,
        round_trip_rounds_ns=_medians(trips),
        throughput=_throughput(run, saturate, rates),
        throughput_rounds_per_s=tuple(rates),
        read_p50_ns=_median(one.call.p50_ns for one in readers if one.call is not None),
        write_p50_ns=_median(one.call.p50_ns for one in writers if one.call is not None),
        decode_p50_ns=_median(one.decode.p50_ns for trial in trials for one in trial.readers if one.decode is not None),
        writer_cpu_ns=_cpu_ns(writers),
        reader_cpu_ns=_cpu_ns(readers),
        unreadable_count=unreadable + unreadable_trips,
    )


def _generator(trial: TrialResult, purpose: str) -> np.random.Generator:
    """Return a generator of the cell's own, so that adding a cell to a run changes no other's interval."""
    return np.random.default_rng([SEED, zlib.crc32(f"{trial.spec.backend} {purpose}".encode()), trial.spec.size])


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(np.median(found)) if found else None


def _cpu_ns(endpoints: Sequence[EndpointResult]) -> float | None:
    messages = sum(one.messages_count for one in endpoints)
    seconds = sum(one.usage.user_cpu_s + one.usage.system_cpu_s for one in endpoints)
    return seconds * 1e9 / messages if messages else None


def _medians(rounds: Sequence[tuple[TrialResult, RoundSamples]]) -> tuple[float, ...]:
    return tuple(float(np.median(one.values)) for _, one in rounds)


def _turns(run: Run, rounds: Sequence[tuple[TrialResult, RoundSamples]]) -> Iterator[tuple[str, FloatArray]]:
    """Yield the medians of the turns of each round that has any, as logarithms, by a name that no other run has."""
    for trial, samples in rounds:
        if trial.spec.turns > 1:
            name = f"{run.info.run_id} {trial.spec.round_index}"
            medians = [np.median(samples.values[samples.blocks == one]) for one in range(samples.blocks.max() + 1)]
            yield name, np.log(np.maximum(medians, _LEAST_NS))


def _p50_p99(
    rounds: Sequence[RoundSamples], trials: Sequence[TrialResult], purpose: str
) -> tuple[Estimate | None, Estimate | None]:
    if not rounds:
        return None, None
    p50, p99 = quantile_estimates(rounds, (0.5, 0.99), _generator(trials[0], purpose))
    return p50, p99


def _latency_columns(trial: TrialResult) -> list[tuple[str, str]]:
    return [(f"{one.role}.latency_ns", f"{one.role}.received_ns") for one in trial.readers if one.latency is not None]


def _round_trip_columns(trial: TrialResult) -> list[tuple[str, str]]:
    return [("writer.round_trip_ns", "writer.sent_ns")]


def _rounds(
    run: Run, trials: Sequence[TrialResult], columns_of: Callable[[TrialResult], list[tuple[str, str]]]
) -> tuple[list[tuple[TrialResult, RoundSamples]], int]:
    """Return the samples of each round, all endpoints together, and how many rounds have none that can be used.

    Args:
        run: where they are read from.
        trials: one per round.
        columns_of: names of (durations, their moments), per endpoint; none means that the trial has no such figure.
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
        if values.size == 0 or values.size != moments.size or float(np.median(values)) <= 0.0:
            unreadable += 1
            continue
        if trial.spec.turns > 1:
            blocks = np.concatenate([_turn_blocks(trial.spec.turns, len(columns[name])) for name, _ in names])
        else:
            count = max(2, min(_BLOCKS_PER_ROUND, values.size // len(names) // _MIN_SAMPLES_PER_BLOCK))
            blocks = time_blocks(moments, count)
        rounds.append((trial, RoundSamples(values, blocks)))
    return rounds, unreadable


def _turn_blocks(turns: int, count: int) -> IntArray:
    """Return the number of each message's turn; of very many, several have one number."""
    each = -(-count // turns)
    used = -(-count // each)
    return np.arange(count) // each * min(used, _MAX_TURNS) // used


def _throughput(run: Run, trials: Sequence[TrialResult], rates: Sequence[float]) -> Estimate | None:
    if not rates:
        return None
    blocks = _block_rates(run, trials[0]) if len(rates) == 1 else np.zeros(0)
    return median_estimate(rates, _generator(trials[0], "throughput"), blocks.tolist())


def _block_rates(run: Run, trial: TrialResult) -> FloatArray:
    """Return messages per second in each tenth of the window of a saturate trial, from the first reader's receipts."""
    try:
        received = run.samples(trial.trial_id, ("reader-0.received_ns",))["reader-0.received_ns"]
    except (StoreError, KeyError):
        return np.zeros(0)
    if received.size <= 2 * _BLOCKS_PER_ROUND:
        return np.zeros(0)
    edges = received[np.linspace(0, received.size - 1, _BLOCKS_PER_ROUND + 1).astype(np.int64)]
    durations = np.diff(edges).astype(np.float64)
    rates: FloatArray = 1e9 / durations[durations > 0]
    return rates
