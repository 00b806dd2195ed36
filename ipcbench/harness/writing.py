"""A writer's part in a trial: warm-up until steady, the measured window, the decode phase, the end mark."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ipcbench.backend import Writer
from ipcbench.harness.long_loops import Tally, write_long
from ipcbench.harness.loops import set_phase, write_flat_out, write_paced
from ipcbench.harness.plan import WARMUP_LIMIT_RATIO, Plan
from ipcbench.machine.usage import UsageMeter
from ipcbench.results.model import Usage
from ipcbench.stats.steady import MIN_INTERVALS, is_steady
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import Outgoing, Phase

_INTERVAL_NS = 10_000_000
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
        self._flat_out(1)
        intended = self._intended if self._plan.trial.mode == "paced" else self._sent
        kept = -(-self._count // self._plan.stride)
        usage, collections = self._used
        return Written(
            columns={"intended_ns": intended[:kept], "sent_ns": self._sent[:kept], "write_ns": self._written[:kept]},
            messages_count=self._count,
            total_count=self._sequence,
            warmup_count=self._warmup_count,
            steady=self._steady,
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

    def _paced(self, count: int, interval_ns: float, start_ns: int = 0, first: int = 0) -> int:
        """Write on a schedule that begins at `start_ns` or else one interval from now."""
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

    def warm_up(self) -> None:
        """Write what is thrown away, for as long as it takes to settle."""
        set_phase(self._messages, Phase.WARMUP)
        if self._plan.trial.mode == "paced":
            at_once, paced = self._plan.paced_warmup_counts()
            self._flat_out(at_once)
            self._paced(paced, self._plan.interval_ns())
        else:
            self._steady = self._settle()
        self._warmup_count = self._sequence

    def _settle(self) -> bool:
        """Write flat out until the rate of writing is steady, or for long enough; return whether it is."""
        trial = self._plan.trial
        start = now_ns()
        least, limit = start + trial.warmup_s * 1e9, start + WARMUP_LIMIT_RATIO * trial.warmup_s * 1e9
        rates: list[float] = []
        while True:
            before = now_ns()
            done = self._flat_out(2**16, before + _INTERVAL_NS)
            now = now_ns()
            rates.append(done / (now - before))
            if now >= least and is_steady(rates[-MIN_INTERVALS:]):
                return True
            if now >= limit:
                return False

    def measure(self, starts_ns: Sequence[int] = (0,)) -> None:
        """Write the window: at once, or in turns that begin at `starts_ns`."""
        trial = self._plan.trial
        set_phase(self._messages, Phase.MEASURE)
        meter = UsageMeter()
        if trial.mode == "saturate":
            self._count = self._saturate()
        elif self._writes is not None:
            self._count = self._long(self._plan.interval_ns())
        else:
            for start_ns in starts_ns:
                count = min(self._plan.turn_count(), self._plan.column_count - self._count)
                self._count += self._paced(count, self._plan.interval_ns(), start_ns, self._count)
        self._used = meter.stop()

    def _saturate(self) -> int:
        trial = self._plan.trial
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
