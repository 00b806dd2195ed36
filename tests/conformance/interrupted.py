"""A program whose calls a signal handler interrupts by an exception; prints what came of it.

    python tests/conformance/interrupted.py BACKEND DELIVERY read|write|life BYTES ROUNDS SEED

Each round has a channel of its own and one interrupt, at a random moment. The peer is undisturbed. The outcomes are
counted by name: `whole`, if every message came up to the end of the stream; `broken`, if the endpoint refused to go on
or the peer lost it; and what must not be: `gap`, `torn`, `backwards`, `leak` or the name of an error. With `life`,
both endpoints are in this process, and one call of each channel's other calls is interrupted.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import ipcbench
from ipcbench import Address, Backend, ChannelSpec, Reader, Writer, get_backend
from ipcbench.errors import EndOfStream, IpcbenchError, TransportError, TransportTimeout
from ipcbench.testing.agents.client import until
from ipcbench.util.files import temporary_folder

PATIENCE_S = 20.0
MESSAGES = 400
EARLIEST_S, LATEST_S, AGAIN_S = 0.0005, 0.02, 0.00003
CALL_S = 0.0007
CALLS = "create", "open_reader", "open_writer", "close_writer", "close_reader", "destroy"
FOLDERS = Path(tempfile.gettempdir()), Path("/dev/shm")
PACKAGE = str(Path(ipcbench.__file__).parent)
PLACES = {"read": PACKAGE, "write": PACKAGE}
LIFE_PLACES = {"call": PACKAGE, "close": PACKAGE}
"""Functions that may be interrupted, and where they are; `call` is each that is made `whole`."""


class Interrupt(BaseException):
    """What the signal handler raises; always as one that calls of the library catch, too."""


KINDS = [
    type(f"Interrupting{kind.__name__}", (Interrupt, kind), {})
    for kind in (TimeoutError, BlockingIOError, FileNotFoundError, ValueError, KeyboardInterrupt, TransportTimeout)
]


def interrupting(places: Mapping[str, str]) -> Callable[[int, FrameType | None], None]:
    """Return a handler that interrupts a call of one of the functions; anything else a moment later."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if places.get(frame.f_code.co_name, " ") in frame.f_code.co_filename:
                kind = random.choice(KINDS)
                raise kind(errno.EAGAIN, "of the handler") if issubclass(kind, OSError) else kind
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    return interrupt


def message(number: int, size: int) -> bytes:
    return number.to_bytes(8, "little") + bytes([number % 251]) * size


def numbers(writer: Writer, size: int) -> Iterator[int]:
    """Write messages and yield the number of each that was accepted."""
    for number in range(1, MESSAGES + 1):
        writer.write(message(number, size), PATIENCE_S)
        yield number


class Follower:
    """Checks what a reader gets."""

    def __init__(self, size: int, *, every: bool) -> None:
        self.last = 0
        self.problem = ""
        self._size = size
        self._every = every

    def take(self, view: memoryview) -> None:
        """Take the next message."""
        number = int.from_bytes(view[:8], "little")
        if bytes(view) != message(number, self._size):
            self.problem = self.problem or "torn"
        elif self._every and number != self.last + 1:
            self.problem = self.problem or "gap"
        elif number <= self.last:
            self.problem = self.problem or "backwards"
        self.last = number

    def read(self, reader: Reader) -> str:
        """Read to the end and return the outcome."""
        try:
            while not self.problem:
                self.take(reader.read(PATIENCE_S))
        except EndOfStream:
            return "whole"
        except Interrupt:
            raise
        except IpcbenchError:
            return "broken"
        except Exception as error:
            return type(error).__name__
        return self.problem


def peer(link: Connection, backend: Backend, side: str, size: int, *, every: bool) -> None:
    """Be the undisturbed endpoint of one channel after another."""
    while address := link.recv():
        channel = Address.from_dict(address)
        if side == "read":  # of the other
            with backend.open_writer(channel) as writer:
                try:
                    for _ in numbers(writer, size):
                        pass
                except IpcbenchError:  # the reader has gone
                    pass
            link.send(None)
        else:
            follower = Follower(size, every=every)
            with backend.open_reader(channel, 0) as reader:
                outcome = follower.read(reader)
            link.send((outcome, follower.last))


def read_interrupted(backend: Backend, address: Address, size: int, delay_s: float, *, every: bool) -> str:
    follower = Follower(size, every=every)
    with backend.open_reader(address, 0) as reader:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        while True:
            try:
                return follower.read(reader)
            except Interrupt:
                continue


def write_interrupted(backend: Backend, address: Address, size: int, delay_s: float) -> int:
    """Write until the interrupt, and close; return the number of the last message that was accepted."""
    accepted = 0
    with backend.open_writer(address) as writer:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        try:
            for number in numbers(writer, size):
                accepted = number
        except Interrupt:
            pass
    return accepted


def interrupted(call: Callable[[], Any], delay_s: float) -> Any:
    """Call once, with one interrupt, and return the result; None if the interrupt left the call."""
    signal.signal(signal.SIGALRM, interrupting(LIFE_PLACES))
    signal.setitimer(signal.ITIMER_REAL, delay_s)
    try:
        return call()
    except Interrupt:
        return None
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


def life(backend: Backend, channel: ChannelSpec, interrupted_call: str, delay_s: float) -> str:
    """Go through a channel's life, in which one call is interrupted; return what the peers see, or what is left."""

    def step(name: str, call: Callable[[], Any]) -> Any:
        return interrupted(call, delay_s) if name == interrupted_call else call()

    address = step("create", lambda: backend.create(channel))
    if address is None:
        with suppress(TransportError):  # it may exist
            address = backend.create(channel)
    address = address or Address(backend.name, channel, str(temporary_folder() / channel.name))
    outcome = "whole"
    try:
        reader = step("open_reader", lambda: backend.open_reader(address, 0))
        writer = step("open_writer", lambda: backend.open_writer(address))
        if reader and writer:
            outcome = used(reader, writer, step)
        for endpoint in filter(None, (reader, writer)):
            endpoint.close()
    except TransportError as error:
        outcome = "whole" if interrupted_call == "create" else type(error).__name__
    step("destroy", lambda: backend.destroy(address))
    backend.destroy(address)
    return "left" if any([*folder.glob(f"{channel.name}*")] for folder in FOLDERS) else outcome


def used(reader: Reader, writer: Writer, step: Callable[[str, Callable[[], Any]], Any]) -> str:
    writer.write(message(1, 0), PATIENCE_S)
    reader.read(PATIENCE_S)
    step("close_writer", writer.close)
    writer.close()
    try:
        reader.read(PATIENCE_S)
    except EndOfStream:
        step("close_reader", reader.close)
        return "whole"
    return "after the end"


def live(backend: Backend, delivery: Any, rounds: int, generator: random.Random) -> Counter[str]:
    counts: Counter[str] = Counter()
    before = 0
    for number in range(-1, rounds):  # one more, in which modules are loaded
        channel = ChannelSpec(f"interrupt-{os.getpid()}-{number}-", 1, 8, delivery, depth=4)
        outcome = life(backend, channel, CALLS[number % len(CALLS)], generator.uniform(0.00001, CALL_S))
        if number >= 0:
            counts[outcome] += 1
        elif until(lambda: threading.active_count() == 1, PATIENCE_S):
            before = len(os.listdir("/proc/self/fd"))
    if not until(lambda: len(os.listdir("/proc/self/fd")) <= before, PATIENCE_S):
        counts["leak"] += 1
    return counts


def main(arguments: list[str]) -> None:
    name, delivery, side, size, rounds, seed = *arguments[:3], *map(int, arguments[3:])
    backend, every = get_backend(name)(), delivery == "every_message"
    generator = random.Random(seed)
    if side == "life":
        print(json.dumps(live(backend, delivery, rounds, generator)))
        return
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=peer, args=(theirs, backend, side, size), kwargs={"every": every}, daemon=True)
    process.start()
    signal.signal(signal.SIGALRM, interrupting(PLACES))
    counts: Counter[str] = Counter()
    for number in range(rounds):
        channel: Any = ChannelSpec(f"interrupt-{os.getpid()}-{number}", 1, size + 8, delivery, depth=4)  # type: ignore[arg-type]
        address = backend.create(channel)
        ours.send(address.as_dict())
        delay_s = generator.uniform(EARLIEST_S, LATEST_S)
        if side == "read":
            outcome = read_interrupted(backend, address, size, delay_s, every=every)
            ours.recv()
        else:
            accepted = write_interrupted(backend, address, size, delay_s)
            outcome, last = ours.recv()
            if outcome == "whole" and last < accepted:
                outcome = "lost"
        counts[outcome] += 1
        backend.destroy(address)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    ours.send(None)
    process.join()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
