"""`ipcbench check`: the conformance suite on a backend, with a line for each law as it is decided."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ipcbench.cli import EXIT_FAILED
from ipcbench.cli.options import backend_names, format_option, one_of
from ipcbench.render.document import document

if TYPE_CHECKING:
    from ipcbench.testing import LawResult


@click.command("check")
@click.argument("backend", metavar="NAME | module:Class", shell_complete=one_of(backend_names))
@click.option("--laws", metavar="LAW,…", help="Check only these laws, such as C1,C7.")
@click.option("--quick", is_flag=True, help="Run fewer, smaller and shorter checks; finds less.")
@format_option("text", "json")
def command(backend: str, laws: str | None, quick: bool, form: str) -> int:
    """Check a backend against every law of the contract (docs/contract.md); exit 1 if a law is broken.

    Give a NAME from `ipcbench list`, or your own class; its module is also looked for in the current folder.
    """
    from ipcbench.machine.describe import require_proc
    from ipcbench.processes.run_dir import require_room_for_sockets
    from ipcbench.registry import get_backend
    from ipcbench.testing import LAWS, check_backend

    require_proc()
    require_room_for_sockets()
    backend_class = get_backend(backend)
    backend_class.probe()
    results: list[LawResult] = []
    for law in laws.split(",") if laws else LAWS:  # law by law, so that each result is shown at once
        results += check_backend(backend_class, laws=[law.strip()], quick=quick)
        if form == "text":
            click.echo(_line(results[-1]))
    counts = {
        outcome: sum(result.outcome == outcome for result in results) for outcome in ("passed", "failed", "skipped")
    }
    if form == "text":
        click.echo(f"{backend}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    else:
        fields = {"backend": backend, "counts": counts, "laws": [asdict(result) for result in results]}
        click.echo(document("conformance", fields), nl=False)
    return EXIT_FAILED if counts["failed"] else 0


def _line(result: LawResult) -> str:
    """Return the result in one line; if the law is broken, what was observed follows, indented."""
    mark = {"passed": "ok  ", "failed": "FAIL", "skipped": "skip"}[result.outcome]
    line = f"{mark}  {result.law:4} {result.title}"
    if result.outcome == "failed":
        return "\n".join([line, *(f"           {text}" for text in result.reason.splitlines())])
    return f"{line}  ({result.reason})" if result.reason else line
