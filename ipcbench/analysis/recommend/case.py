"""A question put to a run: who can do it, which settings it is about, and the answer where there is no evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ipcbench.analysis.recommend.answer import Exclusion, Outcome, Recommendation
from ipcbench.analysis.recommend.evidence import covered_sizes, measured_around
from ipcbench.analysis.recommend.needs import NEEDS, Offer, refusals
from ipcbench.analysis.recommend.question import Question, sweep_command
from ipcbench.analysis.summary.cells import SettingSummary, Summary
from ipcbench.analysis.summary.curves import Measure, estimate_of, families, noise_ratios
from ipcbench.analysis.summary.wording import joined, plural
from ipcbench.results.store import Run

_NOT_REGISTERED = "not registered here, so what it can do is not known"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A question, the run, and what follows from the two."""

    question: Question
    run: Run
    summary: Summary
    axis: Measure
    """The figure that decides."""
    family: tuple[SettingSummary, ...]
    """Settings with the delivery and the readers that are asked for; empty if there are none."""
    noise: Mapping[Measure, float]
    able: tuple[str, ...]
    """Backends whose capabilities allow what is asked."""
    excluded: tuple[Exclusion, ...]
    """The others, and those of the able ones that the evidence excludes."""

    @property
    def cores(self) -> object:
        """Return how many cores the machine could use, None if that is unknown."""
        return self.run.info.machine.get("usable_cores")


def make_case(run: Run, question: Question, offers: Mapping[str, Offer], summary: Summary) -> Case:
    """Return the case of a question; backends of the run that are not in `offers` are excluded."""
    measured = [cell.backend for one in summary.settings for cell in one.cells]
    reasons = {
        name: "; ".join(refused(question, offers[name])) if name in offers else _NOT_REGISTERED
        for name in dict.fromkeys([*measured, *offers])
    }
    family = _family(summary, question)
    return Case(
        question=question,
        run=run,
        summary=summary,
        axis=_axis(family, question),
        family=family,
        noise=noise_ratios(summary),
        able=tuple(name for name, reason in reasons.items() if not reason),
        excluded=tuple(Exclusion(name, reason, "capabilities") for name, reason in reasons.items() if reason),
    )


def refused(question: Question, offer: Offer) -> list[str]:
    """Return every reason for which a backend cannot do what is asked."""
    return refusals(offer, question.payload_bytes, question.readers, question.delivery, question.needs)


def unable_words(question: Question, offers: Iterable[Offer]) -> str:
    """Return in words that no backend can do what is asked, naming the needs that none of them offers."""
    found = [one for one in offers if one.capabilities.launcher != "inline"]
    absent = [need for need in question.needs if all(NEEDS[need].refusal(one) for one in found)]
    if absent:
        return f"no transport here offers {joined(absent)}"
    return "no transport here offers all of it at once"


def gap_words(case: Case) -> str:
    """Return in words that the question lies outside of what the run measured."""
    question, sizes = case.question, covered_sizes(case.family)
    if sizes:
        span = f"{min(sizes):,} B to {max(sizes):,} B"
        return f"{question.payload_bytes:,} B is outside the measured range of run {case.run.info.run_id}, {span}"
    have = dict.fromkeys((one.setting.delivery, one.setting.readers) for one in case.summary.settings)
    words = joined([f"{delivery} to {plural(readers, 'reader', 'readers')}" for delivery, readers in have])
    asked = f"{question.delivery} to {plural(question.readers, 'reader', 'readers')}"
    return f"{asked} is outside the measured range of run {case.run.info.run_id}, which has {words or 'no trial'}"


def refusal(case: Case, outcome: Outcome, why: str) -> Recommendation:
    """Return the answer that names no backend."""
    return replace(blank(case), outcome=outcome, why_not=why, next_command=command_for(case))


def blank(case: Case) -> Recommendation:
    """Return the answer with all that is known before anything is ranked."""
    sizes = covered_sizes(case.family)
    setting = case.family[0].setting if case.family else None
    return Recommendation(
        question=case.question,
        run_id=case.run.info.run_id,
        run_path=str(case.run.path),
        outcome="no candidate",
        backend=None,
        axis=case.axis,
        tied_with=(),
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


def command_for(case: Case, *, again: bool = False) -> str:
    """Return the command that measures the question, with more rounds if it is `again`; empty if nobody could do it."""
    return sweep_command(case.question, case.able, again=again) if case.able else ""


def _family(summary: Summary, question: Question) -> tuple[SettingSummary, ...]:
    """Return the settings that the question is about; of several families, one that covers the payload."""
    fit = [
        one
        for one in families(summary)
        if (one[0].setting.delivery, one[0].setting.readers) == (question.delivery, question.readers)
    ]
    covering = [one for one in fit if measured_around(one, question.payload_bytes) is not None]
    return (covering or fit or [()])[0]


def _axis(family: Sequence[SettingSummary], question: Question) -> Measure:
    if question.optimise != "latency":
        return question.optimise
    paced = any(estimate_of(cell, "latency") is not None for one in family for cell in one.cells)
    trips = any(estimate_of(cell, "round trip") is not None for one in family for cell in one.cells)
    return "round trip" if trips and not paced else "latency"
