"""What makes a choice less sure: doubts about those that the answer names, and about the choice itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipcbench.analysis.recommend.answer import Candidate, Exclusion, duration_range
from ipcbench.analysis.recommend.evidence import LEVELS, NOT_COMPARED, NOT_MEASURED, Doubt
from ipcbench.analysis.summary.cells import KNOWN_TAIL_RATIO
from ipcbench.analysis.summary.curves import Measure
from ipcbench.analysis.summary.wording import joined
from ipcbench.results.store import Run
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS
from ipcbench.util.units import format_significant

_CLOSE_RATIO = 1.1
"""A lead that may be smaller than this is not a sure one."""


def doubts_of_choice(
    run: Run,
    measure: Measure,
    candidates: Sequence[Candidate],
    excluded: Sequence[Exclusion],
    lacking: Sequence[str],
) -> tuple[Doubt, ...]:
    """Return why a choice is not surer: doubts about the chosen backend and its rival, and about the choice.

    Args:
        run: what was measured.
        measure: the figure that decided.
        candidates: all ranked backends, the chosen one first, then by rank.
        excluded: the others.
        lacking: those of them that the run was to measure, and of which it has no figure that could be compared.
    """
    tied_count = sum(candidate.rank == 1 for candidate in candidates)
    reasons = list(candidates[0].doubts)
    if len(candidates) > 1:
        # The rival may have lost because of its bad trials; but that weighs less than bad trials of the winner.
        behind = min((candidate.rank for candidate in candidates if candidate.rank > 1), default=1)
        rivals = [candidate for candidate in candidates[1:] if candidate.rank in {1, behind}]  # whom the answer names
        reasons += [replace(doubt, level="moderate") for rival in rivals for doubt in rival.doubts if doubt.grave]
        reasons += _close(min(rivals, key=lambda rival: rival.ratio.low)) if tied_count == 1 else []
    else:
        reasons.append(Doubt("there is nothing to compare it with in this run", "moderate"))
    if any(candidate.contradicts for candidate in candidates):
        reasons.append(Doubt("round by round another backend is ahead of the one with the best figure", "low"))
    elif tied_count > 1 and (few := [each.backend for each in candidates if each.rank == 1 and _is_unsure(each)]):
        reasons.append(Doubt(f"no verdict for want of rounds in common: {joined(few)} may be better or worse", "low"))
    elif tied_count > 1:
        reasons.append(Doubt("a tie: by the figure that decides, another backend may be as good", "moderate"))
    reasons += _tails(candidates) if tied_count > 1 and measure == "latency" else []
    if run.info.status not in {"complete", "out of budget"}:  # too few rounds are a doubt of their own
        reasons.append(Doubt(f"the run is {run.info.status}", "moderate"))
    if lacking:
        reasons.append(Doubt(f"{NOT_COMPARED}: {joined(list(lacking))}", "low", grave=True))
    absent = [out.backend for out in excluded if out.by == "evidence" and out.reason == NOT_MEASURED]
    absent = [name for name in absent if name not in lacking]
    if absent:
        reasons.append(Doubt(f"not measured in this run, although able: {joined(absent)}", "high"))
    unique = {doubt.text: doubt for doubt in reversed(reasons)}  # a text said of both is kept as said of the chosen one
    return tuple(sorted(unique.values(), key=lambda doubt: (-LEVELS.index(doubt.level), reasons.index(doubt))))


def _is_unsure(candidate: Candidate) -> bool:
    return candidate.rounds_count < MIN_CLAIM_ROUNDS


def _tails(candidates: Sequence[Candidate]) -> list[Doubt]:
    """Return that the p99 of a tied candidate is longer than the chosen one's, or the other way round, if it is."""
    known = {
        candidate.backend: tail
        for candidate in candidates
        if candidate.rank == 1
        and (tail := candidate.expected.latency_p99_ns) is not None
        and tail.high <= KNOWN_TAIL_RATIO * tail.low
    }
    shortest = min(known, key=lambda name: known[name].high, default="")
    longer = [name for name, tail in known.items() if tail.low > known[shortest].high]
    if not longer:
        return []
    words = [f"{name} {duration_range(known[name])}" for name in (shortest, *longer)]
    return [Doubt(f"one-way latency p99 differs: {joined(words)}", "moderate", grave=True)]


def _close(rival: Candidate) -> list[Doubt]:
    """Return the doubt that the lead may be negligible, if its interval allows that."""
    lead = format_significant(rival.ratio.low)
    small = Doubt(f"the lead over {rival.backend} may be as small as {lead} times", "moderate")
    return [small] if rival.ratio.low < _CLOSE_RATIO else []
