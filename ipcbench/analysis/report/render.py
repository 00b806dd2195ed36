"""Tables of a run as text: for a terminal, for a pipe, as Markdown. The same strings in each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ipcbench.analysis.findings import Finding
from ipcbench.analysis.report.tables import Tables
from ipcbench.render.table import Column, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

WIDTH = 100
FINDINGS_TITLE = "What stands out"
_MAX_NAME = 20
_MARKDOWN_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#"} | {"\n": " "})


def show(tables: Tables, stream: TextIO) -> None:
    """Write the tables to a stream: with rich if it is a terminal (NO_COLOR is honoured), else as plain text."""
    if not stream.isatty():
        stream.write(as_text(tables))
        return
    from rich.console import Console

    # A table is never squeezed: on a narrow terminal its lines wrap, but no digit is cut off.
    terminal = Console(file=stream, highlight=False, emoji=False, markup=False)
    wide = Console(file=stream, highlight=False, emoji=False, markup=False, width=max(WIDTH, terminal.width))
    show_on(tables, wide, min(WIDTH, terminal.width))


def show_on(tables: Tables, wide: Console, width: int = WIDTH) -> None:
    """Print the tables on a console of at least `WIDTH` columns, sentences wrapped at `width`."""
    from rich.text import Text

    for line in _paragraphs(tables.header, width):
        wide.print(Text(line), soft_wrap=True)
    for one in (*tables.payload_tables, *tables.matrices):
        wide.print()
        for line in _paragraphs((one.title,), width):
            wide.print(Text(line, "bold"), soft_wrap=True)
        for line in _paragraphs(one.remarks, width):
            wide.print(Text(line), soft_wrap=True)
        for grid in _grids(one, WIDTH):
            wide.print(_rich_table(grid, one.best_rows))
        for line in _footnotes(one, width):
            wide.print(Text(line, "dim"), soft_wrap=True)
    for index, line in enumerate(_finding_lines(tables.findings, width)):
        wide.print(Text(line, "bold" if index == 1 else ""), soft_wrap=True)
    wide.print()
    for line in _paragraphs(tables.legend, width):
        wide.print(Text(line, "dim"), soft_wrap=True)


def as_text(tables: Tables, width: int = WIDTH) -> str:
    """Return the tables as aligned plain text without any escape sequence."""
    parts = ["\n".join(_paragraphs(tables.header, width))]
    for one in (*tables.payload_tables, *tables.matrices):
        lines = list(_paragraphs((one.title, *one.remarks), width))
        for grid in _grids(one, width):
            lines += _aligned(grid)
        parts.append("\n".join([*lines, *_footnotes(one, width)]))
    if tables.findings:
        parts.append("\n".join(_finding_lines(tables.findings, width)).strip())
    parts.append("\n".join(_paragraphs(tables.legend, width)))
    return "\n\n".join(parts) + "\n"


def as_markdown(tables: Tables) -> str:
    """Return the tables as Markdown (GitHub's), fit to be pasted into a document or an issue."""
    parts = ["\n".join(f"- {_escape(line)}" for line in tables.header)]
    for one in (*tables.payload_tables, *tables.matrices):
        parts.append(f"### {_escape(one.title)}")
        parts.append("\n".join(f"- {_escape(line)}" for line in one.remarks))
        parts.append(_markdown_table(one))
        if one.footnotes:
            parts.append("\n".join(f"- {letter}: {_escape(text)}" for letter, text in one.footnotes))
    if tables.findings:
        parts.append(f"### {FINDINGS_TITLE}")
        parts.append("\n".join(f"- {_escape(one.sentence)} *{_escape(one.action)}*" for one in tables.findings))
    parts.append("\n".join(f"- {_escape(line)}" for line in tables.legend))
    return "\n\n".join(parts) + "\n"


def _paragraphs(lines: Sequence[str], width: int) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)


def _finding_lines(findings: Sequence[Finding], width: int) -> Iterator[str]:
    """Yield an empty line, the title, and the findings; nothing if there are none."""
    if findings:
        yield from ("", FINDINGS_TITLE)
    for one in findings:
        for mark, text in (("- ", one.sentence), ("  → ", one.action)):
            indent = " " * len(mark)
            yield from textwrap.wrap(text, width, initial_indent=mark, subsequent_indent=indent, break_on_hyphens=False)


def _footnotes(table: Table, width: int) -> Iterator[str]:
    for letter, text in table.footnotes:
        yield from textwrap.wrap(f"{letter}: {text}", width, subsequent_indent="   ", break_on_hyphens=False)


def _shortened(name: str) -> str:
    """Return a name that fits its column; of a long one, the end tells more."""
    return name if len(name) <= _MAX_NAME else "…" + name[-_MAX_NAME + 1 :]


@dataclass(frozen=True, slots=True)
class _Grid:
    """A table, or a part of one, laid out to fit."""

    heads: tuple[tuple[str, ...], tuple[str, ...]]
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    gap: int
    """Spaces between columns."""


def _grids(table: Table, width: int) -> list[_Grid]:
    """Return the table in as few parts as fit, of about equally many columns; each begins with those to the backend."""
    name = next(index for index, column in enumerate(table.columns) if column.head[1] == "backend")
    rows = [(*row[:name], _shortened(row[name]), *row[name + 1 :]) for row in table.rows]
    heads = [tuple(column.head[line] for column in table.columns) for line in (0, 1)]
    sizes = [max(len(row[index]) for row in (*heads, *rows)) for index in range(len(table.columns))]
    fixed, free = list(range(name + 1)), list(range(name + 1, len(table.columns)))
    parts: list[list[int]] = []
    for count in range(1, len(free) + 1):
        share = -(-len(free) // count)
        parts = [fixed + free[start : start + share] for start in range(0, len(free), share)]
        if all(_total(sizes, part, gap=1) <= width for part in parts):
            break
    return [_grid(table, part, heads, rows, sizes, width) for part in parts]


def _total(sizes: Sequence[int], indices: Sequence[int], gap: int) -> int:
    return sum(sizes[index] for index in indices) + gap * (len(indices) - 1)


def _grid(
    table: Table,
    part: Sequence[int],
    heads: Sequence[tuple[str, ...]],
    rows: Sequence[tuple[str, ...]],
    sizes: Sequence[int],
    width: int,
) -> _Grid:
    first, second, *picked = (tuple(row[index] for index in part) for row in (*heads, *rows))
    return _Grid(
        heads=(first, second),
        rows=tuple(picked),
        columns=tuple(table.columns[index] for index in part),
        widths=tuple(sizes[index] for index in part),
        gap=2 if _total(sizes, part, gap=2) <= width else 1,
    )


def _aligned(grid: _Grid) -> list[str]:
    lines = []
    for row in (*grid.heads, *grid.rows):
        padded = [
            text.ljust(size) if column.align == "left" else text.rjust(size)
            for text, size, column in zip(row, grid.widths, grid.columns, strict=True)
        ]
        lines.append((" " * grid.gap).join(padded).rstrip())
    lines.insert(2, "-" * max(len(line) for line in lines))
    return lines


def _rich_table(grid: _Grid, best_rows: frozenset[int]) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, grid.gap - 1, 0, 0))
    for index, column in enumerate(grid.columns):
        head = Text("\n".join(line[index] for line in grid.heads))
        rich.add_column(head, justify=column.align, no_wrap=True, min_width=grid.widths[index])
    for index, row in enumerate(grid.rows):
        rich.add_row(*(Text(text) for text in row), style="bold" if index in best_rows else "")
    return rich


def _escape(text: str) -> str:
    return text.translate(_MARKDOWN_SPECIAL)


def _markdown_table(table: Table) -> str:
    heads = [_escape(" ".join(part for part in column.head if part)) for column in table.columns]
    rules = [":--" if column.align == "left" else "--:" for column in table.columns]
    rows = [[_escape(text.strip()) for text in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rules, *rows))
