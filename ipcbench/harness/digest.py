"""From the endpoints' columns to the figures of a trial's record: quantiles, throughput, rates, thinned samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipcbench.harness.group import role_of
from ipcbench.results.model import EndpointResult, Integrity, Quantiles, Usage
from ipcbench.spec import TrialSpec
from ipcbench.stats.histogram import Histogram

KEPT_SAMPLES = 2048
"""A stored column has at most about so many values; a longer one is thinned by an even stride, which is recorded."""

MAX_HALVES_RATIO = 0.25
"""A window whose halves differ by more than this (rate when saturated, median latency when paced) is unsteady."""

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


def tally_quantiles(tally: dict[str, Any]) -> Quantiles:
    """Return the quantiles of a long window's histogram; the mean and the largest are exact."""
    histogram = Histogram.of_counts(np.frombuffer(tally["counts"], dtype=np.int64), tally["max_ns"])
    p50, p90, p99 = (histogram.quantile(one) for one in (0.5, 0.9, 0.99))
    count = histogram.total_count
    return Quantiles(count, p50, p90, p99, float(tally["max_ns"]), tally["sum_ns"] / count)


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
    """The columns of one trial, joined.

    Args:
        trial: what was measured.
        answers: what each process answered to `go`, by its number: `facts` and `columns` (int64, native byte order).
        processes: for each process, the system's number and the core it was bound to.
        plan_stride: of so many messages, the endpoints kept one.
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
        self._every = plan_stride
        self._latency = {index: self._one_way(index) if with_latency else None for index in answers if index}

    def _one_way(self, index: int) -> Column:
        """Return receipt − intended send time of every message that reader saw, joined by sequence number."""
        columns = self._columns[index]
        first = self._answers[0]["facts"]["warmup_count"] + 1
        position, rest = np.divmod(columns["sequence"] - first, self._every)
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
            call=self._tallied(index, "read" if index else "write")
            or quantiles(columns.get("read_ns" if index else "write_ns")),
            latency=None if latency is None else self._tallied(index, "latency") or quantiles(latency),
            decode=quantiles(columns.get("decode_ns")),
            usage=Usage(**facts["usage"]),
            integrity=Integrity(**facts["integrity"]) if index else Integrity(),
            sample_stride=self._every * self._stride(len(moments)),
            gc_count=facts["gc_count"],
            warmup_count=facts["warmup_count"],
            steady=facts.get("steady", True) and self._steady(index),
            round_trip=quantiles(columns.get("round_trip_ns")),
            core=self._processes[index][1],
        )

    def _tallied(self, index: int, what: str) -> Quantiles | None:
        tally = self._answers[index]["facts"].get("tallies", {}).get(what)
        return tally_quantiles(tally) if tally is not None else None

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
        """Return messages that every reader validated, over the time from the first receipt of any to the last of any.

        N messages make N − 1 intervals. For latest_value: what the average reader read, over the same time. None for
        a paced trial or fewer than two messages.
        """
        if self._trial.mode != "saturate":
            return None
        received = [self._columns[index]["received_ns"] for index in self._latency]
        counts = [len(one) for one in received]
        if min(counts) < 2:
            return None
        elapsed_s = float(max(one[-1] for one in received) - min(one[0] for one in received)) / 1e9
        count = min(counts) if self._trial.delivery == "every_message" else sum(counts) / len(counts)
        return (count - 1) / elapsed_s if elapsed_s > 0 else None

    def achieved_rate_per_s(self) -> float | None:
        """Return the rate at which a paced writer really sent, N − 1 intervals; None for a saturated one.

        Of a window in turns, the offered rate by as much as the writer took longer, from first to last, than it should.
        """
        sent = self._columns[0]["sent_ns"]
        if self._trial.mode != "paced" or len(sent) < 2:
            return None
        if self._trial.turns > 1:
            due = self._columns[0]["intended_ns"]
            return float(self._trial.rate_per_s * (due[-1] - due[0]) / (sent[-1] - sent[0]))
        return float((len(sent) - 1) * self._every / ((sent[-1] - sent[0]) / 1e9))

    def backlog_ns(self) -> float:
        """Return how far behind its schedule a paced writer stayed: the least send delay of the window's last quarter.

        A single stall, even at the very end, leaves it near zero; a rate that cannot be held makes it grow without end,
        or to the end of each turn: then it is the median over the turns.
        """
        if self._trial.mode != "paced" or not len(self._columns[0]["sent_ns"]):
            return 0.0
        delay = self._columns[0]["sent_ns"] - self._columns[0]["intended_ns"]
        each = -(-len(delay) // self._trial.turns)
        ends = [delay[start : start + each][-max(1, each // 4) :] for start in range(0, len(delay), each)]
        return float(np.median([one.min() for one in ends]))

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
                tally = self._answers[index]["facts"].get("tallies", {}).get("latency")
                if tally is not None:
                    kept[f"{role_of(index)}.latency_bins"] = np.frombuffer(tally["counts"], dtype=np.int64)
        return kept
