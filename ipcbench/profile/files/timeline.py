"""The steps of a profile as slices on two tracks a rank, computing and communication, with arrows between calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ipcbench.profile.records import Call, Profile
from ipcbench.profile.summary import with_matches
from ipcbench.trace.exporters import packets

_TRACKS = ("computing", "communication")


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice.

    Attributes:
        track: 0 is computing, 1 communication.
        leaving: numbers of the arrows that begin at it.
        arriving: number of the one that ends at it.
    """

    rank: int
    track: int
    name: str
    start_ns: int
    end_ns: int
    detail: dict[str, str | int]
    leaving: tuple[int, ...] = ()
    arriving: int | None = None


def slices(profile: Profile) -> list[Slice]:
    """Return steps, spans and calls, an outer one before those within; nothing of a plan, which has no times.

    An arrow leads from a send, or the call of the rank that came last, to the transfer of each other member.
    """
    found = [
        Slice(step.rank, 0, step.phase, step.start_ns, step.start_ns + step.wall_ns,
              {"step": step.number, "position": step.position, "source": step.source})
        for step in profile.steps
    ] + [
        Slice(span.rank, 0, span.path or "model", span.start_ns, span.start_ns + span.duration_ns, {"kind": span.kind})
        for span in profile.spans
    ]  # fmt: skip
    groups: dict[int, list[Call]] = defaultdict(list)
    for call in with_matches(profile).calls:
        if call.enter_ns is not None and call.match is not None:
            groups[call.match].append(call)
    count = 0
    for calls in groups.values():
        first, *others = sorted(calls, key=lambda call: (call.op != "send", -(call.enter_ns or 0)))
        arrows = range(count + 1, count + 1 + len(others))
        count += len(others)
        found += _call(first, tuple(arrows), None)
        for call, arrow in zip(others, arrows, strict=True):
            found += _call(call, (), arrow)
    return sorted(found, key=lambda each: (each.rank, each.track, each.start_ns, -each.end_ns))


def _call(call: Call, leaving: tuple[int, ...], arriving: int | None) -> Iterator[Slice]:
    """Yield a call and its transfer, which begins when all are there; 1 ns later at the end of an arrow, since viewers
    draw arrows forwards in time.
    """
    start, end = call.enter_ns or 0, call.exit_ns or call.enter_ns or 0
    detail: dict[str, str | int] = {"bytes": call.bytes, "path": call.path, "ranks": str(list(call.ranks))}
    yield Slice(call.rank, 1, call.op, start, end, detail)
    yield Slice(
        call.rank, 1, "transfer", min(end, start + (call.wait_ns or 0) + bool(arriving)), end, {}, leaving, arriving
    )


def perfetto(profile: Profile) -> bytes:
    """Return the timeline as Perfetto's protobuf trace: a process a rank."""
    parts = [packets.clear()]
    for rank in profile.ranks:
        parts.append(packets.process_track(_uuid(rank, -1), rank + 1, f"rank {rank}"))
        parts += [packets.track(_uuid(rank, track), name, _uuid(rank, -1)) for track, name in enumerate(_TRACKS)]
    ends: list[tuple[int, int]] = []  # of the slices that are open, with their tracks; innermost last
    for each in slices(profile):
        track = _uuid(each.rank, each.track)
        while ends and (ends[-1][1] != track or ends[-1][0] <= each.start_ns):
            end_ns, ended = ends.pop()
            parts.append(packets.event(end_ns, packets.end(ended)))
        event = packets.begin(track, each.name, _TRACKS[each.track])
        event += b"".join(packets.argument(name, value) for name, value in each.detail.items())
        event += b"".join(packets.flow(number, is_last=False) for number in each.leaving)
        event += b"" if each.arriving is None else packets.flow(each.arriving, is_last=True)
        parts.append(packets.event(each.start_ns, event))
        ends.append((each.end_ns, track))
    parts += [packets.event(end_ns, packets.end(track)) for end_ns, track in reversed(ends)]
    return b"".join(parts)


def _uuid(rank: int, track: int) -> int:
    return 1 + 3 * rank + track + 1


def chrome(profile: Profile) -> dict[str, Any]:
    """Return the timeline as Chrome's trace, times in µs; pid is the rank."""
    events: list[dict[str, Any]] = []
    for rank in profile.ranks:
        names = [("process_name", 0, f"rank {rank}"), *(("thread_name", n, name) for n, name in enumerate(_TRACKS))]
        events += [
            {"ph": "M", "name": key, "pid": rank, "tid": tid, "args": {"name": name}} for key, tid, name in names
        ]
    for each in slices(profile):
        place = {"pid": each.rank, "tid": each.track, "cat": _TRACKS[each.track], "ts": each.start_ns / 1e3}
        duration_us = (each.end_ns - each.start_ns) / 1e3
        events.append({"ph": "X", "name": each.name, "dur": duration_us, "args": each.detail, **place})
        events += [{"ph": "s", "name": "to the others", "id": number, **place} for number in each.leaving]
        if each.arriving is not None:
            events.append({"ph": "f", "bp": "e", "name": "to the others", "id": each.arriving, **place})
    return {"displayTimeUnit": "ns", "traceEvents": events}
