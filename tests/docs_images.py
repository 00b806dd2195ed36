"""Pictures of the documentation, made from the reference run: compared by a test, and made anew by this program.

python -m tests.docs_images
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace

from rich.console import Console

from ipcbench.analysis.charts.groups import chart_groups
from ipcbench.analysis.report.render import show_on
from ipcbench.analysis.report.tables import Tables, tables
from ipcbench.render.plots import plot_files
from ipcbench.render.text import WIDTH
from ipcbench.results.store import load_run
from tests.docs_blocks import ROOT

REFERENCE = ROOT / "results" / "reference"
IMAGES = ROOT / "docs" / "images"
SIZE = 1000
TITLE = "ipcbench analyze results/reference"


def table_svg(found: Tables) -> str:
    """Return what a terminal shows of one payload of the run, as rich records it."""
    index = next(place for place, ranking in enumerate(found.summary.settings) if ranking.setting.size == SIZE)
    part = replace(found, payload_tables=found.payload_tables[index : index + 1], matrices=(), findings=(), legend=())
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor")
    show_on(part, console)
    svg = re.sub(r"\s*@font-face \{.*?\}", "", console.export_svg(title=TITLE, unique_id="table"), flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "monospace")  # nothing is to be fetched


def main() -> None:
    run = load_run(REFERENCE)
    found = tables(run)
    groups = tuple(group for group in chart_groups(run, found.summary) if group.key == "latency")
    plots = {file.name: file.data for file in plot_files(groups, " · ".join(found.header[:2]))}
    for name, data in (("table.svg", table_svg(found).encode()), ("latency.png", plots["latency.png"])):
        (IMAGES / name).write_bytes(data)
        os.write(1, f"docs/images/{name}\n".encode())


if __name__ == "__main__":
    main()
