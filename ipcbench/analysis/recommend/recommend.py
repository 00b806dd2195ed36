"""Choose a backend: capabilities exclude, measured evidence ranks, and every reason is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ipcbench.analysis.recommend.answer import (
    Candidate,
    Exclusion,
    Outcome,
    Recommendation,
    figure_words,
)
from ipcbench.analysis.recommend.doubts import doubts_of_choice
from ipcbench.analysis.recommend.evidence import (
    LEVELS,
    Evidence,
    asked_sizes,
    covered_sizes,
    doubts,
    gather,
    measured_around,
    offered_rate,
    table_times,
    too_slow_words,
    wrong_words,
)
from ipcbench.analysis.recommend.needs import NEEDS, Offer, refusals, registered_offers, stored_offers
from ipcbench.analysis.recommend.question import GOALS, Question, sweep_command
from ipcbench.analysis.summary.cells import Setting, SettingSummary, Summary, cells_of, preferred_metrics
from ipcbench.analysis.summary.crossover import BETTER, Crossover, family_words_of, pair_crossovers, rules_by_size
from ipcbench.analysis.summary.curves import Measure, curves, estimate_of, families, prior_by
from ipcbench.analysis.summary.summary import summarise
from ipcbench.analysis.summary.wording import joined, neighbours_words, plural, some
from ipcbench.errors import Unsupported
from ipcbench.results.store import Run
from ipcbench.spec import VARIANT_MARK
from ipcbench.stats.decisions import judged, rank_groups, table_prior, verdict
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Estimate, Interval, ratio, rounds_in_common
from ipcbench.stats.prior import VariancePrior

_TIE_BREAKS: Mapping[Measure, tuple[Measure, ...]] = {
    "latency": ("throughput", "cpu"),
    "round trip": ("throughput", "cpu"),
    "throughput": ("latency", "round trip", "cpu"),
    "cpu": ("latency", "round trip", "throughput"),
}
"""What breaks a tie: the first of these that clearly separates the tied backends."""
_NOT_REGISTERED = "not registered here, so what it can do is not known"


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """A question, a run, and what follows from the two."""

    question: Question
    run: Run
    summary: Summary
    measure: Measure
    """The figure that decides."""
    family: tuple[SettingSummary, ...]
    """Settings with the delivery and the number of readers asked for; may be empty."""
    able: tuple[str, ...]
    """Backends whose capabilities allow what is asked."""
    excluded: tuple[Exclusion, ...]
    """The other backends, and the able ones that the evidence excludes."""

    def prior(self, measure: Measure) -> VariancePrior | None:
        """Return what the comparisons of the run by a measure tell about how much rounds differ."""
        return prior_by(self.summary, measure)


@dataclass(frozen=True, slots=True, eq=False)
class _Shortlist:
    """The backends that can do what is asked and were measured."""

    case: _Case
    between: tuple[int, int]
    """The measured sizes on both sides of the payload; twice the same size if it was measured."""
    evidence: tuple[Evidence, ...]
    lacking: tuple[str, ...]
    """Backends that the run was to measure, and of which it has no figure that could be compared."""

    def ranks(self, measure: Measure, among: Iterable[Evidence] | None = None) -> dict[str, int]:
        """Return backend → rank by a measure, of all or of some; backends without that figure, or without rounds
        enough, are left out.
        """
        some = self.evidence if among is None else among
        times = judged({evidence.backend: evidence.times[measure] for evidence in some if measure in evidence.times})
        ranks = rank_groups(list(times.values()), self.case.prior(measure), self.table(measure))
        return dict(zip(times, ranks, strict=True))

    def table(self, measure: Measure) -> list[Estimate]:
        """Return the times of all backends that were measured at the payload. Who else is compared decides how sure a
        difference is; and what is asked must not make it surer.
        """
        case = self.case
        return list(judged(table_times(case.family, self.between, case.question.payload_bytes, measure)).values())

    def ratio(self, times: Evidence, best: Evidence) -> Interval:
        """Return how many times as slow one is as another, by the deciding measure."""
        measure, table = self.case.measure, self.table(self.case.measure)
        prior = table_prior(table, self.case.prior(measure))
        return ratio(times.times[measure], best.times[measure], prior, len(table))

    def beats(self, measure: Measure, evidence: Evidence, others: Iterable[Evidence]) -> bool:
        """Return whether one is clearly faster than each of the others by a measure."""
        table = self.table(measure)
        prior = table_prior(table, self.case.prior(measure))
        own = evidence.times[measure]
        return all(verdict(own, other.times[measure], prior, len(table)) == "faster" for other in others)

    @property
    def offered_per_s(self) -> float | None:
        """Return the rate of the paced trials around the payload."""
        return offered_rate(self.case.family, self.between)


def recommend(
    run: Run, question: Question, *, offers: Mapping[str, Offer] | None = None, summary: Summary | None = None
) -> Recommendation:
    """Return which backend to take, from a stored run alone.

    Args:
        run: what was measured.
        question: what is asked.
        offers: backend → what it offers; None takes all registered backends, and of others what the run says. No code
            is loaded by a name in a run.
        summary: of that run, if the caller has it already.

    Returns:
        The answer. Without evidence it names no backend, says why, and holds the command that would measure it.
    """
    known = {**stored_offers(run), **registered_offers()} if offers is None else offers
    case = _make_case(run, question, known, summary or summarise(run))
    if run.info.variant_versions:
        return _refusal(
            case, "no candidate", "the run compares variants; a choice needs one measured without --variant"
        )
    if not case.able:
        return _refusal(case, "no candidate", _unable_words(question, known.values()))
    between = measured_around(case.family, question.payload_bytes)
    if between is None:
        return _refusal(case, "outside the measured range", _gap_words(case))
    shortlist = _shortlist(case, between)
    if not shortlist.evidence:
        reasons: dict[str, list[str]] = {}
        for out in shortlist.case.excluded:
            if out.by == "evidence":
                reasons.setdefault(out.reason, []).append(out.backend)
        said = "; ".join(f"{joined(names)}: {reason}" for reason, names in reasons.items())
        why = f"of the transports that can do it, none has figures that count ({said})"
        return _refusal(shortlist.case, "no candidate", why)
    return _choose(shortlist)


def require_candidates(question: Question, offers: Mapping[str, Offer] | None = None) -> tuple[str, ...]:
    """Return the registered backends whose capabilities allow what is asked: those worth measuring.

    Raises:
        Unsupported: there is none; the text says what each of them lacks.
    """
    known = registered_offers() if offers is None else offers
    able = tuple(name for name, offer in known.items() if not _refusals(question, offer))
    if not able:
        reasons: dict[str, list[str]] = {}
        for name, offer in known.items():
            reasons.setdefault(", ".join(_refusals(question, offer)), []).append(name)
        lacks = "; ".join(f"{joined(names)}: {reason}" for reason, names in reasons.items())
        raise Unsupported(f"{question.words()}: {_unable_words(question, known.values())} ({lacks})")
    return able


# The case, and answers without evidence


def _make_case(run: Run, question: Question, offers: Mapping[str, Offer], summary: Summary) -> _Case:
    measured = [cell.backend.partition(VARIANT_MARK)[0] for cell in cells_of(summary.settings)]
    reasons = {
        name: "; ".join(_refusals(question, offers[name])) if name in offers else _NOT_REGISTERED
        for name in dict.fromkeys([*measured, *offers])
    }
    family = _family(summary, question)
    return _Case(
        question=question,
        run=run,
        summary=summary,
        measure=_measure(run, family, question),
        family=family,
        able=tuple(name for name, reason in reasons.items() if not reason),
        excluded=tuple(Exclusion(name, reason, "capabilities") for name, reason in reasons.items() if reason),
    )


def _family(summary: Summary, question: Question) -> tuple[SettingSummary, ...]:
    """Return the settings that the question is about; of several families, one that covers the payload."""
    asked = question.delivery, question.readers
    fitting = [
        family
        for family in families(summary)
        if (family[0].setting.delivery, family[0].setting.readers) == asked and not family[0].setting.neighbours
    ]
    covering = [family for family in fitting if measured_around(family, question.payload_bytes) is not None]
    return (covering or fitting or [()])[0]


def _measure(run: Run, family: Sequence[SettingSummary], question: Question) -> Measure:
    """Return what decides; about latency, the first that was measured of what ranks cells."""
    if question.optimise != "latency":
        return question.optimise
    cells = cells_of(family)
    for measure in preferred_metrics(run.info):
        if any(estimate_of(cell, measure) is not None for cell in cells):
            return measure
    return "latency"


def _refusals(question: Question, offer: Offer) -> list[str]:
    return refusals(offer, question.payload_bytes, question.readers, question.delivery, question.needs)


def _unable_words(question: Question, offers: Iterable[Offer]) -> str:
    """Return in words that no backend can do what is asked, naming the needs that none of them offers."""
    real = [offer for offer in offers if offer.capabilities.launcher != "inline"]
    absent = [need for need in question.needs if all(NEEDS[need].refusal(offer) for offer in real)]
    if absent:
        return f"no transport here offers {joined(absent)}"
    return "no transport here offers all of it at once"


def _gap_words(case: _Case) -> str:
    """Return in words that the question lies outside of what the run measured."""
    question, sizes, run_id = case.question, asked_sizes(case.family), case.run.info.run_id
    if sizes:
        span = f"{min(sizes):,} B to {max(sizes):,} B"
        return f"{question.payload_bytes:,} B is outside the measured range of run {run_id}, {span}"
    words = joined(list(dict.fromkeys(_setting_words(ranking.setting) for ranking in case.summary.settings)))
    beside = any(ranking.setting.neighbours for ranking in case.summary.settings)
    alone = f" {neighbours_words(0)}" if beside else ""
    asked = f"{question.delivery} to {plural(question.readers, 'reader', 'readers')}{alone}"
    return f"{asked} is outside the measured range of run {run_id}, which has {words or 'no trial'}"


def _setting_words(setting: Setting) -> str:
    beside = f" {neighbours_words(setting.neighbours)}" if setting.neighbours else ""
    return f"{setting.delivery} to {plural(setting.readers, 'reader', 'readers')}{beside}"


def _refusal(case: _Case, outcome: Outcome, why: str) -> Recommendation:
    """Return an answer that names no backend."""
    return replace(_blank(case), outcome=outcome, why_not=why, next_command=_command_for(case))


def _blank(case: _Case) -> Recommendation:
    """Return the answer with everything that is known before ranking."""
    sizes = covered_sizes(case.family)
    setting = case.family[0].setting if case.family else None
    return Recommendation(
        question=case.question,
        run_id=case.run.info.run_id,
        run_path=str(case.run.path),
        outcome="no candidate",
        backend=None,
        axis=case.measure,
        tied_with=(),
        best=None,
        tie_break="",
        candidates=(),
        excluded=case.excluded,
        measured_bytes=(min(sizes), max(sizes)) if sizes else None,
        why_not="",
        crossovers=(),
        changes=(),
        sureness="none",
        doubts=(),
        next_command="",
        depth=setting.depth if setting else 16,
        wait=setting.wait if setting else "auto",
    )


def _command_for(case: _Case, *, again: bool = False) -> str:
    """Return the command that measures the question, with more rounds if `again`; empty if no backend could do it. A
    run between hosts does not know their names any more.
    """
    wait = case.family[0].setting.wait if case.family else "auto"
    able, between = case.able, case.run.info.hosts
    if between:
        offers = registered_offers()
        able = tuple(name for name in able if name in offers and offers[name].capabilities.remote)
    command = sweep_command(case.question, able, again=again, wait=wait) if able else ""
    return command.replace("ipcbench run", "ipcbench run --hosts HOSTS", 1) if between else command


# The choice


def _shortlist(case: _Case, between: tuple[int, int]) -> _Shortlist:
    """Return the evidence of the able backends; those without it, or too slow, are excluded with the reason."""
    measured: list[Evidence] = []
    excluded: list[Exclusion] = []
    planned = case.run.info.sweep.get("backends", ())
    settled = set(case.run.info.skipped)
    for name in case.able:
        evidence, is_settled = _evidence(case, between, name)
        if is_settled:
            settled.add(name)
        if isinstance(evidence, str):
            excluded.append(Exclusion(name, evidence, "evidence"))
        else:
            measured.append(evidence)
    ranked = judged({evidence.backend: evidence.times[case.measure] for evidence in measured})
    for evidence in measured:
        if evidence.backend not in ranked:
            rounds = plural(evidence.times[case.measure].rounds_count, "round", "rounds")
            reason = f"only {rounds} of its {case.measure}, too few to compare"
            excluded.append(Exclusion(evidence.backend, reason, "evidence"))
    measured = [evidence for evidence in measured if evidence.backend in ranked]
    lacking = [name for name in case.able if name in planned and name not in ranked and name not in settled]
    excluding = replace(case, excluded=case.excluded + tuple(excluded))
    return _Shortlist(excluding, between, tuple(measured), tuple(lacking))


def _evidence(case: _Case, between: tuple[int, int], name: str) -> tuple[Evidence | str, bool]:
    """Return what was measured of a backend, or why it cannot be taken; and whether that is sure."""
    if wrong := wrong_words(case.run, name, case.question):
        return wrong, True
    evidence = gather(case.family, between, case.question, name, case.measure)
    if isinstance(evidence, str):
        return evidence, False
    too_slow = too_slow_words(evidence, case.question, offered_rate(case.family, between))
    return too_slow or evidence, bool(too_slow)


def _choose(shortlist: _Shortlist) -> Recommendation:
    case, measure = shortlist.case, shortlist.case.measure
    ranks = shortlist.ranks(measure)
    first = [evidence for evidence in shortlist.evidence if ranks[evidence.backend] == 1]
    chosen, tie_break = _break_tie(shortlist, first)
    others = sorted(
        (evidence for evidence in shortlist.evidence if evidence is not chosen),
        key=lambda evidence: (ranks[evidence.backend], evidence.times[measure].value),
    )
    best = min(first, key=lambda evidence: evidence.times[measure].value)
    candidates = tuple(_candidate(shortlist, evidence, best, ranks[evidence.backend]) for evidence in (chosen, *others))
    crossings = _crossovers(case, chosen, others)
    reasons = doubts_of_choice(case.run, measure, candidates, case.excluded, shortlist.lacking)
    tied = [candidate for candidate in candidates if candidate.rank == 1 and candidate.backend != best.backend]
    unsure = any(candidate.rounds_count < MIN_CLAIM_ROUNDS for candidate in tied)
    contradictory = any(candidate.contradicts for candidate in tied)
    alike: Outcome = "contradictory" if contradictory else "too few rounds" if unsure else "tie"
    outcome: Outcome = alike if tied else "clear" if others else "only candidate"
    level = max((doubt.level for doubt in reasons), key=LEVELS.index, default=LEVELS[0])
    measured_exactly = shortlist.between[0] == shortlist.between[1]
    return replace(
        _blank(case),
        outcome=outcome,
        backend=chosen.backend,
        best=best.backend,
        tied_with=tuple(evidence.backend for evidence in others if ranks[evidence.backend] == 1),
        tie_break=tie_break,
        candidates=candidates,
        crossovers=crossings,
        changes=tuple(_changes(shortlist, chosen, crossings)),
        sureness=level,
        doubts=reasons,
        next_command="" if level == LEVELS[0] else _command_for(case, again=measured_exactly),
    )


def _break_tie(shortlist: _Shortlist, first: Sequence[Evidence]) -> tuple[Evidence, str]:
    """Return one of the tied backends and what sets it apart: fewer failures, or another figure clearly better."""
    measure = shortlist.case.measure
    failures = {evidence.backend: sum(cell.failed_count for cell in evidence.cells) for evidence in first}
    left = [evidence for evidence in first if failures[evidence.backend] == min(failures.values())]
    equal = left
    why: list[tuple[str, str, Measure | None]] = []
    if len(left) < len(first):
        why.append(("fewer of its trials failed", _others(first, left), None))
    for other in _TIE_BREAKS[measure]:
        # behind the best of these, and behind it in the order of all, too: else that goal would call them equal
        ranks, of_all = shortlist.ranks(other, left), shortlist.ranks(other)
        if any(each.backend not in of_all for each in left):  # too few rounds of it, or none
            continue
        first_of_all = min((of_all[name] for name, rank in ranks.items() if rank == 1), default=1)
        ahead = [each for each in left if ranks.get(each.backend) == 1 or of_all.get(each.backend) == first_of_all]
        behind = [each for each in left if each not in ahead]
        # who is as good as the best of these may still not be told apart from those behind it
        if behind and (sure := [each for each in ahead if shortlist.beats(other, each, behind)]):
            why.append((BETTER[other].removeprefix("the "), _others(behind, ()), other))
            left, equal = sure, ahead
    chosen = min(left, key=lambda evidence: evidence.times[measure].value)
    parts = [
        f"{what} than {than}, {figure_words(chosen.expected, other)}" if other else f"{what} than of {than}"
        for what, than, other in why
    ]
    alike = f"; not told apart from it in that: {_others(equal, [chosen])}" if parts and len(equal) > 1 else ""
    return chosen, " and ".join(parts) + alike


def _others(tied: Sequence[Evidence], ahead: Sequence[Evidence]) -> str:
    return some([evidence.backend for evidence in tied if evidence not in ahead])


def _candidate(shortlist: _Shortlist, evidence: Evidence, best: Evidence, rank: int) -> Candidate:
    case = shortlist.case
    slower = Interval(1.0, 1.0, 1.0)
    if evidence is not best:
        slower = shortlist.ratio(evidence, best)
    cores = case.run.info.machine.get("usable_cores")
    reasons = doubts(evidence, case.measure, case.question, shortlist.offered_per_s, shortlist.between, cores)
    own, first = evidence.times[case.measure], best.times[case.measure]
    common = rounds_in_common(own, first)
    rounds_count = own.rounds_count if common is None else min(own.rounds_count, common)
    return Candidate(evidence.backend, rank, slower, evidence.expected, reasons, evidence.trial_ids, rounds_count)


def _crossovers(case: _Case, chosen: Evidence, others: Iterable[Evidence]) -> tuple[Crossover, ...]:
    by_name = curves(case.family, case.measure)
    own, words = by_name[chosen.backend], family_words_of(case.family)
    rules = rules_by_size(by_name.values(), case.prior(case.measure))
    return tuple(
        crossover
        for other in others
        for crossover in pair_crossovers(own, by_name[other.backend], case.measure, rules, words)
    )


def _changes(shortlist: _Shortlist, chosen: Evidence, crossings: Sequence[Crossover]) -> Iterable[str]:
    """Yield what would change the choice: another payload, rate, need or goal."""
    crossing = [crossover for crossover in crossings if crossover.payload_bytes is not None]
    yield from (crossover.sentence() for crossover in crossing)
    if crossings and not crossing and chosen.times[shortlist.case.measure].rounds_count >= MIN_CLAIM_ROUNDS:
        low, high = crossings[0].range_bytes
        yield f"Payload: no crossover from {low:,} B to {high:,} B, where both have figures."
    capacity = chosen.expected.throughput_per_s
    if capacity is not None:
        yield f"Rate: {chosen.backend} delivers {figure_words(chosen.expected, 'throughput')} flat out."
    yield from _dropped_needs(shortlist, chosen)
    yield from _other_goals(shortlist, chosen)


def _other_goals(shortlist: _Shortlist, chosen: Evidence) -> Iterable[str]:
    """Yield which backends are ahead of the chosen one by what else may be optimised, as that question is answered."""
    case = shortlist.case
    measures = {_measure(case.run, case.family, replace(case.question, optimise=goal)) for goal in GOALS}
    for measure in (each for each in _TIE_BREAKS[case.measure] if each in measures):
        other = _shortlist(replace(case, measure=measure), shortlist.between)
        ranks = other.ranks(measure)
        ahead = [evidence for evidence in other.evidence if ranks[evidence.backend] == 1]
        if ahead and ranks.get(chosen.backend, 1) > 1:
            yield f"Optimising: {_ahead_words(ahead, measure, 'has', 'have')}."


def _dropped_needs(shortlist: _Shortlist, chosen: Evidence) -> Iterable[str]:
    """Yield which backends would be ahead of the chosen one if a need were dropped, as that question is answered."""
    case, measure = shortlist.case, shortlist.case.measure
    found: dict[tuple[str, ...], list[Evidence]] = {}
    for excluded in case.excluded:
        reasons = excluded.reason.split("; ")
        needs = [need for need in case.question.needs if any(text.startswith(f"needs {need}: ") for text in reasons)]
        if excluded.by != "capabilities" or not needs or len(reasons) > len(needs):
            continue
        other, _ = _evidence(case, shortlist.between, excluded.backend)
        if not isinstance(other, str):
            found.setdefault(tuple(needs), []).append(other)
    for dropped in found:
        others = [other for less in found if set(less) <= set(dropped) for other in found[less]]
        ranks = shortlist.ranks(measure, [*shortlist.evidence, *others])
        ahead = [each for each in (*shortlist.evidence, *others) if ranks.get(each.backend) == 1]
        if ranks.get(chosen.backend, 1) > 1:
            yield f"Needs: without {joined(dropped)}, {_ahead_words(ahead, measure, 'would have', 'would have')}."


def _ahead_words(ahead: Sequence[Evidence], measure: Measure, has: str, have: str) -> str:
    """Return that these backends have the best figure of a measure, with that of the first."""
    best = min(ahead, key=lambda evidence: evidence.times[measure].value)
    names = joined([evidence.backend for evidence in ahead])
    of_best = f"{best.backend} " if len(ahead) > 1 else ""
    verb = have if len(ahead) > 1 else has
    return f"{names} {verb} {BETTER[measure]}, {of_best}{figure_words(best.expected, measure)}"
