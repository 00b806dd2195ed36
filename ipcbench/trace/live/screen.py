"""The table of `ipcbench trace top`: rates, percentiles and where the time goes, as something that rich can draw.

What does not live here: the figures (meter.py), and the terminal itself (ipcbench/cli).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ipcbench.trace.live.meter import Reading
from ipcbench.trace.readers.by_method import Sums
from ipcbench.trace.readers.calls import FAR_SIDES, method_name
from ipcbench.units import format_duration_ns, format_significant

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
_REST_COLOR = "bright_black"
_BAR_CELLS = 24
_FIGURES_WIDTH = 62
"""What everything but the method and the bar needs."""
_MIB = 2**20
_MOST_METHODS = 40


def draw(reading: Reading, folder: str, width: int, problems: Sequence[str] = (), most: int = _MOST_METHODS) -> Group:
    """Return the table, at most `width` characters wide, and what stands around it; `most` limits its rows."""
    from rich.console import Group
    from rich.text import Text

    counts = [(role in FAR_SIDES, sums.calls_count) for _, role, sums in reading.methods]
    calls = sum(count for is_far, count in counts if not is_far) or sum(count for _, count in counts)
    head = Text.assemble(
        (plain(folder), "bold"),
        f"   {format_significant(calls / reading.seconds)} calls/s over {reading.seconds:.1f} s, ",
        f"{reading.seen_count:,} seen",
    )
    if not reading.seen_count:
        head = Text.assemble((plain(folder), "bold"), "   no calls yet; waiting")
    parts: list[Text | Table] = [head]
    if reading.methods:
        parts += [_table(reading, width, most), _legend(_stages(reading))]
        hidden = len(reading.methods) - most
        if hidden > 0:
            parts.append(Text(f"and {hidden} more methods, which took less time"))
    parts += [Text(f"not read: {plain(one)}", style="yellow") for one in problems[:3]]
    return Group(*parts)


def plain(text: str) -> str:
    """Return text in which nothing commands a terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def _stages(reading: Reading) -> list[str]:
    return list(dict.fromkeys(stage for _, _, sums in reading.methods for stage in sums.stage_ns))


def _table(reading: Reading, width: int, most: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    cells = min(_BAR_CELLS, max(0, width - _FIGURES_WIDTH - 16))
    table.add_column("method", overflow="ellipsis", no_wrap=True, max_width=max(12, width - _FIGURES_WIDTH - cells))
    for name in ("calls/s", "p50", "p99", "MiB/s", "in flight", "failed"):
        table.add_column(name, justify="right", no_wrap=True, min_width=8 if name.startswith("p") else 6)
    table.add_column("stages", no_wrap=True, width=cells)
    stages = _stages(reading)
    for name, role, sums in reading.methods[:most]:
        table.add_row(Text(plain(method_name(name, role))), *_figures(sums, reading.seconds),
                      _bar(sums, stages, cells))  # fmt: skip
    return table


def _figures(sums: Sums, seconds: float) -> Iterator[Text]:
    from rich.text import Text

    yield Text(format_significant(sums.calls_count / seconds))
    for probability in (0.5, 0.99):
        value = sums.quantile_ns(probability)
        yield Text("–" if value is None else format_duration_ns(value))
    yield Text(format_significant(sums.moved_bytes / _MIB / seconds))
    yield Text(format_significant(sums.total_ns / 1e9 / seconds))
    yield Text(f"{sums.failed_count:,}" if sums.failed_count else "", style="red")


def bar_cells(parts: Sequence[float], cells: int) -> list[int]:
    """Return how many cells each part takes; together all of them, if there is anything."""
    whole = sum(parts)
    if whole <= 0:
        return [0] * len(parts)
    ends = [round(sum(parts[: index + 1]) / whole * cells) for index in range(len(parts))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _bar(sums: Sums, stages: Sequence[str], cells: int) -> Text:
    from rich.text import Text

    parts = [max(0.0, float(sums.stage_ns.get(name, 0))) for name in stages]
    rest = max(0.0, sums.total_ns - sum(parts))
    text = Text()
    for index, count in enumerate(bar_cells([*parts, rest], cells)):
        last = index == len(stages)
        text.append(("░" if last else "█") * count, _REST_COLOR if last else _COLORS[index % len(_COLORS)])
    return text


def _legend(stages: Sequence[str]) -> Text:
    from rich.text import Text

    text = Text()
    for index, name in enumerate(stages):
        text.append("█ ", _COLORS[index % len(_COLORS)]).append(f"{plain(name)}   ")
    return text.append("░ ", _REST_COLOR).append("in no stage   ").append("in flight: on average", "dim")
