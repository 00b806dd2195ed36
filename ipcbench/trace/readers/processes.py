"""Which processes of a recorded program were seen, and which programs that it started were not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ipcbench.trace.format import PROCESSES_FILE
from ipcbench.trace.readers.batch import Notes
from ipcbench.util.text import printable

_MOST_LINES = 100_000


def read_processes(folder: Path, notes: Notes) -> None:
    """Count in the notes the Python processes that began, and the programs that were started and did not."""
    try:
        with (folder / PROCESSES_FILE).open(encoding="utf-8", errors="replace") as file:
            lines = [line for _, line in zip(range(_MOST_LINES), file, strict=False)]
    except OSError:
        return
    events = [event for event in map(_parsed, lines) if event is not None]
    began = [event for event in events if event["event"] == "began"]
    pids = {event["pid"] for event in began}
    programs = {event["pid"] for event in events if event["event"] == "run"} or {event["pid"] for event in began[:1]}
    waiting, replaced = _paired(events, pids, programs)
    _note_losses(events, notes)
    for event in events:
        if event["event"] == "run" and event["pid"] not in pids:
            notes.unseen[_name(event)] += 1
    for event in events:
        pid, name = event["pid"], _name(event)
        if event["event"] != "started":
            continue
        # A child's parent is who started it, or a shell between, of which nothing else is known.
        parent = pid if waiting[pid] else None
        if event.get("alone") is True:
            notes.unseen[name] += 1
        elif event.get("replaces") is True:
            if replaced[pid]:
                replaced[pid] -= 1
                notes.unseen[name] += 1
        elif waiting[parent]:
            waiting[parent] -= 1
        else:
            notes.unseen[name] += 1
    notes.processes_count += len(pids)


def _note_losses(events: list[dict[str, Any]], notes: Notes) -> None:
    for event in events:
        if event["event"] == "lost":
            notes.lost("", event["pid"])


def _paired(
    events: list[dict[str, Any]], pids: set[int], programs: set[int]
) -> tuple[Counter[int | None], Counter[int]]:
    """Return how many began by the process that may have started each, None for one that is not known, and how many
    processes were to become other programs and did not.
    """
    replaced: Counter[int] = Counter()  # processes that were to become another program
    waiting: Counter[int | None] = Counter()
    for event in events:
        pid, is_begin = event["pid"], event["event"] == "began"
        if event["event"] == "started" and event.get("replaces") is True:
            replaced[pid] += 1
        elif is_begin and replaced[pid]:
            replaced[pid] -= 1
        elif is_begin and not event.get("is_own") and pid not in programs:
            waiting[event["ppid"] if event["ppid"] in pids else None] += 1
    return waiting, replaced


def _name(event: dict[str, Any]) -> str:
    return printable(str(event.get("name", "?")))


def _parsed(line: str) -> dict[str, Any] | None:
    """Return the event of a line; None if it is damaged, as the last one of a killed process may be."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    known = isinstance(event, dict) and isinstance(event.get("pid"), int) and isinstance(event.get("ppid"), int)
    return event if known and event.get("event") in {"run", "began", "started", "lost"} else None
