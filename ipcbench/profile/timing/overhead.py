"""What the spans cost: steps with them against the same steps without, taken in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval

CLAIM_RATIO = 0.01
"""Of a block's spans, in steps of at least 10 ms."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What spans add to a step.

    Attributes:
        ratio: share of the time of a step without spans, with its 95 % interval; None after too few pairs.
        pairs_count: pairs of a step with spans and one without.
    """

    ratio: Interval | None
    pairs_count: int
    claim_ratio: float = CLAIM_RATIO
    """What is claimed at most."""

    @property
    def is_resolved(self) -> bool:
        """Return whether it can be told from nothing, or its interval is at least not wider than the claim. Below
        nothing, it is how the machine changed: spans save no time.
        """
        if self.ratio is None:
            return False
        return self.ratio.low > 0.0 or self.ratio.high - self.ratio.low <= self.claim_ratio


def overhead(plain_ns: Sequence[float | None], spans_ns: Sequence[float | None]) -> Overhead:
    """Return what spans add, from steps without and with them, in pairs that were taken one right after the other, but
    for those of which one is None.
    """
    ratios = [spans / plain for plain, spans in zip(plain_ns, spans_ns, strict=False) if plain and spans]
    found = median_estimate(ratios, np.random.default_rng(1)) if len(ratios) >= MIN_CLAIM_ROUNDS else None
    ends = astuple(found.interval()) if found else ()
    return Overhead(Interval(*(end - 1.0 for end in ends)) if ends else None, len(ratios))
