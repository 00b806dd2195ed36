"""`ipcbench list`: every backend, whether it can run here, and what it can do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click

from ipcbench.cli import format_option


@dataclass(frozen=True, slots=True)
class _Row:
    """One backend."""

    name: str
    available: bool
    reason: str
    hint: str
    summary: str
    capabilities: dict[str, Any]
    """Empty if the backend's module cannot even be imported."""

    def as_dict(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in self.__slots__}


def _row(name: str) -> _Row:
    from ipcbench.errors import ConfigError
    from ipcbench.registry import get_backend, status

    try:
        backend, state = get_backend(name), status(name)
    except (ImportError, ConfigError) as error:  # a broken third-party backend must not hide the others
        return _Row(name, False, f"its module cannot be loaded: {error}", "reinstall the package it comes from", "", {})
    return _Row(name, state.available, state.reason, state.hint, backend.summary, backend.capabilities.as_dict())


_WHEN_FULL = {"block": "blocks when full", "drop": "drops when full", "overwrite": "overwrites when full"}
_LAUNCHERS = {"spawn": "", "mpiexec": "needs mpiexec", "inline": "one process"}


def _describe(can: dict[str, Any]) -> str:
    """Return the capabilities in one line, limits first."""
    from ipcbench.util.units import format_bytes

    facts = [
        ", ".join(can["deliveries"]),
        _WHEN_FULL[can["when_full"]],
        f"≤ {can['max_readers']:,} readers",
        f"≤ {format_bytes(can['max_message_bytes'])}",
        f"waits {'/'.join(can['waits'])}" if can["waits"] else "",
        _LAUNCHERS[can["launcher"]],
        "zero-copy reads" if can["zero_copy_read"] else "",
        "across hosts" if can["remote"] else "",
        "persistent" if can["persistent"] else "",
        "" if can["private"] else "open to all users of this host",
        "" if can["detects_peer_exit"] else "a dead peer shows as a time-out",
    ]
    return " · ".join(filter(None, facts))


def _as_text(rows: list[_Row]) -> str:
    width = max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{row.name:{width}}  {'available  ' if row.available else 'UNAVAILABLE'}  {row.summary}".rstrip())
        if not row.available:
            lines.append(f"{'':{width}}  {row.reason}; {row.hint}")
        if row.capabilities:
            lines.append(f"{'':{width}}  {_describe(row.capabilities)}")
    return "\n".join(lines)


def _as_markdown() -> str:
    """Return the table of docs/choose.md: which needs each registered backend meets, and its limits."""
    from ipcbench.analysis.recommend.needs import NEEDS, registered_offers
    from ipcbench.util.units import format_bytes

    heads = ["transport", *NEEDS, "readers", "message", "waits", "packages"]
    rows = []
    for name, offer in registered_offers().items():
        can = offer.capabilities
        if can.launcher == "inline" or not can.private:
            continue
        rows.append(
            [
                f"`{name}`",
                *("" if need.refusal(offer) else "yes" for need in NEEDS.values()),
                f"≤ {can.max_readers:,}",
                f"≤ {format_bytes(can.max_message_bytes)}",
                ", ".join(sorted(can.waits)),
                ", ".join(offer.packages) or "none",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, [":--"] * len(heads), *rows))


@click.command("list", short_help="List backends: whether they are available, and what they can do.")
@format_option("text", "json", "markdown")
def command(form: str) -> None:
    """List every backend: what it can do, whether it can run here, and if not, how to get it."""
    from ipcbench.registry import names

    if form == "markdown":
        click.echo(_as_markdown())
        return
    rows = [_row(name) for name in names()]
    click.echo(_as_text(rows) if form == "text" else json.dumps([row.as_dict() for row in rows], indent=2))
