"""A few lines on what one process recorded, for the end of a program: transport, stages, totals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ipcbench.errors import StoreError
from ipcbench.render.table import Table, make_columns
from ipcbench.render.text import aligned
from ipcbench.trace.format import HISTOGRAMS_SUFFIX, SEGMENT_SUFFIX
from ipcbench.trace.report import render
from ipcbench.trace.report.gather import gather
from ipcbench.trace.report.shares import stage_shares
from ipcbench.trace.report.sums import GroupSums
from ipcbench.util.shell import shell_command


def summary(folder: Path, pid: int) -> str:
    """Return the summary of what the process with that id recorded into the folder of a trace."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    own = [name for name in names if name.endswith((SEGMENT_SUFFIX, HISTOGRAMS_SUFFIX))]
    of_process = [folder / name for name in own if name.split("-")[-3:-2] == [str(pid)]]
    try:
        groups = gather(of_process).sums.groups if of_process else []
    except StoreError as error:
        return f"ipcbench trace: {error}"
    calls = sum(group.calls_count for group in groups)
    lines = [f"ipcbench trace: process {pid} recorded {calls:,} calls into {folder}"]
    for group in groups:
        lines += _of_group(group)
    if len(own) > len(of_process):
        lines.append(f"other processes recorded there, too: `{shell_command('ipcbench', 'trace', 'report', folder)}`")
    return "\n".join(lines)


def _of_group(group: GroupSums) -> Iterator[str]:
    yield f"{group.segment.name}: {render.overall(group, 'en')}"
    rows = tuple((part.name, *part.row) for part in stage_shares(group))
    yield from aligned(Table("", make_columns(("stage", "total ms", "share")), rows), indent="  ")
