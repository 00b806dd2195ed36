"""Reports on traces as text, Markdown, JSON and CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ipcbench.render.document import document
from ipcbench.render.table import NOT_MEASURED, Table, make_columns
from ipcbench.render.text import aligned, csv_text, display_width, escape, markdown_table
from ipcbench.stats.estimates import has_quantile
from ipcbench.trace.readers.batch import PARTS
from ipcbench.trace.readers.calls import FAR_SIDES
from ipcbench.trace.report.audit import Objection, audit
from ipcbench.trace.report.findings import TraceFinding, findings
from ipcbench.trace.report.gather import Gathered
from ipcbench.trace.report.phrases import localized
from ipcbench.trace.report.shares import (
    is_known,
    mean_text,
    share_text,
    stage_fields,
    stage_shares,
    total_text,
)
from ipcbench.trace.report.split import Split
from ipcbench.trace.report.sums import Extreme, GroupSums, MethodSums
from ipcbench.trace.report.words import Language, word
from ipcbench.trace.schema import SERVER_SIDE
from ipcbench.util.text import printable
from ipcbench.util.units import format_bytes, format_duration_ns, format_ms, format_percent, format_significant

_MIB = 2**20

Quote = Callable[[str], str]
"""Makes a name fit for a form: `escape` for Markdown, `str` for plain text."""


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report."""

    gathered: Gathered
    findings: list[TraceFinding]
    objections: list[Objection]

    @property
    def total_ns(self) -> float:
        """The time of all traced calls; a server's is part of its caller's where that was recorded, too."""
        groups = self.gathered.sums.groups
        called = {name for group in groups if group.segment.role not in FAR_SIDES for name in group.methods}
        return sum(
            sums.total_ns
            for group in groups
            for name, sums in group.methods.items()
            if group.segment.role != SERVER_SIDE or name not in called
        )


def make_report(gathered: Gathered, rules: str = "default") -> Report:
    """Return the report on what was read, by the rules `default` or `seed`."""
    groups = gathered.sums.groups
    return Report(gathered, findings(groups, gathered.notes, rules), audit(groups, gathered.notes))


def _quantile(sums: MethodSums, probability: float) -> float | None:
    enough = has_quantile(sums.timed_count, probability) or probability == 0.5
    return sums.histogram.quantile(probability) if sums.timed_count and enough else None


def _scaled(value: float | None, unit: float, form: str) -> str:
    """Return a number in a unit; a dash for an unknown one."""
    return NOT_MEASURED if value is None else format(value / unit, form)


def _kib(size_bytes: float | None) -> str:
    """Return the size of a message in KiB; of a small one two digits, so that only no bytes are 0."""
    if size_bytes is None or size_bytes >= 1024:
        return _scaled(size_bytes, 1024, ",.1f")
    return format_significant(size_bytes / 1024, 2)


def _moved(sums: MethodSums | GroupSums) -> str:
    """Return what calls moved, in MiB: at least, where some did not note it; about, with how far it may be off, where
    some were only counted; and at least again where too little is known of those.
    """
    known, moved = sums.sized_count, sums.moved_bytes
    if not known or known + sums.planned_count == sums.calls_count or moved is None:
        return _scaled(moved, _MIB, ",.1f")
    if known < sums.timed_count:
        return f"≥ {moved / _MIB:,.1f}"
    if not sums.moved_is_known:
        return f"≥ {(sums.sized_sent_bytes + sums.sized_recv_bytes) / _MIB:,.1f}"
    return f"≈ {moved / _MIB:,.1f} ± {sums.moved_error_bytes / _MIB:,.1f}"


def _about(sums: MethodSums | GroupSums) -> str:
    """Return the mark of an estimate, where some calls were only counted."""
    return "≈ " if sums.calls_count > sums.timed_count + sums.planned_count else ""


def _speed(sums: MethodSums | GroupSums) -> str:
    """Return MiB/s: about, where some calls were only counted; a dash where those that were timed do not tell it."""
    speed = sums.mib_per_s
    return NOT_MEASURED if speed is None else f"{_about(sums)}{speed:,.2f}"


def _method_table(group: GroupSums, language: Language) -> Table:
    names = ("method", "calls", "mean", "p50", "p90", "p99", "max", "total", "share", "each", "moved", "speed")
    timed = {"mean", "p50", "p90", "p99", "max", "total"}
    heads = [(word(n, language) if not n.startswith("p") else n) + (" ms" if n in timed else "") for n in names]
    rows = []
    for name, sums in sorted(group.methods.items(), key=lambda item: -item[1].total_ns):
        known = bool(sums.timed_count)
        quantiles = (_quantile(sums, probability) for probability in (0.5, 0.9, 0.99))
        rows.append(
            (
                localized(name, language) if name[0:1] == "(" else name,
                f"{sums.calls_count:,}",
                mean_text(sums),
                *map(format_ms, (*quantiles, sums.histogram.max if known else None)),
                total_text(sums) if known else NOT_MEASURED,
                share_text(sums.total_ns / group.total_ns if is_known(group) and group.total_ns > 0 else None),
                NOT_MEASURED if sums.mean_bytes is None else _about(sums) + _scaled(sums.mean_bytes, 1024, ",.1f"),
                _moved(sums),
                _speed(sums),
            )
        )
    return Table(word("methods", language), make_columns(heads), tuple(rows))


def _stages_by_method(group: GroupSums, language: Language) -> Table:
    """Return the time of each method in each stage and its share of the method's; of several stages and methods."""
    heads = [word("method", language)]
    for name in (*group.stages, word("unaccounted", language)):
        heads += [f"{name} ms", "%"]
    rows = []
    for name, sums in sorted(group.methods.items(), key=lambda item: -item[1].total_ns):
        if len(group.methods) < 2 or len(group.stages) < 2 or sums.total_ns <= 0:
            continue
        parts = [(part.text, part.share) for part in stage_shares(sums)]
        cells = [cell for text, share in parts for cell in (text, _scaled(share, 0.01, ".1f"))]
        rows.append((localized(name, language) if name[0:1] == "(" else name, *cells))
    return Table(word("stages by method", language), make_columns(heads), tuple(rows))


def _stage_table(group: GroupSums, language: Language) -> Table:
    rows = []
    for part in stage_shares(group) if group.calls_count > group.planned_count else ():
        shown = word(part.name, language) if part.name == "unaccounted" else part.name
        rows.append((shown, *part.row))
        if part.name == "wait":
            rows += _split_rows(group.split, language)
    if "wait" not in group.stages:
        rows += _split_rows(group.split, language)
    if group.outside_ns:
        rows.append((word("outside", language), format_ms(group.outside_ns), NOT_MEASURED))
    heads = (word("stage", language), f"{word('total', language)} ms", word("share", language))
    return Table(word("stages", language), make_columns(heads), tuple(rows))


def _split_rows(split: Split, language: Language) -> list[tuple[str, str, str]]:
    """Return the rows below `wait` in a table of stages; shares are of the joined calls' own time, none for what comes
    after that: the way of a message that nobody answers.
    """
    if not split.joined_count:
        return []
    rows = []
    for name in PARTS:
        ns: float = getattr(split, f"{name}_ns")
        if name == "server" or split.is_whole:
            shown = word(name if name == "server" else f"split {name}", language)
            share = format_percent(ns / split.total_ns) if split.answered_count and split.total_ns > 0 else NOT_MEASURED
            rows.append((shown, format_ms(ns), share))
    return rows


def _extreme_table(title: str, group: GroupSums, calls: Sequence[Extreme], language: Language) -> Table:
    heads = (word("id", language), word("method", language), f"{word('total', language)} ms",
             *(f"{name} ms" for name in group.stages), word("sent", language), word("recv", language))  # fmt: skip
    rows = (
        (str(call.call_id), call.method, format_ms(call.total_ns), *map(format_ms, call.stage_ns),
         _kib(call.sent_bytes), _kib(call.recv_bytes))
        for call in calls
    )  # fmt: skip
    known = group.planned_count + sum(sums.squared_count for sums in group.methods.values())
    of_some = (
        "" if known >= group.calls_count else word("of records", language).format(known=known, calls=group.calls_count)
    )
    return Table(word(title, language) + of_some, make_columns(heads, left=(0, 1), name=1), tuple(rows))


def titles_of(groups: Sequence[GroupSums], language: Language) -> list[str]:
    """Return a title of its own for each group: with its file if there are several, and with transport and stages where
    several have one name.
    """
    sources = {group.segment.source for group in groups}
    names = Counter((group.segment.source, group.segment.name) for group in groups)
    titles = []
    for group in groups:
        segment, name = group.segment, localized(group.segment.name, language)
        if names[segment.source, segment.name] > 1:
            name += f": {', '.join(filter(None, (segment.transport, *group.stages)))}"
        titles.append(printable(f"{segment.source}: {name}" if len(sources) > 1 else name))
    return titles


def tables(group: GroupSums, language: Language) -> Iterator[Table]:
    """Yield the tables of a group; none without rows."""
    for table in (
        _method_table(group, language),
        _stages_by_method(group, language),
        _stage_table(group, language),
        _extreme_table("slowest", group, group.slowest, language),
        _extreme_table("largest", group, group.largest, language),
    ):
        if table.rows:
            yield table


def overall(group: GroupSums, language: Language, quote: Quote = str) -> str:
    """Return the totals of a group in a line."""
    parts = list(_counts(group, language))
    if (mean := mean_text(group)) != NOT_MEASURED:
        parts.append(f"{word('mean', language)} {mean} ms")
    if group.calls_count > group.planned_count:
        parts.append(f"{word('total', language)} {total_text(group)} ms")
    if group.moved_bytes is not None:
        parts.append(f"{word('moved', language)} {_moved(group)}")
    if (speed := _speed(group)) != NOT_MEASURED:
        parts.append(f"{speed} MiB/s")
    if group.segment.transport:
        parts.append(f"{word('transport', language)} {quote(group.segment.transport)}")
    if len(group.workers) > 1:
        parts.append(f"{word('processes', language)} {len(group.workers)}")
    if text := _split_text(group.split, group.calls_count, language):
        parts.append(text)
    return ", ".join(parts)


def _counts(group: GroupSums, language: Language) -> Iterator[str]:
    """Yield how many calls there are, and how many of them are not as others."""
    timed, planned = group.timed_count, group.planned_count
    yield f"{word('calls', language)} {group.calls_count:,}"
    if planned:
        yield word("planned", language).format(count=f"{planned:,}")
    if group.calls_count > timed + planned:
        seen_count = 1 / group.unseen_ratio if group.unseen_ratio else 0.0  # of a damaged log
        unseen = word("may miss", language).format(count=f"{seen_count:,.0f}") if seen_count > 1 else ""
        yield f"{word('untimed', language)} {group.calls_count - timed - planned:,}{unseen}"
    if failed := sum(sums.failed_count for sums in group.methods.values()):
        least = "≥ " if timed < group.calls_count else ""  # a call that is only counted may have failed, too
        yield f"{word('failed', language)} {least}{failed:,}"


def _split_text(split: Split, calls_count: int, language: Language) -> str:
    """Return the transport's share, of how many calls, and the error of the clocks; of a log with a column of the
    server's own only the share of that; empty if unknown.
    """
    if not split.answered_count or split.total_ns <= 0:
        return ""
    if not split.is_whole:
        return word("server share", language).format(share=format_percent(split.server_ns / split.total_ns))
    text = word("transport share", language).format(
        share=format_percent(split.transport_ratio), joined=split.joined_count, calls=calls_count
    )
    if split.offset_error_ns:
        text += word("offset", language).format(error=format_duration_ns(split.offset_error_ns))
    return text


_FORMATS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("share", "transit_share", "compute_share", "wide_share", "busy"), format_percent),
    **dict.fromkeys(("copy_ns", "queue_ns", "each_ns", "round_trip_ns"), format_duration_ns),
    **dict.fromkeys(("mean_bytes", "median_bytes"), lambda size: format_bytes(round(size))),
    "threshold": lambda limit: format_percent(limit) if isinstance(limit, float) and limit < 1 else str(limit),
}


def sentence(finding: TraceFinding, total_ns: float, language: Language, quote: Quote = str) -> str:
    """Return a finding in words."""
    values = {key: quote(value) if isinstance(value, str) else value for key, value in finding.values.items()}
    values |= {key: _FORMATS[key](value) for key, value in values.items() if key in _FORMATS and value is not None}
    values |= {key: localized(values[key], language) for key in ("cause", "level") if key in values}
    if finding.rule == "R3":
        values["each"] = word("R3 unsized" if values["mean_bytes"] is None else "R3 each", language).format(**values)
    key = f"{finding.rule} {values['what']}" if "what" in values else finding.rule
    text = word(key, language).format(**values)
    if finding.gain_ns is not None and total_ns > 0:
        share = format_percent(finding.gain_ns / total_ns)
        bound = word("gain", language).format(gain=format_duration_ns(finding.gain_ns), share=share)
        text += f" {bound}" if language == "en" else bound
    where = f" [{quote(localized(finding.where, language))}]" if finding.where else ""
    return f"{finding.rule}{where} {text}"


def objection_text(objection: Objection, language: Language, quote: Quote = str) -> str:
    """Return an objection in words."""
    what = quote(localized(objection.what, language))
    return word(objection.kind, language).format(what=what, said=objection.said, found=objection.found)


def as_text(report: Report, language: Language = "en") -> str:
    """Return the report for a terminal."""
    return _document(report, language, is_markdown=False)


def as_markdown(report: Report, language: Language = "en") -> str:
    """Return the report in Markdown."""
    return _document(report, language, is_markdown=True)


def _document(report: Report, language: Language, *, is_markdown: bool) -> str:
    quote: Quote = escape if is_markdown else str
    bullet = "- " if is_markdown else "  "

    def title(level: int, text: str) -> str:
        if is_markdown:
            return f"\n{'#' * level} {escape(text)}\n"
        return f"\n{text}\n{('=' if level < 3 else '-') * display_width(text)}"

    def section(key: str, texts: list[str]) -> list[str]:
        return [title(2, word(key, language)), *(bullet + text for text in texts or [word("nothing", language)])]

    lines = [title(1, f"{word('title', language)}: {printable(', '.join(map(str, report.gathered.paths)))}").lstrip()]
    groups = report.gathered.sums.groups
    for group, name in zip(groups, titles_of(groups, language), strict=True):
        lines += [title(2, name), overall(group, language, quote)]
        for table in tables(group, language):
            lines.append(title(3, table.title))
            lines += [markdown_table(table)] if is_markdown else aligned(table, indent="  ")
    if paths := report.gathered.flows.slowest():
        heads = (word("path", language), word("calls", language), f"{word('total', language)} ms")
        rows = tuple((printable(path.trace_id), f"{path.calls_count:,}", format_ms(path.span_ns)) for path in paths)
        table = Table(word("paths", language), make_columns(heads), rows)
        lines += [title(2, table.title), *([markdown_table(table)] if is_markdown else aligned(table, indent="  "))]
    if report.gathered.notes.endpoints:
        lines += section("endpoints", [quote(text) for text in report.gathered.notes.endpoints])
    lines += section("findings", [sentence(finding, report.total_ns, language, quote) for finding in report.findings])
    lines += section("audit", [objection_text(objection, language, quote) for objection in report.objections])
    return "\n".join(lines) + "\n"


def _figures(name: str, sums: MethodSums) -> dict[str, Any]:
    return {
        "method": name,
        "calls_count": sums.calls_count,
        "timed_count": sums.timed_count,
        "failed_count": sums.failed_count if sums.calls_count == sums.timed_count else None,
        "failed_least_count": sums.failed_count,
        "sized_count": sums.sized_count,
        "mean_ns": sums.mean_ns if is_known(sums) else None,
        "p50_ns": _quantile(sums, 0.5),
        "p90_ns": _quantile(sums, 0.9),
        "p99_ns": _quantile(sums, 0.99),
        "max_ns": sums.histogram.max if sums.timed_count else None,
        **_totals(sums),
        "unseen_ratio": sums.unseen_ratio,
        "sent_bytes": sums.sent_bytes if _has_sum(sums) else None,
        "recv_bytes": sums.recv_bytes if _has_sum(sums) else None,
        "moved_error_bytes": sums.moved_error_bytes if _has_sum(sums) else None,
        "throughput_mib_per_s": sums.mib_per_s,
        **_split_figures(sums.split),
    }


def _totals(sums: MethodSums | GroupSums) -> dict[str, float | None]:
    """Return the total, how far it may be off (95 %), and what it is at least: 0 error if every call was timed; total
    and error None if nobody knows.
    """
    error_ns = sums.total_error_ratio * sums.total_ns if is_known(sums) else None
    return {
        "total_ns": sums.total_ns if is_known(sums) else None,
        "total_error_ns": error_ns,
        "total_least_ns": sums.least_ns if sums.timed_count else None,
    }


def _has_sum(sums: MethodSums | GroupSums) -> bool:
    """Return whether the sum of bytes can be given: of calls that noted them, or estimated well enough."""
    return sums.calls_count == sums.timed_count or sums.moved_is_known


def _split_figures(split: Split) -> dict[str, Any]:
    """Return the sums for JSON and CSV."""
    return {
        "joined_count": split.joined_count,
        **{
            f"{name}_ns": getattr(split, f"{name}_ns")
            if split.joined_count and (split.is_whole or name == "server")
            else None
            for name in PARTS
        },
        "transport_ns": split.transport_ns if split.answered_count and split.is_whole else None,
    }


def _segment_values(group: GroupSums) -> dict[str, Any]:
    """Return a group for JSON."""
    return {
        "source": group.segment.source,
        "segment": group.segment.name,
        "transport": group.segment.transport,
        "calls_count": group.calls_count,
        "timed_count": group.timed_count,
        **_totals(group),
        "unseen_ratio": group.unseen_ratio,
        "moved_bytes": group.moved_bytes if _has_sum(group) else None,
        "moved_error_bytes": group.moved_error_bytes if _has_sum(group) else None,
        "throughput_mib_per_s": group.mib_per_s,
        "stages": stage_fields(group),
        "server_ns": group.server_ns,
        "split": {
            **_split_figures(group.split),
            "transport_share_ratio": group.split.transport_ratio
            if group.split.is_whole and group.split.answered_count
            else None,
            "offset_error_ns": group.split.offset_error_ns,
        }
        if group.split.joined_count
        else None,
        "methods": [{**_figures(name, sums), "stages": stage_fields(sums)} for name, sums in group.methods.items()],
        "slowest": [asdict(call) for call in group.slowest],
        "largest": [asdict(call) for call in group.largest],
    }


def as_json(report: Report, language: Language = "en") -> str:
    """Return the report as JSON: times in ns, sizes in bytes, shares as ratios; percentiles may be null."""
    groups = [_segment_values(group) for group in report.gathered.sums.groups]
    found = [{**asdict(finding), "text": sentence(finding, report.total_ns, language)} for finding in report.findings]
    objections = [{**asdict(objection), "text": objection_text(objection, language)} for objection in report.objections]
    notes = report.gathered.notes
    lines = {"lines_count": notes.lines_count, "damaged_count": notes.damaged_count, "endpoints": [*notes.endpoints]}
    whole = {
        "paths": [asdict(path) for path in report.gathered.flows.slowest()],
        "segments": groups,
        "findings": found,
        "audit": objections,
        **lines,
    }
    return document("trace report", whole)


def as_csv(report: Report, language: Language = "en") -> str:
    """Return a line per segment and method; the column names are the same in every language."""
    rows = [
        {
            "source": group.segment.source,
            "segment": group.segment.name,
            **_figures(name, sums),
            **{f"stage_{part.name}_ns": part.ns for part in (stage_shares(sums) if sums.timed_count else ())},
        }
        for group in report.gathered.sums.groups
        for name, sums in group.methods.items()
    ]
    return csv_text(rows, list(dict.fromkeys(name for row in rows for name in row)))
