"""report.html: what the page of a run says, from its verdicts to the command that reproduces it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from ipcbench.analysis.findings import Finding
from ipcbench.analysis.report.headline import headlines
from ipcbench.analysis.report.tables import Tables, wide_tables
from ipcbench.analysis.summary.cells import Summary
from ipcbench.analysis.summary.notes import one_line
from ipcbench.analysis.summary.wording import (
    ended_words,
    family_words,
    joined,
    payload_line,
    plural,
    setting_title,
)
from ipcbench.render.charts import ChartGroup
from ipcbench.render.page import Badge, Headline, render_page
from ipcbench.render.table import Table, make_columns
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS
from ipcbench.util.shell import shell_command
from ipcbench.util.units import format_duration_ns, format_significant

_TEMPLATE = files("ipcbench.analysis.report") / "assets" / "report.html.j2"
_MAX_YEAR_S = 2e11
_CHECKED = {
    "broadcast": "The sequence number, header and trailer of every message are checked, and a share of the bodies is "
    "hashed; a single lost, repeated, reordered or torn message fails the trial.",
    "rpc": "The number and the size of every reply are checked; a reply that belongs to another call fails the trial.",
}
"""What is checked, by pattern; the others as broadcasts."""
_LABELS = {
    "skip": "Skip to the answer",
    "answer": "Answer",
    "theme": "Switch between light and dark",
    "state": "State of the run",
    "sections": "Sections",
    "reproduce": "Reproduce",
    "command": "The command that made the run; name another folder, or none, to keep both runs.",
    "copy": "Copy",
    "copied": "Copied",
    "selected": "Selected: press Ctrl-C",
    "scroll": "This table is wider than the page: scroll it sideways.",
    "choice": "Setting",
    "series": "Series",
    "figures": "Figures",
    "as_table": "The figures as a table",
    "noscript": "The plots need JavaScript; the tables have the same figures.",
    "footer": "Made by ipcbench from the stored run; nothing was measured again.",
}
_SECTIONS = {
    "findings": "Worth knowing",
    "tables": "Tables",
    "plots": "Plots",
    "verdicts": "Every size",
    "method": "Method",
    "machine": "Machine",
    "noise": "Noise",
    "failures": "Failures",
    "reproduce": "Reproduce",
}
_MOST_PROOFS = 5
_REASON_COLUMNS = make_columns(("backend", "where", "status", "why"), left=range(4))


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """The answer for a setting."""

    topic: str
    sentence: str
    detail: str = ""
    """May be empty."""


@dataclass(frozen=True, slots=True)
class FindingLine:
    """A finding with its evidence and the action that it suggests."""

    sentence: str
    evidence: str = ""
    action: str = ""


@dataclass(frozen=True, slots=True)
class PageWords:
    """The sentences at the head of a report; an empty part is left out of the page."""

    headlines: tuple[Headline, ...]
    verdicts: tuple[VerdictLine, ...] = ()
    """Of every setting."""
    crossovers: tuple[str, ...] = ()
    findings: tuple[FindingLine, ...] = ()


def report_html(tables: Tables, groups: Sequence[ChartGroup], words: PageWords) -> str:
    """Return the page.

    Args:
        tables: the tables of the run, shown as they are printed.
        groups: charts.
        words: the sentences at the head of the page.

    Raises:
        ImportError: jinja2 is not installed.
    """
    summary = tables.summary
    return render_page(
        _TEMPLATE.read_text(encoding="utf-8"),
        words.headlines,
        groups,
        language="en",
        brand="ipcbench report",
        labels=_LABELS,
        sections=[
            (key, text)
            for key, text in _SECTIONS.items()
            if {"findings": words.findings, "plots": groups[1:], "verdicts": words.verdicts}.get(key, True)
        ],
        titles=_SECTIONS,
        title=summary.info.run_id,
        subtitle=_subtitle(summary),
        words=words,
        badges=badges(summary),
        tables=tables,
        payload_tables=(*wide_tables(summary), *tables.pattern_tables),
        facts=_facts(summary),
        noise=_noise(summary),
        noise_notes=noise_notes(summary),
        failures=failures(summary),
        checked=_CHECKED.get(str(summary.info.sweep.get("pattern")), _CHECKED["broadcast"]),
        unfinished="" if summary.info.status == "complete" else ended_words(summary.info),
        problems=[one_line(problem) for problem in summary.problems],
        command=reproduce(summary),
        sweep=json.dumps(summary.info.sweep, indent=2, ensure_ascii=False, default=str),
    )


def reproduce(summary: Summary) -> str:
    """Return the command that reproduces the run; for a run that a program made, the Python code."""
    info = summary.info
    if info.command:
        return shell_command(*info.command)
    sweep = json.dumps(json.dumps(info.sweep, ensure_ascii=True, default=str))
    return f"import json\nfrom ipcbench import SweepSpec, run\n\nrun(SweepSpec.from_dict(json.loads({sweep})))"


def _subtitle(summary: Summary) -> str:
    machine, unix_s = summary.info.machine, summary.info.started_unix_s
    known = 0 <= unix_s < _MAX_YEAR_S
    text = f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC" if known else "at an unknown time"
    if machine.get("cpu_model"):
        text += f" · {machine['cpu_model']}"
    cores = machine.get("usable_cores")
    return f"{text}, {cores:g} cores" if isinstance(cores, int | float) else text


def _facts(summary: Summary) -> Mapping[str, Mapping[str, str]]:
    """Return the known facts about machine, versions and harness, each as name → text."""
    info = summary.info
    facts = {
        "Machine": {_name(key): _fact(key, value) for key, value in info.machine.items() if value not in (None, [])},
        "Versions": {key: one_line(str(value)) for key, value in info.versions.items()},
        **{
            f"Versions of {one_line(name)}": {key: one_line(str(value)) for key, value in versions.items()}
            for name, versions in info.variant_versions.items()
        },
    }
    if info.floor is not None:
        floor = info.floor
        facts["Harness floor"] = {
            "writer's loop": f"{format_duration_ns(floor.writer_ns)} per message",
            "reader's loop": f"{format_duration_ns(floor.reader_ns)} per message",
            "reading the clock": format_duration_ns(floor.clock_ns),
            "clock step": format_duration_ns(floor.clock_resolution_ns),
            **{
                f"memory copy of {int(size):,} B": f"{format_significant(rate / 1e6)} MB/s"
                for size, rate in floor.memcpy_bytes_per_s.items()
                if size.isdecimal()
            },
        }
    return facts


def _name(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")


def _fact(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{format_significant(value / 2**30)} GiB"
    if isinstance(value, list | tuple):
        return one_line(", ".join(map(str, value)))
    return one_line(str(value))


def _noise(summary: Summary) -> Mapping[str, str]:
    facts = {
        f"noise floor, {metric}": f"{format_significant(100 * ratio, 2)} %"
        for metric, ratio in summary.noise_ratios.items()
    }
    if summary.placement_ns is not None:
        low, high = summary.placement_ns
        facts["placement probe"] = f"{format_duration_ns(low)} to {format_duration_ns(high)}"
    return facts


def headline_words(tables: Tables) -> PageWords:
    """Return what `recommend` answers for each setting, and the crossovers and findings of the tables."""
    return PageWords(
        headlines=headlines(tables),
        verdicts=tuple(
            VerdictLine(
                f"{payload_line(result.setting)}, {family_words(result.setting)}", answer.sentence, answer.detail
            )
            for result, answer in zip(tables.summary.settings, tables.answers, strict=True)
        ),
        crossovers=tuple(f"{matrix.title}: {remark}" for matrix in tables.matrices for remark in matrix.remarks[:-1]),
        findings=tuple(
            FindingLine(finding.sentence, _proof_words(finding), finding.action) for finding in tables.findings
        ),
    )


def _proof_words(finding: Finding) -> str:
    """Return the first few cells that a finding rests on, and the threshold that they exceed."""
    cells = [f"{proof.backend} at {proof.payload_bytes:,} B" for proof in finding.evidence]
    more = [f"{len(cells) - _MOST_PROOFS} more"] if len(cells) > _MOST_PROOFS else []
    return f"{finding.means}, above {format_significant(finding.threshold)}: {joined(cells[:_MOST_PROOFS] + more)}"


def badges(summary: Summary) -> tuple[Badge, ...]:
    """Return badges for the state of the run, noise, oversubscription, failures and missing backends."""
    return tuple(_badges(summary))


def _badges(summary: Summary) -> Iterator[Badge]:
    info = summary.info
    ended_well = info.status in {"complete", "out of budget"} and info.rounds_done >= MIN_CLAIM_ROUNDS
    yield Badge(ended_words(info), "good" if ended_well else "warn", "method")
    cells = [cell for result in summary.settings for cell in result.cells]
    measured = [cell for cell in cells if cell.status == "ok"]
    if any(note.startswith("oversubscribed") for cell in measured for note in cell.notes):
        yield Badge("oversubscribed", "warn", "noise")
    if "latency" in summary.noise_ratios:
        yield Badge(f"noise {format_significant(100 * summary.noise_ratios['latency'], 2)} %", "plain", "noise")
    noisy = sum(any(note.startswith("noisy") for note in cell.notes) for cell in measured)
    if noisy:
        yield Badge(f"{noisy} of {len(measured)} cells noisy", "warn", "noise")
    failed = sum(cell.status == "failed" for cell in cells)
    partly = sum(cell.status == "ok" and cell.failed_count > 0 for cell in cells)
    if failed or partly:
        yield Badge(f"{plural(failed + partly, 'cell', 'cells')} with failures", "bad", "failures")
    else:
        yield Badge("no failures", "good", "failures")
    skipped = {cell.backend for cell in cells if cell.status == "skipped"} | set(info.skipped)
    if skipped:
        yield Badge(f"{plural(len(skipped), 'backend', 'backends')} left out", "warn", "failures")


def failures(summary: Summary) -> Table:
    """Return every cell that failed, was skipped, or lost trials, and every backend that was left out, with reasons."""
    rows = [(name, "whole run", "left out", one_line(reason)) for name, reason in summary.info.skipped.items()]
    for result in summary.settings:
        where = setting_title(result.setting)
        for cell in result.cells:
            if cell.status != "ok" and cell.backend not in summary.info.skipped:
                rows.append((cell.backend, where, cell.status, one_line(cell.reason)))
            elif cell.failed_count:
                note = next((note for note in cell.notes if " trials failed" in note), "")
                rows.append((cell.backend, where, "partly failed", note))
    return Table("Cells that failed or were left out", _REASON_COLUMNS, tuple(rows))


def noise_notes(summary: Summary) -> Table:
    """Return every note about how a cell was measured."""
    rows = (
        (cell.backend, payload_line(result.setting), "noisy" if note.startswith("noisy") else "noted", note)
        for result in summary.settings
        for cell in result.cells
        for note in cell.notes
        if cell.status == "ok" and note.startswith(("noisy", "unsteady", "page faults", "only ", "the samples"))
    )
    return Table("Cells with notes on how they were measured", _REASON_COLUMNS, tuple(rows))
