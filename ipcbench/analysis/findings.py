"""Findings: what stands out in a run, each with the figures that it rests on and something to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ipcbench.analysis.findings_rules import RULES, Observation, Place, Rule
from ipcbench.analysis.summary.cells import SettingSummary, Summary
from ipcbench.analysis.summary.curves import families
from ipcbench.analysis.summary.notes import printable
from ipcbench.analysis.summary.wording import joined, plural
from ipcbench.util.units import format_significant


@dataclass(frozen=True, slots=True)
class Proof:
    """One cell of which a finding is true."""

    backend: str
    payload_bytes: int
    value: float
    """Above the rule's threshold."""
    figures: dict[str, float]
    """What the value follows from, by name with its unit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about a run."""

    rule: str
    sentence: str
    """What was found, in words and figures: of the cell where it is most pronounced, then where else."""
    action: str
    threshold: float
    means: str
    """What the value is that was above the threshold."""
    evidence: tuple[Proof, ...]
    """Every cell of which it is true, the most pronounced first."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        return {**asdict(self), "evidence": [asdict(one) for one in self.evidence]}


def explain(summary: Summary) -> tuple[Finding, ...]:
    """Return what stands out, one finding per rule and family of settings; empty if there is nothing to say."""
    return tuple(
        found
        for family in families(summary)
        for rule in RULES
        if (found := _finding(rule, summary, family)) is not None
    )


def _finding(rule: Rule, summary: Summary, family: tuple[SettingSummary, ...]) -> Finding | None:
    hits = sorted(_hits(rule, summary, family), key=lambda one: -one[1].value)
    if not hits:
        return None
    (_, first), *others = hits
    text = first.sentence
    if others and len({one.sentence for _, one in hits}) > 1:
        text += f" Also {_elsewhere(hits[0][0], [place for place, _ in others])}, {_span(rule, hits)}."
    return Finding(
        rule=rule.name,
        sentence=printable(text),
        action=rule.action,
        threshold=rule.threshold,
        means=rule.means,
        evidence=tuple(
            Proof(place.cell.backend, place.cell.setting.payload_bytes, seen.value, dict(seen.figures))
            for place, seen in hits
        ),
    )


def _hits(rule: Rule, summary: Summary, family: tuple[SettingSummary, ...]) -> Iterator[tuple[Place, Observation]]:
    """Yield the cells with figures of which the rule is true."""
    for one in family:
        for cell in one.cells:
            if cell.status == "ok":
                place = Place(summary, family, one, cell)
                seen = rule.observe(place)
                if seen is not None and seen.value > rule.threshold:
                    yield place, seen


def _elsewhere(first: Place, others: Sequence[Place]) -> str:
    """Return where else it is true: at other sizes of the same backend, and over which others."""
    counts: dict[str, int] = {}
    for place in others:
        counts[place.cell.backend] = counts.get(place.cell.backend, 0) + 1
    own = counts.pop(first.cell.backend, 0)
    parts = [f"{first.cell.backend} at {plural(own, 'more size', 'more sizes')}"] if own else []
    return joined(parts + [f"{name} at {plural(count, 'size', 'sizes')}" for name, count in counts.items()])


def _span(rule: Rule, hits: Sequence[tuple[Place, Observation]]) -> str:
    factor, unit = (100.0, "%") if rule.unit == "share" else (1.0, "times")
    values = [factor * one.value for _, one in hits[1:]]
    low, high = format_significant(min(values)), format_significant(max(values))
    return f"{low} to {high} {unit}" if low != high else f"{low} {unit}"
