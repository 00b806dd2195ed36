"""`ipcbench clean`: remove the stale resources of killed runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ipcbench.processes.cleanup import Resource


@click.command("clean")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
def command(dry_run: bool) -> int:
    """Remove shared memory, sockets and folders of killed runs; whatever a live process holds is kept."""
    from ipcbench.processes.cleanup import clean, survey

    before = survey()
    after = before if dry_run else clean(before)
    click.echo("\n".join(lines(after, "would remove" if dry_run else "removed")) or "nothing to remove")
    stuck = any(now.kept_because and not then.kept_because for then, now in zip(before, after, strict=True))
    return 1 if stuck else 0


def lines(resources: Sequence[Resource], verb: str) -> Iterator[str]:
    """Yield what became of each resource: `verb` for those that no living process holds."""
    from ipcbench.util.units import format_bytes

    for resource in resources:
        if resource.kept_because:
            yield f"kept {resource.path}: {resource.kept_because}"
        else:
            yield f"{verb} {resource.path} ({format_bytes(resource.size_bytes)})"
