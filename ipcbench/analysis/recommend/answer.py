"""The answer of `recommend`: the choice and its evidence, as data and in words, and the chosen transport to use."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ipcbench.analysis.recommend.evidence import FEW_ROUNDS, NOT_COMPARED, Doubt, Expected, Sureness
from ipcbench.analysis.recommend.question import Question
from ipcbench.analysis.summary.cells import KNOWN_TAIL_RATIO
from ipcbench.analysis.summary.crossover import Crossover
from ipcbench.analysis.summary.curves import Measure
from ipcbench.analysis.summary.notes import one_line, printable
from ipcbench.analysis.summary.wording import (
    contrary_words,
    joined,
    next_words,
    plural,
    rank_text,
    ratio_words,
    share_words,
    some,
    too_few_words,
)
from ipcbench.backend import Address, Backend, Reader, Writer
from ipcbench.errors import Unsupported
from ipcbench.registry import get_backend
from ipcbench.render.document import head
from ipcbench.render.page import fragment_html
from ipcbench.render.text import bullets, escape, wrapped
from ipcbench.spec import NAME_PREFIX, ChannelSpec, WaitStrategy
from ipcbench.stats.decisions import compare
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, UNSURE_DIGITS, Interval
from ipcbench.util.units import format_duration_ns, format_significant

_AXIS_WORDS = {
    "latency": "one-way latency p50",
    "round trip": "round trip p50",
    "throughput": "throughput",
    "cpu": "CPU time per message",
}
_RATIO_WORDS = {
    "latency": "times as long",
    "round trip": "times as long",
    "throughput": "times as slow",
    "cpu": "times as much",
}
_MAX_TRIALS = 12
_FIELDS: Mapping[Measure, tuple[str, ...]] = {
    "latency": ("latency_p50_ns", "latency_p99_ns"),
    "round trip": ("round_trip_p50_ns",),
    "throughput": ("throughput_per_s", "throughput_bytes_per_s"),
    "cpu": ("cpu_ns",),
}
"""Which fields of `Expected` come from the rounds of a measure."""
_NO_ENDS = {"low": None, "high": None}

Outcome = Literal[
    "clear", "tie", "too few rounds", "contradictory", "only candidate", "outside the measured range", "no candidate"
]
"""`clear`: a single backend is ahead. `tie`: several have no clear difference. `too few rounds`: nor have these, but of
some of them there are fewer rounds than a difference takes. `contradictory`: round by round another one is clearly
ahead of the one with the best figure. `only candidate`: just one backend qualifies and was measured. The last two name
no backend."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A measured backend that meets the requirements."""

    backend: str
    rank: int
    """By the deciding figure; equal ranks have no clear difference."""
    ratio: Interval
    """How many times as slow as the best one by the deciding figure, from which the rank follows; 1 for the best."""
    expected: Expected
    doubts: tuple[Doubt, ...]
    trial_ids: tuple[int, ...]
    rounds_count: int
    """Rounds of the deciding figure that it has in common with the best, at the size that has fewest."""

    @property
    def contradicts(self) -> bool:
        """Return whether it is clearly faster round by round than the one with the best figure."""
        return self.rounds_count >= MIN_CLAIM_ROUNDS and compare(self.ratio) == "faster"

    def as_dict(self, best: str) -> dict[str, Any]:
        """Return plain values; intervals of fewer than three rounds have no ends."""
        values = asdict(self)
        if self.backend != best and self.rounds_count < MIN_CLAIM_ROUNDS:
            values["ratio"] |= _NO_ENDS
        if self.rounds_count < MIN_CLAIM_ROUNDS:
            values["rank"] = None
        for measure, names in _FIELDS.items():
            if self.expected.rounds_counts.get(measure, 0) < MIN_CLAIM_ROUNDS:
                for name in names:
                    values["expected"][name] = values["expected"][name] and values["expected"][name] | _NO_ENDS
        return values


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A backend that was not considered, and why."""

    backend: str
    reason: str
    by: Literal["capabilities", "evidence"]
    """Whether it lacks a capability, or this run shows or lacks something."""


@dataclass(frozen=True, slots=True, repr=False)
class Recommendation:
    """The answer to one question from one run."""

    question: Question
    run_id: str
    run_path: str
    outcome: Outcome
    backend: str | None
    """The recommended backend, also in a tie; None if there is none."""
    axis: Measure
    """The figure that decided."""
    best: str | None
    """The candidate with the best deciding figure, to which the ratios are; in a tie another one may be chosen."""
    tied_with: tuple[str, ...]
    """Backends without a clear difference from it in that figure."""
    tie_break: str
    """Why it was preferred in a tie; empty if nothing sets it apart."""
    candidates: tuple[Candidate, ...]
    """All ranked backends, the chosen one first, then by rank."""
    excluded: tuple[Exclusion, ...]
    measured_bytes: tuple[int, int] | None
    """Smallest and largest payload measured for this many readers and this delivery."""
    why_not: str
    """Why no backend is recommended; empty if one is."""
    crossovers: tuple[Crossover, ...]
    """Crossovers of the chosen backend with every other candidate."""
    changes: tuple[str, ...]
    """What would change the choice, a sentence each."""
    sureness: Sureness
    doubts: tuple[Doubt, ...]
    """What limits the sureness, the gravest first."""
    next_command: str
    """The command of a run that would answer, or answer better; empty if there is none."""
    depth: int
    """Depth of the measured channel."""
    wait: WaitStrategy

    @property
    def is_verdict(self) -> bool:
        """Return whether it names a transport to take, on rounds enough and without contradiction."""
        return self.backend is not None and self.outcome not in {"too few rounds", "contradictory"}

    @property
    def expected(self) -> Expected | None:
        """Return what to expect of the chosen backend."""
        return self.candidates[0].expected if self.candidates else None

    @property
    def runner_up(self) -> Candidate | None:
        """Return the next best candidate; in a tie, the best of the others."""
        return self.candidates[1] if len(self.candidates) > 1 else None

    @property
    def trial_ids(self) -> tuple[int, ...]:
        """Return the trials behind the choice and its comparison with the runner-up."""
        return tuple(sorted({trial for candidate in self.candidates[:2] for trial in candidate.trial_ids}))

    def sentence(self) -> str:
        """Return the verdict in a paragraph: what to use, its figure, the next best, and every grave doubt."""
        asked = self.question.words()
        if self.backend is None:
            command = f" Measure it: {self.next_command}" if self.next_command else ""
            return printable(f"No recommendation for {asked}: {self.why_not}.{command}")
        what, figure = _AXIS_WORDS[self.axis], figure_words(self.candidates[0].expected, self.axis)
        if self.outcome in {"tie", "too few rounds", "contradictory"}:
            answer = self._tie_words(what) + self._next_words(what)
        elif self.outcome == "only candidate":
            answer = f"{self.backend}, the only one left: {what} {figure}."
        else:
            answer = f"{self.backend}, with {what} {figure}.{self._next_words(what)}"
        if any(doubt.text.startswith(NOT_COMPARED) for doubt in self.doubts):
            answer = f"of those that could be compared, {answer}"
        warnings = "; ".join(self._warnings())
        beware = f" Beware: {warnings}." if warnings else ""
        return printable(f"For {asked}: {answer}{beware} Sureness: {self.sureness}.")

    def _warnings(self) -> Iterator[str]:
        """Yield the grave doubts in words, those of a kind together, and without what the answer has said."""
        kinds: dict[str, list[Doubt]] = {}
        for doubt in self.doubts:
            if doubt.grave and not (self.outcome == "too few rounds" and doubt.text.startswith(FEW_ROUNDS)):
                kinds.setdefault(doubt.text.partition(": ")[0], []).append(doubt)
        for kind, doubts in kinds.items():
            shares = {each.share.backend: (each.share.count, each.share.of_count) for each in doubts if each.share}
            rest = [doubt.text.partition(": ")[2] for doubt in doubts]
            said = share_words(shares) if shares else joined(rest)
            yield f"{kind}: {said}" if said else kind

    def _tie_words(self, what: str) -> str:
        tied = {self.backend, *self.tied_with}
        figures = [
            f"{candidate.backend} {figure_words(candidate.expected, self.axis)}"
            for candidate in self.candidates
            if candidate.backend in tied
        ]
        names = some([str(self.backend), *self.tied_with])
        others = [
            candidate for candidate in self.candidates if candidate.backend in tied and candidate.backend != self.best
        ]
        unknown = [candidate for candidate in others if candidate.rounds_count < MIN_CLAIM_ROUNDS]
        result, why = f"a tie between {names}", f"no clear difference in {what}"
        if unknown:
            own = min(candidate.expected.rounds_counts[self.axis] for candidate in unknown)
            fewest = min(candidate.rounds_count for candidate in unknown)
            too_few = too_few_words(fewest, str(self.best) if own >= MIN_CLAIM_ROUNDS else "")
            why = f"{why}; of {some([candidate.backend for candidate in unknown])}, {too_few}"
            if len(unknown) == len(others):
                result, why = f"no verdict between {names} on {what}", too_few
        take = "Take whichever suits you." if not unknown else "Measure more rounds before you choose."
        if contrary := [candidate.backend for candidate in others if candidate.contradicts]:
            but = contrary_words(contrary, str(self.best))
            return f"no verdict between {names} on {what}: {some(figures)}, but {but}."
        if self.tie_break:
            until = f"Until more rounds tell, take {self.backend}" if unknown else f"Take {self.backend}"
            take = f"{until}: {self.tie_break}."
        return f"{result}, {why}: {some(figures)}. {take}"

    def _next_words(self, what: str) -> str:
        following = next((candidate for candidate in self.candidates if candidate.rank > 1), None)
        if following is None:
            return ""
        figure = figure_words(following.expected, self.axis)
        same = [other.backend for other in self.candidates if other.rank == following.rank and other is not following]
        tied = f" {some(same)} cannot be told apart from it." if same else ""
        than = f" as {self.best}" if self.best != self.backend else ""
        tied_ratios = [other.ratio.estimate for other in self.candidates if other.rank == 1]
        first = next_words(str(self.best), tied_ratios, following.ratio.estimate)
        words = f"{first[0].upper()}{first[1:]} {following.backend}, {_ratio_text(self, following)}"
        return f" {words}{than}: {what} {figure}.{tied}"

    def __repr__(self) -> str:
        """Return question and choice in a line."""
        return (
            f"<Recommendation for {self.question.words()}: {self.backend} ({self.outcome}, sureness {self.sureness})>"
        )

    def _repr_html_(self) -> str | None:
        return fragment_html(self.sentence(), (), _sections(self))

    def text(self, width: int | None = None) -> str:
        """Return the whole answer as plain text, in lines of at most `width` columns; commands are not broken."""

        def lines_of(text: str, indent: str = "") -> list[str]:
            if width is None or text == self.next_command:
                return [indent + text]
            return wrapped(text, width, first=indent, indent=indent + "  " * bool(indent))

        parts = [
            [title, *(part for line in lines for part in lines_of(line, "  "))] for title, lines in _sections(self)
        ]
        return "\n\n".join(map("\n".join, [lines_of(self.sentence()), *parts])) + "\n"

    def markdown(self) -> str:
        """Return the whole answer as Markdown."""
        parts = [f"### {escape(title)}\n\n{bullets(lines)}" for title, lines in _sections(self)]
        return "\n\n".join([f"**{escape(self.sentence())}**", *parts]) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; units are in the names."""
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        enough = self.expected is not None and self.expected.rounds_counts.get(self.axis, 0) >= MIN_CLAIM_ROUNDS
        return {
            **head("recommendation"),
            "verdict": self.sentence(),
            **plain,
            "candidates": [candidate.as_dict(str(self.best)) for candidate in self.candidates],
            "question": self.question.as_dict(),
            "crossovers": [crossover.as_dict() for crossover in self.crossovers] if enough else [],
            "trial_ids": list(self.trial_ids),
        }

    def create(self, name: str | None = None, *, max_message_bytes: int | None = None) -> Address:
        """Make a channel over the chosen transport, as measured: same readers, delivery, depth and wait strategy.

        Args:
            name: prefix of all its resources; by default a new one.
            max_message_bytes: largest message; by default the question's payload.

        Raises:
            Unsupported: no backend was chosen.
            TransportError: the resources could not be made.
        """
        channel = ChannelSpec(
            name=name or f"{NAME_PREFIX}{secrets.token_hex(6)}",
            readers=self.question.readers,
            max_message_bytes=max(1, self.question.payload_bytes) if max_message_bytes is None else max_message_bytes,
            delivery=self.question.delivery,
            depth=self.depth,
            wait=self.wait,
        )
        return self._transport().create(channel)

    def open_writer(self, address: Address) -> Writer:
        """Open the only writer of a channel from `create`, in any process that has the address."""
        return self._transport().open_writer(address)

    def open_reader(self, address: Address, index: int = 0) -> Reader:
        """Open reader `index` of a channel from `create`, in any process that has the address."""
        return self._transport().open_reader(address, index)

    def destroy(self, address: Address) -> None:
        """Remove all resources of the channel; calling it twice is fine."""
        self._transport().destroy(address)

    def _transport(self) -> Backend:
        if self.backend is None:
            raise Unsupported(f"no transport was chosen: {self.why_not}")
        return get_backend(self.backend)()


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | float | None):
        return value
    return dict(value) if isinstance(value, Mapping) else asdict(value)


def figure_words(expected: Expected, axis: Measure) -> str:
    """Return the figure of an axis with its interval and unit, or that it was not measured."""
    if axis == "throughput":
        rate = expected.throughput_per_s
        if rate is None:
            return "not measured"
        return f"{_figure_words(rate, format_significant, expected, axis)} messages/s to each reader"
    time = {"latency": expected.latency_p50_ns, "round trip": expected.round_trip_p50_ns, "cpu": expected.cpu_ns}[axis]
    return _figure_words(time, format_duration_ns, expected, axis) if time is not None else "not measured"


def _sections(answer: Recommendation) -> Iterator[tuple[str, Sequence[str]]]:
    sections = (
        ("Expected" if answer.backend is None else f"Expected of {answer.backend}", list(_expected_lines(answer))),
        (
            f"{'Others' if answer.best == answer.backend else 'All'}, compared with {answer.best}",
            [_candidate_line(answer, candidate) for candidate in answer.candidates if candidate.backend != answer.best],
        ),
        ("Excluded", [f"{exclusion.backend}: {one_line(exclusion.reason)}" for exclusion in answer.excluded]),
        ("What would change the choice", list(answer.changes)),
        (f"How sure: {answer.sureness}", [_doubt_line(doubt) for doubt in answer.doubts]),
        ("Based on", list(_basis_lines(answer))),
        ("To measure it, as bytes of that size", [answer.next_command] if answer.next_command else []),
    )
    yield from ((printable(title), [printable(line) for line in lines]) for title, lines in sections if lines)


def _expected_lines(answer: Recommendation) -> Iterator[str]:
    expected = answer.expected
    if expected is None:
        return
    medians: Mapping[Measure, Interval | None] = {
        "latency": expected.latency_p50_ns,
        "round trip": expected.round_trip_p50_ns,
    }
    for measure, time in medians.items():
        if time is not None:
            yield f"{_AXIS_WORDS[measure]}: {_figure_words(time, format_duration_ns, expected, measure)}"
    if (tail := expected.latency_p99_ns) is not None:
        yield from _tail_lines(expected.latency_p50_ns, tail)
    if expected.throughput_per_s is not None and expected.throughput_bytes_per_s is not None:
        megabytes = _scaled(expected.throughput_bytes_per_s, 1e-6)
        rate = _figure_words(expected.throughput_per_s, format_significant, expected, "throughput")
        bandwidth = _figure_words(megabytes, format_significant, expected, "throughput")
        yield f"throughput, saturated: {rate} messages/s, {bandwidth} MB/s to each reader"
    if expected.cpu_ns is not None:
        who = f"writer and {plural(answer.question.readers, 'reader', 'readers')} together"
        cpu = _figure_words(expected.cpu_ns, format_duration_ns, expected, "cpu")
        yield f"CPU time per message, saturated: {cpu}, {who}"


def _tail_lines(median: Interval | None, tail: Interval) -> Iterator[str]:
    """Yield what is known of a p99, as in the tables: a range, its lower end, or nothing beyond the median."""
    if tail.high <= KNOWN_TAIL_RATIO * tail.low:
        yield f"one-way latency p99: {duration_range(tail)}"
    elif median is None or tail.low > median.estimate:
        yield f"one-way latency p99: at least {format_duration_ns(tail.low)}"


def duration_range(interval: Interval) -> str:
    """Return both ends of an interval of nanoseconds in words."""
    return f"{format_duration_ns(interval.low)} to {format_duration_ns(interval.high)}"


def _candidate_line(answer: Recommendation, candidate: Candidate) -> str:
    beware = "; ".join(doubt.text for doubt in candidate.doubts if doubt.grave and candidate.backend in doubt.text)
    tail = f" ({beware})" if beware else ""
    figure, ratio = figure_words(candidate.expected, answer.axis), _ratio_text(answer, candidate)
    rank = rank_text(candidate.rank, [other.rank for other in answer.candidates])
    if candidate.rounds_count < MIN_CLAIM_ROUNDS:
        rank = "?"
    return f"{rank} {candidate.backend}: {figure}{f', {ratio}' if ratio else ''}{tail}"


def _ratio_text(answer: Recommendation, candidate: Candidate) -> str:
    """Return how many times as slow as the best it is; empty for the best, and if there are too few rounds."""
    if candidate.backend == answer.best or candidate.rounds_count < MIN_CLAIM_ROUNDS:
        return ""
    return f"{ratio_words(candidate.ratio)} {_RATIO_WORDS[answer.axis]}"


def _doubt_line(doubt: Doubt) -> str:
    return doubt.text if doubt.level == "high" else f"{doubt.text}: at most {doubt.level}"


def _basis_lines(answer: Recommendation) -> Iterator[str]:
    ids = answer.trial_ids
    if not ids:
        return
    shown = ", ".join(map(str, ids[:_MAX_TRIALS])) + (", …" if len(ids) > _MAX_TRIALS else "")
    yield f"{plural(len(ids), 'trial', 'trials')} of run {answer.run_id}: {shown}"
    if answer.measured_bytes is not None:
        low, high = answer.measured_bytes
        yield f"measured range: {low:,} B to {high:,} B, {plural(answer.question.readers, 'reader', 'readers')}"
    if answer.wait != "auto":
        yield f"waiting by {answer.wait}"


def _figure_words(interval: Interval, words: Callable[[float, int], str], expected: Expected, measure: Measure) -> str:
    """Return a figure with its interval, or without if there were too few rounds for one."""
    if expected.rounds_counts[measure] < MIN_CLAIM_ROUNDS:
        return words(interval.estimate, UNSURE_DIGITS)
    estimate, low, high = (words(value, interval.digits) for value in (interval.estimate, interval.low, interval.high))
    return f"{estimate} [{low}–{high}]"


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(interval.low * factor, interval.estimate * factor, interval.high * factor)
