"""A replay's outcome as text, Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ipcbench.replay.outcome import BackendOutcome, MethodOutcome, ReplayOutcome
from ipcbench.stats.estimates import MIN_ROUNDS, Interval
from ipcbench.util.units import format_duration_ns, format_significant

Rows = tuple[list[str], list[list[str]]]

_VERDICTS = {"faster": "faster", "slower": "slower", "no clear difference": "tie"}
_ESCAPES = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#"})
_CSV_COLUMNS = (
    "backend", "rank", "rounds_count", "recorded_ns", "replayed_ns", "table_ns", "predicted_ns", "predicted_low_ns",
    "predicted_high_ns", "at_most_ns", "gain_ratio", "gain_low_ratio", "gain_high_ratio", "verdict", "failure",
)  # fmt: skip


def printable(text: str) -> str:
    """Return a name as one line that a terminal can show."""
    return "".join(char if char.isprintable() else "�" for char in text)


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


def _rank(one: BackendOutcome, outcome: ReplayOutcome) -> str:
    if one.rounds_count < 2:
        return "–"
    tied = sum(other.rank == one.rank for other in outcome.backends) > 1
    return f"{one.rank} (tie)" if tied else str(one.rank)


def backend_rows(outcome: ReplayOutcome) -> Rows:
    """Return the head and the rows of the table of backends."""
    bounded = any(one.at_most_ns is not None for one in outcome.backends)
    head = ["backend", "rank", "replayed", "α+β table", "at least" if bounded else "predicted end to end"]
    head += ["at most"] if bounded else ["time saved", "against then"]
    rows = []
    for one in outcome.backends:
        wide = one.rounds_count >= MIN_ROUNDS
        name = f"{one.name} (as recorded)" if one.name == outcome.source else one.name
        row = [name, _rank(one, outcome), format_duration_ns(one.replayed_ns), format_duration_ns(one.table_ns)]
        row.append(_time(one.predicted_ns, wide))
        if one.at_most_ns is not None:
            row.append(format_duration_ns(one.at_most_ns))
        else:
            row += [_gain(one.gain_ratio, wide), _VERDICTS[one.verdict] if one.verdict else "–"]
        rows.append(row)
    return head, rows


def method_rows(outcome: ReplayOutcome) -> Rows:
    """Return the head and the rows of the table of methods; times are means per call."""
    names = [one.name for one in outcome.backends]
    head = ["method", "calls", "sent B", "received B", "then", "of it server", *names]
    rows = [_method_row(one, names) for one in outcome.methods]
    if any(one.layout for one in outcome.methods):
        head.append("made of")
        rows = [[*row, printable(one.layout) or "–"] for row, one in zip(rows, outcome.methods, strict=True)]
    return head, rows


def _method_row(one: MethodOutcome, names: Sequence[str]) -> list[str]:
    return [
        printable(one.name),
        f"{one.calls_count:,}",
        f"{one.sent_bytes:,.0f}",
        f"{one.recv_bytes:,.0f}",
        format_duration_ns(one.recorded_ns),
        "unknown" if one.server_ns is None else format_duration_ns(one.server_ns),
        *(format_duration_ns(one.replayed_ns[name]) for name in names),
    ]


def _think(outcome: ReplayOutcome) -> str:
    known = outcome.traffic.server_known
    return ("with" if known else "with what is known of") if outcome.think else "without"


def _sentences(outcome: ReplayOutcome) -> list[str]:
    traffic = outcome.traffic
    clients = len(traffic.threads)
    lines = [
        f"{traffic.calls_count:,} calls of {clients} client{'s' if clients > 1 else ''} took "
        f"{format_duration_ns(outcome.recorded_ns)} as recorded; replayed {outcome.rounds_count} "
        f"time{'s' if outcome.rounds_count > 1 else ''} over each backend, "
        f"{_think(outcome)} the server's work."
    ]
    if outcome.source and traffic.server_known:
        lines.append(f"Time saved is against the replay over {outcome.source}, as the trace was recorded.")
    elif outcome.source:
        lines.append(
            f"Predicted: the recorded time, and what the replay takes more or less than the one over {outcome.source}."
        )
    if outcome.noise_ratio is not None:
        lines.append(f"The rounds of one backend differ by {100 * outcome.noise_ratio:.1f} %; less is a tie.")
    if outcome.rounds_count == 1:
        lines.append("A single round: no intervals, and nobody can be told apart.")
    elif outcome.rounds_count < MIN_ROUNDS:
        lines.append(f"Fewer than {MIN_ROUNDS} rounds: no intervals, which would say little.")
    lines += outcome.remarks
    lines += [f"{name} is left out: {reason}" for name, reason in outcome.left_out.items()]
    lines += [f"{name} failed: {reason}" for name, reason in outcome.failed.items()]
    lines += [
        f"{one.name} failed after {one.rounds_count} rounds: {one.failure}" for one in outcome.backends if one.failure
    ]
    return [printable(line) for line in lines]


def as_text(outcome: ReplayOutcome) -> str:
    """Return the outcome for a terminal."""
    parts = [f"Replay of {printable(outcome.traffic.source)}", "", *_sentences(outcome)]
    for title, rows in (("End to end", backend_rows(outcome)), ("By method, mean of a call", method_rows(outcome))):
        parts += ["", title, "-" * len(title), *_aligned(*rows)]
    return "\n".join(parts) + "\n"


def _aligned(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def as_markdown(outcome: ReplayOutcome) -> str:
    """Return the outcome as Markdown."""
    parts = [f"# Replay of {_safe(outcome.traffic.source)}", "", *(f"- {_safe(one)}" for one in _sentences(outcome))]
    for title, (head, rows) in (("End to end", backend_rows(outcome)), ("By method", method_rows(outcome))):
        parts += ["", f"## {title}", "", _line(head), _line(["---", *["---:"] * (len(head) - 1)])]
        parts += [_line([_safe(cell) for cell in row]) for row in rows]
    return "\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(text: str) -> str:
    return printable(text).translate(_ESCAPES)


def as_json(outcome: ReplayOutcome) -> str:
    """Return everything as one JSON object; times in ns."""
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
        "noise_ratio": outcome.noise_ratio,
        "backends": [asdict(one) for one in outcome.backends],
        "methods": [asdict(one) for one in outcome.methods],
        "remarks": list(outcome.remarks),
        "left_out": outcome.left_out,
        "failed": outcome.failed,
    }
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(outcome: ReplayOutcome) -> str:
    """Return the table of backends as CSV; times in ns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for one in outcome.backends:
        low, estimate, high = one.predicted_ns.low, one.predicted_ns.estimate, one.predicted_ns.high
        gain = one.gain_ratio
        writer.writerow([
            one.name, one.rank, one.rounds_count, round(outcome.recorded_ns), round(one.replayed_ns),
            round(one.table_ns), round(estimate), round(low), round(high),
            "" if one.at_most_ns is None else round(one.at_most_ns),
            f"{gain.estimate:.6f}", f"{gain.low:.6f}", f"{gain.high:.6f}", one.verdict or "", one.failure,
        ])  # fmt: skip
    return out.getvalue()


FORMS: dict[str, Callable[[ReplayOutcome], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
    "csv": as_csv,
}
"""By the name of the form."""
