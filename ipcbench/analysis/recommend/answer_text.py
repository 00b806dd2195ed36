"""A recommendation in words: the verdict in one sentence, the whole answer as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ipcbench.analysis.summary.notes import one_line, printable
from ipcbench.analysis.summary.wording import joined, plural, ratio_words
from ipcbench.stats.estimates import Interval
from ipcbench.util.units import format_duration_ns, format_significant

if TYPE_CHECKING:
    from ipcbench.analysis.recommend.answer import Candidate, Recommendation
    from ipcbench.analysis.recommend.evidence import Doubt, Expected
    from ipcbench.analysis.summary.curves import Measure

_AXIS_WORDS = {
    "latency": "one-way latency p50",
    "round trip": "round trip p50",
    "throughput": "throughput",
    "cpu": "CPU time per message",
}
_TIMES = {
    "latency": "times as long",
    "round trip": "times as long",
    "throughput": "times as slow",
    "cpu": "times as much",
}
_ESCAPES = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#"})
_MAX_TRIALS = 12


def figure_words(expected: Expected, axis: Measure) -> str:
    """Return the figure of an axis with its interval and unit, or that it was not measured."""
    if axis == "throughput":
        rate = expected.throughput_per_s
        return f"{_rate_words(rate)} messages/s to each reader" if rate is not None else "not measured"
    time = {"latency": expected.latency_p50_ns, "round trip": expected.round_trip_p50_ns, "cpu": expected.cpu_ns}[axis]
    return _time_words(time) if time is not None else "not measured"


def sentence(one: Recommendation) -> str:
    """Return the verdict in one paragraph, with every grave doubt about who is named."""
    asked = one.question.words()
    if one.backend is None:
        command = f" Measure it: {one.next_command}" if one.next_command else ""
        return printable(f"No recommendation for {asked}: {one.why_not}.{command}")
    chosen = one.candidates[0]
    what, figure = _AXIS_WORDS[one.axis], figure_words(chosen.expected, one.axis)
    if one.outcome == "tie":
        figures = [
            f"{other.backend} {figure_words(other.expected, one.axis)}"
            for other in one.candidates
            if other.backend in {one.backend, *one.tied_with}
        ]
        names = joined([one.backend, *one.tied_with])
        text = f"For {asked}: a tie between {names}, no clear difference in {what}: {joined(figures)}."
        take = f" Take {one.backend}: {one.tie_break}." if one.tie_break else " Take whichever suits you."
        text += take + _next_words(one, what)
    elif one.outcome == "only candidate":
        text = f"For {asked}: {one.backend}, the only candidate with figures: {what} {figure}."
    else:
        text = f"For {asked}: {one.backend}, with {what} {figure}.{_next_words(one, what)}"
    warnings = [doubt.text for doubt in one.doubts if doubt.grave]
    beware = f" Beware: {'; '.join(warnings)}." if warnings else ""
    return printable(f"{text}{beware} Sureness: {one.sureness}.")


def text(one: Recommendation) -> str:
    """Return the whole answer as plain text: every section with its heading, nothing that is empty."""
    parts = [sentence(one)]
    for title, lines in _sections(one):
        parts.append("\n".join((title, *(f"  {line}" for line in lines))))
    return "\n\n".join(parts) + "\n"


def markdown(one: Recommendation) -> str:
    """Return the whole answer as Markdown."""
    parts = [f"**{_escaped(sentence(one))}**"]
    for title, lines in _sections(one):
        parts.append("\n".join((f"### {_escaped(title)}", "", *(f"- {_escaped(line)}" for line in lines))))
    return "\n\n".join(parts) + "\n"


def _sections(one: Recommendation) -> Iterator[tuple[str, Sequence[str]]]:
    sections = (
        ("Expected" if one.backend is None else f"Expected of {one.backend}", list(_expected_lines(one))),
        (f"Others, against {one.backend}", [_candidate_line(one, other) for other in one.candidates[1:]]),
        ("Excluded", [f"{other.backend}: {one_line(other.reason)}" for other in one.excluded]),
        ("What would change the choice", list(one.changes)),
        (f"How sure: {one.sureness}", [_doubt_line(doubt) for doubt in one.doubts]),
        ("Rests on", list(_basis_lines(one))),
        ("To measure this very question", [one.next_command] if one.next_command else []),
    )
    yield from ((printable(title), [printable(line) for line in lines]) for title, lines in sections if lines)


def _next_words(one: Recommendation, what: str) -> str:
    following = next((other for other in one.candidates if other.rank > 1), None)
    if following is None:
        return ""
    figure = figure_words(following.expected, one.axis)
    return f" Next is {following.backend}, {ratio_words(following.ratio)} {_TIMES[one.axis]}: {what} {figure}."


def _expected_lines(one: Recommendation) -> Iterator[str]:
    found = one.expected
    if found is None:
        return
    for label, time in (
        ("one-way latency p50", found.latency_p50_ns),
        ("one-way latency p99", found.latency_p99_ns),
        ("round trip p50", found.round_trip_p50_ns),
    ):
        if time is not None:
            yield f"{label}: {_time_words(time)}"
    if found.throughput_per_s is not None and found.throughput_bytes_per_s is not None:
        megabytes = _rate_words(_scaled(found.throughput_bytes_per_s, 1e-6))
        rate = _rate_words(found.throughput_per_s)
        yield f"throughput, saturated: {rate} messages/s, {megabytes} MB/s to each reader"
    if found.cpu_ns is not None:
        who = f"writer and {plural(one.question.readers, 'reader', 'readers')} together"
        yield f"CPU time per message, saturated: {_time_words(found.cpu_ns)}, {who}"


def _candidate_line(one: Recommendation, other: Candidate) -> str:
    beware = "; ".join(doubt.text for doubt in other.doubts if doubt.grave and other.backend in doubt.text)
    tail = f" ({beware})" if beware else ""
    figure = figure_words(other.expected, one.axis)
    return f"{other.rank} {other.backend}: {figure}, {ratio_words(other.ratio)} {_TIMES[one.axis]}{tail}"


def _doubt_line(doubt: Doubt) -> str:
    return doubt.text if doubt.level == "high" else f"{doubt.text}: at most {doubt.level}"


def _basis_lines(one: Recommendation) -> Iterator[str]:
    ids = one.trial_ids
    if not ids:
        return
    shown = ", ".join(map(str, ids[:_MAX_TRIALS])) + (", …" if len(ids) > _MAX_TRIALS else "")
    yield f"{plural(len(ids), 'trial', 'trials')} of run {one.run_id}: {shown}"
    if one.measured_bytes is not None:
        low, high = one.measured_bytes
        yield f"measured range: {low:,} B to {high:,} B, {plural(one.question.readers, 'reader', 'readers')}"


def _time_words(one: Interval) -> str:
    low, high = format_duration_ns(one.low), format_duration_ns(one.high)
    return f"{format_duration_ns(one.estimate)} [{low}–{high}]"


def _rate_words(one: Interval) -> str:
    low, high = format_significant(one.low), format_significant(one.high)
    return f"{format_significant(one.estimate)} [{low}–{high}]"


def _scaled(one: Interval, factor: float) -> Interval:
    return Interval(one.low * factor, one.estimate * factor, one.high * factor)


def _escaped(words: str) -> str:
    return words.translate(_ESCAPES)
