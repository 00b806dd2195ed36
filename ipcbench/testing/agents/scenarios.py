"""What an agent does at one endpoint of a channel: the scenarios that the laws are checked with, by name."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ipcbench.backend import Reader, Writer
from ipcbench.errors import TransportTimeout
from ipcbench.testing.agents.pattern import (
    Tally,
    is_message,
    is_plain_view,
    make_as,
    make_message,
    read_header,
)
from ipcbench.testing.failure import Failure
from ipcbench.util.clock import now_ns

_MOST_EXTRA = 64


@dataclass(slots=True)
class Place:
    """One open endpoint in an agent, and the last view that was read from it, as long as a scenario holds it."""

    endpoint: Writer | Reader
    held: memoryview | None = None
    closed: bool = False
    """Whether a scenario has closed the endpoint; whoever tidies up must not close it a second time."""

    @property
    def writer(self) -> Writer:
        """The endpoint, which must be a writer."""
        if not isinstance(self.endpoint, Writer):
            raise TypeError(f"{type(self.endpoint).__name__} is not a Writer")
        return self.endpoint

    @property
    def reader(self) -> Reader:
        """The endpoint, which must be a reader."""
        if not isinstance(self.endpoint, Reader):
            raise TypeError(f"{type(self.endpoint).__name__} is not a Reader")
        return self.endpoint


def close(place: Place) -> None:
    """Close the endpoint."""
    place.held, place.closed = None, True
    place.endpoint.close()


def close_holding(place: Place) -> None:
    """Close the endpoint while the last view is still held."""
    place.closed = True
    place.endpoint.close()
    place.held = None


def write(
    place: Place, *, seed: int, sequence: int, size: int, timeout_s: float | None, kind: str = "bytes"
) -> dict[str, Any]:
    """Write one message; return how long it took and the failure, if any."""
    message = make_as(kind, seed, sequence, size)
    writer = place.writer
    failure: Failure | None = None
    start = now_ns()
    try:
        writer.write(message, timeout_s)
        took_ns = now_ns() - start
    except Exception as error:
        took_ns = now_ns() - start
        failure = Failure.of(error)
    return {"took_ns": took_ns, "failure": failure and failure.as_dict()}


def write_stream(
    place: Place, *, seed: int, first: int, count: int, sizes: list[int], kinds: list[str], timeout_s: float
) -> int:
    """Write messages `first … first + count − 1` as fast as the channel takes them; sizes and kinds go round."""
    writer = place.writer
    for sequence in range(first, first + count):
        size, kind = sizes[sequence % len(sizes)], kinds[sequence % len(kinds)]
        writer.write(make_as(kind, seed, sequence, size), timeout_s)
    return count


def write_for(place: Place, *, seed: int, first: int, size: int, duration_s: float, timeout_s: float) -> int:
    """Write messages of one size for that long; return the sequence of the last one."""
    writer = place.writer
    stop = now_ns() + int(duration_s * 1e9)
    sequence = first
    writer.write(make_message(seed, sequence, size), timeout_s)
    while now_ns() < stop:
        sequence += 1
        writer.write(make_message(seed, sequence, size), timeout_s)
    return sequence


def fill(place: Place, *, seed: int, first: int, size: int, most: int, timeout_s: float) -> dict[str, Any]:
    """Write until a write fails, or `most` messages were taken; return how many were, and how the last write ended."""
    writer = place.writer
    for taken in range(most):
        message = make_message(seed, first + taken, size)
        start = now_ns()
        try:
            writer.write(message, timeout_s)
        except Exception as error:
            return {"taken": taken, "took_ns": now_ns() - start, "failure": Failure.of(error).as_dict()}
    return {"taken": most, "took_ns": 0, "failure": None}


def write_reusing(place: Place, *, seed: int, first: int, count: int, size: int, timeout_s: float) -> str:
    """Write from one bytearray that is overwritten as soon as `write` returns, and is resized at last; return what the
    resizing raised, if anything: a buffer that is still referred to cannot be resized.
    """
    writer = place.writer
    buffer = bytearray(size)
    for sequence in range(first, first + count):
        buffer[:] = make_message(seed, sequence, size)
        writer.write(buffer, timeout_s)
        buffer[:] = b"\xee" * size
    try:
        buffer.append(0)
    except BufferError as error:
        return str(error)
    return ""


def read(place: Place, *, timeout_s: float | None, seed: int = 0, sequence: int = 0, size: int = 0) -> dict[str, Any]:
    """Read once and let the view go; return what came, whether it is that message, the time taken, and the failure."""
    reader = place.reader
    found: dict[str, Any] = {"kind": "", "plain": False, "same": False, "header": None, "failure": None, "size": 0}
    view: object = None
    start = now_ns()
    try:
        view = reader.read(timeout_s)
        found["took_ns"] = now_ns() - start
    except Exception as error:
        found["took_ns"] = now_ns() - start
        found["failure"] = Failure.of(error).as_dict()
        return found
    found["kind"] = type(view).__name__
    if isinstance(view, memoryview) and is_plain_view(view):
        found.update(plain=True, size=len(view), same=is_message(view, seed, sequence, size), header=read_header(view))
    return found


def read_stream(
    place: Place, *, seed: int, first: int, count: int, sizes: list[int], timeout_s: float, extra_s: float
) -> dict[str, Any]:
    """Read until the last message of the stream has come, then wait `extra_s` for one too many, or until a read fails;
    return the tally.
    """
    reader = place.reader
    tally = Tally(first, count)
    try:
        while not (tally.at_end() or tally.is_flood()):
            tally.add(reader.read(timeout_s), seed, sizes)
        for _ in range(_MOST_EXTRA if extra_s else 0):
            tally.add(reader.read(extra_s), seed, sizes)
    except Exception as error:
        past_end = tally.at_end() and isinstance(error, TransportTimeout)
        tally.ended = "" if past_end else Failure.of(error).kind
    return tally.as_dict()


def read_until(place: Place, *, seed: int, sequence: int, timeout_s: float) -> bool:
    """Read past everything up to message `sequence`; return whether it came before a read timed out."""
    reader = place.reader
    try:
        while read_header(reader.read(timeout_s)) != (sequence, seed):
            continue
    except TransportTimeout:
        return False
    return True


def look_until(place: Place, *, seed: int, sequence: int, size: int, timeout_s: float) -> int:
    """Call `read` with a time-out of 0 until that message comes; return how many looks it took, −1 if it never came."""
    reader = place.reader
    stop = now_ns() + int(timeout_s * 1e9)
    looks = 0
    while now_ns() < stop:
        looks += 1
        try:
            return looks if is_message(reader.read(0), seed, sequence, size) else -1
        except TransportTimeout:
            continue
    return -1


def hold(place: Place, *, timeout_s: float) -> int:
    """Read one message and keep its view; return its size."""
    place.held = place.reader.read(timeout_s)
    return len(place.held)


def is_held_whole(place: Place, *, seed: int, sequence: int, size: int) -> bool:
    """Return whether the view that is held is still that message, after all other garbage was collected."""
    gc.collect()
    return place.held is not None and is_message(place.held, seed, sequence, size)


def use_in_block(place: Place) -> str:
    """Use the endpoint as a context manager and leave it; return what `__enter__` gave if that is another object."""
    place.closed = True
    with place.endpoint as entered:
        return "" if entered is place.endpoint else repr(entered)


SCENARIOS: dict[str, Callable[..., Any]] = {
    scenario.__name__: scenario
    for scenario in (
        close,
        close_holding,
        fill,
        hold,
        is_held_whole,
        look_until,
        read,
        read_stream,
        read_until,
        use_in_block,
        write,
        write_for,
        write_reusing,
        write_stream,
    )
}
"""Name → scenario, the only things that an agent can be asked to do at an endpoint."""
