"""Alternating rounds A B A B … of two sides, whether a round is fit for comparison, and the table of the ratios."""

from __future__ import annotations

import os
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import _native
import psutil

from ipcbench.util.clock import now_ns
from ipcbench.util.units import format_significant

SAME_PLACEMENT_RATIO = 1.6
"""If the probes of a round differ by more, the cores moved, and its two figures are not compared."""

MOST_OTHERS_CPU_RATIO = 0.1
"""A round in which other processes used more of the machine is repeated."""

_QUIET_LOOK_S = 0.2
_MOST_QUIET_LOOKS = 25


Measure = Callable[[Callable[[], None]], Sequence[tuple[float, float]]]
"""Measures a round: returns both sides' figures, one pair for each row. It may call its argument, the placement probe,
between the sides."""


class GroupFailed(Exception):
    """A process of a group died, raised, lost a message or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round: both sides' figures and what else the machine did."""

    ours: float
    theirs: float
    probes_ns: tuple[float, ...]
    """Placement probe before and after, and between the sides; empty if it is not available."""
    others_cpu_ratio: float
    """Share of the machine's CPU time that went to processes other than the two sides'."""

    @property
    def ratio(self) -> float:
        """Return ours over theirs."""
        return self.ours / self.theirs

    @property
    def placed_alike(self) -> bool:
        """Return whether the distance between the cores stayed the same."""
        return not self.probes_ns or max(self.probes_ns) <= SAME_PLACEMENT_RATIO * min(self.probes_ns)

    @property
    def good(self) -> bool:
        """Return whether the round is fit for comparison."""
        return self.placed_alike and self.others_cpu_ratio <= MOST_OTHERS_CPU_RATIO


@dataclass(slots=True)
class Row:
    """One comparison, with every round."""

    what: str
    unit: str
    ours: str
    theirs: str
    at_least: float | None = None
    """The ratio ours/theirs should be at least this …"""
    at_most: float | None = None
    """… or at most this."""
    rounds: list[Round] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def used(self) -> list[Round]:
        """Return the good rounds, or those placed alike if none is good."""
        return [each for each in self.rounds if each.good] or [each for each in self.rounds if each.placed_alike]

    def cells(self) -> list[str]:
        """Return the row of the table: medians over the used rounds."""
        used = self.used
        counts = f"{len(used)} of {len(self.rounds) + len(self.failures)}"
        if not used:
            return [self.what, "-", "-", "-", "-", "-", "-", counts]
        ratios = [each.ratio for each in used]
        ratio, wanted = statistics.median(ratios), "-"
        if self.at_least is not None:
            wanted = f"≥ {self.at_least:g}: {'yes' if ratio >= self.at_least else 'no'}"
        if self.at_most is not None:
            wanted = f"≤ {self.at_most:.3g}: {'yes' if ratio <= self.at_most else 'no'}"
        probes = [probe for each in used for probe in each.probes_ns]
        return [
            self.what,
            format_significant(statistics.median(each.ours for each in used)),
            format_significant(statistics.median(each.theirs for each in used)),
            f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            wanted,
            f"{min(probes):.0f}-{max(probes):.0f}" if probes else "-",
            f"{statistics.median(each.others_cpu_ratio for each in used):.0%}",
            counts,
        ]


def _cpu_s() -> tuple[float, float]:
    """Return the CPU seconds of the whole machine, and those of this process and its ended children."""
    times = psutil.cpu_times()._asdict()
    busy = sum(times.values()) - times["idle"] - times.get("iowait", 0.0)
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return busy, sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _wait_for_quiet() -> None:
    """Return when the machine is quiet, or after 5 s: repeating a round would take longer."""
    for _ in range(_MOST_QUIET_LOOKS):
        if psutil.cpu_percent(_QUIET_LOOK_S) <= 100 * MOST_OTHERS_CPU_RATIO:
            return


def _measure_round(measure: Measure) -> list[Round]:
    _wait_for_quiet()
    begin, (busy, own), probes_ns = now_ns(), _cpu_s(), list[float]()

    def probe() -> None:
        probe_ns = _native.probe_ns()
        if probe_ns is not None:
            probes_ns.append(probe_ns)

    probe()
    pairs = measure(probe)
    probe()
    (busy_after, own_after), elapsed_s = _cpu_s(), (now_ns() - begin) / 1e9
    others_s = max(0.0, busy_after - busy - (own_after - own))
    return [Round(*pair, tuple(probes_ns), others_s / elapsed_s / (os.cpu_count() or 1)) for pair in pairs]


def compare(row: Row, ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> Row:
    """Fill `row` with rounds of two sides, of which each returns a figure."""
    return compare_all([row], lambda: (ours(),), lambda: (theirs(),), rounds)[0]


def compare_all(
    rows: list[Row], ours: Callable[[], Sequence[float]], theirs: Callable[[], Sequence[float]], rounds: int
) -> list[Row]:
    """Fill the rows with rounds of two sides, of which each returns a figure for each row."""

    def measure(probe: Callable[[], None]) -> list[tuple[float, float]]:
        first = ours()
        probe()
        return list(zip(first, theirs(), strict=True))

    return fill(rows, measure, rounds)


def fill(rows: list[Row], measure: Measure, rounds: int) -> list[Row]:
    """Fill the rows with rounds until `rounds` of them are good; try at most three times as many."""
    for _ in range(3 * rounds):
        if sum(each.good for each in rows[0].rounds) == rounds:
            break
        try:
            for row, measured in zip(rows, _measure_round(measure), strict=True):
                row.rounds.append(measured)
        except GroupFailed as error:
            rows[0].failures.append(str(error))
            print(f"  {rows[0].what}: {error}", file=sys.stderr, flush=True)
    for row in rows:
        print(f"  {' | '.join(row.cells())}", file=sys.stderr, flush=True)
    return rows


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """Print one Markdown table; all rows have the same two sides and the same unit."""
    head = [
        rows[0].unit,
        rows[0].ours,
        rows[0].theirs,
        "ratio (min-max)",
        "wanted",
        "probe ns",
        "others' CPU",
        "rounds",
    ]
    print(f"\n### {title}\n\n| {' | '.join(head)} |\n|---|---:|---:|---:|---|---:|---:|---|")
    for row in rows:
        print(f"| {' | '.join(row.cells())} |", flush=True)
