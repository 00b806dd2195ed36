"""`ipcbench clean`: remove the stale resources of killed runs."""

from __future__ import annotations

import click


@click.command("clean", short_help="Remove what killed runs left behind.")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
def command(dry_run: bool) -> int:
    """Remove shared memory, sockets and folders of killed runs; whatever a live process holds is kept."""
    from ipcbench.processes.cleanup import clean, survey
    from ipcbench.util.units import format_bytes

    before = survey()
    after = before if dry_run else clean(before)
    verb = "would remove" if dry_run else "removed"
    for resource in after:
        if resource.kept_because:
            click.echo(f"kept {resource.path}: {resource.kept_because}")
        else:
            click.echo(f"{verb} {resource.path} ({format_bytes(resource.size_bytes)})")
    if not after:
        click.echo("nothing to remove")
    stuck = any(now.kept_because and not then.kept_because for then, now in zip(before, after, strict=True))
    return 1 if stuck else 0
