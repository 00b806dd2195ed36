"""Parts of the documentation that are made from commands and results: compared by a test, written anew by this program.

python -m tests.docs_blocks
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ipcbench.analysis.report.tables import tables
from ipcbench.cli import main
from ipcbench.results.store import load_run
from ipcbench.util.units import format_duration_ns, format_significant

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "choose.md",)
README_PARTS = ("dict of 1,000 entries", "One-way latency p50", "Throughput, k messages")
BLOCK = re.compile(r"<!-- from `(?P<source>[^`]+)` -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)


def decoding_table() -> str:
    """Return how the transports of the reference run differ without decoding and with it."""
    rows = ["| dict | transport | one-way p50 | times the best | decode p50 | both | times the best |"]
    rows.append("| --: | :-- | --: | --: | --: | --: | --: |")
    for setting in tables(load_run(ROOT / "results" / "reference")).summary.settings:
        cells = [cell for cell in setting.cells if cell.latency_p50_ns is not None and cell.decode_p50_ns is not None]
        ways = [(cell.latency_p50_ns.estimate, cell.decode_p50_ns or 0.0) for cell in cells if cell.latency_p50_ns]
        best_way, best_both = min(way for way, _ in ways), min(map(sum, ways))
        for cell, (way, decode) in zip(cells, ways, strict=True):
            figures = [
                format_duration_ns(way),
                format_significant(way / best_way),
                format_duration_ns(decode),
                format_duration_ns(way + decode),
                format_significant((way + decode) / best_both),
            ]
            rows.append(f"| {setting.setting.payload_bytes:,} B | `{cell.backend}` | {' | '.join(figures)} |")
    return "\n".join(rows)


TABLES: Mapping[str, Callable[[], str]] = {"decoding_table": decoding_table}


def output_of(source: str) -> str:
    """Return what `ipcbench …` prints, or one of `TABLES`, as a block: a table as it is, other text between fences."""
    text = TABLES[source]() if source in TABLES else printed_by(source.removeprefix("ipcbench "))
    return f"\n{text}\n\n" if text.startswith("|") else f"```text\n{text}\n```\n"


def printed_by(command: str) -> str:
    handler, path = signal.getsignal(signal.SIGTERM), list(sys.path)
    stream = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(stream):
        code = main(shlex.split(command))
    signal.signal(signal.SIGTERM, handler)
    sys.path[:] = path
    assert code == 0, f"{command}: {code}"
    return stream.getvalue().strip()


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield (source, text) of every block of a page."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield match["source"], match["text"]


def refresh_readme() -> None:
    """Write the tables of the README anew: the verdict of one payload, both matrices of the reference run."""
    shown = output_of("ipcbench analyze results/reference --no-report").split("\n\n")
    chosen = [table for table in shown if table.startswith(README_PARTS)]
    assert len(chosen) == len(README_PARTS)
    page = ROOT / "README.md"
    before, mark, rest = page.read_text(encoding="utf-8").partition("a test compares -->\n```text\n")
    _, fence, after = rest.partition("\n```\n")
    page.write_text("".join((before, mark, "\n\n".join(chosen), fence, after)), encoding="utf-8")


def refresh(page: Path) -> None:
    """Write the blocks of a page anew."""
    text = page.read_text(encoding="utf-8")
    fresh = BLOCK.sub(
        lambda match: f"<!-- from `{match['source']}` -->\n{output_of(match['source'])}<!-- end -->", text
    )
    page.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    refresh_readme()
    for page in PAGES:
        refresh(page)
        os.write(1, f"{page.relative_to(ROOT)}\n".encode())
