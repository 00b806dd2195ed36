"""`ipcbench list`: every backend, whether it can run here, and what it can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from ipcbench.cli.options import backend_names, format_option, one_of
from ipcbench.render.document import document
from ipcbench.spec import DELIVERIES, WAIT_STRATEGIES

_WIDTH = 80
_NO_LIMIT_BYTES = 2**40


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
    from ipcbench.errors import BackendUnavailable
    from ipcbench.registry import get_backend, status

    state = status(name)
    try:
        backend = get_backend(name)
    except BackendUnavailable as error:
        return _Row(name, False, error.reason, error.hint, "", {})
    return _Row(name, state.available, state.reason, state.hint, backend.summary, backend.capabilities.as_dict())


_WHEN_FULL = {"block": "holds the writer", "drop": "drops the message", "overwrite": "overwrites the oldest"}
_LAUNCHERS = {
    "spawn": "any program",
    "fork": "the parent that makes the channel",
    "mpiexec": "mpiexec",
    "inline": "none: all in one process",
}
_HEADS = ("backend", "here", "every message", "latest value", "readers", "message", "waits")
_YES, _CANNOT = "yes", "cannot"


def _state(row: _Row) -> str:
    return _YES if row.available else "no" if row.capabilities else "broken"


def _as_text(rows: list[_Row]) -> str:
    from ipcbench.render.table import Table, make_columns
    from ipcbench.render.text import aligned, wrapped

    table = Table("", make_columns(_HEADS, left=(0, 1, 2, 3, 6)), tuple(map(_cells, rows)))
    lines = aligned(table)
    for row in rows:
        if not row.available:
            lines += wrapped(f"{row.name}: {row.reason}; {row.hint}", _WIDTH)
    return "\n".join([*lines, "", "ipcbench list NAME tells all about one of them."])


def _cells(row: _Row) -> tuple[str, ...]:

    can = row.capabilities
    if not can:
        return (row.name, _state(row), *[""] * (len(_HEADS) - 2))
    offers = (_YES if kind in can["deliveries"] else _CANNOT for kind in DELIVERIES)
    waits = "any" if len(can["waits"]) == len(WAIT_STRATEGIES) - 1 else ", ".join(can["waits"])
    limit = "any" if can["max_message_bytes"] >= _NO_LIMIT_BYTES else f"≤ {_rounded(can['max_message_bytes'])}"
    return (row.name, _state(row), *offers, f"≤ {can['max_readers']:,}", limit, waits)


def _rounded(count: int) -> str:
    """Return a size in GiB if it is a whole number of them but for a head or a terminator."""
    return f"{round(count / 2**30)} GiB" if count >= 2**30 else f"{count:,} B"


def _about(row: _Row) -> str:
    """Return all about one backend."""
    from ipcbench.render.text import wrapped
    from ipcbench.util.units import format_bytes

    can = row.capabilities
    facts = {"here": _YES if row.available else f"{_state(row)}: {row.reason}; {row.hint}"}
    if can:
        facts |= {
            **{kind.replace("_", " "): _YES if kind in can["deliveries"] else _CANNOT for kind in DELIVERIES},
            "patterns": ", ".join(can["patterns"]),
            "when full": _WHEN_FULL[can["when_full"]],
            "readers": f"at most {can['max_readers']:,}",
            "message": f"at most {format_bytes(can['max_message_bytes'])}",
            "waits": ", ".join(can["waits"]),
            "started by": _LAUNCHERS[can["launcher"]],
            "zero-copy reads": _YES if can["zero_copy_read"] else _CANNOT,
            "writes in place": _YES if can["writes_in_place"] else f"{_CANNOT}: `commit` copies",
            "holds one message": "of maximum size"
            if can["holds_one_of_max"]
            else "of small size: write and read in turns",
            "across hosts": _YES if can["remote"] else _CANNOT,
            "outlives processes": _YES if can["persistent"] else _CANNOT,
            "tells a dead peer": _YES if can["detects_peer_exit"] else f"{_CANNOT}: a time-out ends the call",
            "other users": "cannot read along" if can["private"] else "every user of this host can read along",
        }
    width = max(map(len, facts)) + 2
    lines = wrapped(f"{row.name}: {row.summary}", _WIDTH)
    for name, value in facts.items():
        lines += wrapped(value, _WIDTH, first=f"  {name:{width}}", indent=" " * (width + 2))
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


@click.command("list")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=one_of(backend_names))
@format_option("text", "json", "markdown")
def command(name: str | None, form: str) -> None:
    """List every backend, or describe NAME: what it can do, whether it can run here, and if not, how to get it."""
    from ipcbench.registry import names

    if form == "markdown":
        click.echo(_as_markdown())
        return
    rows = [_row(each) for each in (names() if name is None else [name])]
    if form == "text":
        click.echo(_as_text(rows) if name is None else _about(rows[0]))
        return
    click.echo(document("backends", {"backends": [row.as_dict() for row in rows]}), nl=False)
