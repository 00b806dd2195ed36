"""Which trials enter a figure, and the notes beside a cell's figures: stamps, failures, few rounds, moving cores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from statistics import fmean, median

from ipcbench.results.model import Floor, TrialResult, placement_differs
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS
from ipcbench.util.units import format_significant

_MAX_REASON = 300
_MAX_DETAILS = 3

_MAX_HARNESS_RATIO = 0.05
"""If the harness's loops are a larger share of a figure than this, the cell says so."""

WRONG_WORDS = "messages lost, duplicated, reordered or torn"
PLACEMENT_NOTE = "some trials were taken with cores near to each other and some with cores far apart"


def is_sound(trial: TrialResult) -> bool:
    """Return whether a trial may enter a figure: it is ok, and no message was lost, repeated, reordered or torn."""
    return trial.status == "ok" and not _errors_count(trial)


def is_wrong(trial: TrialResult) -> bool:
    """Return whether a message was lost, duplicated, reordered or torn."""
    return _errors_count(trial) > 0


def failure_reason(trials: Sequence[TrialResult]) -> str:
    """Return in one line why trials failed or were skipped, each distinct reason once."""
    reasons: dict[str, int] = {}
    for trial in trials:
        if not is_sound(trial):
            reason = one_line(trial.reason or f"{_errors_count(trial)} messages were not delivered as promised")
            reasons[reason] = reasons.get(reason, 0) + 1
    return "; ".join(f"{text} ({count} trials)" if count > 1 else text for text, count in reasons.items())


def cell_notes(trials: Sequence[TrialResult], unreadable_count: int, floor: Floor | None = None) -> tuple[str, ...]:
    """Return the notes of a cell that has figures, the most serious first.

    Args:
        trials: all trials of the cell, including failed ones.
        unreadable_count: trials whose samples are missing or unusable.
        floor: of the run; None leaves out the share of the harness.
    """
    sound = [trial for trial in trials if is_sound(trial)]
    return (*_notes(trials, sound, unreadable_count), *_harness_share(sound, floor))


def stamped_count(trials: Sequence[TrialResult], kind: str) -> int:
    """Return how many trials have a stamp that begins with `kind`: `noisy`, `oversubscribed` …"""
    return sum(any(note.startswith(kind) for note in trial.notes) for trial in trials)


def unsteady_count(trials: Sequence[TrialResult]) -> int:
    """Return how many trials have an endpoint whose window's two halves disagree."""
    return sum(not all(part.steady for part in trial.endpoints) for trial in trials)


def placement_ns(trials: Sequence[TrialResult]) -> list[float]:
    """Return the placement probe around each trial, ns; trials without it are left out."""
    probes = []
    for conditions in (trial.conditions for trial in trials):
        if conditions is not None:
            values = [probe for probe in (conditions.probe_before_ns, conditions.probe_after_ns) if probe]
            probes += [fmean(values)] if values else []
    return probes


def others_cpu_ratio(trials: Sequence[TrialResult]) -> float | None:
    """Return the share of the CPU time that other processes took, median over the trials; None if unknown."""
    conditions = [trial.conditions for trial in trials if trial.conditions is not None]
    ratios = [each.others_cpu_ratio for each in conditions if each.others_cpu_ratio is not None]
    return median(ratios) if ratios else None


def printable(text: str) -> str:
    """Return text fit for a terminal: one line, no control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def one_line(text: str) -> str:
    """Return another program's text fit for a terminal: one line of limited length, no control characters."""
    plain = printable(text)
    return plain if len(plain) <= _MAX_REASON else plain[: _MAX_REASON - 1] + "…"


def _errors_count(trial: TrialResult) -> int:
    return sum(reader.integrity.errors_count for reader in trial.readers)


def _notes(trials: Sequence[TrialResult], sound: Sequence[TrialResult], unreadable_count: int) -> Iterator[str]:
    failed = len(trials) - len(sound)
    if failed:
        yield f"{failed} of {len(trials)} trials failed and are left out: {failure_reason(trials)}"
    if unreadable_count:
        yield f"the samples of {unreadable_count} trials are missing or unusable"
    yield from _stamps(sound)
    rounds = len({trial.spec.round_index for trial in sound})
    if rounds < MIN_CLAIM_ROUNDS:
        yield f"only {rounds} round{'s' * (rounds != 1)}: how rounds differ is not known"
    probes = placement_ns(sound)
    if probes and placement_differs(probes):
        yield PLACEMENT_NOTE
    yield from _share_seen(sound)


def _stamps(trials: Sequence[TrialResult]) -> Iterator[str]:
    """Yield each kind of stamp once, with the number of trials that have it and the details."""
    by_kind: dict[str, list[str]] = {}
    for trial in trials:
        stamps = dict(map(_split_stamp, trial.notes))
        if unsteady_count([trial]):
            stamps.setdefault("unsteady", "")
        for kind, detail in stamps.items():
            by_kind.setdefault(kind, []).append(detail)
    for kind, details in sorted(by_kind.items()):
        share = "" if len(details) == len(trials) else f" in {len(details)} of {len(trials)} trials"
        distinct = [detail for detail in dict.fromkeys(details) if detail]
        words = _in_a_row(distinct[:_MAX_DETAILS]) + (", …" if len(distinct) > _MAX_DETAILS else "")
        yield f"{kind}{share}{': ' if words else ''}{words}"


def _in_a_row(details: Sequence[str]) -> str:
    """Return `5, 7 % of the time` for `5 % of the time` and `7 % of the time`: words common to all stand once."""
    words = [detail.split() for detail in details]
    begin = _common(words)
    rests = [each[len(begin) :] for each in words]
    end = _common([rest[::-1] for rest in rests])[::-1]
    unlike = [" ".join(rest[: len(rest) - len(end)]) for rest in rests]
    return " ".join((*begin, ", ".join(unlike), *end)) if all(unlike) else ", ".join(details)


def _common(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the words with which all rows begin."""
    return [first for first, *_ in takewhile(lambda words: len(set(words)) == 1, zip(*rows, strict=False))]


def _split_stamp(stamp: str) -> tuple[str, str]:
    """Return kind and detail of `noisy: 5% steal` or of `0.2 page faults per message`."""
    match = re.fullmatch(r"(?P<number>[\d.,e+-]+) (?P<kind>.+)", one_line(stamp))
    if match:
        return match["kind"], match["number"]
    kind, _, detail = one_line(stamp).partition(":")
    return kind.strip(), detail.strip()


def _share_seen(trials: Sequence[TrialResult]) -> Iterator[str]:
    """Yield the share of the values that the readers of a latest_value cell saw."""
    latest = [reader.integrity for trial in trials if trial.spec.delivery == "latest_value" for reader in trial.readers]
    received = sum(integrity.received_count for integrity in latest)
    skipped = sum(integrity.skipped_count for integrity in latest)
    if received and skipped:
        share = 100 * received / (received + skipped)
        yield f"readers saw {format_significant(share)} % of the values; the others were overwritten"


def harness_ns(trial: TrialResult, floor: Floor | None) -> tuple[float, float] | None:
    """Return what the loops of the writer and of the slowest reader cost per message: measured in their own processes,
    else at the beginning of the run; None if unknown.
    """
    writer, readers = trial.writer, [reader.floor_ns for reader in trial.readers if reader.floor_ns is not None]
    if writer is None:
        return None
    if writer.floor_ns is not None and readers:
        return writer.floor_ns, max(readers)
    if floor is None:
        return None
    if trial.spec.mode == "saturate" and (floor.saturated_writer_ns is None or floor.saturated_reader_ns is None):
        return None
    if writer.stamp_stride > 1 and floor.saturated_writer_ns is not None and floor.saturated_reader_ns is not None:
        return floor.saturated_writer_ns, floor.saturated_reader_ns
    return floor.writer_ns, floor.reader_ns


def _harness_share(trials: Sequence[TrialResult], floor: Floor | None) -> Iterator[str]:
    """Yield the share of the harness's slower loop in the time per message while saturated, if it is large. That in
    the one-way latency has a column, × floor.
    """
    shares = [
        max(loops_ns) * trial.throughput_per_s / 1e9
        for trial in trials
        if trial.throughput_per_s is not None and (loops_ns := harness_ns(trial, floor)) is not None
    ]
    if shares and median(shares) > _MAX_HARNESS_RATIO:
        share = format_significant(100 * median(shares))
        yield f"saturated: the harness itself is {share} % of the time per message"
