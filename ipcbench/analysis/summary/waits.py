"""How the endpoints of a cell waited: the shares of their waits that ended while they polled, and after they slept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from ipcbench.backend import Waits
from ipcbench.results.model import EndpointResult, TrialResult
from ipcbench.spec import Mode, WaitStrategy

MOSTLY_RATIO = 0.9
"""From this share on, a cell is said to wait in that way."""


@dataclass(frozen=True, slots=True)
class WaitShares:
    """Shares of the waits of a cell, by how they ended; they add up to 1."""

    spun_ratio: float
    yielded_ratio: float
    slept_ratio: float

    @property
    def word(self) -> str:
        """Return `spin`, `yield` or `block` if nearly all waits ended in that way, else `mixed`."""
        words = {"spin": self.spun_ratio, "yield": self.yielded_ratio, "block": self.slept_ratio}
        return next((word for word, share in words.items() if share >= MOSTLY_RATIO), "mixed")


_ALL_OF: dict[WaitStrategy, WaitShares] = {
    "spin": WaitShares(1.0, 0.0, 0.0),
    "yield": WaitShares(0.0, 1.0, 0.0),
    "block": WaitShares(0.0, 0.0, 1.0),
}


def wait_shares(trials: Sequence[TrialResult], mode: Mode) -> WaitShares | None:
    """Return how the waits of the trials of a mode ended; None if unknown, or if nobody waited.

    Each round weighs the same, as it does in the median beside it: one in which endpoints poll has many more waits.
    Of paced trials only the readers count: their waits are part of the latency, and the writer waits by the clock.
    """
    of_mode = [trial for trial in trials if trial.spec.mode == mode and not trial.spec.tail]
    ways = [[part.usage.waits for part in _who_waits(trial, mode)] for trial in of_mode]
    counts = [[way for way in round_ways if isinstance(way, Waits)] for round_ways in ways]
    if not any(counts):
        only = {way for round_ways in ways for way in round_ways}
        (way,) = only if len(only) == 1 else {None}
        return _ALL_OF.get(way) if isinstance(way, str) else None
    if counts != ways:
        return None
    shares = [share for round_counts in counts if (share := _shares_of_round(round_counts)) is not None]
    return WaitShares(*(fmean(column) for column in zip(*shares, strict=True))) if shares else None


def _shares_of_round(waits: Sequence[Waits]) -> list[float] | None:
    """Return the shares of the waits of all endpoints of a round; None if nobody waited."""
    numbers = [sum(column) for column in zip(*(asdict(each).values() for each in waits), strict=True)]
    return [number / sum(numbers) for number in numbers] if sum(numbers) else None


def _who_waits(trial: TrialResult, mode: Mode) -> Iterable[EndpointResult]:
    return trial.readers if mode == "paced" else trial.endpoints
