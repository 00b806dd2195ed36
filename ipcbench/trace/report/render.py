"""Reports as text, Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ipcbench.trace.readers.batch import printable
from ipcbench.trace.report.audit import Objection, audit
from ipcbench.trace.report.extremes import Extreme
from ipcbench.trace.report.figures import ms, percent
from ipcbench.trace.report.finding import Finding
from ipcbench.trace.report.findings import findings
from ipcbench.trace.report.gather import Gathered
from ipcbench.trace.report.phrases import localized
from ipcbench.trace.report.split import as_figures, split_rows, split_text
from ipcbench.trace.report.sums import GroupSums, MethodSums
from ipcbench.trace.report.words import Language, word
from ipcbench.util.files import to_json
from ipcbench.util.units import format_bytes, format_duration_ns

_MIB = 2**20
_LEAST_BEYOND = 10
"""A percentile is shown if so many calls are expected beyond it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a report says."""

    gathered: Gathered
    findings: list[Finding]
    objections: list[Objection]

    @property
    def total_ns(self) -> float:
        """The time of all traced calls."""
        return sum(group.total_ns for group in self.gathered.sums.groups)


def make_report(gathered: Gathered, rules: str = "default") -> Report:
    """Return the report on what was read, by the rules `default` or `seed`."""
    groups = gathered.sums.groups
    return Report(gathered, findings(groups, gathered.notes, rules), audit(groups, gathered.notes))


def _quantile(one: MethodSums, probability: float) -> float | None:
    enough = one.timed_count * (1.0 - probability) >= _LEAST_BEYOND or probability == 0.5
    return one.histogram.quantile(probability) if one.timed_count and enough else None


def _speed(moved_bytes: float, total_ns: float) -> float:
    return moved_bytes / _MIB / (total_ns / 1e9) if total_ns > 0 else 0.0


Table = tuple[list[str], list[list[str]]]


def _method_table(group: GroupSums, language: Language) -> Table:
    names = ("method", "calls", "mean", "p50", "p90", "p99", "max", "total", "share", "moved", "speed")
    timed = {"mean", "p50", "p90", "p99", "max", "total"}
    head = [(word(n, language) if not n.startswith("p") else n) + (" ms" if n in timed else "") for n in names]
    rows = []
    for name, one in sorted(group.methods.items(), key=lambda item: -item[1].total_ns):
        moved = one.sent_bytes + one.recv_bytes
        known = bool(one.timed_count)
        rows.append([
            localized(name, language) if name[0:1] == "(" else name, f"{one.calls_count:,}",
            ms(one.mean_ns if known else None), ms(_quantile(one, 0.5)),
            ms(_quantile(one, 0.9)), ms(_quantile(one, 0.99)), ms(one.histogram.max if known else None),
            ms(one.total_ns), percent(one.total_ns / group.total_ns if group.total_ns > 0 else 0.0),
            f"{moved / _MIB:,.1f}", f"{_speed(moved, one.total_ns):,.2f}",
        ])  # fmt: skip
    return head, rows


def stage_shares(group: GroupSums) -> list[tuple[str, float, float]]:
    """Return name, ns and share of the total of each stage, and of what is in none."""
    total = group.total_ns or 1.0
    rows = [(name, ns, ns / total) for name, ns in zip(group.stages, group.stage_ns, strict=True)]
    rest = group.total_ns - sum(group.stage_ns)
    return [*rows, ("unaccounted", rest, rest / total)]


def _stage_table(group: GroupSums, language: Language) -> Table:
    rows = []
    for name, ns, share in stage_shares(group):
        shown = word(name, language) if name == "unaccounted" else name
        rows.append([shown, ms(ns), percent(share)])
        if name == "wait":
            rows += split_rows(group.split, language)
    if "wait" not in group.stages:
        rows += split_rows(group.split, language)
    if group.outside_ns:
        rows.append([word("outside", language), ms(group.outside_ns), "–"])
    return [word("stage", language), f"{word('total', language)} ms", word("share", language)], rows


def _extreme_table(group: GroupSums, calls: Sequence[Extreme], language: Language) -> Table:
    head = [word("id", language), word("method", language), f"{word('total', language)} ms",
            *(f"{name} ms" for name in group.stages), word("sent", language), word("recv", language)]  # fmt: skip
    return head, [
        [str(one.call_id), one.method, ms(one.total_ns), *map(ms, one.stage_ns), f"{one.sent_bytes / _MIB:,.2f}",
         f"{one.recv_bytes / _MIB:,.2f}"]
        for one in calls
    ]  # fmt: skip


def tables(group: GroupSums, language: Language) -> list[tuple[str, Table]]:
    """Return the tables of a group with their headings; none without rows."""
    slowest, largest = (_extreme_table(group, calls, language) for calls in (group.slowest, group.largest))
    parts = {"methods": _method_table(group, language), "stages": _stage_table(group, language), "slowest": slowest}
    return [(word(key, language), one) for key, one in {**parts, "largest": largest}.items() if one[1]]


def overall(group: GroupSums, language: Language) -> str:
    """Return the sums of a group in a line."""
    timed = group.timed_count
    parts = [f"{word('calls', language)} {group.calls_count:,}"]
    failed = sum(one.failed_count for one in group.methods.values())
    if group.calls_count > timed:
        parts.append(f"{word('untimed', language)} {group.calls_count - timed:,}")
    if failed:
        parts.append(f"{word('failed', language)} {failed:,}")
    parts += [
        f"{word('mean', language)} {ms(group.total_ns / timed if timed else None)} ms",
        f"{word('total', language)} {ms(group.total_ns)} ms",
        f"{word('moved', language)} {group.moved_bytes / _MIB:,.1f}",
        f"{_speed(group.moved_bytes, group.total_ns):,.2f} MiB/s",
    ]
    if group.segment.transport:
        parts.append(f"{word('transport', language)} {group.segment.transport}")
    if len(group.workers) > 1:
        parts.append(f"{word('processes', language)} {len(group.workers)}")
    if text := split_text(group.split, group.calls_count, language):
        parts.append(text)
    return ", ".join(parts)


_FORMATS: dict[str, Callable[[Any], str]] = {
    "share": percent, "transit_share": percent, "compute_share": percent, "copy_ns": format_duration_ns,
    "wide_share": percent, "busy": percent, "queue_ns": format_duration_ns,
    "each_ns": format_duration_ns, "round_trip_ns": format_duration_ns,
    "mean_bytes": lambda one: format_bytes(round(one)),
    "median_bytes": lambda one: format_bytes(round(one)),
    "threshold": lambda one: percent(one) if isinstance(one, float) and one < 1 else str(one),
}  # fmt: skip


def sentence(finding: Finding, total_ns: float, language: Language) -> str:
    """Return a finding in words."""
    values = {key: _FORMATS[key](value) if key in _FORMATS else value for key, value in finding.values.items()}
    values |= {key: localized(values[key], language) for key in ("cause", "level") if key in values}
    key = f"{finding.rule} {values['what']}" if finding.rule == "R15" else finding.rule
    text = word(key, language).format(**values)
    if finding.gain_ns is not None and total_ns > 0:
        share = percent(finding.gain_ns / total_ns)
        bound = word("gain", language).format(gain=format_duration_ns(finding.gain_ns), share=share)
        text = f"{text} {bound}" if language == "en" else f"{text}{bound}"
    return (
        f"{finding.rule} [{localized(finding.where, language)}] {text}" if finding.where else f"{finding.rule} {text}"
    )


def objection_text(one: Objection, language: Language) -> str:
    """Return an objection in words."""
    return word(one.kind, language).format(what=localized(one.what, language), said=one.said, found=one.found)


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _text_table(table: Table) -> str:
    head, rows = table
    widths = [max(_width(row[index]) for row in [head, *rows]) for index in range(len(head))]
    names = {0, 1} if len(head) > 5 and head[0] in {word("id", "en"), word("id", "zh")} else {0}

    def line(row: list[str]) -> str:
        cells = (
            cell + " " * (width - _width(cell)) if index in names else " " * (width - _width(cell)) + cell
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  " + "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in [head, *rows])


def _markdown_table(table: Table) -> str:
    def line(row: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    return "\n".join([line(table[0]), "|" + "---|" * len(table[0]), *map(line, table[1])])


def as_text(report: Report, language: Language = "en") -> str:
    """Return the report for a terminal."""
    return _document(report, language, lambda level, text: f"\n{text}\n{('=' if level < 3 else '-') * _width(text)}",
                     _text_table, "  ")  # fmt: skip


def as_markdown(report: Report, language: Language = "en") -> str:
    """Return the report in Markdown."""
    return _document(report, language, lambda level, text: f"\n{'#' * level} {text}\n", _markdown_table, "- ")


def _document(
    report: Report, language: Language, title: Callable[[int, str], str], table: Callable[[Table], str], bullet: str
) -> str:
    lines = [title(1, f"{word('title', language)}: {printable(', '.join(map(str, report.gathered.paths)))}").lstrip()]
    several = len({group.segment.source for group in report.gathered.sums.groups}) > 1
    for group in report.gathered.sums.groups:
        name = localized(group.segment.name, language)
        name = printable(f"{group.segment.source}: {name}" if several else name)
        lines += [title(2, name), overall(group, language)]
        for heading, content in tables(group, language):
            lines += [title(3, heading), table(content)]
    lines.append(title(2, word("findings", language)))
    lines += [bullet + sentence(one, report.total_ns, language) for one in report.findings] or [
        bullet + word("nothing", language)
    ]
    lines.append(title(2, word("audit", language)))
    lines += [bullet + objection_text(one, language) for one in report.objections] or [
        bullet + word("nothing", language)
    ]
    return "\n".join(lines) + "\n"


def _figures(name: str, one: MethodSums) -> dict[str, Any]:
    return {
        "method": name,
        "calls_count": one.calls_count,
        "timed_count": one.timed_count,
        "failed_count": one.failed_count,
        "mean_ns": one.mean_ns,
        "p50_ns": _quantile(one, 0.5),
        "p90_ns": _quantile(one, 0.9),
        "p99_ns": _quantile(one, 0.99),
        "max_ns": one.histogram.max,
        "total_ns": one.total_ns,
        "sent_bytes": one.sent_bytes,
        "recv_bytes": one.recv_bytes,
        "throughput_mib_per_s": _speed(one.sent_bytes + one.recv_bytes, one.total_ns),
        **as_figures(one.split),
    }


def as_json(report: Report, language: Language = "en") -> str:
    """Return the report for programs: times in ns, sizes in bytes, shares as ratios; percentiles may be null."""
    groups = [
        {
            "source": group.segment.source,
            "segment": group.segment.name,
            "transport": group.segment.transport,
            "calls_count": group.calls_count,
            "total_ns": group.total_ns,
            "moved_bytes": group.moved_bytes,
            "throughput_mib_per_s": _speed(group.moved_bytes, group.total_ns),
            "stages": [{"stage": n, "total_ns": ns, "share_ratio": share} for n, ns, share in stage_shares(group)],
            "server_ns": group.server_ns,
            "split": {
                **as_figures(group.split),
                "transport_share_ratio": group.split.transport_ratio,
                "offset_error_ns": group.split.offset_error_ns,
            }
            if group.split.joined_count
            else None,
            "methods": [_figures(name, one) for name, one in group.methods.items()],
            "slowest": [asdict(one) for one in group.slowest],
            "largest": [asdict(one) for one in group.largest],
        }
        for group in report.gathered.sums.groups
    ]
    found = [{**asdict(one), "text": sentence(one, report.total_ns, language)} for one in report.findings]
    objections = [{**asdict(one), "text": objection_text(one, language)} for one in report.objections]
    lines = {"lines_count": report.gathered.notes.lines_count, "damaged_count": report.gathered.notes.damaged_count}
    whole = {"segments": groups, "findings": found, "audit": objections, **lines}
    return to_json(whole, "the report", indent=1) + "\n"


def as_csv(report: Report, language: Language = "en") -> str:
    """Return one line per segment and method; `language` changes nothing, the column names are for programs."""
    out = io.StringIO()
    rows = [
        {"source": group.segment.source, "segment": group.segment.name, **_figures(name, one)}
        for group in report.gathered.sums.groups
        for name, one in group.methods.items()
    ]
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
