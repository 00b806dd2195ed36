"""The plan of a trial, as its endpoints get it: sizes, counts and time-outs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ipcbench.harness.loops import RUN
from ipcbench.spec import TrialSpec

MAX_COLUMN = 2**19
"""Most messages that a window keeps. A saturated window ends there, which the trial's record shows; a longer paced
window keeps every Nth message, and a histogram of all."""
_LONG_COLUMN = 2**16

_MAX_RATE_PER_S = {"saturate": 3_000_000, "pingpong": 1_000_000}
_DECODE_S = 0.03
_MIN_DECODES, _MAX_DECODES = 5, 200

START_NS = 500_000
"""From the moment when all readers of a turn are about to read to its first message, at least."""
SILENCE_NS = 1_000_000
"""From an endpoint's last message of a turn to its report, which could disturb the others at theirs."""

MIN_COLUMN = 2
"""Fewest stamped messages of a window in mode saturate or pingpong."""

_LEAST_FLAT_OUT = 5
_FLAT_OUT_BYTES = 2**21
_PACED_WARMUP_RATIO = 1 / 3
"""Of a paced warm-up: the first messages are sent flat out, as many as the channel holds unless they are large, so that
its memory is touched; then it goes on at the trial's own rate for this share of `warmup_s`."""

WARMUP_LIMIT_RATIO = 4
"""The warm-up of a trial that does not become steady ends after this many times `warmup_s`."""


def _most_stamped_per_s(trial: TrialSpec) -> float:
    """Return how many messages of round trips or a saturated loop may be stamped in a second: of a saturated one, only
    one in `RUN`, or messages that take long, see `WriterPart`.
    """
    if trial.is_paced:
        return trial.rate_per_s
    rate = _MAX_RATE_PER_S[trial.mode]
    return rate / RUN if trial.mode == "saturate" and trial.delivery == "every_message" else rate


def _paced_count(trial: TrialSpec) -> int:
    return max(2, round(trial.rate_per_s * trial.window_s))


@dataclass(frozen=True, slots=True)
class Plan:
    """One trial, as its endpoints need it."""

    trial: TrialSpec
    column_count: int
    """How many messages of the window the columns hold."""
    stride: int
    """The columns keep every `stride`-th message; 1 keeps all."""
    decode_count: int
    """Messages of the decode phase; 0 for none."""
    stall_s: float
    """Longest wait of a single read or write before the trial is given up."""

    @classmethod
    def make(cls, trial: TrialSpec, decode_ns: float, stall_s: float) -> Self:
        """Work out the counts; `decode_ns` is an estimate for decoding one message."""
        if trial.mode == "paced":
            column = _paced_count(trial)
            decodes = int(min(_MAX_DECODES, max(_MIN_DECODES, _DECODE_S * 1e9 / max(1.0, decode_ns))))
            decodes *= not (trial.tail or trial.look)  # the cell's other trials have them
        else:
            column = int(min(MAX_COLUMN, trial.window_s * _most_stamped_per_s(trial) + MIN_COLUMN * trial.turns))
            decodes = 0
        stride = 1 if column <= MAX_COLUMN else -(-column // _LONG_COLUMN)
        return cls(trial, -(-column // stride), stride, decodes, stall_s)

    def paced_count(self) -> int:
        """Return how many messages a paced window has."""
        return _paced_count(self.trial)

    def paced_warmup_counts(self) -> tuple[int, int]:
        """Return how many messages a paced trial warms up with: flat out, and then at its own rate."""
        trial = self.trial
        fitting = _FLAT_OUT_BYTES // max(1, trial.payload_bytes)
        paced = round(_PACED_WARMUP_RATIO * trial.warmup_s * trial.rate_per_s)
        return max(_LEAST_FLAT_OUT, min(trial.depth, fitting)), max(1, min(self.column_count, paced))

    def interval_ns(self) -> float:
        """Return the time from one message of a paced trial to the next."""
        return 1e9 / self.trial.rate_per_s

    def turn_count(self) -> int:
        """Return how many messages a paced turn has; the last turn may have fewer."""
        return -(-self.column_count // self.trial.turns)

    def column_within(self, window_ns: int, used: int) -> int:
        """Return how many messages of a closed loop may be stamped in `window_ns`, if `used` have been before."""
        count = int(window_ns / 1e9 * _most_stamped_per_s(self.trial)) + MIN_COLUMN
        return max(0, min(count, self.column_count - used))

    def deadline_s(self) -> float:
        """Return how long the whole trial may take before its group is given up."""
        return 2 * self.stall_s + WARMUP_LIMIT_RATIO * self.trial.warmup_s + 2 * self.trial.window_s

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for msgpack and `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a plan from what `as_dict` returned."""
        return cls(**{**values, "trial": TrialSpec.from_dict(values["trial"])})
