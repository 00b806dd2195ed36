"""`ipcbench clean`: remove what dead runs left."""

from __future__ import annotations

import click


@click.command("clean", short_help="Remove what killed runs left behind.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def command(dry_run: bool) -> int:
    """Remove shared memory, sockets and folders of runs that were killed; what a living process holds stays."""
    from ipcbench.processes.cleanup import clean, survey
    from ipcbench.util.units import format_bytes

    found = survey()
    after = found if dry_run else clean(found)
    verb = "would remove" if dry_run else "removed"
    for one in after:
        if one.kept_because:
            click.echo(f"kept {one.path}: {one.kept_because}")
        else:
            click.echo(f"{verb} {one.path} ({format_bytes(one.size_bytes)})")
    if not after:
        click.echo("nothing to remove")
    stuck = any(now.kept_because and not before.kept_because for before, now in zip(found, after, strict=True))
    return 1 if stuck else 0
