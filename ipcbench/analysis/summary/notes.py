"""What must stand beside a cell's figures: stamps of its trials, failures, rates that were not held, moving cores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import fmean

from ipcbench.results.model import TrialResult
from ipcbench.stats.estimates import MIN_ROUNDS
from ipcbench.util.units import format_significant

_MAX_PLACEMENT_RATIO = 1.6
_MAX_REASON = 300
_MAX_DETAILS = 3

PLACEMENT_NOTE = "some trials were taken with cores near to each other and some with cores far apart"


def is_sound(trial: TrialResult) -> bool:
    """Return whether a trial may enter a figure: it is ok, and nothing was lost, repeated, reordered or torn."""
    return trial.status == "ok" and not _errors_count(trial)


def failure_reason(trials: Sequence[TrialResult]) -> str:
    """Return in one line why trials failed or were skipped; each different reason once."""
    reasons: dict[str, int] = {}
    for trial in trials:
        if not is_sound(trial):
            reason = trial.reason or f"{_errors_count(trial)} messages were not delivered as promised"
            reasons[one_line(reason)] = reasons.get(one_line(reason), 0) + 1
    return "; ".join(f"{text} ({count} trials)" if count > 1 else text for text, count in reasons.items())


def cell_notes(trials: Sequence[TrialResult], unreadable_count: int) -> tuple[str, ...]:
    """Return the notes of a cell that has figures, the gravest first.

    Args:
        trials: all of the cell, the failed ones too.
        unreadable_count: trials whose samples are missing or cannot be used.
    """
    return tuple(_notes(trials, [one for one in trials if is_sound(one)], unreadable_count))


def printable(text: str) -> str:
    """Return text fit for a terminal: one line, no control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def one_line(text: str) -> str:
    """Return text of a foreign program fit for a terminal: one line, no control characters, not endless."""
    plain = printable(text)
    return plain if len(plain) <= _MAX_REASON else plain[: _MAX_REASON - 1] + "…"


def _errors_count(trial: TrialResult) -> int:
    return sum(one.integrity.errors_count for one in trial.readers)


def _notes(trials: Sequence[TrialResult], sound: Sequence[TrialResult], unreadable_count: int) -> Iterator[str]:
    failed = len(trials) - len(sound)
    if failed:
        yield f"{failed} of {len(trials)} trials failed and are left out: {failure_reason(trials)}"
    if unreadable_count:
        yield f"the samples of {unreadable_count} trials are missing or unusable"
    yield from _stamps(sound)
    rounds = len({one.spec.round_index for one in sound})
    if rounds < MIN_ROUNDS:
        yield f"only {rounds} round{'s' * (rounds != 1)}: how rounds differ is hardly known"
    yield from _placement(sound)
    yield from _seen(sound)


def _stamps(trials: Sequence[TrialResult]) -> Iterator[str]:
    """Yield each kind of stamp once, with how many trials bear it and their details."""
    found: dict[str, list[str]] = {}
    for trial in trials:
        stamps = dict(map(_split_stamp, trial.notes))
        if not all(one.steady for one in trial.endpoints):
            stamps.setdefault("unsteady", "")
        for kind, detail in stamps.items():
            found.setdefault(kind, []).append(detail)
    for kind, details in sorted(found.items()):
        share = "" if len(details) == len(trials) else f" in {len(details)} of {len(trials)} trials"
        different = [one for one in dict.fromkeys(details) if one]
        words = ", ".join(different[:_MAX_DETAILS]) + (", …" if len(different) > _MAX_DETAILS else "")
        yield f"{kind}{share}{': ' if words else ''}{words}"


def _split_stamp(stamp: str) -> tuple[str, str]:
    """Return kind and detail of `noisy: 5% steal` or of `0.2 page faults per message`."""
    match = re.fullmatch(r"(?P<number>[\d.,e+-]+) (?P<kind>.+)", one_line(stamp))
    if match:
        return match["kind"], match["number"]
    kind, _, detail = one_line(stamp).partition(":")
    return kind.strip(), detail.strip()


def placement_ns(trials: Sequence[TrialResult]) -> list[float]:
    """Return what the placement probe found around each trial, ns; trials without it are left out."""
    found = []
    for trial in trials:
        conditions = trial.conditions
        probes = (conditions.probe_before_ns, conditions.probe_after_ns) if conditions is not None else ()
        values = [one for one in probes if one]
        if values:
            found.append(fmean(values))
    return found


def _placement(trials: Sequence[TrialResult]) -> Iterator[str]:
    probes = placement_ns(trials)
    if probes and max(probes) > _MAX_PLACEMENT_RATIO * min(probes):
        yield PLACEMENT_NOTE


def _seen(trials: Sequence[TrialResult]) -> Iterator[str]:
    latest = [one.integrity for trial in trials if trial.spec.delivery == "latest_value" for one in trial.readers]
    received = sum(one.received_count for one in latest)
    skipped = sum(one.skipped_count for one in latest)
    if received and skipped:
        share = 100 * received / (received + skipped)
        yield f"readers saw {format_significant(share)} % of the values; the others were overwritten"
