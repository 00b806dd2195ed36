"""The outcome of a replay as text, Markdown, JSON and CSV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ipcbench.render.document import document
from ipcbench.render.table import NOT_MEASURED, Table, make_columns
from ipcbench.render.text import aligned, bullets, csv_text, escape, markdown_table
from ipcbench.replay.outcome import BackendOutcome, MethodOutcome, ReplayOutcome
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval
from ipcbench.util.text import printable
from ipcbench.util.units import format_duration_ns, format_significant

_VERDICTS = {"faster": "faster", "slower": "slower", "no clear difference": "tie"}
_CSV_COLUMNS = (
    "backend", "rank", "rounds_count", "recorded_ns", "replayed_ns", "table_ns", "predicted_ns", "predicted_low_ns",
    "predicted_high_ns", "at_most_ns", "gain_ratio", "gain_low_ratio", "gain_high_ratio", "verdict", "failure",
)  # fmt: skip


def _signed(ratio: float) -> str:
    return f"{'−' if ratio < 0 else '+'}{format_significant(abs(100 * ratio), 2)}"


def _gain(gain: Interval, has_interval: bool) -> str:
    interval = f" [{_signed(gain.low)}, {_signed(gain.high)}]" if has_interval else ""
    return f"{_signed(gain.estimate)} %{interval}"


def _time(interval: Interval, has_interval: bool) -> str:
    estimate = format_duration_ns(interval.estimate)
    if not has_interval:
        return estimate
    return f"{estimate} [{format_duration_ns(interval.low)}, {format_duration_ns(interval.high)}]"


def _rank(backend: BackendOutcome, outcome: ReplayOutcome) -> str:
    if backend.rounds_count < 2:
        return NOT_MEASURED
    tied = sum(other.rank == backend.rank for other in outcome.backends) > 1
    return f"{backend.rank} (tie)" if tied else str(backend.rank)


def backend_table(outcome: ReplayOutcome) -> Table:
    """Return the times of all calls over each backend."""
    bounded = outcome.recorded_ns is None or any(backend.at_most_ns is not None for backend in outcome.backends)
    heads = ["backend", "rank", "replayed", "α+β table", "at least" if bounded else "predicted end to end"]
    heads += ["at most"] if bounded else ["time saved", "verdict"]
    rows = []
    for backend in outcome.backends:
        has_interval = backend.rounds_count >= MIN_CLAIM_ROUNDS
        name = f"{backend.name} (as recorded)" if backend.name == outcome.source else backend.name
        times = format_duration_ns(backend.replayed_ns), format_duration_ns(backend.table_ns)
        row = [name, _rank(backend, outcome), *times, _time(backend.predicted_ns, has_interval)]
        if backend.at_most_ns is not None:
            row.append(format_duration_ns(backend.at_most_ns))
        elif backend.gain_ratio is None:
            row.append("unknown")
        else:
            verdict = _VERDICTS[backend.verdict] if backend.verdict else NOT_MEASURED
            row += [_gain(backend.gain_ratio, has_interval), verdict]
        rows.append(tuple(map(printable, row)))
    return Table("End to end", make_columns(heads), tuple(rows))


def method_table(outcome: ReplayOutcome) -> Table:
    """Return the mean time of a call of each method over each backend."""
    names = [backend.name for backend in outcome.backends]
    heads = ["method", "calls", "sent B", "received B", "recorded", "of which server", *map(printable, names)]
    rows = [_method_row(method, names) for method in outcome.methods]
    if any(method.layout for method in outcome.methods):
        heads.append("made of")
        layouts = (printable(method.layout) or NOT_MEASURED for method in outcome.methods)
        rows = [(*row, layout) for row, layout in zip(rows, layouts, strict=True)]
    return Table("By method, mean of a call", make_columns(heads), tuple(rows))


def _method_row(method: MethodOutcome, names: list[str]) -> tuple[str, ...]:
    return (
        printable(method.name),
        f"{method.calls_count:,}",
        f"{method.sent_bytes:,.0f}",
        f"{method.recv_bytes:,.0f}",
        NOT_MEASURED if method.recorded_ns is None else format_duration_ns(method.recorded_ns),
        "unknown" if method.server_ns is None else format_duration_ns(method.server_ns),
        *(format_duration_ns(method.replayed_ns[name]) for name in names),
    )


def _think(outcome: ReplayOutcome) -> str:
    known = outcome.traffic.server_known
    return ("with" if known else "with what is known of") if outcome.think else "without"


def _sentences(outcome: ReplayOutcome) -> list[str]:
    traffic = outcome.traffic
    clients = len(traffic.threads)
    took = "" if outcome.recorded_ns is None else f" took {format_duration_ns(outcome.recorded_ns)} as recorded;"
    think = "without" if outcome.recorded_ns is None else _think(outcome)
    lines = [
        f"{traffic.calls_count:,} calls of {clients} client{'s' if clients > 1 else ''}{took} replayed "
        f"{outcome.rounds_count} time{'s' if outcome.rounds_count > 1 else ''} over each backend, "
        f"{think} the server's work."
    ]
    if outcome.source and traffic.server_known:
        lines.append(f"Time saved is against the replay over {outcome.source}, as the trace was recorded.")
    elif outcome.source:
        lines.append(
            f"Predicted: the recorded time plus the difference between each replay and that over {outcome.source}."
        )
    if outcome.rounds_count < MIN_CLAIM_ROUNDS:
        lines.append(f"Fewer than {MIN_CLAIM_ROUNDS} rounds: no intervals and no ranks.")
    lines += outcome.remarks
    lines += [f"{name} is left out: {reason}" for name, reason in outcome.left_out.items()]
    lines += [f"{name} failed: {reason}" for name, reason in outcome.failed.items()]
    lines += [
        f"{backend.name} failed after {backend.rounds_count} rounds: {backend.failure}"
        for backend in outcome.backends
        if backend.failure
    ]
    return [printable(line) for line in lines]


def as_text(outcome: ReplayOutcome) -> str:
    """Return the outcome for a terminal."""
    lines = [f"Replay of {printable(outcome.traffic.source)}", "", *_sentences(outcome)]
    for table in (backend_table(outcome), method_table(outcome)):
        lines += ["", table.title, "-" * len(table.title), *aligned(table, indent="  ")]
    return "\n".join(lines) + "\n"


def as_markdown(outcome: ReplayOutcome) -> str:
    """Return the outcome as Markdown."""
    parts = [f"# Replay of {escape(printable(outcome.traffic.source))}", bullets(_sentences(outcome))]
    for table in (backend_table(outcome), method_table(outcome)):
        parts += [f"## {table.title}", markdown_table(table)]
    return "\n\n".join(parts) + "\n"


def as_json(outcome: ReplayOutcome) -> str:
    """Return all figures as a JSON object; times in ns."""
    values: dict[str, Any] = {
        "source": outcome.traffic.source,
        "recorded_over": outcome.source or None,
        "think": "recorded" if outcome.think else "none",
        "clients_count": len(outcome.traffic.threads),
        "calls_count": outcome.traffic.calls_count,
        "recorded_calls_count": outcome.traffic.recorded_calls_count,
        "gaps_known": outcome.traffic.gaps_known,
        "server_known": outcome.traffic.server_known,
        "rounds_count": outcome.rounds_count,
        "recorded_ns": outcome.recorded_ns,
        "backends": [asdict(backend) for backend in outcome.backends],
        "methods": [asdict(method) for method in outcome.methods],
        "remarks": list(outcome.remarks),
        "left_out": outcome.left_out,
        "failed": outcome.failed,
    }
    return document("replay", values)


def as_csv(outcome: ReplayOutcome) -> str:
    """Return the table of backends as CSV; times in ns."""
    return csv_text([_csv_row(backend, outcome) for backend in outcome.backends], _CSV_COLUMNS)


def _csv_row(backend: BackendOutcome, outcome: ReplayOutcome) -> dict[str, Any]:
    low, estimate, high = backend.predicted_ns.low, backend.predicted_ns.estimate, backend.predicted_ns.high
    gain = backend.gain_ratio
    values = (
        backend.name, backend.rank, backend.rounds_count,
        None if outcome.recorded_ns is None else round(outcome.recorded_ns), round(backend.replayed_ns),
        round(backend.table_ns), round(estimate), round(low), round(high),
        None if backend.at_most_ns is None else round(backend.at_most_ns),
        *(("", "", "") if gain is None else (f"{part:.6f}" for part in (gain.estimate, gain.low, gain.high))),
        backend.verdict, backend.failure,
    )  # fmt: skip
    return dict(zip(_CSV_COLUMNS, values, strict=True))


FORMS: dict[str, Callable[[ReplayOutcome], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
    "csv": as_csv,
}
"""Name of a format → what writes it."""
