"""Two profiles compared: phases, parts and layers, each with its ratio and whether that is a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from ipcbench.errors import ConfigError
from ipcbench.profile.comm.late import held_up_words
from ipcbench.profile.records import Phase
from ipcbench.profile.summary import Part, Summary
from ipcbench.stats.decisions import Verdict, verdict
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval, ratio
from ipcbench.stats.figures import Figure, figure_of

LARGE_RATIO = 2.0
"""Of single runs, no difference below this is claimed: nothing tells by how much a run differs from the next."""
_WIDEST_FACTOR = 1e3
"""Between the ends of an interval: a wider one, of times that may be 0, says nothing."""
ONE_RUN = (
    f"Below a factor of {LARGE_RATIO:g}, single runs cannot tell a difference from the drift between runs. Repeat each "
    f"{MIN_CLAIM_ROUNDS} times or more, and compare A,A2,A3 with B,B2,B3."
)
MEDIANS = (
    "Figures are medians over repetitions; a report's parts, which add up, are means over steps of less than twice the "
    "median. Times that are 0, vary too much or have too few repetitions have no ratio."
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both.

    Attributes:
        rank: None for a phase over all ranks.
        name: a bucket, the path of a layer, or `latency`.
        ratio: b / a with its 95 % interval (all rows hold together); None for too few repetitions, or if it may be
            anything.
        verdict: of b against a.
        is_claim: whether that would hold for other runs of the same.
    """

    phase: Phase
    rank: int | None
    name: str
    a: Figure
    b: Figure
    ratio: Interval | None = None
    verdict: Verdict = "no clear difference"
    is_claim: bool = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two profiles beside each other.

    Attributes:
        differences: setting or version → value in a and in b.
        waits: that ranks of either waited for a core, or were held up: a difference may be no more.
    """

    rows: tuple[Row, ...]
    differences: tuple[tuple[str, object, object], ...]
    waits: tuple[str, ...]
    remarks: tuple[str, ...]


def compare(first: Sequence[Summary], second: Sequence[Summary]) -> Comparison:
    """Return how runs differ from others, of what all have: phases, and the parts and layers of ranks of one number.

    With three runs or more of each, a figure's rounds are its medians in each run; with one, its repetitions.

    Raises:
        ConfigError: one has no times, such as a plan, or wrong logits; a side has two runs, one twice, or some of
            different settings.
    """
    _require_comparable(first, second)
    a, b = first[0], second[0]
    is_one = len(first) == len(second) == 1
    rows = list(_rows(a, b)) if is_one else list(_repeated([*first], [*second]))
    x, y = (_conditions(each) for each in (a, b))
    differences = tuple((name, x.get(name), y.get(name)) for name in {**x, **y} if x.get(name) != y.get(name))
    remarks = [ONE_RUN, MEDIANS] if is_one else [MEDIANS]
    if a.profile.ranks != b.profile.ranks:
        remarks.append("They have different ranks: parts and layers of one rank hold different shares of the model.")
    waits = [f"{name}: {said}" for name, side in (("a", first), ("b", second))
             if (said := next(filter(None, (each.core_wait_words for each in side)), ""))]  # fmt: skip
    if waits:
        waits.append("All times of that run hold the wait, and so do the differences below.")
    waits += [f"{name}: {said}" for name, side in (("a", first), ("b", second))
              if (said := next(filter(None, (held_up_words(each.held_up) for each in side)), ""))]  # fmt: skip
    return Comparison(tuple(_judged(row, len(rows), is_one) for row in rows), differences, tuple(waits), tuple(remarks))


def _require_comparable(first: Sequence[Summary], second: Sequence[Summary]) -> None:
    if not all(each.totals for each in (*first, *second)):
        raise ConfigError("profile", "a plan or imported calls", "one of a run: others have no times to compare")
    if wrong := [each for each in (*first, *second) if each.profile.agreement and not each.profile.agreement.holds]:
        raise ConfigError(
            "profile", f"one of {wrong[0].setting.model} with WRONG logits", "runs that compute what one process does"
        )
    for side in (first, second):
        if len({each.profile.steps for each in side}) < len(side):
            raise ConfigError("profiles", "a run that is named twice", "different runs: one twice is no repetition")
        if any(_conditions(each) != _conditions(side[0]) for each in side):
            raise ConfigError("profiles", "runs of different settings on one side", "repetitions of one setting")
    counts = len(first), len(second)
    is_one = counts == (1, 1)
    if not is_one and min(counts) < MIN_CLAIM_ROUNDS:
        expected = f"one on each side, or {MIN_CLAIM_ROUNDS} or more on each"
        raise ConfigError("profiles", f"{counts[0]} and {counts[1]}", expected)
    if not is_one and {each.profile.steps for each in first} & {each.profile.steps for each in second}:
        raise ConfigError("profiles", "a run on both sides", "runs of one side that are none of the other's")


def _conditions(summary: Summary) -> dict[str, object]:
    """Return the setting, the versions and the processor of a run."""
    machine = {name: summary.profile.machine.get(name) for name in ("cpu_model", "logical_cores")}
    return asdict(summary.setting) | dict(summary.profile.versions) | machine


def _repeated(first: Sequence[Summary], second: Sequence[Summary]) -> Iterator[Row]:
    """Yield the rows of all runs together."""
    a, b = (
        [{(row.phase, row.rank, row.name): row.a.value for row in _rows(each, each)} for each in side]
        for side in (first, second)
    )
    for key in a[0]:
        if all(key in run for run in (*a, *b)):
            yield Row(*key, figure_of([run[key] for run in a]), figure_of([run[key] for run in b]))


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


def _judged(row: Row, among: int, is_one: bool) -> Row:
    """Return a row with its verdict; repetitions of one number in two runs have nothing to do with each other."""
    found = row.a.estimate, row.b.estimate
    if found[0] is None or found[1] is None:
        return row
    a, b = replace(found[0], rounds={}), replace(found[1], rounds={})
    times, said = ratio(b, a, among=among), verdict(b, a, among=among)
    if said == "no clear difference":  # by another test, perhaps, than that of the interval
        times = Interval(min(times.low, 1.0), times.estimate, max(times.high, 1.0))
        if times.high > _WIDEST_FACTOR * times.low:
            return row
    is_large = times.low > LARGE_RATIO or times.high < 1 / LARGE_RATIO
    return replace(row, ratio=times, verdict=said, is_claim=said == "no clear difference" or is_large or not is_one)
