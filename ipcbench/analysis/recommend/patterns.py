"""Which transport to use for a queue or a fan-in, on the evidence of a run that measured it: by its rate flat out.

Times at a share of a backend's own rate do not decide: each is at another rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ipcbench.analysis.patterns.cells import PatternCell, cell_fields, pattern_cells
from ipcbench.analysis.patterns.tables import NOT_HELD, peers_words, rate_words, unit_of, verdict
from ipcbench.analysis.recommend.answer import Exclusion
from ipcbench.analysis.recommend.needs import Offer, refusals, registered_offers, stored_offers
from ipcbench.analysis.summary.notes import one_line, printable
from ipcbench.analysis.summary.wording import joined, plural
from ipcbench.render.document import head
from ipcbench.render.text import bullets, escape, wrapped
from ipcbench.results.store import Run
from ipcbench.spec import Pattern, work_name
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS
from ipcbench.util.units import format_bytes, format_duration_ns, format_significant

_NEAR_RATIO = 1.1
"""A payload is as measured if it is within this many times of one that was."""

Outcome = Literal["clear", "tie", "too few rounds", "only candidate", "outside the measured range", "no candidate"]


@dataclass(frozen=True, slots=True)
class PatternQuestion:
    """What is asked of a queue or fan-in."""

    pattern: Pattern
    payload_bytes: int
    """Encoded size of one message."""
    peers: int | None = None
    """Workers of a queue, writers of a fan-in; None takes the most that were measured."""
    rate_per_s: float | None = None
    """Messages per second, by all peers together, that it must carry; None if that does not matter."""
    needs: tuple[str, ...] = ()

    def words(self, peers: int | None) -> str:
        """Return the question as part of a sentence."""
        many = "workers" if self.pattern == "queue" else "writers"
        with_peers = "" if peers is None else f" with {plural(peers, many[:-1], many)}"
        rate = f" at {self.rate_per_s:,.10g} messages/s" if self.rate_per_s is not None else ""
        size = format_bytes(self.payload_bytes)
        return ", ".join((f"a {work_name(self.pattern)} of {size}{with_peers}{rate}", *self.needs))

    def command(self) -> str:
        """Return the command that measures it."""
        option = "readers" if self.pattern == "queue" else "writers"
        peers = "" if self.peers is None else f" --{option} {self.peers}"
        return f"ipcbench run {work_name(self.pattern)} --payload bytes --codec raw --sizes {self.payload_bytes}{peers}"


@dataclass(frozen=True, slots=True)
class PatternRecommendation:
    """The answer to one question from one run."""

    question: PatternQuestion
    run_id: str
    outcome: Outcome
    peers: int | None
    """That the answer is about; None if nothing fits."""
    candidates: tuple[PatternCell, ...]
    """The best first; the first one is to be taken, unless there are too few rounds."""
    excluded: tuple[Exclusion, ...]
    why_not: str = ""
    """Why no backend is recommended; empty if one is."""
    other_batches: tuple[PatternCell, ...] = ()
    """The fastest of each larger batch that was measured with these peers, by batch."""

    @property
    def batch(self) -> int | None:
        """Messages that are handed over together, which the answer is about: the least; None if nothing fits."""
        return self.candidates[0].setting.batch if self.candidates else None

    @property
    def backend(self) -> str | None:
        """The recommended backend, also in a tie; None if there is none."""
        return self.candidates[0].backend if self.is_verdict else None

    @property
    def is_verdict(self) -> bool:
        """Whether it names a transport to take."""
        return self.outcome in {"clear", "tie", "only candidate"}

    def sentence(self) -> str:
        """Return the answer in a paragraph."""
        asked = self.question.words(self.peers)
        if self.batch is not None:
            asked += f", batch {self.batch:,}"
        if not self.candidates:
            return printable(f"No recommendation for {asked}: {self.why_not}. Measure it: {self.question.command()}")
        first = self.candidates[0]
        text = verdict(self.candidates)
        if self.outcome == "only candidate":
            text = f"{first.backend}, the only one left: {rate_words(first)} {unit_of(first.setting)}"
        take = {
            "clear": f" Take {first.backend}.",
            "tie": f" Take whichever suits you; {first.backend} has the highest figure.",
            "too few rounds": f" Measure more rounds before you choose: {self.question.command()}",
        }.get(self.outcome, "")
        rate = self.question.rate_per_s
        if rate is not None and self.is_verdict and first.rate_per_s is not None and first.rate_per_s.low < rate:
            take += f" Beware: {first.backend} may not keep up with {format_significant(rate)} messages/s."
        return printable(f"For {asked}: {text}.{take}")

    def sections(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield title → lines of what stands below the sentence."""
        if self.candidates:
            first = self.candidates[0]
            yield f"Expected of {first.backend}, {peers_words(first.setting)}", list(_expected_lines(first))
        if len(self.candidates) > 1:
            unit = unit_of(self.candidates[0].setting)
            yield "Others", [f"{cell.backend}: {rate_words(cell)} {unit}" for cell in self.candidates[1:]]
        if self.other_batches:
            found = [(each, f"batch {each.setting.batch:,}: {each.backend}") for each in self.other_batches]
            yield (
                "If you hand several messages over together (write_many), the fastest",
                [f"{where} {rate_words(each)} {unit_of(each.setting)}" for each, where in found],
            )
        if self.excluded:
            yield "Excluded", [f"{each.backend}: {one_line(each.reason)}" for each in self.excluded]
        yield "Based on", [f"run {self.run_id}"]

    def text(self, width: int | None = None) -> str:
        """Return the whole answer as plain text, in lines of at most `width` columns."""

        def lines_of(text: str, indent: str = "") -> list[str]:
            return [indent + text] if width is None else wrapped(text, width, first=indent, indent=indent + "  ")

        parts = [
            [title, *(part for line in lines for part in lines_of(line, "  "))] for title, lines in self.sections()
        ]
        return "\n\n".join(map("\n".join, [lines_of(self.sentence()), *parts])) + "\n"

    def markdown(self) -> str:
        """Return the whole answer as Markdown."""
        parts = [f"### {escape(title)}\n\n{bullets(lines)}" for title, lines in self.sections()]
        return "\n\n".join([f"**{escape(self.sentence())}**", *parts]) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; units are in the names."""
        return {
            **head("pattern recommendation"),
            "verdict": self.sentence(),
            "question": {**asdict(self.question), "needs": list(self.question.needs)},
            "run_id": self.run_id,
            "outcome": self.outcome,
            "backend": self.backend,
            "peers": self.peers,
            "batch": self.batch,
            "candidates": [cell_fields(cell) for cell in self.candidates],
            "other_batches": [cell_fields(cell) for cell in self.other_batches],
            "excluded": [asdict(each) for each in self.excluded],
            "why_not": self.why_not,
            "next_command": self.question.command(),
        }


def _expected_lines(cell: PatternCell) -> Iterator[str]:
    yield f"flat out: {rate_words(cell)} {unit_of(cell.setting)}"
    if cell.largest_share_ratio is not None:
        yield f"share of the busiest worker: {100 * cell.largest_share_ratio:.0f} %"
    if cell.jain_ratio is not None:
        yield f"fairness between the writers (Jain's index): {format_significant(cell.jain_ratio)}"
    for load in cell.loads:
        where = f"at {100 * load.load_ratio:g} % of that, {format_significant(load.offered_per_s, 2)} messages/s"
        if not load.is_held or load.wait_p50_ns is None:
            yield f"{where}: {NOT_HELD if not load.is_held else 'not measured'}"
            continue
        tail = load.wait_p99_ns if cell.setting.pattern == "queue" else load.slowest_p99_ns
        p99 = "unknown" if tail is None else format_duration_ns(tail.estimate, 2)
        yield f"{where}: p50 {format_duration_ns(load.wait_p50_ns.estimate, 2)}, p99 {p99}"
    yield from map(one_line, cell.notes)


def recommend_pattern(
    run: Run, question: PatternQuestion, offers: Mapping[str, Offer] | None = None
) -> PatternRecommendation:
    """Return which backend to take, from a stored run alone.

    Args:
        run: what was measured.
        question: what is asked.
        offers: backend → what it offers; None takes all registered backends, and of others what the run says.
    """
    known = {**stored_offers(run), **registered_offers()} if offers is None else offers
    able, excluded = [], []
    for name in run.info.planned_backends:
        why = _refusal(question, known.get(name))
        if why:
            excluded.append(Exclusion(name, why, "capabilities"))
        else:
            able.append(name)
    everywhere = [
        cell
        for cell in pattern_cells(run, able)
        if cell.setting.pattern == question.pattern and not cell.setting.neighbours
    ]
    sizes = {cell.setting.payload_bytes for cell in everywhere if _is_near(cell.setting.payload_bytes, question)}
    at_size = [cell for cell in everywhere if cell.setting.payload_bytes in sizes]
    counts = {cell.setting.peers for cell in at_size}
    peers = question.peers if question.peers is not None else max(counts, default=None)
    if peers not in counts:
        outcome: Outcome = "outside the measured range" if able else "no candidate"
        why = _gap_words(run, question, everywhere) if able else "no transport of this run offers all of it"
        return PatternRecommendation(question, run.info.run_id, outcome, None, (), tuple(excluded), why)
    with_peers = [cell for cell in at_size if cell.setting.peers == peers]
    batch = min(cell.setting.batch for cell in with_peers)
    doubts = [(cell, _doubt(cell, question)) for cell in with_peers if cell.setting.batch == batch]
    excluded += [Exclusion(cell.backend, why, "evidence") for cell, why in doubts if why]
    candidates = tuple(cell for cell, why in doubts if not why)
    why_not = "" if candidates else "no transport of this run that can do it has figures that count"
    others = _fastest(cell for cell in with_peers if cell.setting.batch > batch)
    return PatternRecommendation(
        question, run.info.run_id, _outcome(candidates), peers, candidates, tuple(excluded), why_not, others
    )


def _fastest(cells: Iterable[PatternCell]) -> tuple[PatternCell, ...]:
    """Return the cell with the highest rate flat out of each batch."""
    best: dict[int, tuple[float, PatternCell]] = {}
    for cell in cells:
        rate = cell.rate_per_s
        if rate is not None and rate.estimate > best.get(cell.setting.batch, (0.0,))[0]:
            best[cell.setting.batch] = rate.estimate, cell
    return tuple(best[batch][1] for batch in sorted(best))


def _refusal(question: PatternQuestion, offer: Offer | None) -> str:
    if offer is None:
        return "not registered here, so what it can do is not known"
    reasons = refusals(offer, question.payload_bytes, question.peers or 1, "every_message", question.needs)
    if question.pattern not in offer.capabilities.patterns:
        reasons.append(f"it does not offer pattern {work_name(question.pattern)}")
    return "; ".join(reasons)


def _is_near(payload_bytes: int, question: PatternQuestion) -> bool:
    low, high = sorted((payload_bytes, question.payload_bytes))
    return high <= _NEAR_RATIO * low or low == high


def _gap_words(run: Run, question: PatternQuestion, cells: Sequence[PatternCell]) -> str:
    sizes = sorted({cell.setting.payload_bytes for cell in cells})
    counts = sorted({cell.setting.peers for cell in cells})
    if not cells:
        return f"run {run.info.run_id} has no trial of a {work_name(question.pattern)} that counts"
    measured = joined([format_bytes(size) for size in sizes])
    many = "workers" if question.pattern == "queue" else "writers"
    return f"run {run.info.run_id} measured {measured} with {joined(list(map(str, counts)))} {many}"


def _doubt(cell: PatternCell, question: PatternQuestion) -> str:
    """Return why a cell does not count; empty if it does."""
    if cell.rate_per_s is None:
        return f"{cell.status}: {one_line(cell.reason)}"
    rate = question.rate_per_s
    if rate is not None and cell.rounds_count >= MIN_CLAIM_ROUNDS and cell.rate_per_s.estimate < rate:
        return (
            f"too slow for {format_significant(rate)} messages/s: {rate_words(cell)} {unit_of(cell.setting)} flat out"
        )
    return ""


def _outcome(candidates: Sequence[PatternCell]) -> Outcome:
    if not candidates:
        return "no candidate"
    if len(candidates) == 1:
        return "only candidate"
    if all(cell.rank is None for cell in candidates):
        return "too few rounds"
    lowest = min(cell.rank for cell in candidates if cell.rank is not None)
    return "tie" if sum(cell.rank == lowest for cell in candidates) > 1 else "clear"
