"""Two profiles compared: phases, parts and layers, each with its ratio and whether that is a difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from ipcbench.profile.records import Phase
from ipcbench.profile.summary import Figure, Part, Summary
from ipcbench.stats.decisions import Verdict, verdict
from ipcbench.stats.estimates import Interval, ratio

ONE_RUN = (
    "Each profile is one run: its intervals do not show by how much another run of the same would differ. Repeat both "
    "before you rely on a few percent."
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both.

    Attributes:
        rank: None for a phase over all ranks.
        name: a bucket, the path of a layer, or `latency`.
        ratio: b / a with its 95 % interval (all rows hold together); None for too few repetitions.
        verdict: of b against a.
    """

    phase: Phase
    rank: int | None
    name: str
    a: Figure
    b: Figure
    ratio: Interval | None = None
    verdict: Verdict = "no clear difference"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two profiles beside each other.

    Attributes:
        differences: setting or version → value in a and in b.
    """

    rows: tuple[Row, ...]
    differences: tuple[tuple[str, object, object], ...]
    remarks: tuple[str, ...]


def compare(a: Summary, b: Summary) -> Comparison:
    """Return how b differs from a, of what both have: phases, and the parts and layers of ranks of one number."""
    rows = list(_rows(a, b))
    settings = [asdict(each.setting) | dict(each.profile.versions) for each in (a, b)]
    names = dict.fromkeys([*settings[0], *settings[1]])
    differences = tuple(
        (name, settings[0].get(name), settings[1].get(name))
        for name in names
        if settings[0].get(name) != settings[1].get(name)
    )
    remarks = [ONE_RUN]
    if differences:
        words = "; ".join(f"{name}: {x}, {y}" for name, x, y in differences)
        remarks.insert(0, f"They differ in more than time ({words}), which may be the reason of any difference.")
    if a.profile.ranks != b.profile.ranks:
        remarks.append("They have different ranks: parts and layers of one rank hold different shares of the model.")
    return Comparison(tuple(_judged(row, len(rows)) for row in rows), differences, tuple(remarks))


def _rows(a: Summary, b: Summary) -> Iterator[Row]:
    for total in a.totals:
        other = b.total(total.phase)
        if other and total.latency and other.latency and total.is_plain == other.is_plain:
            yield Row(total.phase, None, "latency", total.latency, other.latency)
    for each in a.phases:
        match = next((p for p in b.phases if (p.phase, p.rank) == (each.phase, each.rank)), None)
        if match is not None:
            for x, y in (*_both(each.buckets, match.buckets), *_both(each.layers, match.layers)):
                yield Row(each.phase, each.rank, x.name, x.figure, y.figure)


def _both(a: tuple[Part, ...], b: tuple[Part, ...]) -> Iterator[tuple[Part, Part]]:
    others = {part.name: part for part in b}
    return ((part, others[part.name]) for part in a if part.name in others)


def _judged(row: Row, among: int) -> Row:
    """Return a row with its verdict; repetitions of one number in two runs have nothing to do with each other."""
    found = row.a.estimate, row.b.estimate
    if found[0] is None or found[1] is None:
        return row
    a, b = replace(found[0], rounds={}), replace(found[1], rounds={})
    return replace(row, ratio=ratio(b, a, among=among), verdict=verdict(b, a, among=among))
