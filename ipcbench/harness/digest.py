"""From the endpoints' answers to a trial's record: quantiles, throughput, rates, thinned samples, and the verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipcbench.errors import IntegrityError
from ipcbench.harness.group import role_of
from ipcbench.results.model import EndpointResult, Integrity, Quantiles, Status, TrialResult, Usage
from ipcbench.spec import TrialSpec
from ipcbench.stats.histogram import Histogram

KEPT_SAMPLES = 2048
"""A longer column is thinned to about this many values by an even stride, which the record states."""

MAX_HALVES_RATIO = 0.25
"""A window whose halves differ by more than this (rate when saturated, median latency when paced) is unsteady."""

MAX_BACKLOG_RATIO = 0.01
"""A paced trial whose writer stayed behind its schedule by more than this share of the window has failed."""

_MIN_FOR_HALVES = 20
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


class Digest:
    """The figures of one trial, from the columns of all its endpoints.

    Args:
        trial: what was measured.
        answers: what each process answered to `go`, by its number: `facts` and `columns` (int64, native byte order).
        processes: for each process, its process ID and the core it was bound to.
        plan_stride: the endpoints kept every `plan_stride`-th message of those that they stamped.
        with_latency: whether the clocks may be compared.
    """

    def __init__(
        self,
        trial: TrialSpec,
        answers: dict[int, dict[str, Any]],
        processes: dict[int, tuple[int, int | None]],
        *,
        plan_stride: int,
        with_latency: bool,
    ) -> None:
        self._trial = trial
        self._processes = processes
        self._answers = answers
        self._columns: dict[int, dict[str, Column]] = {
            index: {name: np.frombuffer(raw, dtype=np.int64) for name, raw in answer["columns"].items()}
            for index, answer in answers.items()
        }
        self._plan_stride = plan_stride
        self._stamps = {index: answer["facts"].get("stamp_stride", 1) for index, answer in answers.items()}
        self._latency = {index: self._one_way(index) if with_latency else None for index in answers if index}

    def _one_way(self, index: int) -> Column:
        """Return receipt − intended send time of every message that a reader kept, joined by sequence number."""
        columns = self._columns[index]
        first = self._answers[0]["facts"]["warmup_count"] + 1
        position, rest = np.divmod(columns["sequence"] - first, self._plan_stride * self._stamps[0])
        writer = self._columns[0]
        intended = writer["sent_ns"] if self._trial.mode == "pingpong" else writer["intended_ns"]
        inside = (position >= 0) & (position < len(intended)) & (rest == 0)
        latency: Column = columns["received_ns"][inside] - intended[position[inside]]
        return latency

    def endpoint(self, index: int) -> EndpointResult:
        """Return the record of process number `index`."""
        facts, columns = self._answers[index]["facts"], self._columns[index]
        moments = self._moments(index)
        latency = None if self._trial.mode == "saturate" else self._latency.get(index)
        last_ns = int(moments[-1]) if len(moments) else 0
        if index == 0 and len(moments):
            last_ns += int(columns.get("write_ns", columns.get("round_trip_ns", moments))[-1])
        return EndpointResult(
            role=role_of(index),
            process_id=self._processes[index][0],
            messages_count=facts["messages_count"],
            first_ns=int(moments[0]) if len(moments) else 0,
            last_ns=last_ns,
            call=self._of_totals(index, "read" if index else "write")
            or quantiles(columns.get("read_ns" if index else "write_ns")),
            latency=None if latency is None else self._of_totals(index, "latency") or quantiles(latency),
            decode=quantiles(columns.get("decode_ns")),
            usage=Usage(**facts["usage"]),
            integrity=Integrity(**facts["integrity"]) if index else Integrity(),
            sample_stride=self._plan_stride * self._stamps[index] * self._stride(len(moments)),
            gc_count=facts["gc_count"],
            warmup_count=facts["warmup_count"],
            steady=facts.get("steady", True) and self._steady(index),
            round_trip=quantiles(columns.get("round_trip_ns")),
            core=self._processes[index][1],
            stamp_stride=self._stamps[index],
        )

    def _of_totals(self, index: int, name: str) -> Quantiles | None:
        totals = self._answers[index]["facts"].get("totals", {}).get(name)
        return totals_quantiles(totals) if totals is not None else None

    def _moments(self, index: int) -> Column:
        """Return when each message of the window was sent, or received."""
        return self._columns[index]["received_ns" if index else "sent_ns"]

    def _steady(self, index: int) -> bool:
        """Return whether the two halves of the endpoint's window agree in what the mode measures."""
        if self._trial.mode == "saturate":
            return index == 0 or rates_agree(self._moments(index))
        times = self._columns[0].get("round_trip_ns") if index == 0 else self._latency[index]
        return times is None or medians_agree(times)

    @staticmethod
    def _stride(count: int) -> int:
        return max(1, -(-count // KEPT_SAMPLES))

    def throughput_per_s(self) -> float | None:
        """Return the rate at which every reader validated messages, between the first and the last receipt by any
        reader.

        N messages make N − 1 intervals. For latest_value, N is what the average reader read. None unless saturated, or
        with fewer than two messages.
        """
        if self._trial.mode != "saturate":
            return None
        received = [self._columns[index]["received_ns"] for index in self._latency]
        counts = [self._answers[index]["facts"]["messages_count"] for index in self._latency]
        if min(map(len, received)) < 2:
            return None
        elapsed_s = float(max(column[-1] for column in received) - min(column[0] for column in received)) / 1e9
        count = min(counts) if self._trial.delivery == "every_message" else sum(counts) / len(counts)
        return (count - 1) / elapsed_s if elapsed_s > 0 else None

    def achieved_rate_per_s(self) -> float | None:
        """Return the rate at which a paced writer really sent, from N − 1 intervals; None in other modes.

        In turns, the pauses between them do not count: it is the offered rate, scaled by the intended over the actual
        time from the first message to the last.
        """
        sent = self._columns[0]["sent_ns"]
        if self._trial.mode != "paced" or len(sent) < 2:
            return None
        if self._trial.turns > 1:
            due = self._columns[0]["intended_ns"]
            return float(self._trial.rate_per_s * (due[-1] - due[0]) / (sent[-1] - sent[0]))
        return float((len(sent) - 1) * self._plan_stride / ((sent[-1] - sent[0]) / 1e9))

    def backlog_ns(self) -> float:
        """Return how far behind its schedule a paced writer stayed: the least send delay of the window's last quarter.

        A single stall, even at the very end, leaves it near zero. A rate that cannot be held makes the delay grow until
        the end of the window, or of each turn; in turns, the backlog is the median over them.
        """
        if self._trial.mode != "paced" or not len(self._columns[0]["sent_ns"]):
            return 0.0
        delay = self._columns[0]["sent_ns"] - self._columns[0]["intended_ns"]
        turn_count = -(-len(delay) // self._trial.turns)
        turns = [delay[start : start + turn_count] for start in range(0, len(delay), turn_count)]
        return float(np.median([turn[-max(1, turn_count // 4) :].min() for turn in turns]))

    def samples(self) -> dict[str, Column]:
        """Return the columns to store, named `role.column`, thinned by each endpoint's stride."""
        kept: dict[str, Column] = {}
        for index, columns in self._columns.items():
            stride = self._stride(len(self._moments(index)))
            for name, column in columns.items():
                kept[f"{role_of(index)}.{name}"] = column if name == "decode_ns" else column[::stride]
            latency = self._latency.get(index)
            if latency is not None and self._trial.mode != "saturate":
                kept[f"{role_of(index)}.latency_ns"] = latency[::stride]
                totals = self._answers[index]["facts"].get("totals", {}).get("latency")
                if totals is not None:
                    kept[f"{role_of(index)}.latency_bins"] = np.frombuffer(totals["counts"], dtype=np.int64)
        return kept


def judge(
    trial: TrialSpec,
    endpoints: tuple[EndpointResult, ...],
    total_count: int,
    achieved_per_s: float | None,
    backlog_ns: float,
) -> tuple[Status, str]:
    """Return the status of a trial that ran to its end, and the reason if it failed.

    It failed if a message was lost, duplicated, reordered or torn, or if the offered rate was not held.

    Args:
        trial: what was asked for.
        endpoints: the record of each endpoint, the writer first.
        total_count: messages of all phases that the writer says it sent.
        achieved_per_s: the writer's actual rate; None unless paced.
        backlog_ns: how far behind its schedule the writer stayed.
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
    if backlog_ns > MAX_BACKLOG_RATIO * trial.window_s * 1e9:
        return "failed", (
            f"the rate was not held: {achieved_per_s or 0:.4g} of {trial.rate_per_s:.4g} messages/s; the writer ended "
            f"{backlog_ns / 1e6:.3g} ms behind its schedule"
        )
    return "ok", ""


def failed_trial(trial: TrialSpec, trial_id: int, reason: str, started_unix_s: float) -> TrialResult:
    """Return the record of a trial that yielded no figures."""
    return TrialResult(trial_id, trial, "failed", reason, started_unix_s, 0.0)
