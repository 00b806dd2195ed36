"""A writer's part in a trial: warm-up until steady, the measured window, the decode phase, the end mark.

What does not live here: the loops inside the window (loops.py) and opening or closing the endpoint (worker.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ipcbench.backend import Writer
from ipcbench.clock import now_ns
from ipcbench.harness.long_loops import Tally, write_long
from ipcbench.harness.loops import set_phase, write_flat_out, write_paced
from ipcbench.harness.plan import WARMUP_LIMIT_RATIO, Plan
from ipcbench.measure.steady import MIN_INTERVALS, is_steady
from ipcbench.measure.usage import UsageMeter
from ipcbench.message import Outgoing, Phase
from ipcbench.result import Usage

_INTERVAL_NS = 10_000_000
_PACED_WARMUP_MESSAGES = 5
_LATEST_DECODE_INTERVAL_NS = 1_000_000.0
_FOREVER_NS = 2**62


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer reports: columns of int64 over the window, and counts."""

    columns: dict[str, array[int]]
    """`intended_ns`, `sent_ns`, `write_ns`."""
    messages_count: int
    total_count: int
    """Sequence number of the end mark: messages of all phases."""
    warmup_count: int
    steady: bool
    usage: Usage
    gc_count: int
    tallies: dict[str, dict[str, object]]
    """`write`: of a long window, the histogram of all writes; else empty."""


class WriterPart:
    """Runs the phases of one trial on an open writer.

    Args:
        writer: the endpoint.
        messages: one or two messages of equal size to send in turn.
        plan: the trial.
    """

    def __init__(self, writer: Writer, messages: Sequence[Outgoing], plan: Plan) -> None:
        self._writer = writer
        self._messages = messages
        self._plan = plan
        self._sequence = 0
        column = bytes(
            8 * plan.column_count
        )  # written here, so no page of it is touched for the first time in the window
        self._intended, self._sent, self._written = array("q", column), array("q", column), array("q", column)
        self._writes = Tally() if plan.stride > 1 else None

    def run(self) -> Written:
        """Carry out all phases; any TransportError goes to the caller."""
        steady, warmup_count = self._warm_up()
        meter = UsageMeter()
        count = self._measure()
        usage, collections = meter.stop()
        self._decode_phase()
        set_phase(self._messages, Phase.END)
        self._flat_out(1)
        intended = self._intended if self._plan.trial.mode == "paced" else self._sent
        kept = -(-count // self._plan.stride)
        return Written(
            columns={"intended_ns": intended[:kept], "sent_ns": self._sent[:kept], "write_ns": self._written[:kept]},
            messages_count=count,
            total_count=self._sequence,
            warmup_count=warmup_count,
            steady=steady,
            usage=usage,
            gc_count=collections,
            tallies={} if self._writes is None else {"write": self._writes.facts()},
        )

    def _flat_out(self, count: int, stop_ns: int = _FOREVER_NS) -> int:
        """Write up to `count` messages outside the window; their columns are thrown away."""
        sent, written = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        done = write_flat_out(
            self._writer.write, self._messages, self._sequence, stop_ns, self._plan.stall_s, sent, written
        )
        self._sequence += done
        return done

    def _paced(self, count: int, interval_ns: float) -> int:
        done = write_paced(
            self._writer.write,
            self._messages,
            self._sequence,
            now_ns() + int(interval_ns),
            interval_ns,
            count,
            self._plan.stall_s,
            self._intended,
            self._sent,
            self._written,
        )
        self._sequence += done
        return done

    def _long(self, interval_ns: float) -> int:
        """Write the window of which not every message can be kept."""
        assert self._writes is not None  # noqa: S101 - that is what a long window has
        count = self._plan.paced_count()
        write_long(
            self._writer.write,
            self._messages,
            self._sequence,
            now_ns() + int(interval_ns),
            interval_ns,
            count,
            self._plan.stride,
            self._plan.stall_s,
            (self._intended, self._sent, self._written),
            self._writes,
        )
        self._sequence += count
        return count

    def _warm_up(self) -> tuple[bool, int]:
        """Return whether the rate of writing settled, and how many messages that took."""
        trial = self._plan.trial
        set_phase(self._messages, Phase.WARMUP)
        if trial.mode == "paced":
            self._flat_out(_PACED_WARMUP_MESSAGES)
            interval_ns = 1e9 / trial.rate_per_s
            self._paced(max(1, min(self._plan.column_count, int(trial.warmup_s * trial.rate_per_s))), interval_ns)
            return True, self._sequence
        start = now_ns()
        least, limit = start + trial.warmup_s * 1e9, start + WARMUP_LIMIT_RATIO * trial.warmup_s * 1e9
        rates: list[float] = []
        while True:
            before = now_ns()
            done = self._flat_out(2**16, before + _INTERVAL_NS)
            now = now_ns()
            rates.append(done / (now - before))
            if now >= least and is_steady(rates[-MIN_INTERVALS:]):
                return True, self._sequence
            if now >= limit:
                return False, self._sequence

    def _measure(self) -> int:
        trial = self._plan.trial
        set_phase(self._messages, Phase.MEASURE)
        if trial.mode == "paced":
            interval_ns = 1e9 / trial.rate_per_s
            return (
                self._paced(self._plan.column_count, interval_ns) if self._writes is None else self._long(interval_ns)
            )
        count = write_flat_out(
            self._writer.write,
            self._messages,
            self._sequence,
            now_ns() + int(trial.window_s * 1e9),
            self._plan.stall_s,
            self._sent,
            self._written,
        )
        self._sequence += count
        return count

    def _decode_phase(self) -> None:
        count = self._plan.decode_count
        if not count:
            return
        set_phase(self._messages, Phase.DECODE)
        if self._plan.trial.delivery == "every_message":
            self._flat_out(count)
            return
        kept = self._intended[:], self._sent[:], self._written[:]
        self._paced(min(count, self._plan.column_count), _LATEST_DECODE_INTERVAL_NS)
        self._intended, self._sent, self._written = kept
