"""How often equal cells are called different, and slower ones found, where rounds differ in kind; prints Markdown.

Synthetic runs of two backends at several sizes, judged as `ipcbench analyze` judges them: ranks by rounds in common,
at the level of a table, with the prior of the run. In each round each cell draws its own regime, as fresh processes do
that land near to each other or far apart. `mixed` is a run in which one size has rounds of two kinds and the others
have not; only that size is counted. `one of them 50 % far` has rounds of two kinds at one backend only.

    python benchmarks/verdicts/false_claims.py [--runs 1000] [--rounds 1,2,3,5,10,20] [--sizes 5] [--backends 2]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from _options import at_least, carry_out, counts

from ipcbench.selftest import upper_bound
from ipcbench.stats.decisions import prior_of, rank_groups
from ipcbench.stats.estimates import Estimate

Logs = npt.NDArray[np.float64]
Regime = Callable[[np.random.Generator, tuple[int, int]], Logs]

_WITHIN = 0.05
"""Standard deviation of the logarithm of a round's figure within a regime."""
_FAR = math.log(7.0)
"""What two cores far apart cost a round trip over shared memory on a virtual machine: 16 against 113 µs."""
SLOWER = (1.1, 1.2, 2.0)
_SHARED = (0.05, 0.2)
"""By how much the processes of a backend differ from round to round, at all sizes alike."""

REGIMES: dict[str, Regime] = {
    "one regime": lambda source, shape: np.zeros(shape),
    "heavy tails": lambda source, shape: 0.05 * source.standard_t(3, shape),
    "50 % far": lambda source, shape: _FAR * (source.random(shape) < 0.5),
    "30 % far": lambda source, shape: _FAR * (source.random(shape) < 0.3),
    "share far uniform": lambda source, shape: _FAR * _slow_median(source.random(shape)),
    "one in five × 3": lambda source, shape: math.log(3.0) * (source.random(shape) < 0.2),
    "50 % far, persists": lambda source, shape: _FAR * _persistent(source, shape),
    "drift": lambda source, shape: np.broadcast_to(np.linspace(0.0, 0.3, shape[1]), shape),
}


def one_far(source: np.random.Generator, shape: tuple[int, int]) -> Logs:
    """Let half of the rounds of the first backend be far, about a median that is that of the others."""
    logs = np.zeros(shape)
    logs[0] = _FAR * ((source.random(shape[1]) < 0.5) - 0.5)
    return logs


def _persistent(source: np.random.Generator, shape: tuple[int, int]) -> Logs:
    """Return for each round whether it is far: as the round before, but for one in four, which is drawn anew."""
    changes = np.cumsum(source.random(shape) < 0.25, axis=1)
    return np.take_along_axis(1.0 * (source.random((shape[0], shape[1] + 1)) < 0.5), changes, axis=1)


def _slow_median(share: Logs) -> Logs:
    """Return how far the median of a round lies towards the slow mode, of which it holds this share."""
    return 1.0 / (1.0 + np.exp(-20.0 * (share - 0.5)))


def cells(source: np.random.Generator, regime: Regime, processes: Logs, slower: float) -> list[Estimate]:
    """Return the cells of one size; all but the first are slower than it.

    Args:
        source: of the noise.
        regime: how rounds differ.
        processes: how the processes of each backend and round differ, shape (backends, rounds).
        slower: times of all but the first, in times of the first.
    """
    rounds = processes.shape[1]
    logs = processes + regime(source, processes.shape) + source.normal(0.0, _WITHIN, processes.shape)
    logs[1:] += math.log(slower)
    return [
        Estimate(
            value=float(np.exp(np.median(row))),
            deviations=np.zeros(2),
            log_variance=0.0,
            degrees=max(1.0, rounds - 1.0),
            rounds_count=rounds,
            rounds={str(number): np.array([log]) for number, log in enumerate(row)},
            of=str(backend),
        )
        for backend, row in enumerate(logs)
    ]


def claims(
    runs: int, regimes: tuple[Regime, ...], counted: int, shape: tuple[int, int], slower: float, shared: float
) -> Iterator[bool]:
    """Yield, for each counted size of each run, whether any cell is ranked apart from the first as it should not be.

    With `slower` above 1: whether all others are ranked behind the first.
    """
    for seed in range(runs):
        source = np.random.default_rng(seed)
        processes = source.normal(0.0, shared, shape) if shared else np.zeros(shape)
        sizes = [cells(source, regime, processes, slower) for regime in regimes]
        prior = prior_of(sizes)
        for times in sizes[:counted]:
            ranks = rank_groups(times, prior)
            yield ranks[0] == 1 and min(ranks[1:]) > 1 if slower > 1.0 else max(ranks) > 1


def main() -> int:
    """Print a table of false claims and one of slow-downs found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=at_least(1), default=1000)
    parser.add_argument("--rounds", type=counts, default="1,2,3,5,10,20")
    parser.add_argument("--sizes", type=at_least(1), default=5)
    parser.add_argument("--backends", type=at_least(2), default=2)
    options = parser.parse_args()
    mixed = (REGIMES["50 % far"], *(REGIMES["one regime"] for _ in range(options.sizes - 1)))
    sets: dict[str, tuple[tuple[Regime, ...], int, float]] = {
        name: ((regime,) * options.sizes, options.sizes, 0.0) for name, regime in REGIMES.items()
    }
    sets["mixed"] = (mixed, 1, 0.0)
    sets["one of them 50 % far"] = ((one_far,) * options.sizes, options.sizes, 0.0)
    for share in _SHARED:
        name = f"{100 * share:.0f} % by processes"
        sets[name] = ((REGIMES["one regime"],) * options.sizes, options.sizes, share)
    for slower in (1.0, *SLOWER):
        title = "equal cells called different, %" if slower == 1.0 else f"{100 * slower - 100:.0f} % slower, found, %"
        heads = " | ".join(f"{count} rounds" for count in options.rounds)
        print(f"\n| {title} | {heads} |\n|---|{'---:|' * len(options.rounds)}")
        for name, (regimes, counted, shared) in sets.items():
            row = []
            for count in options.rounds:
                hits = list(claims(options.runs, regimes, counted, (options.backends, count), slower, shared))
                at_most = f" (≤ {100 * upper_bound(sum(hits), len(hits)):.1f})" if slower == 1.0 else ""
                row.append(f"{100 * sum(hits) / len(hits):.1f}{at_most}")
            print(f"| {name} | {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    carry_out(main)
