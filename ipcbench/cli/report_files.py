"""The plots and pages that `analyze` and `trace report --html` write; no other file is touched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ipcbench.cli.output import tell, write_file
from ipcbench.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from ipcbench.analysis.report.tables import Tables
    from ipcbench.render.charts import ChartGroup
    from ipcbench.results.store import Run
    from ipcbench.trace.report.render import Report
    from ipcbench.trace.report.words import Language

REPORT_FILE = "report.html"
PLOTS_FOLDER = "plots"
_HOW = "pip install 'ipcbench[report]'"


def write_report(run: Run, tables: Tables, others: Sequence[tuple[Run, Tables]], target: Path) -> None:
    """Write plots and report into `target`; stderr gets their place, or which library is missing.

    Args:
        run: the run.
        tables: its tables.
        others: the other runs of the command, for the fan-out plots.
        target: an existing folder.

    Raises:
        StoreError: the disk refuses, or the folder for plots is a link.
    """
    from ipcbench.analysis.charts.groups import chart_groups

    groups = chart_groups(run, tables.summary, [(other, its_tables.summary) for other, its_tables in others])
    missing: dict[str, list[str]] = {}
    count = 0
    try:
        count = _write_plots(groups, tables, target / PLOTS_FOLDER)
    except ImportError as error:
        missing.setdefault(_reason(error), []).append(f"{PLOTS_FOLDER}/")
    try:
        _write_page(groups, run, tables, target / REPORT_FILE)
        tell(f"report in {target / REPORT_FILE}{f', {count} plots beside it' if count else ''}")
    except ImportError as error:
        missing.setdefault(_reason(error), []).append(REPORT_FILE)
    if missing:
        parts = [f"{' and '.join(names)} ({reason})" for reason, names in missing.items()]
        tell(f"not written: {', '.join(parts)}; to have them: {_HOW}")


def _reason(error: ImportError) -> str:
    return f"no {error.name}" if isinstance(error, ModuleNotFoundError) else " ".join(str(error).split())


def _write_plots(groups: tuple[ChartGroup, ...], tables: Tables, folder: Path) -> int:
    """Write the plots and return their number; a PNG and its SVG count once."""
    from ipcbench.render.plots import plot_files
    from ipcbench.util.files import as_store_errors

    names = set()
    for plot in plot_files(groups, " · ".join(tables.header[:2])):
        if folder.is_symlink():
            raise StoreError(f"{folder}: is a link; plots are written only into a real folder")
        with as_store_errors(folder):
            folder.mkdir(exist_ok=True)
        write_file(folder / plot.name, plot.data)
        names.add(Path(plot.name).stem)
    return len(names)


def _write_page(groups: tuple[ChartGroup, ...], run: Run, tables: Tables, path: Path) -> None:
    from ipcbench.analysis.report.page import headline_words, report_html

    write_file(path, report_html(tables, groups, headline_words(tables)).encode())


def write_trace_page(report: Report, paths: Sequence[Path], language: Language, target: str) -> None:
    """Write the page; stderr gets its place.

    Raises:
        ConfigError: the target exists and is not a file.
        StoreError: the disk refuses, or jinja2 is missing.
    """
    from ipcbench.trace.page.page import trace_html

    require_page(target)
    write_page(trace_html(report, paths, language), target)


def require_page(target: str) -> None:
    """Refuse a page that could not be written, before the work that it is to show.

    Raises:
        ConfigError: the target exists and is not a file.
        StoreError: jinja2 is missing.
    """
    path = Path(target)
    if path.exists() and not path.is_file():
        raise ConfigError("--html", target, "the path of a file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError("--html", target, "a file in a folder that exists, and that this user may write into")
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError as error:
        raise StoreError(f"--html needs {error.name}: {_HOW}") from error


def write_page(page: str, target: str) -> None:
    """Write a page; stderr gets its place.

    Raises:
        StoreError: the disk refuses.
    """
    path = Path(target)
    write_file(path, page.encode())
    tell(f"report in {path}")
