"""The file that `ipcbench trace report --html` makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ipcbench.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from ipcbench.trace.report.render import Report
    from ipcbench.trace.report.words import Language

_HOW = "pip install 'ipcbench[report]'"


def write_page(report: Report, paths: Sequence[Path], language: Language, target: str) -> None:
    """Write the page; stderr gets its place.

    Raises:
        ConfigError: the target exists and is not a file.
        StoreError: the disk refuses, or jinja2 is missing.
    """
    from ipcbench.cli.output import write_file
    from ipcbench.trace.page.page import trace_html

    path = Path(target)
    if path.exists() and not path.is_file():
        raise ConfigError("--html", target, "the path of a file")
    try:
        page = trace_html(report, paths, language)
    except ModuleNotFoundError as error:
        raise StoreError(f"--html needs {error.name}: {_HOW}") from error
    write_file(path, page.encode())
    click.echo(f"report in {path}", err=True)
