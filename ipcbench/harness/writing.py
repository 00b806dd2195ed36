"""The writer's part of a one-way trial: warm-up until steady, the measured window, the decode phase, the end mark."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ipcbench.backend import Writer
from ipcbench.harness.loops import RUN, LoopTotals, set_phase, write_flat_out, write_in_runs, write_long, write_paced
from ipcbench.harness.plan import WARMUP_LIMIT_RATIO, Plan
from ipcbench.machine.usage import UsageMeter
from ipcbench.results.model import Usage
from ipcbench.stats.steady import MIN_INTERVALS, is_steady
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import STAMP_EVERY, Outgoing, Phase

_INTERVAL_NS = 10_000_000
_LATEST_DECODE_INTERVAL_NS = 1_000_000.0
_FOREVER_NS = 2**62

SHORT_NS = 50_000
"""If messages took longer in the fastest interval of a saturated warm-up, the window stamps each: its end is noticed in
time, and the stamps cost little."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer reports: counts, and columns of int64 with one value for each kept message of the window."""

    columns: dict[str, array[int]]
    """`intended_ns`, `sent_ns`, `write_ns`."""
    messages_count: int
    total_count: int
    """Messages of all phases, which is the end mark's sequence number."""
    warmup_count: int
    steady: bool
    usage: Usage
    gc_count: int
    stamp_stride: int
    """The clock was read around every Nth message of the window, and the columns have no other."""
    totals: dict[str, dict[str, object]]
    """`write`: the `LoopTotals` of all writes of a long window; else empty."""


class WriterPart:
    """Runs the phases of one trial on an open writer.

    Args:
        writer: the endpoint.
        messages: one or two messages of equal size, sent alternately.
        plan: the trial.
    """

    def __init__(self, writer: Writer, messages: Sequence[Outgoing], plan: Plan) -> None:
        self._writer = writer
        self._messages = messages
        self._plan = plan
        self._sequence = 0
        self._stamp_stride = 1
        column = bytes(8 * plan.column_count)  # copied below, so that the window touches no page for the first time
        self._intended, self._sent, self._written = array("q", column), array("q", column), array("q", column)
        self._writes = LoopTotals() if plan.stride > 1 else None
        self._steady, self._warmup_count, self._count = True, 0, 0
        self._used = UsageMeter().stop()

    def run(self) -> Written:
        """Carry out all phases; any TransportError goes to the caller."""
        self.warm_up()
        self.measure()
        return self.finish()

    def finish(self) -> Written:
        """Carry out the phases after the window, and return what was measured in it."""
        self._decode_phase()
        set_phase(self._messages, Phase.END)
        self._unmeasured(1)
        intended = self._intended if self._plan.trial.mode == "paced" else self._sent
        kept = -(-self._count // (self._plan.stride * self._stamp_stride))
        usage, collections = self._used
        return Written(
            columns={"intended_ns": intended[:kept], "sent_ns": self._sent[:kept], "write_ns": self._written[:kept]},
            messages_count=self._count,
            total_count=self._sequence,
            warmup_count=self._warmup_count,
            steady=self._steady,
            usage=usage,
            gc_count=collections,
            stamp_stride=self._stamp_stride,
            totals={} if self._writes is None else {"write": self._writes.as_dict()},
        )

    def _flat_out(self, stop_ns: int, sent: array[int], written: array[int]) -> int:
        done = write_flat_out(
            self._writer.write, self._messages, self._sequence, stop_ns, self._plan.stall_s, sent, written
        )
        self._sequence += done
        return done

    def _unmeasured(self, count: int, stop_ns: int = _FOREVER_NS) -> int:
        """Write up to `count` messages flat out, outside the window, without keeping their times."""
        return self._flat_out(stop_ns, array("q", bytes(8 * count)), array("q", bytes(8 * count)))

    def _paced(self, count: int, interval_ns: float, start_ns: int = 0, first: int = 0) -> int:
        """Write on a schedule that begins at `start_ns`, or if that is 0, one interval from now."""
        done = write_paced(
            self._writer.write,
            self._messages,
            self._sequence,
            start_ns or now_ns() + int(interval_ns),
            interval_ns,
            first,
            count,
            self._plan.stall_s,
            self._intended,
            self._sent,
            self._written,
        )
        self._sequence += done
        return done

    def _long(self, interval_ns: float) -> int:
        """Write a window that is too long to keep every message."""
        assert self._writes is not None  # noqa: S101 - a long window has them
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

    def warm_up(self) -> None:
        """Write until steady; none of it is kept."""
        set_phase(self._messages, Phase.WARMUP)
        if self._plan.trial.mode == "paced":
            flat_out, paced = self._plan.paced_warmup_counts()
            self._unmeasured(flat_out)
            self._paced(paced, self._plan.interval_ns())
        else:
            self._steady = self._settle()
        self._warmup_count = self._sequence

    def _settle(self) -> bool:
        """Write flat out until the rate of writing is steady or the limit has passed; return whether it is steady."""
        trial = self._plan.trial
        start = now_ns()
        least, limit = start + trial.warmup_s * 1e9, start + WARMUP_LIMIT_RATIO * trial.warmup_s * 1e9
        rates: list[float] = []
        while True:
            before = now_ns()
            done = self._unmeasured(2**16, before + _INTERVAL_NS)
            now = now_ns()
            rates.append(done / (now - before))
            steady = is_steady(rates[-MIN_INTERVALS:])
            if now >= limit or (now >= least and steady):
                fastest = max(rates[1:] or rates)  # the first fills the channel; others may have been held up
                if trial.delivery == "every_message" and fastest * SHORT_NS > 1:
                    self._stamp_stride = RUN
                return steady

    def measure(self, starts_ns: Sequence[int] = (0,)) -> None:
        """Write the window: in one piece, or in turns that begin at `starts_ns`."""
        trial = self._plan.trial
        set_phase(self._messages, Phase.MEASURE)
        meter = UsageMeter()
        if trial.mode == "saturate":
            self._count = self._saturate(now_ns() + int(trial.window_s * 1e9))
        elif self._writes is not None:
            self._count = self._long(self._plan.interval_ns())
        else:
            for start_ns in starts_ns:
                count = min(self._plan.turn_count(), self._plan.column_count - self._count)
                self._count += self._paced(count, self._plan.interval_ns(), start_ns, self._count)
        self._used = meter.stop()

    def _saturate(self, stop_ns: int) -> int:
        """Write the window flat out; the messages tell the readers which of them are stamped."""
        for message in self._messages:
            message.head[STAMP_EVERY] = self._stamp_stride
        write = write_flat_out if self._stamp_stride == 1 else write_in_runs
        done = write(
            self._writer.write, self._messages, self._sequence, stop_ns, self._plan.stall_s, self._sent, self._written
        )
        self._sequence += done
        return done

    def _decode_phase(self) -> None:
        count = self._plan.decode_count
        if not count:
            return
        set_phase(self._messages, Phase.DECODE)
        if self._plan.trial.delivery == "every_message":
            self._unmeasured(count)
            return
        kept = self._intended[:], self._sent[:], self._written[:]
        self._paced(min(count, self._plan.column_count), _LATEST_DECODE_INTERVAL_NS)
        self._intended, self._sent, self._written = kept
