"""The tables of a run in every form: for a terminal, as plain text, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO, get_args

from ipcbench.analysis.patterns.cells import cell_fields as pattern_fields
from ipcbench.analysis.patterns.cells import flat_fields
from ipcbench.analysis.report.headline import headlines
from ipcbench.analysis.report.tables import Tables
from ipcbench.analysis.summary.cells import CellSummary, Metric, SettingSummary
from ipcbench.analysis.summary.crossover import told_rank
from ipcbench.analysis.summary.curves import estimate_of
from ipcbench.analysis.summary.notes import printable
from ipcbench.analysis.summary.waits import WaitShares
from ipcbench.analysis.summary.wording import setting_title, verdict_words
from ipcbench.render.document import document
from ipcbench.render.text import WIDTH, Styled, aligned_styled, bullets, csv_text, escape, markdown_table, wrapped
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval

if TYPE_CHECKING:
    from rich.console import Console

FINDINGS_TITLE = "What stands out"


def show(tables: Tables, stream: TextIO) -> None:
    """Write the tables to a stream: with rich if it is a terminal (NO_COLOR is honoured), else as plain text."""
    if not stream.isatty():
        stream.write(as_text(tables))
        return
    show_on(tables, _console(stream))


def show_lines(lines: Iterable[Styled], stream: TextIO) -> None:
    """Write lines to a stream, with their styles if it is a terminal."""
    if not stream.isatty():
        stream.writelines(f"{line}\n" for line, _ in lines)
        return
    _print_lines(lines, _console(stream))


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, emoji=False, markup=False)


def show_on(tables: Tables, console: Console) -> None:
    """Print the tables on a console. On a narrow console the lines of tables wrap; no digit is cut off."""
    _print_lines(_lines(tables, min(WIDTH, console.width), WIDTH), console)


def _print_lines(lines: Iterable[Styled], console: Console) -> None:
    from rich.text import Text

    for line, style in lines:
        console.print(Text(line, style), soft_wrap=True)


def as_text(tables: Tables, width: int = WIDTH) -> str:
    """Return the tables as aligned plain text without any escape sequence."""
    return "\n".join(line for line, _ in _lines(tables, width, width)) + "\n"


def _lines(tables: Tables, width: int, table_width: int) -> Iterator[Styled]:
    """Yield the lines with their styles, sentences wrapped at `width`."""

    def styled(text: str, style: str = "", first: str = "", indent: str = "  ") -> Iterator[Styled]:
        return ((line, style) for line in wrapped(text, width, first, indent))

    for headline in headlines(tables):
        yield from styled(headline.sentence, "bold")
        yield from (line for text in headline.remarks for line in styled(text))
        yield "", ""
    yield from (line for text in tables.header for line in styled(text))
    for table in (*tables.payload_tables, *tables.matrices, *tables.pattern_tables):
        yield "", ""
        yield from styled(table.title, "bold")
        for text in table.remarks:
            yield from styled(text)
        yield from aligned_styled(table, table_width)
        for letter, text in table.footnotes:
            yield from styled(f"{letter}: {text}", "dim", indent="   ")
    if tables.findings:
        yield "", ""
        yield FINDINGS_TITLE, "bold"
    for finding in tables.findings:
        yield from styled(finding.sentence, first="- ")
        yield from styled(finding.action, first="  → ", indent="    ")
    yield "", ""
    for text in tables.legend:
        yield from styled(text, "dim")


def as_markdown(tables: Tables) -> str:
    """Return the tables as GitHub Markdown for a document or an issue."""
    answers = (f"**{escape(each.sentence)}** {escape(' '.join(each.remarks))}".rstrip() for each in headlines(tables))
    parts = [*answers, bullets(tables.header)]
    for table in (*tables.payload_tables, *tables.matrices, *tables.pattern_tables):
        parts += [f"### {escape(table.title)}", bullets(table.remarks), markdown_table(table)]
        if table.footnotes:
            parts.append(bullets(f"{letter}: {text}" for letter, text in table.footnotes))
    if tables.findings:
        parts.append(f"### {FINDINGS_TITLE}")
        parts.append(
            "\n".join(f"- {escape(finding.sentence)} *{escape(finding.action)}*" for finding in tables.findings)
        )
    parts.append(bullets(tables.legend))
    return "\n\n".join(parts) + "\n"


def as_csv(tables: Tables) -> str:
    """Return a row per backend and setting. An unmeasured figure is an empty field; texts are single lines."""
    return csv_text(*csv_rows(tables))


def csv_rows(tables: Tables) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows, one per backend and setting, and the names of their columns; None where not measured."""
    run_id = tables.summary.info.run_id
    rows = [
        {"run_id": run_id, **cell_fields(result, cell), "notes": "; ".join(cell.notes)}
        for result in tables.summary.settings
        for cell in result.cells
    ]
    rows += [{"run_id": run_id, **flat_fields(cell)} for cell in tables.pattern_cells]
    plain = [{name: printable(v) if isinstance(v, str) else v for name, v in row.items()} for row in rows]
    return plain, list(dict.fromkeys(name for row in rows for name in row)) or ["run_id"]


def as_json(tables: Tables) -> str:
    """Return run, machine, and the verdict and cells of each setting; a figure that was not measured is null."""
    summary = tables.summary
    fields = {
        "run": asdict(summary.info),
        "header": tables.header,
        "legend": tables.legend,
        "problems": summary.problems,
        "noise_ratios": summary.noise_ratios,
        "controls": [{**asdict(control), "agrees": control.agrees} for control in summary.controls],
        "placement_ns": summary.placement_ns,
        "settings": [
            {
                "title": setting_title(result.setting),
                "verdict": verdict_words(result),
                "answer": answer.sentence,
                **asdict(result.setting),
                "cells": [{**cell_fields(result, cell), "notes": cell.notes} for cell in result.cells],
            }
            for result, answer in zip(summary.settings, tables.answers, strict=True)
        ],
        "patterns": [pattern_fields(cell) for cell in tables.pattern_cells],
        "findings": [finding.as_dict() for finding in tables.findings],
        "crossovers": [{"title": matrix.title, "remarks": matrix.remarks[:-1]} for matrix in tables.matrices],
    }
    return document("tables", fields)


def cell_fields(result: SettingSummary, cell: CellSummary) -> Mapping[str, Any]:
    """Return a cell as flat fields with units in their names, times in µs; None where not measured."""
    rate = cell.throughput_bytes_per_s
    return {
        **asdict(result.setting),
        "offered_rate_per_s": result.rate_per_s,
        "backend": cell.backend,
        "status": cell.status,
        "reason": cell.reason,
        "round_trip_rate_per_s": result.trips_per_s,
        "ranked_by": result.ranked_by,
        "rank": told_rank(result, cell, result.ranked_by),
        **_ratio(cell),
        **_figures(cell),
        "throughput_mb_per_s": rate / 1e6 if rate is not None else None,
        "round_trip_rank": told_rank(result, cell, "round trip"),
        "throughput_rank": told_rank(result, cell, "throughput"),
        "read_p50_us": _us(cell.read_p50_ns),
        "write_p50_us": _us(cell.write_p50_ns),
        "decode_p50_us": _us(cell.decode_p50_ns),
        "writer_cpu_us_per_message": _us(cell.writer_cpu_ns),
        "reader_cpu_us_per_message": _us(cell.reader_cpu_ns),
        "latency_of_harness_floor_ratio": cell.latency_floor_ratio,
        **_waits("latency", cell.latency_waits),
        **_waits("round_trip", cell.round_trip_waits),
        **_waits("throughput", cell.throughput_waits),
        "throughput_of_memory_copy_ratio": cell.memory_bandwidth_ratio,
        "throughput_of_cold_memory_copy_ratio": cell.cold_memory_bandwidth_ratio,
        "rounds_count": cell.rounds_count,
        "samples_count": cell.samples_count,
        "trials_count": cell.trials_count,
        "clean_count": cell.clean_count,
        "failed_count": cell.failed_count,
    }


def _figures(cell: CellSummary) -> dict[str, float | None]:
    """Return the figures that have intervals; without their ends after too few rounds."""
    ends = {metric: _has_enough_rounds(cell, metric) for metric in get_args(Metric)}
    rate = cell.throughput_interval_per_s
    return {
        **_interval("latency_p50", "_us", cell.latency_p50_ns, 1e3, ends=ends["latency"]),
        **_interval("latency_p99", "_us", cell.latency_p99_ns, 1e3, ends=ends["latency"]),
        **_interval("round_trip_p50", "_us", cell.round_trip_p50_ns, 1e3, ends=ends["round trip"]),
        **_interval("round_trip_p99", "_us", cell.round_trip_p99_ns, 1e3, ends=ends["round trip"]),
        "throughput_messages_per_s": cell.throughput_per_s,
        **_interval("throughput_messages", "_per_s", rate, middle=False, ends=ends["throughput"]),
    }


def _has_enough_rounds(cell: CellSummary, metric: Metric) -> bool:
    """Return whether a figure has rounds enough for an interval."""
    estimate = estimate_of(cell, metric)
    return estimate is not None and estimate.rounds_count >= MIN_CLAIM_ROUNDS


def _ratio(cell: CellSummary) -> dict[str, float | None]:
    """Return the ratio to the best; without its ends after too few rounds, as in the tables."""
    few = cell.compared_rounds_count is not None and cell.compared_rounds_count < MIN_CLAIM_ROUNDS
    is_known = cell.ratio is None or cell.ratio.low == cell.ratio.high  # as that of the best itself
    return _interval("ratio_to_best", "", cell.ratio, ends=is_known or not few)


def _waits(name: str, shares: WaitShares | None) -> dict[str, Any]:
    """Return `name_waits` and the shares of waits by how they ended."""
    ratios = dict.fromkeys(("spun_ratio", "yielded_ratio", "slept_ratio")) if shares is None else asdict(shares)
    word = None if shares is None else shares.word
    return {f"{name}_waits": word, **{f"{name}_waits_{key}": ratio for key, ratio in ratios.items()}}


def _us(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e3


def _interval(
    name: str, unit: str, interval: Interval | None, divisor: float = 1.0, *, middle: bool = True, ends: bool = True
) -> dict[str, float | None]:
    """Return `name_unit`, `name_low_unit` and `name_high_unit`; without `middle` only the last two, which are None
    without `ends`.
    """
    low, estimate, high = (None, None, None)
    if interval is not None:
        low, estimate, high = (value / divisor for value in (interval.low, interval.estimate, interval.high))
    if not ends:
        low = high = None
    first = {f"{name}{unit}": estimate} if middle else {}
    return {**first, f"{name}_low{unit}": low, f"{name}_high{unit}": high}
