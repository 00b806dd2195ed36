"""What an agent does with one endpoint: the scenarios that the laws use, by name."""

from __future__ import annotations

import gc
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ipcbench.backend import Reader, Writer
from ipcbench.errors import TransportTimeout
from ipcbench.testing.agents.pattern import StreamCounts, is_message, is_plain_view, make_as, make_message, read_header
from ipcbench.testing.failure import Failure
from ipcbench.util.clock import now_ns

_MOST_EXTRA = 64
_MOST_LOOKS = 1_000
_SIGNAL_S = 0.004


@dataclass(slots=True)
class Slot:
    """One open endpoint of an agent, and the last view that was read from it while a scenario holds it."""

    endpoint: Writer | Reader
    held: memoryview | None = None
    closed: bool = False
    """Whether a scenario has closed the endpoint, so that tidying up must not."""
    descriptor: int = 0
    """On which a scenario has waited."""

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


def close(slot: Slot) -> None:
    """Close the endpoint."""
    slot.held, slot.closed = None, True
    slot.endpoint.close()


def close_holding(slot: Slot) -> None:
    """Close the endpoint while the last view is still held."""
    slot.closed = True
    slot.endpoint.close()
    slot.held = None


def write(
    slot: Slot, *, seed: int, sequence: int, size: int, timeout_s: float | None, kind: str = "bytes"
) -> dict[str, Any]:
    """Write one message; return how long it took and the failure, if any."""
    message, writer, failure = make_as(kind, seed, sequence, size), slot.writer, None
    start = now_ns()
    try:
        writer.write(message, timeout_s)
        took_ns = now_ns() - start
    except Exception as error:
        took_ns = now_ns() - start
        failure = Failure.of(error).as_dict()
    return {"took_ns": took_ns, "failure": failure}


def write_parts(
    slot: Slot, *, seed: int, sequence: int, size: int, cuts: list[int], timeout_s: float | None
) -> dict[str, Any]:
    """Write one message in parts of several kinds, cut at these places; return the failure, if any."""
    message = make_message(seed, sequence, size)
    pieces = [message[start:stop] for start, stop in pairwise([0, *cuts, size])]
    kinds = (bytes, bytearray, memoryview)
    parts = [kinds[number % 3](piece) for number, piece in enumerate(pieces)]
    return _tried(lambda: slot.writer.write_parts(parts, timeout_s))


def write_many(
    slot: Slot, *, seed: int, first: int, count: int, sizes: list[int], timeout_s: float | None
) -> dict[str, Any]:
    """Write messages by `write_many` until all are written, or a call fails; return how many were."""
    messages = [make_message(seed, first + n, sizes[(first + n) % len(sizes)]) for n in range(count)]
    taken, outcome = 0, _tried(lambda: None)
    while taken < count and not outcome["failure"]:
        outcome = _tried(lambda: slot.writer.write_many(messages[taken:], timeout_s))  # noqa: B023 # called at once
        taken += outcome["value"] or 0
    return {"taken": taken, "failure": None if taken else outcome["failure"]}


def reserve(
    slot: Slot, *, size: int, timeout_s: float | None, seed: int = 0, sequence: int = 0, used: int = 0
) -> dict[str, Any]:
    """Reserve `size` bytes, write that message of `used` bytes into the first of them and noise into the others."""
    outcome = _tried(lambda: slot.writer.reserve(size, timeout_s))
    view = outcome.pop("value")
    outcome["kind"] = type(view).__name__
    outcome["plain"] = is_plain_view(view) and not view.readonly and len(view) == size
    if outcome["plain"]:
        view[:] = make_message(seed, sequence, used) + b"\xee" * (size - used)
    return outcome


def commit(slot: Slot, *, size: int | None, timeout_s: float | None) -> dict[str, Any]:
    """Commit what is reserved; return the failure, if any."""
    return _tried(lambda: slot.writer.commit(size, timeout_s))


def _tried(act: Callable[[], Any]) -> dict[str, Any]:
    """Return what it returned, or its failure."""
    try:
        return {"value": act(), "failure": None}
    except Exception as error:
        return {"value": None, "failure": Failure.of(error).as_dict()}


def write_stream(
    slot: Slot, *, seed: int, first: int, count: int, sizes: list[int], kinds: list[str], timeout_s: float
) -> int:
    """Write messages `first … first + count − 1` as fast as the channel takes them; sizes and kinds repeat in turn."""
    writer = slot.writer
    for sequence in range(first, first + count):
        size, kind = sizes[sequence % len(sizes)], kinds[sequence % len(kinds)]
        writer.write(make_as(kind, seed, sequence, size), timeout_s)
    return count


def write_for(slot: Slot, *, seed: int, first: int, size: int, duration_s: float, timeout_s: float) -> int:
    """Write messages of one size for that long; return the sequence of the last one."""
    writer = slot.writer
    stop = now_ns() + int(duration_s * 1e9)
    sequence = first
    writer.write(make_message(seed, sequence, size), timeout_s)
    while now_ns() < stop:
        sequence += 1
        writer.write(make_message(seed, sequence, size), timeout_s)
    return sequence


def fill(slot: Slot, *, seed: int, first: int, size: int, most: int, timeout_s: float) -> dict[str, Any]:
    """Write until a write fails, or `most` messages were taken; return how many were, and how the last write ended."""
    writer = slot.writer
    for taken in range(most):
        message = make_message(seed, first + taken, size)
        start = now_ns()
        try:
            writer.write(message, timeout_s)
        except Exception as error:
            return {"taken": taken, "took_ns": now_ns() - start, "failure": Failure.of(error).as_dict()}
    return {"taken": most, "took_ns": 0, "failure": None}


def write_reusing(slot: Slot, *, seed: int, first: int, count: int, size: int, timeout_s: float) -> str:
    """Write from one bytearray that is overwritten as soon as `write` returns, then resize it; return the text of the
    error if that fails: a buffer that is still referred to cannot be resized.
    """
    writer = slot.writer
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


@contextmanager
def _signals() -> Iterator[None]:
    """Interrupt the block by signals, 250 a second, whose handler does nothing; only in a main thread."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _SIGNAL_S, _SIGNAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def read_under_signals(slot: Slot, **arguments: Any) -> dict[str, Any]:
    """Read as `read` does, while signals interrupt it."""
    with _signals():
        return read(slot, **arguments)


def read(slot: Slot, *, timeout_s: float | None, seed: int = 0, sequence: int = 0, size: int = 0) -> dict[str, Any]:
    """Read once and drop the view; return what came, whether it is that message, the time taken, and the failure."""
    reader = slot.reader
    outcome: dict[str, Any] = {"kind": "", "plain": False, "same": False, "header": None, "failure": None, "size": 0}
    start = now_ns()
    try:
        view = reader.read(timeout_s)
        outcome["took_ns"] = now_ns() - start
    except Exception as error:
        outcome["took_ns"] = now_ns() - start
        outcome["failure"] = Failure.of(error).as_dict()
        return outcome
    outcome["kind"] = type(view).__name__
    if isinstance(view, memoryview) and is_plain_view(view):
        outcome.update(
            plain=True, size=len(view), same=is_message(view, seed, sequence, size), header=read_header(view)
        )
    return outcome


def read_stream(
    slot: Slot, *, seed: int, first: int, count: int, sizes: list[int], timeout_s: float, extra_s: float
) -> dict[str, Any]:
    """Read until the last message of the stream has come, then `extra_s` more for a surplus one, or until a read fails;
    return the counts.
    """
    reader = slot.reader
    counts = StreamCounts(first, count)
    try:
        while not (counts.at_end() or counts.is_flood()):
            counts.add(reader.read(timeout_s), seed, sizes)
        for _ in range(_MOST_EXTRA if extra_s else 0):
            counts.add(reader.read(extra_s), seed, sizes)
    except Exception as error:
        past_end = counts.at_end() and isinstance(error, TransportTimeout)
        counts.ended = "" if past_end else Failure.of(error).kind
    return counts.as_dict()


def read_many(slot: Slot, *, seed: int, first: int, count: int, sizes: list[int], timeout_s: float) -> dict[str, Any]:
    """Read messages by `read_many` until `count` have come, or a call fails; all views of a call are looked at when it
    has returned. Return the first message that came with other bytes, or that nobody asked for.
    """
    reader, sequence = slot.reader, first
    while sequence < first + count:
        most = min(7, first + count - sequence)
        outcome = _tried(lambda: reader.read_many(most, timeout_s))  # noqa: B023 # called at once
        if outcome["failure"]:
            return {"failure": outcome["failure"], "wrong": None}
        views = outcome["value"]
        if not 1 <= len(views) <= most:
            return {"failure": None, "wrong": f"{sequence}: {len(views)} of at most {most}"}
        for view in views:
            size = sizes[sequence % len(sizes)]
            if not (is_plain_view(view) and is_message(view, seed, sequence, size)):
                return {"failure": None, "wrong": str(sequence)}
            sequence += 1
    return {"failure": None, "wrong": None}


def read_all(slot: Slot, *, timeout_s: float, least: int | None = None) -> dict[str, Any]:
    """Read until a call fails, or `least` messages have come; return (sequence, seed) of each, and how it ended."""
    reader, ended = slot.reader, ""
    got: list[tuple[int, int] | None] = []
    try:
        while least is None or len(got) < least:
            got.append(read_header(reader.read(timeout_s)))
    except Exception as error:
        ended = Failure.of(error).kind
    return {"got": got, "ended": ended}


def drain(slot: Slot, *, timeout_s: float) -> None:
    """Wait until all workers of a queue have finished with everything."""
    slot.writer.drain(timeout_s)  # type: ignore[attr-defined] # of the writers of queues


def release(slot: Slot) -> None:
    """Release the last message."""
    slot.reader.release()


def release_closed(slot: Slot) -> None:
    """Close the reader, and release."""
    close(slot)
    slot.reader.release()


def has_descriptor(slot: Slot) -> bool:
    """Return whether the reader has a descriptor to wait on."""
    return slot.reader.fileno() is not None


def await_descriptor(
    slot: Slot, *, seed: int, sequence: int, size: int, timeout_s: float, looks_first: bool = True
) -> str:
    """Wait on the reader's descriptor, and read without waiting whenever it is readable: return `message` when that
    message comes, the kind of another failure than TransportTimeout, or nothing if the descriptor is readable no more.
    Without `looks_first`, go on with a wait that ended so, and do nothing before the descriptor is readable.
    """
    reader, poller = slot.reader, select.poll()
    if looks_first:
        slot.descriptor = reader.fileno() or 0
    poller.register(slot.descriptor, select.POLLIN)
    if not (looks_first or poller.poll(timeout_s * 1e3)):
        return ""
    for _ in range(_MOST_LOOKS):
        try:
            return "message" if is_message(reader.read(0), seed, sequence, size) else "another message"
        except TransportTimeout:
            if not poller.poll(timeout_s * 1e3):
                return ""
        except Exception as error:
            return Failure.of(error).kind
    return f"its descriptor was readable {_MOST_LOOKS} times in vain"


def is_readable(slot: Slot, *, timeout_s: float) -> bool:
    """Return whether the reader's descriptor becomes readable by then."""
    poller = select.poll()
    poller.register(slot.reader.fileno() or 0, select.POLLIN)
    return bool(poller.poll(timeout_s * 1e3))


def read_until(slot: Slot, *, seed: int, sequence: int, timeout_s: float) -> bool:
    """Read past everything up to message `sequence`; return whether it came before a read timed out."""
    reader = slot.reader
    try:
        while read_header(reader.read(timeout_s)) != (sequence, seed):
            continue
    except TransportTimeout:
        return False
    return True


def look_until(slot: Slot, *, seed: int, sequence: int, size: int, timeout_s: float) -> int:
    """Call `read` with a time-out of 0 until that message comes; return how many looks it took, −1 if it never came."""
    reader = slot.reader
    stop = now_ns() + int(timeout_s * 1e9)
    looks = 0
    while now_ns() < stop:
        looks += 1
        try:
            return looks if is_message(reader.read(0), seed, sequence, size) else -1
        except TransportTimeout:
            continue
    return -1


def hold(slot: Slot, *, timeout_s: float) -> int:
    """Read one message and keep its view; return its size."""
    slot.held = slot.reader.read(timeout_s)
    return len(slot.held)


def is_held_whole(slot: Slot, *, seed: int, sequence: int, size: int) -> bool:
    """Return whether the held view still equals that message once garbage is collected."""
    gc.collect()
    return slot.held is not None and is_message(slot.held, seed, sequence, size)


def fork(slot: Slot) -> int:
    """Fork a child that only waits, and return its process ID; the caller must kill it."""
    child = os.fork()
    while not child:
        signal.pause()
    return child


def use_closed(slot: Slot, *, timeout_s: float) -> list[str]:
    """Use an endpoint that is closed in every way; return what was done, or failed in another way than it must."""
    end: Any = slot.endpoint
    message, seconds = b"\xee" * 16, timeout_s
    ways: dict[str, Callable[[], Any]] = {
        "write": lambda: end.write(message, seconds),
        "write_parts": lambda: end.write_parts([message], seconds),
        "write_many": lambda: end.write_many([message], seconds),
        "write_many of none": lambda: end.write_many([], seconds),
        "reserve": lambda: end.reserve(16, seconds),
        "commit": lambda: end.commit(None, seconds),
    }
    if isinstance(end, Reader):
        ways = {
            "read": lambda: end.read(seconds),
            "read_many": lambda: end.read_many(1, seconds),
            "fileno": end.fileno,
        }
        if type(end).fileno is Reader.fileno:  # it has none
            del ways["fileno"]
    kinds = {way: (_tried(act)["failure"] or {"kind": "no error"})["kind"] for way, act in ways.items()}
    return [f"{way}: {kind}" for way, kind in kinds.items() if kind != "EndpointClosed"]


def use_in_child(slot: Slot, *, timeout_s: float) -> str:
    """Fork a child that uses and closes the endpoint; return what was done, or failed in another way than it must."""
    answers, answer = os.pipe()
    child = os.fork()
    if child:
        os.close(answer)
        with open(answers, "rb") as said:  # until the child has ended
            kind = said.read().decode()
        os.waitpid(child, 0)
        return kind
    try:
        done = use_closed(slot, timeout_s=timeout_s)
        slot.endpoint.close()
        os.write(answer, ", ".join(done).encode())
    finally:
        os._exit(0)


def use_in_block(slot: Slot) -> str:
    """Use the endpoint as a context manager and leave it; return what `__enter__` gave if it is another object."""
    slot.closed = True
    with slot.endpoint as entered:
        return "" if entered is slot.endpoint else repr(entered)


_ALL: tuple[Callable[..., Any], ...] = (
    await_descriptor, close, close_holding, commit, drain, fill, fork, has_descriptor, hold, is_held_whole, is_readable,
    look_until, read, read_all, read_many, read_stream, read_under_signals, read_until, release,
    release_closed, reserve, use_closed, use_in_block, use_in_child, write, write_for, write_many, write_parts,
    write_reusing, write_stream,
)  # fmt: skip
SCENARIOS = {scenario.__name__: scenario for scenario in _ALL}
"""Name → scenario: all that an agent can be asked to do with an endpoint."""
