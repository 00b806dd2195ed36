"""From the endpoints' answers to a trial's record: quantiles, throughput, rates, thinned samples, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ipcbench.backend import Waits
from ipcbench.errors import IntegrityError
from ipcbench.harness.backlog import arriving_ratio, held_ratio
from ipcbench.harness.clocks import Clocks
from ipcbench.harness.group import role_of
from ipcbench.results.model import EndpointResult, Integrity, Quantiles, Status, TrialResult, Usage
from ipcbench.spec import UNCOUNTED_OF_TURN, TrialSpec
from ipcbench.stats.bootstrap import RoundSamples
from ipcbench.stats.histogram import Histogram
from ipcbench.util.units import format_duration_ns, format_significant

KEPT_SAMPLES = 2048
"""A longer column is thinned to about this many values by an even stride, which the record states. Round trips in turns
are thinned turn by turn, to about as many of each: a closed loop has thousands in a fast turn and few in a slow one,
which would vanish."""

MAX_HALVES_RATIO = 0.25
"""A window whose halves differ by more than this (rate when saturated, median latency when paced) is unsteady."""

MAX_BACKLOG_RATIO = 0.01
"""A paced trial that stayed behind its schedule by more than this share of the window has failed if it could not catch
up. If the writer only ended behind, the trial is marked."""

_MIN_FOR_HALVES = 20
_MOMENTS = ("intended_ns", "sent_ns", "received_ns", "heard-")
"""How the names of columns begin that hold readings of an endpoint's clock; the others hold durations."""
Column = npt.NDArray[np.int64]


def quantiles(column: Column | None) -> Quantiles | None:
    """Return the quantiles of a column of ns; None if there is none or it is empty."""
    if column is None or not len(column):
        return None
    p50, p90, p99 = np.percentile(column, (50, 90, 99))
    return Quantiles(
        count=len(column),
        p50_ns=float(p50),
        p90_ns=float(p90),
        p99_ns=float(p99),
        max_ns=float(column.max()),
        mean_ns=float(column.mean()),
    )


def totals_quantiles(totals: dict[str, Any]) -> Quantiles:
    """Return the quantiles of a long window's `LoopTotals`; the mean and the maximum are exact."""
    histogram = Histogram.of_counts(np.frombuffer(totals["counts"], dtype=np.int64), totals["max_ns"])
    p50, p90, p99 = (histogram.quantile(p) for p in (0.5, 0.9, 0.99))
    count = histogram.total_count
    return Quantiles(count, p50, p90, p99, float(totals["max_ns"]), totals["sum_ns"] / count)


def rates_agree(moments: Column) -> bool:
    """Return whether the two halves of the messages took about the same time."""
    if len(moments) < _MIN_FOR_HALVES:
        return True
    half = len(moments) // 2
    return _close(moments[half] - moments[0], moments[-1] - moments[-1 - half])


def medians_agree(times: Column) -> bool:
    """Return whether the two halves of the messages have about the same median time."""
    if len(times) < _MIN_FOR_HALVES:
        return True
    half = len(times) // 2
    return _close(np.median(times[:half]), np.median(times[half:]))


def _close(first: float, second: float) -> bool:
    return bool(abs(first - second) <= MAX_HALVES_RATIO * max(first, second))


def usage_of(values: dict[str, Any]) -> Usage:
    """Return an endpoint's usage from its plain values."""
    waits = values.get("waits")  # a variant of an older version does not count them
    return Usage(**{**values, "waits": Waits(**waits) if isinstance(waits, dict) else waits})


class Digest:
    """The figures of one trial, from the columns of all its endpoints, whose times it sets to one clock.

    Args:
        trial: what was measured.
        answers: what each process answered to `go`, by its number: `facts` and `columns` (int64, native byte order).
        processes: for each process, its process ID and the core it was bound to.
        plan_stride: the endpoints kept every `plan_stride`-th message of those that they stamped.
        clocks: of the processes.

    Attributes:
        refusal: why there is no one-way latency; empty if there is, and in mode saturate.
    """

    def __init__(
        self,
        trial: TrialSpec,
        answers: dict[int, dict[str, Any]],
        processes: dict[int, tuple[int, int | None]],
        *,
        plan_stride: int,
        clocks: Clocks,
    ) -> None:
        self._trial = trial
        self._processes = processes
        self._answers = answers
        self._clocks = clocks
        self._columns = {index: self._on_one_clock(index) for index in answers}
        self._plan_stride = plan_stride
        self._stamps = {index: answer["facts"].get("stamp_stride", 1) for index, answer in answers.items()}
        self._turns = [(first, count) for first, count in answers[0]["facts"]["turns"] if count]
        kept_every = plan_stride * self._stamps[0]
        sent = [np.arange(first, first + count * kept_every, kept_every) for first, count in self._turns]
        self._sent = np.concatenate([np.zeros(0, dtype=np.int64), *sent])
        latency: dict[int, Column | None] = {index: self._one_way(index) for index in answers if index}
        self.refusal = self._refusal(latency)
        self._latency = dict.fromkeys(latency) if self.refusal else latency

    def _shift_ns(self, index: int) -> int:
        """Return by how much the clock of process number `index` is ahead."""
        return round(self._clocks.of(index).offset_ns)

    def _on_one_clock(self, index: int) -> dict[str, Column]:
        """Return an endpoint's columns, with its clock's offset taken from its times."""
        columns = {}
        for name, raw in self._answers[index]["columns"].items():
            column = np.frombuffer(raw, dtype=np.int64)
            columns[name] = column - self._shift_ns(index) if name.startswith(_MOMENTS) else column
        return columns

    def _joined(self, index: int) -> tuple[npt.NDArray[np.bool_], Column]:
        """Return which of the messages that a reader kept the writer kept too, and their places in its columns."""
        sequence = self._columns[index]["sequence"]
        places = np.searchsorted(self._sent, sequence)
        inside = places < len(self._sent)
        inside[inside] = self._sent[places[inside]] == sequence[inside]
        return inside, places[inside]

    def _one_way(self, index: int) -> Column:
        """Return receipt − intended send time of every message that a reader kept, joined by sequence number."""
        inside, places = self._joined(index)
        writer = self._columns[0]
        intended = writer.get("intended_ns", writer["sent_ns"])
        latency: Column = self._columns[index]["received_ns"][inside] - intended[places]
        return latency

    def _refusal(self, latency: dict[int, Column | None]) -> str:
        if self._trial.mode == "saturate":
            return self._clocks.moved
        known = {index: column for index, column in latency.items() if column is not None and len(column)}
        return self._clocks.refusal({index: float(np.median(column)) for index, column in known.items()})

    def impossible(self) -> str:
        """Return in a line which message was received before it was sent, by more than the clocks' error; empty if
        none was.
        """
        for index in self._latency:
            error_ns = self._clocks.error_ns(index)
            for what, sequence, least_ns in self._least_times(index):
                if least_ns < -error_ns:
                    beyond = f" (the clocks' error is {format_duration_ns(error_ns)})" if error_ns else ""
                    return (
                        f"{what} {sequence} was received {format_duration_ns(-least_ns)} before it was sent{beyond}: "
                        "the clock of a process is wrong, or was set during the trial"
                    )
        return ""

    def _least_times(self, index: int) -> Iterator[tuple[str, int, int]]:
        """Yield what was received (by or from a reader), its number, and the least receipt − send time of such."""
        inside, places = self._joined(index)
        received, sequences = self._columns[index]["received_ns"][inside], self._columns[index]["sequence"][inside]
        times = {f"{role_of(index)}: message": received - self._columns[0]["sent_ns"][places]}
        if self._trial.mode == "pingpong":
            times[f"{role_of(index)}: its reply to message"] = (
                self._columns[0][f"heard-{index - 1}_ns"][places] - received
            )
        for what, column in times.items():
            if len(column):
                place = column.argmin()
                yield what, int(sequences[place]), int(column[place])
        totals = self._answers[index]["facts"].get("totals", {}).get("latency")
        if totals is not None:
            shift_ns = self._shift_ns(0) - self._shift_ns(index)
            yield f"{role_of(index)}: message", totals["least_sequence"], totals["least_ns"] + shift_ns

    def endpoint(self, index: int) -> EndpointResult:
        """Return the record of process number `index`."""
        facts, columns = self._answers[index]["facts"], self._columns[index]
        moments = self._moments(index)
        latency = None if self._trial.mode == "saturate" else self._latency.get(index)
        last_ns = int(moments[-1]) if len(moments) else 0
        if index == 0 and len(moments):
            last_ns += int(columns.get("round_trip_ns", columns.get("write_ns", moments))[-1])
        return EndpointResult(
            role=role_of(index),
            process_id=self._processes[index][0],
            messages_count=facts["messages_count"],
            first_ns=int(moments[0]) if len(moments) else 0,
            last_ns=last_ns,
            call=self._of_totals(index, "read" if index else "write")
            or quantiles(columns.get("read_ns" if index else "write_ns")),
            latency=None if latency is None else self._of_totals(index, "latency") or quantiles(self._counted(latency)),
            decode=quantiles(columns.get("decode_ns")),
            usage=usage_of(facts["usage"]),
            integrity=Integrity(**facts["integrity"]) if index else Integrity(),
            sample_stride=self._plan_stride * self._stamps[index] * self._stride(len(moments)),
            gc_count=facts["gc_count"],
            warmup_count=facts["warmup_count"],
            steady=facts.get("steady", True) and self._steady(index),
            round_trip=self._round_trip(columns.get("round_trip_ns")),
            core=self._processes[index][1],
            stamp_stride=self._stamps[index],
            floor_ns=facts.get("floor_ns"),
        )

    def _counted(self, latency: Column) -> Column:
        """Return the latencies that enter figures: of a paced turn, not those of the first few messages."""
        counts = self.turn_counts()
        if self._trial.mode != "paced" or len(counts) < 2 or sum(counts) != len(latency):
            return latency
        counted = [np.arange(count) >= min(UNCOUNTED_OF_TURN, count // 2) for count in counts]
        return latency[np.concatenate(counted)]

    def _totals(self, index: int, name: str) -> dict[str, Any] | None:
        """Return the `LoopTotals` of a long window; None if there are none, or if they are between two clocks."""
        if name == "latency" and self._shift_ns(index) != self._shift_ns(0):
            return None
        totals: dict[str, Any] | None = self._answers[index]["facts"].get("totals", {}).get(name)
        return totals

    def _of_totals(self, index: int, name: str) -> Quantiles | None:
        totals = self._totals(index, name)
        return totals_quantiles(totals) if totals is not None else None

    def _moments(self, index: int) -> Column:
        """Return when each message of the window was sent, or received."""
        return self._columns[index]["received_ns" if index else "sent_ns"]

    def _steady(self, index: int) -> bool:
        """Return whether the two halves of the endpoint's window agree in what the mode measures."""
        if self._trial.mode == "saturate":
            return index == 0 or rates_agree(self._without_pauses(index))
        times = self._columns[0].get("round_trip_ns") if index == 0 else self._latency[index]
        return times is None or medians_agree(times)

    @staticmethod
    def _stride(count: int) -> int:
        return max(1, -(-count // KEPT_SAMPLES))

    def _round_trip(self, column: Column | None) -> Quantiles | None:
        """Return the quantiles of the round trips; turns weigh the same, however many trips they have."""
        found = quantiles(column)
        counts = self.turn_counts()
        if column is None or found is None or len(counts) < 2:
            return found
        trips = RoundSamples(column.astype(np.float64), np.repeat(np.arange(len(counts)), counts), by_turns=True)
        p50, p90, p99 = (trips.quantile(probability) for probability in (0.5, 0.9, 0.99))
        mean = float(trips.weights() @ trips.values)
        return Quantiles(found.count, p50, p90, p99, found.max_ns, mean)

    def _kept_places(self) -> list[Column]:
        """Return which round trips of each turn are stored; empty if the columns are thinned as a whole."""
        counts = self.turn_counts()
        if self._trial.mode != "pingpong" or len(counts) < 2:
            return []
        most = max(1, KEPT_SAMPLES // len(counts))
        ends = np.cumsum(counts)
        return [np.arange(end - count, end, -(-count // most)) for end, count in zip(ends, counts, strict=True)]

    def kept_counts(self) -> tuple[int, ...]:
        """Return how many samples of each turn are stored; empty if the columns are thinned as a whole."""
        return tuple(map(len, self._kept_places()))

    def turn_counts(self) -> tuple[int, ...]:
        """Return how many messages of each turn the writer kept."""
        return tuple(count for _, count in self._turns)

    def _turn_starts(self, index: int) -> Column:
        """Return the place of each turn's first message in a reader's columns, and their length."""
        sequence = self._columns[index]["sequence"]
        return np.append(np.searchsorted(sequence, [first for first, _ in self._turns]), len(sequence))

    def _without_pauses(self, index: int) -> Column:
        """Return when a reader received, as if its turns had followed one another at once."""
        received, starts = self._columns[index]["received_ns"].copy(), self._turn_starts(index)
        for start in starts[1:-1]:
            received[start:] -= received[start] - received[start - 1]
        return received

    def throughput_per_s(self) -> float | None:
        """Return the rate at which every reader validated messages, between the first and the last receipt by any
        reader; in turns, that of all turns together.

        N messages make N − 1 intervals. For latest_value, N is what the average reader read. None unless saturated, or
        with fewer than two messages.
        """
        if self._trial.mode != "saturate":
            return None
        if self._trial.delivery == "every_message":
            spans = self._spans()
            elapsed_s = sum(span_s for _, span_s in spans)
            return sum(intervals for intervals, _ in spans) / elapsed_s if elapsed_s > 0 else None
        received = [self._columns[index]["received_ns"] for index in self._latency]
        counts = [self._answers[index]["facts"]["messages_count"] for index in self._latency]
        if min(map(len, received)) < 2:
            return None
        elapsed_s = float(max(column[-1] for column in received) - min(column[0] for column in received)) / 1e9
        return (sum(counts) / len(counts) - 1) / elapsed_s if elapsed_s > 0 else None

    def turn_rates_per_s(self) -> tuple[float, ...]:
        """Return the throughput of each turn; empty unless saturated, in turns."""
        if self._trial.mode != "saturate" or self._trial.turns == 1:
            return ()
        return tuple(intervals / span_s for intervals, span_s in self._spans())

    def _spans(self) -> list[tuple[int, float]]:
        """Return for each turn of a lossless saturated window: messages that every reader validated, less one, and the
        time in s from the first receipt by any reader to the last. A turn of fewer than two messages is left out.
        """
        spans = []
        starts = {index: self._turn_starts(index) for index in self._latency}
        for turn in range(len(self._turns)):
            parts = {index: slice(*edges[turn : turn + 2]) for index, edges in starts.items()}
            sequences = [self._columns[index]["sequence"][part] for index, part in parts.items()]
            received = [self._columns[index]["received_ns"][part] for index, part in parts.items()]
            if min(map(len, sequences)) < 2:
                continue
            elapsed_ns = max(column[-1] for column in received) - min(column[0] for column in received)
            spans.append((int(min(column[-1] - column[0] for column in sequences)), float(elapsed_ns) / 1e9))
        return spans

    def achieved_rate_per_s(self) -> float | None:
        """Return the rate at which a paced writer really sent, from N − 1 intervals: the median over its turns. None in
        other modes, and if no turn has two messages.
        """
        if not self._trial.is_paced:
            return None
        ends = np.cumsum(self.turn_counts())
        parts = [part for part in np.split(self._columns[0]["sent_ns"], ends[:-1]) if len(part) > 1]
        rates = [1e9 * (len(part) - 1) / float(part[-1] - part[0]) for part in parts if part[-1] > part[0]]
        return float(np.median(rates)) * self._plan_stride if rates else None

    def sending_ns(self) -> float:
        """Return for how long the writer sent, in all turns together."""
        parts = np.split(self._columns[0]["sent_ns"], np.cumsum(self.turn_counts())[:-1])
        return float(sum(part[-1] - part[0] for part in parts if len(part)))

    def late_stall_ns(self) -> float:
        """Return the last send delay of a paced window, or the median over its turns, if it is not small; else 0."""
        turns = self._delays_by_turn()
        last_ns = float(np.median([turn[-1] for turn in turns])) if turns else 0.0
        return last_ns if last_ns > self._max_backlog_ns() else 0.0

    def missed_rate(self, waited_ns: float = 0.0) -> str:
        """Return in a line which rate was held instead of the one that was offered; empty if that was held, or could be
        but for a stall.

        Beside the writer's delays those with which messages arrive are looked at: where much fits between the writer
        and a reader, a queue grows for long before the writer is late.

        Args:
            waited_ns: for how long neighbours kept an endpoint from a core, see `held_ratio`.
        """
        worst = 1.0, ""
        for said, due, came, written in self._delays() if self._trial.is_paced else ():
            turns, least_ns = self._by_turn(due, came), self._max_backlog_ns()
            backlog_ns = _backlog_ns(turns)
            if backlog_ns <= least_ns:
                continue
            if written is None:
                ratio = arriving_ratio(turns, least_ns, waited_ns)
            else:
                ratio = held_ratio(due, came, written, waited_ns)
            if ratio < worst[0]:
                rates = f"{ratio * self._trial.rate_per_s:.4g} of {self._trial.rate_per_s:.4g} messages/s"
                reason = f"the rate was not held: {rates}; {said.format(format_significant(backlog_ns / 1e6))}"
                worst = ratio, reason
        return worst[1]

    def _delays(self) -> Iterator[tuple[str, Column, Column, Column | None]]:
        """Yield for the writer, and for what arrives: how its backlog is told, in ms; when each message was due, when
        its turn came, and how long it took to write. What arrives is due as long after its time as the quickest message
        took.
        """
        writer = self._columns[0]
        yield "the writer ended {} ms behind its schedule", writer["intended_ns"], writer["sent_ns"], writer["write_ns"]
        for index in self._latency if self._trial.delivery == "every_message" else ():
            due, came = writer["intended_ns"], writer.get(f"heard-{index - 1}_ns")
            what = f"replies of {role_of(index)} came"
            if came is None:
                inside, places = self._joined(index)
                due, came = due[places], self._columns[index]["received_ns"][inside]
                what = f"messages came to {role_of(index)}"
            if len(due):
                said = f"at the end {what} {{}} ms later than the quickest, and ever later"
                yield said, due, came - (came - due).min(), None

    def _by_turn(self, due: Column, came: Column) -> list[tuple[Column, Column]]:
        """Return when messages were due and when they came, by turn."""
        ends = np.cumsum(self.turn_counts())[:-1]
        places = np.searchsorted(due, self._columns[0]["intended_ns"][ends])
        return [pair for pair in zip(np.split(due, places), np.split(came, places), strict=True) if len(pair[0])]

    def _delays_by_turn(self) -> list[Column]:
        """Return the send delays of a paced trial, by turn; empty in other modes."""
        columns = self._columns[0]
        if not self._trial.is_paced or not len(columns["sent_ns"]):
            return []
        delay = columns["sent_ns"] - columns["intended_ns"]
        return [turn for turn in np.split(delay, np.cumsum(self.turn_counts())[:-1]) if len(turn)]

    def _max_backlog_ns(self) -> float:
        return MAX_BACKLOG_RATIO * self._trial.window_s * 1e9

    def samples(self) -> dict[str, Column]:
        """Return the columns to store, named `role.column`, thinned by each endpoint's stride, or turn by turn."""
        kept: dict[str, Column] = {}
        places = self._kept_places()
        for index, columns in self._columns.items():
            chosen: slice | Column = slice(None, None, self._stride(len(self._moments(index))))
            chosen_latency = chosen
            if places:
                chosen = np.concatenate(places)
                if index:
                    stored = np.isin(columns["sequence"], self._sent[chosen])
                    chosen, chosen_latency = np.flatnonzero(stored), np.flatnonzero(stored[self._joined(index)[0]])
            for name, column in columns.items():
                kept[f"{role_of(index)}.{name}"] = column if name == "decode_ns" else column[chosen]
            latency = self._latency.get(index)
            if latency is not None and self._trial.mode != "saturate":
                kept[f"{role_of(index)}.latency_ns"] = latency[chosen_latency]
                totals = self._totals(index, "latency")
                if totals is not None:
                    kept[f"{role_of(index)}.latency_bins"] = np.frombuffer(totals["counts"], dtype=np.int64)
        return kept


def _backlog_ns(turns: list[tuple[Column, Column]]) -> float:
    """Return how late the messages stayed: the least delay of the window's last quarter; of turns, the median of
    theirs.
    """
    delays = [came - due for due, came in turns]
    return float(np.median([turn[-max(1, len(delays[0]) // 4) :].min() for turn in delays])) if delays else 0.0


def judge(
    trial: TrialSpec,
    endpoints: tuple[EndpointResult, ...],
    total_count: int,
    missed_rate: str,
    impossible: str,
) -> tuple[Status, str]:
    """Return the status of a trial that ran to its end, and the reason if it failed.

    It failed if a message was lost, duplicated, reordered or torn, was received before it was sent, or if the offered
    rate was not held.

    Args:
        trial: what was asked for.
        endpoints: the record of each endpoint, the writer first.
        total_count: messages of all phases that the writer says it sent.
        missed_rate: which rate was held instead of the offered one; empty if that was.
        impossible: which message was received before it was sent; empty if none was.
    """
    for reader in endpoints[1:]:
        counts = reader.integrity
        if counts.errors_count or (trial.delivery == "every_message" and counts.received_count != total_count):
            error = IntegrityError(
                f"{reader.role} received {counts.received_count} of {total_count} messages: {counts.lost_count} lost, "
                f"{counts.duplicated_count} duplicated, {counts.reordered_count} reordered, {counts.torn_count} torn"
            )
            return "failed", str(error)
        if not reader.messages_count:
            return "failed", f"{reader.role} saw no message of the measured window"
    reason = impossible or missed_rate
    return ("failed", reason) if reason else ("ok", "")


def failed_trial(trial: TrialSpec, trial_id: int, reason: str, started_unix_s: float) -> TrialResult:
    """Return the record of a trial that yielded no figures."""
    return TrialResult(trial_id, trial, "failed", reason, started_unix_s, 0.0)
