"""The writer's part of a one-way trial: warm-up until steady, the measured window, the decode phase, the end mark."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from select import select
from statistics import median

from ipcbench.backend import Writer
from ipcbench.harness.loops import RUN, LoopTotals, set_phase, write_flat_out, write_in_runs, write_long, write_paced
from ipcbench.harness.plan import MIN_COLUMN, START_NS, WARMUP_LIMIT_RATIO, Plan
from ipcbench.machine.usage import UsageMeter
from ipcbench.results.model import Usage
from ipcbench.stats.steady import MIN_INTERVALS, is_steady
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import STAMP_EVERY, Outgoing, Phase

_INTERVAL_NS = 5_000_000
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
    turns: list[tuple[int, int]]
    """Of each part of the window: number of its first message, and how many values of the columns belong to it."""


class WriterPart:
    """Runs the phases of one trial on an open writer.

    Args:
        writer: the endpoint.
        messages: one or two messages of equal size, sent alternately.
        plan: the trial.

    Attributes:
        message_ns: how long a message took in a saturated warm-up; 0 if there was none.
    """

    def __init__(self, writer: Writer, messages: Sequence[Outgoing], plan: Plan) -> None:
        self._writer = writer
        self._messages = messages
        self._plan = plan
        self._sequence = 0
        self._stamp_stride = 1
        self.message_ns = 0.0
        paced = plan.trial.mode == "paced"
        column = bytes(8 * plan.column_count * paced)  # the window shall touch no page for the first time
        self._intended, self._sent, self._written = array("q", column), array("q", column), array("q", column)
        self._room: tuple[array[int], array[int]] = (array("q"), array("q"))
        self._window_ns = 0
        self._writes = LoopTotals() if plan.stride > 1 else None
        self._steady, self._warmup_count, self._count = True, 0, 0
        self._turns: list[tuple[int, int]] = []
        self._meter = UsageMeter([writer])

    def run(self) -> Written:
        """Carry out all phases; any TransportError goes to the caller."""
        self.warm_up()
        self.ready(int(self._plan.trial.window_s * 1e9))
        if self._writes is None:
            self.turn()
        else:
            self._long(self._plan.interval_ns(), self._writes)
        return self.finish()

    def finish(self) -> Written:
        """Carry out the phases after the window, and return what was measured in it."""
        self._decode_phase()
        set_phase(self._messages, Phase.END)
        self._unmeasured(1)
        intended = self._intended if self._plan.trial.mode == "paced" else self._sent
        kept = sum(count for _, count in self._turns)
        usage, collections = self._meter.total()
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
            turns=self._turns,
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

    def _paced(self, count: int, interval_ns: float, first: int = 0) -> int:
        """Write on a schedule that begins one interval from now, into the columns from index `first` on."""
        done = write_paced(
            self._writer.write,
            self._messages,
            self._sequence,
            now_ns() + int(interval_ns),
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

    def _long(self, interval_ns: float, writes: LoopTotals) -> None:
        """Write a window that is too long to keep every message."""
        set_phase(self._messages, Phase.MEASURE)
        self._count = count = self._plan.paced_count()
        self._turns.append((self._sequence + 1, -(-count // self._plan.stride)))
        self._meter.start()
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
            writes,
        )
        self._meter.stop()
        self._sequence += count

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
                self.message_ns = 1.0 / median(rates)
                fastest = max(rates[1:] or rates)  # the first fills the channel; others may have been held up
                if trial.delivery == "every_message" and fastest * SHORT_NS > 1:
                    self._stamp_stride = RUN
                return steady

    def pause(self) -> None:
        """Tell the readers of a saturated trial, who do not count its messages, that a pause follows."""
        if self._plan.trial.mode == "saturate":
            set_phase(self._messages, Phase.PAUSE)
            self._unmeasured(1)

    def ready(self, window_ns: int) -> None:
        """Make room for the next turn; a saturated one takes `window_ns`."""
        self._window_ns = window_ns
        if self._plan.trial.mode == "saturate":
            column = bytes(8 * self._plan.column_within(window_ns, len(self._sent)))
            self._room = array("q", column), array("q", column)

    def turn(self) -> None:
        """Write a part of the window, soon after now: a turn's messages if paced, otherwise for the time given."""
        trial = self._plan.trial
        set_phase(self._messages, Phase.MEASURE)
        first = self._sequence + 1
        if trial.mode == "paced":
            self._meter.start()
            left = self._plan.column_count - self._count
            count = kept = self._paced(min(self._plan.turn_count(), left), self._plan.interval_ns(), self._count)
        else:
            select((), (), (), START_NS / 1e9)  # the readers are in `read` by then
            self._meter.start()
            count, kept = self._saturate(now_ns() + self._window_ns)
        self._meter.stop()
        self._count += count
        self._turns.append((first, kept))

    def _saturate(self, stop_ns: int) -> tuple[int, int]:
        """Write flat out; the messages tell the readers which of them are stamped. Return how many were, in all and
        stamped.
        """
        sent, written = self._room
        if len(sent) < MIN_COLUMN:
            return 0, 0
        for message in self._messages:
            message.head[STAMP_EVERY] = self._stamp_stride
        write = write_flat_out if self._stamp_stride == 1 else write_in_runs
        done = write(self._writer.write, self._messages, self._sequence, stop_ns, self._plan.stall_s, sent, written)
        self._sequence += done
        kept = -(-done // self._stamp_stride)
        self._sent += sent[:kept]
        self._written += written[:kept]
        return done, kept

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
