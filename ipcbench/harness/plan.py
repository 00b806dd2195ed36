"""What an endpoint is told about its part in a trial: sizes, counts and time-outs, worked out once by the coordinator.

What does not live here: the trial itself (ipcbench/spec.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ipcbench.spec import TrialSpec

MAX_COLUMN = 2**19
"""Most messages of one window; a faster transport has its window end there, which the trial's record shows."""

_MAX_RATE_PER_S = {"saturate": 3_000_000, "pingpong": 1_000_000}
_DECODE_S = 0.03
_MIN_DECODES, _MAX_DECODES = 5, 200

WARMUP_LIMIT_RATIO = 4
"""The warm-up of a trial that does not settle ends after this many times `warmup_s`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One trial, as its endpoints need to know it."""

    trial: TrialSpec
    column_count: int
    """Room for so many messages of the window."""
    decode_count: int
    """Messages of the decode phase; 0 for none."""
    stall_s: float
    """Longest wait of a single read or write before the trial is given up."""

    @classmethod
    def make(cls, trial: TrialSpec, decode_ns: float, stall_s: float) -> Self:
        """Work out the counts; `decode_ns` estimates one decoding."""
        if trial.mode == "paced":
            column = max(2, round(trial.rate_per_s * trial.window_s))
            decodes = int(min(_MAX_DECODES, max(_MIN_DECODES, _DECODE_S * 1e9 / max(1.0, decode_ns))))
        else:
            column = int(min(MAX_COLUMN, trial.window_s * _MAX_RATE_PER_S[trial.mode] + 2))
            decodes = 0
        return cls(trial, column, decodes, stall_s)

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
