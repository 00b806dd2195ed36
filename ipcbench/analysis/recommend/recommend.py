"""Which backend to take: capabilities exclude, measured evidence ranks, and every reason is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ipcbench.analysis.recommend.answer import Candidate, Exclusion, Outcome, Recommendation, figure_words
from ipcbench.analysis.recommend.case import (
    Case,
    blank,
    command_for,
    gap_words,
    make_case,
    refusal,
    refused,
    unable_words,
)
from ipcbench.analysis.recommend.evidence import (
    LEVELS,
    NOT_MEASURED,
    Doubt,
    Evidence,
    doubts,
    gather,
    keeps_up,
    measured_around,
    offered_rate,
)
from ipcbench.analysis.recommend.needs import Offer, registered_offers
from ipcbench.analysis.recommend.question import Question
from ipcbench.analysis.summary.cells import Summary
from ipcbench.analysis.summary.crossover import BETTER, Crossover, family_words_of, pair_crossovers
from ipcbench.analysis.summary.curves import Axis, curves
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.wording import joined
from ipcbench.errors import Unsupported
from ipcbench.results.store import Run
from ipcbench.stats.decisions import Interval, rank_groups, ratio, verdict
from ipcbench.util.units import format_significant

_CLOSE_RATIO = 1.1
"""A lead that may be smaller than this is not a sure one."""
_TIE_BREAKS: Mapping[Axis, tuple[Axis, ...]] = {
    "latency": ("throughput", "cpu"),
    "round trip": ("throughput", "cpu"),
    "throughput": ("latency", "round trip", "cpu"),
    "cpu": ("latency", "round trip", "throughput"),
}
"""What sets those apart that tie, in this order; whatever separates them clearly first, decides."""


@dataclass(frozen=True, slots=True, eq=False)
class _Field:
    """Those that can do what is asked and were measured."""

    case: Case
    between: tuple[int, int]
    """The measured sizes on both sides of the payload; twice the same if it was measured."""
    found: tuple[Evidence, ...]

    def ranks(self, axis: Axis, of: Sequence[Evidence] | None = None) -> dict[str, int]:
        """Return backend → rank by a figure; who has no such figure is not in it."""
        times = {one.backend: one.times[axis] for one in of or self.found if axis in one.times}
        return dict(zip(times, rank_groups(list(times.values()), self.case.noise[axis]), strict=True))


def recommend(
    run: Run, question: Question, *, offers: Mapping[str, Offer] | None = None, summary: Summary | None = None
) -> Recommendation:
    """Return which backend to take, from a stored run alone.

    Args:
        run: what was measured.
        question: what is asked.
        offers: backend → what it offers; None takes all that are registered. Backends of the run that are not in it
            are excluded: their names are data, and no code is loaded by them.
        summary: of that run, if it was made already.

    Returns:
        The answer. Without evidence it names no backend, says why, and holds the command that would measure it.
    """
    known = registered_offers() if offers is None else offers
    case = make_case(run, question, known, summary or summarise(run))
    if not case.able:
        return refusal(case, "no candidate", unable_words(question, known.values()))
    between = measured_around(case.family, question.payload_bytes)
    if between is None:
        return refusal(case, "outside the measured range", gap_words(case))
    field = _field(case, between)
    if not field.found:
        return refusal(field.case, "no candidate", "of the transports that can do it, none has figures that count")
    return _choose(field)


def require_candidates(question: Question, offers: Mapping[str, Offer] | None = None) -> tuple[str, ...]:
    """Return the registered backends whose capabilities allow what is asked: those worth measuring.

    Raises:
        Unsupported: there is none; the text says what each of them lacks.
    """
    known = registered_offers() if offers is None else offers
    able = tuple(name for name, offer in known.items() if not refused(question, offer))
    if not able:
        reasons: dict[str, list[str]] = {}
        for name, offer in known.items():
            reasons.setdefault(", ".join(refused(question, offer)), []).append(name)
        each = "; ".join(f"{joined(names)}: {reason}" for reason, names in reasons.items())
        raise Unsupported(f"{question.words()}: {unable_words(question, known.values())} ({each})")
    return able


def _field(case: Case, between: tuple[int, int]) -> _Field:
    """Return the evidence of the able backends; those that have none, or are too slow, are excluded with the reason."""
    found: list[Evidence] = []
    silent: list[Exclusion] = []
    offered = offered_rate(case.family, between)
    for name in case.able:
        one = gather(case.family, between, case.question, name, case.axis)
        if isinstance(one, str):
            silent.append(Exclusion(name, one, "evidence"))
        elif reason := keeps_up(one, case.question, offered):
            silent.append(Exclusion(name, reason, "evidence"))
        else:
            found.append(one)
    return _Field(replace(case, excluded=case.excluded + tuple(silent)), between, tuple(found))


def _choose(field: _Field) -> Recommendation:
    case, axis = field.case, field.case.axis
    ranks = field.ranks(axis)
    first = [one for one in field.found if ranks[one.backend] == 1]
    chosen, tie_break = _break_tie(field, first)
    others = sorted(
        (one for one in field.found if one is not chosen), key=lambda one: (ranks[one.backend], one.times[axis].value)
    )
    candidates = tuple(_candidate(field, one, chosen, ranks[one.backend]) for one in (chosen, *others))
    crossings = _crossovers(case, chosen, others)
    reasons = _reasons(case, candidates, len(first))
    outcome: Outcome = "tie" if len(first) > 1 else "clear" if others else "only candidate"
    level = max((one.level for one in reasons), key=LEVELS.index, default=LEVELS[0])
    return replace(
        blank(case),
        outcome=outcome,
        backend=chosen.backend,
        tied_with=tuple(one.backend for one in others if ranks[one.backend] == 1),
        tie_break=tie_break,
        candidates=candidates,
        crossovers=crossings,
        changes=tuple(_changes(field, chosen, crossings)),
        sureness=level,
        doubts=reasons,
        next_command="" if level == LEVELS[0] else command_for(case, again=field.between[0] == field.between[1]),
    )


def _break_tie(field: _Field, first: Sequence[Evidence]) -> tuple[Evidence, str]:
    """Return one of those that tie, and what sets it apart: fewer failures, or another figure clearly better."""
    axis = field.case.axis
    failures = {one.backend: sum(cell.failed_count for cell in one.cells) for one in first}
    left = [one for one in first if failures[one.backend] == min(failures.values())]
    why = [f"fewer of its trials failed than of {_others(first, left)}"] if len(left) < len(first) else []
    for other in _TIE_BREAKS[axis]:
        ranks = field.ranks(other, left)
        ahead = [one for one in left if ranks.get(one.backend) == 1]
        if len(ranks) == len(left) and len(ahead) < len(left):
            better = BETTER[other].removeprefix("the ")
            why.append(f"{better} than {_others(left, ahead)}, {figure_words(ahead[0].expected, other)}")
            left = ahead
    return min(left, key=lambda one: one.times[axis].value), " and ".join(why)


def _others(several: Sequence[Evidence], but: Sequence[Evidence]) -> str:
    return joined([one.backend for one in several if one not in but])


def _candidate(field: _Field, one: Evidence, chosen: Evidence, rank: int) -> Candidate:
    case = field.case
    times = Interval(1.0, 1.0, 1.0) if one is chosen else ratio(one.times[case.axis], chosen.times[case.axis])
    found = doubts(one, case.question, offered_rate(case.family, field.between), field.between, case.cores)
    return Candidate(one.backend, rank, times, one.expected, found, one.trial_ids)


def _reasons(case: Case, candidates: Sequence[Candidate], tied_count: int) -> tuple[Doubt, ...]:
    """Return why the choice is not surer: doubts about the chosen and its rival, and how the choice came about."""
    found = list(candidates[0].doubts)
    if len(candidates) > 1:
        # The rival may have lost by its bad trials; but that weighs less than bad trials of the winner.
        found += [replace(one, level="moderate") for one in candidates[1].doubts if one.grave]
        found += _close(candidates[1]) if tied_count == 1 else []
    else:
        found.append(Doubt("there is nothing to compare it with in this run", "moderate"))
    if tied_count > 1:
        found.append(Doubt("a tie: by the figure that decides, another one may be as good", "moderate"))
    if case.run.info.status != "complete":
        found.append(Doubt(f"the run is {case.run.info.status}", "moderate"))
    absent = [one.backend for one in case.excluded if one.by == "evidence" and one.reason == NOT_MEASURED]
    if absent:
        found.append(Doubt(f"not measured in this run, although able: {joined(absent)}", "high"))
    unique = {one.text: one for one in reversed(found)}  # what is said of both is said once, as of the chosen one
    return tuple(sorted(unique.values(), key=lambda one: (-LEVELS.index(one.level), found.index(one))))


def _close(rival: Candidate) -> list[Doubt]:
    """Return the doubt that a lead is hardly one, if its interval reaches down to that."""
    lead = format_significant(rival.ratio.low)
    small = Doubt(f"the lead over {rival.backend} may be as small as {lead} times", "moderate")
    return [small] if rival.ratio.low < _CLOSE_RATIO else []


def _crossovers(case: Case, chosen: Evidence, others: Iterable[Evidence]) -> tuple[Crossover, ...]:
    by_name = curves(case.family, case.axis)
    own, words = by_name[chosen.backend], family_words_of(case.family)
    return tuple(
        found
        for one in others
        for found in pair_crossovers(own, by_name[one.backend], case.axis, case.noise[case.axis], words)
    )


def _changes(field: _Field, chosen: Evidence, crossings: Sequence[Crossover]) -> Iterable[str]:
    crossing = [one for one in crossings if one.payload_bytes is not None]
    yield from (one.sentence() for one in crossing)
    if crossings and not crossing:
        low, high = crossings[0].range_bytes
        yield f"Payload: no crossover in the measured range, {low:,} B to {high:,} B."
    capacity = chosen.expected.throughput_per_s
    if capacity is not None:
        most = f"{format_significant(capacity.estimate)} [{format_significant(capacity.low)}–"
        yield f"Rate: {chosen.backend} delivers at most {most}{format_significant(capacity.high)}] messages/s."
    yield from _dropped_needs(field, chosen)
    for axis in _TIE_BREAKS[field.case.axis]:
        ranks = field.ranks(axis)
        ahead = [one for one in field.found if ranks.get(one.backend) == 1]
        if ahead and ranks.get(chosen.backend, 1) > 1:
            best = min(ahead, key=lambda one: one.times[axis].value)
            yield f"Optimising: {best.backend} has {BETTER[axis]}, {figure_words(best.expected, axis)}."


def _dropped_needs(field: _Field, chosen: Evidence) -> Iterable[str]:
    """Yield which backends that nothing but a need excludes are clearly better than the chosen one."""
    case = field.case
    for one in case.excluded:
        reasons = one.reason.split("; ")
        needs = [need for need in case.question.needs if any(text.startswith(f"needs {need}: ") for text in reasons)]
        if one.by != "capabilities" or not needs or len(reasons) > len(needs):
            continue
        other = gather(case.family, field.between, case.question, one.backend, case.axis)
        if isinstance(other, str):
            continue
        if verdict(other.times[case.axis], chosen.times[case.axis], case.noise[case.axis]) == "faster":
            figure = figure_words(other.expected, case.axis)
            yield f"Needs: without {joined(needs)}, {one.backend} would have {BETTER[case.axis]}, {figure}."
