"""Finding a place in the channel of a name."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from threading import Event
from typing import Any, Literal, get_args

from ipcbench.backend import Reader, Writer
from ipcbench.channels.channel import Channel, Place
from ipcbench.channels.epoch import Epoch, epochs, leave, remove_dead, usable_backend
from ipcbench.channels.rendezvous import LOOK_S, Lock, Rendezvous
from ipcbench.errors import ConfigError, TransportError, TransportTimeout
from ipcbench.registry import get_backend
from ipcbench.spec import DELIVERIES, WAIT_STRATEGIES, Delivery, WaitStrategy, require_choice, whole_number
from ipcbench.util.clock import deadline_ns, now_ns
from ipcbench.util.units import parse_bytes

Role = Literal["peer", "writer", "reader"]
ChannelPattern = Literal["pair", "broadcast", "queue", "fan_in"]
"""`pair`: two sides, each sends and receives. The others are those of `ChannelSpec.pattern`."""

_LEAVING_S = 1.0
_DEFAULTS: dict[str, Any] = {
    "backend": "shm", "pattern": "pair", "delivery": "every_message", "readers": 1, "writers": 1,
    "max_message_bytes": 2**24, "depth": 16, "wait": "auto",
}  # fmt: skip


def connect(
    name: str,
    backend: str | None = None,
    *,
    role: Role = "peer",
    pattern: ChannelPattern | None = None,
    delivery: Delivery | None = None,
    readers: int | None = None,
    writers: int | None = None,
    max_bytes: int | str | None = None,
    depth: int | None = None,
    wait: WaitStrategy | None = None,
    timeout_s: float | None = None,
) -> Channel:
    """Take a place in the channel of that name on this host; whoever comes first makes it.

    Two processes that both call `connect("name")` have a pair: each sends, each receives. With a role, one side writes
    and others read. What is None is as the channel was made, by whoever came first, or else the default. A reader that
    gives neither pattern, delivery nor numbers waits until another process has made the channel.

    Args:
        name: 1 to 24 letters, digits, `-` or `_`.
        backend: name of the transport, `shm` by default.
        role: `peer` of a pair; `writer` or `reader` of the other patterns.
        pattern: `pair`; `broadcast`: one writer, every reader gets all (the default with a role); `queue`: one writer,
            each message goes to one reader; `fan_in`: many writers, one reader.
        delivery: `every_message`, or `latest_value` for a broadcast: see `Channel.value`.
        readers: how many readers a broadcast has, 1 by default; of a queue the largest number in its life.
        writers: how many writers a fan-in has, 1 by default.
        max_bytes: size of the arrays and bytes in the largest object, 16 MiB by default. Shared memory for it is
            reserved at once, for a pair about 3 times as much.
        depth: how many messages one side may be ahead of the other, 16 by default.
        wait: how to wait, `auto` by default; see `ChannelSpec.wait`.
        timeout_s: how long to wait for a place, if all are taken by living processes; None waits forever.

    Raises:
        ConfigError: a value is not allowed, or the channel was made with another one.
        UnknownBackend, BackendUnavailable: there is no such transport, or not here.
        TransportTimeout: all places of that role are taken.
        TransportError: the channel cannot be made, or belongs to another user.
    """
    require_choice("role", role, get_args(Role))
    if pattern is not None:
        require_choice("pattern", pattern, get_args(ChannelPattern))
    if delivery is not None:
        require_choice("delivery", delivery, DELIVERIES)
    if wait is not None:
        require_choice("wait", wait, WAIT_STRATEGIES)
    limits = (("readers", readers, 1, 1024), ("writers", writers, 1, 1024), ("depth", depth, 2, 2**16))
    counts = {key: None if value is None else whole_number(key, value, low, high) for key, value, low, high in limits}
    size = parse_bytes(max_bytes, "max_bytes") if isinstance(max_bytes, str) else max_bytes
    if size is not None:
        size = whole_number("max_bytes", size, 1, 2**40)
    usable_backend(_DEFAULTS["backend"] if backend is None else backend)
    if pattern is not None and (role == "peer") != (pattern == "pair"):
        raise ConfigError("role", role, "peer for a pair, and writer or reader for the other patterns")
    if delivery == "latest_value" and (role == "peer" or pattern not in {None, "broadcast"}):
        raise ConfigError("delivery", delivery, "every_message, but for role='writer' and role='reader' of a broadcast")
    pattern = "pair" if role == "peer" else pattern
    wishes = {"backend": backend, "pattern": pattern, "delivery": delivery, "max_message_bytes": size, "wait": wait,
              **counts}  # fmt: skip
    asked = {key: value for key, value in wishes.items() if value is not None}
    meeting = Rendezvous("at", name)
    enter = partial(_enter, meeting, role, asked)
    return Channel(name, enter, deadline_ns(timeout_s))


def _enter(meeting: Rendezvous, role: str, asked: dict[str, Any], deadline: int | None) -> Place:
    while True:
        try:
            with meeting.locked(deadline):
                found = _find(meeting, role, asked)
                if found is not None:
                    epoch, place, lock = found
                    return _open(meeting, epoch, role, place, lock)
        except BaseException:
            meeting.remove()
            raise
        if deadline is not None and now_ns() >= deadline:
            meeting.remove()
            text = f"channel {meeting.name!r}: living processes have all places of a {role}"
            more = ", or nobody has made it yet: a reader that gives no pattern, delivery or numbers waits for that"
            raise TransportTimeout(text + more * (role == "reader"))
        Event().wait(LOOK_S)


def _find(meeting: Rendezvous, role: str, asked: dict[str, Any]) -> tuple[Epoch, str, Lock] | None:
    """Return a place in the newest epoch, or in a new one; None if living processes have all of that role."""
    remove_dead(meeting)
    found = epochs(meeting)
    epoch = found[-1] if found else None
    if epoch is not None and not _is_spent(meeting, epoch, role):
        if role not in epoch.places:
            raise ConfigError("role", role, f"{' or '.join(epoch.places)}, as channel {meeting.name!r} was made")
        for key, value in asked.items():
            if epoch.options[key] != value:
                option = "max_bytes" if key == "max_message_bytes" else key
                raise ConfigError(option, value, f"{epoch.options[key]!r}, as channel {meeting.name!r} was made")
        taken = epoch.take(meeting, role)
        return None if taken is None else (epoch, *taken)
    if role == "reader" and not asked.keys() & {"pattern", "delivery", "readers", "writers"}:
        return None  # it has no say in what the channel is
    usual = {**_DEFAULTS, "pattern": "pair" if role == "peer" else "broadcast"}
    options = {**usual, **(epoch.options if epoch is not None else {}), **asked}
    made = Epoch.create(meeting, options, _places(options))
    taken = made.take(meeting, role)
    assert taken is not None  # noqa: S101 - it is new, and the folder locked
    return made, *taken


def _places(options: dict[str, Any]) -> dict[str, list[str]]:
    """Return the places of each role."""
    if options["pattern"] == "pair":
        return {"peer": ["a", "b"]}
    return {
        "writer": [f"writer-{index}" for index in range(options["writers"])],
        "reader": [f"reader-{index}" for index in range(options["readers"])],
    }


def _is_spent(meeting: Rendezvous, epoch: Epoch, role: str) -> bool:
    """Return whether whoever comes now has no part in an epoch, since a process has left it without which it cannot go
    on, or since all places of the role were taken and not all of these processes live.
    """
    if role not in epoch.places:
        return False  # which the comparison of options tells
    sole = {"pair": "peer", "fan_in": "reader"}.get(epoch.options["pattern"], "writer")
    if not all(is_held for _, is_held in epoch.taken(meeting, sole)):
        return True
    taken = list(epoch.taken(meeting, role))
    return len(taken) == len(epoch.places[role]) and not all(is_held for _, is_held in taken)


def _ends(epoch: Epoch, role: str, place: str) -> tuple[Writer | None, Reader | None]:
    """Open what a place sends and receives by."""
    backend = get_backend(epoch.options["backend"])()
    if role != "peer":
        index = int(place.rpartition("-")[2])
        if role == "writer":
            return backend.open_writer(epoch.addresses[0], index), None
        return None, backend.open_reader(epoch.addresses[0], index)
    there, back = epoch.addresses if place == "a" else epoch.addresses[::-1]
    with ExitStack() as undo:
        writer = undo.enter_context(backend.open_writer(there))
        reader = backend.open_reader(back, 0)
        undo.pop_all()
    return writer, reader


def _open(meeting: Rendezvous, epoch: Epoch, role: str, place: str, lock: Lock) -> Place:
    try:
        writer, reader = _ends(epoch, role, place)
    except BaseException:
        lock.release()
        raise
    needed = [] if role == "reader" else [(other, each) for other, many in epoch.places.items() for each in many
                                          if each != place and (role == "peer" or other == "reader")]  # fmt: skip
    is_queue = epoch.options["pattern"] == "queue"

    def absent() -> list[str]:
        missing = [each for _, each in needed if not meeting.was_taken(f"{epoch.token}-{each}")]
        return missing if not is_queue or len(missing) == len(needed) else []

    receiving = [(other, each) for other, each in needed if role == "peer" or other == "reader"]

    def are_gone() -> bool:
        if is_queue:  # whose workers come and go
            return False
        with suppress(TransportError), meeting.locked(deadline_ns(_LEAVING_S)):
            held = {each for other in {other for other, _ in receiving}
                    for each, is_held in epoch.taken(meeting, other) if is_held}  # fmt: skip
            return not held.intersection(each for _, each in receiving)
        return False

    def go() -> None:
        leave(meeting, lock, deadline_ns(_LEAVING_S))
        epoch.release()

    return Place(epoch.options["delivery"] == "latest_value", is_queue, writer, reader, absent, are_gone, go)
