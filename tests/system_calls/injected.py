"""A program: let each system call of a scenario fail once, in turn, and tell what was wrong about the outcome.

Usage: injected.py SCENARIO FOLDER, with inject.c's library loaded before all others. The scenario is carried out once
to count its calls, and then once for each call and each error that it may meet. Prints a line for every outcome that is
wrong, and at last how many outcomes there were of each kind.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import get_args

from ipcbench import trace
from ipcbench.backend import Address
from ipcbench.errors import IpcbenchError, TransportTimeout
from ipcbench.registry import get_backend
from ipcbench.results.store import INFO_FILE, RunWriter, load_run
from ipcbench.spec import NAME_PREFIX, ChannelSpec, Delivery
from ipcbench.testing.leaks import descriptors, files
from tests.trace.reading import calls_count, check_whole, records
from tests.unit.test_store import SWEEP, run_info, small_trial

FULL, BROKEN, MANY, SIGNAL, MEMORY = errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EINTR, errno.ENOMEM
ERRORS = {
    "open": (FULL, BROKEN, MANY, SIGNAL),
    "mkdir": (FULL, BROKEN),
    "ftruncate": (FULL, BROKEN, SIGNAL),
    "mmap": (MEMORY, MANY),
    "write": (FULL, BROKEN, SIGNAL),
    "fsync": (FULL, BROKEN, SIGNAL),
    "rename": (FULL, BROKEN),
    "flock": (MEMORY, SIGNAL),
    "socket": (MANY, MEMORY),
    "accept": (MANY, MEMORY, SIGNAL),
}
OURS = f"{NAME_PREFIX}calls-"
"""In every path that a scenario uses."""
NEVER = 2**40
MESSAGES = 12
PATIENCE_S = 1.0
CALLS = 30
NUMBERS = list(range(1000))


class Scenario(ABC):
    """What is done in an empty folder while a call may fail, and what must be true after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def carry_out(self) -> None:
        """Do it."""

    @abstractmethod
    def check(self) -> None:
        """Check what is there, whole or not, and remove it."""


class Store(Scenario):
    """A run of three trials, of which the last is made after a pause: all that were appended are there, and nothing
    else; if it was not made, it can be.
    """

    stored = -1

    def carry_out(self) -> None:
        with RunWriter.create(self.folder / "run", run_info(SWEEP)) as writer:
            self.stored = 0
            self.append(writer, 2)
        with RunWriter.resume(self.folder / "run") as writer:
            self.append(writer, 3)
            writer.update(run_info(SWEEP))

    def append(self, writer: RunWriter, until: int) -> None:
        for number in range(self.stored, until):
            writer.append(small_trial(number), {"writer.sent_ns": array("q", NUMBERS)})
            self.stored = number + 1

    def check(self) -> None:
        path = self.folder / "run"
        if self.stored < 0:
            RunWriter.create(path, run_info(SWEEP)).close()
        run = load_run(path)
        assert len(run.trials) in {self.stored, self.stored + 1}, f"{len(run.trials)} of {self.stored} trials are left"
        for trial in run.trials:
            assert run.samples(trial.trial_id)["writer.sent_ns"].tolist() == NUMBERS
        names = {entry.relative_to(path).as_posix() for entry in path.rglob("*")}
        extra = names - {INFO_FILE, "trials.jsonl", "samples", *(f"samples/{number}.npz" for number in range(3))}
        assert not extra, f"left in the run: {extra}"


class Channel(Scenario):
    """Twelve messages: what is read is right; after the first error, the channel can be removed."""

    address: Address | None = None

    def __init__(self, backend: str, delivery: Delivery, folder: Path) -> None:
        super().__init__(folder)
        self.backend = get_backend(backend)()
        self.delivery = delivery

    def carry_out(self) -> None:
        spec = ChannelSpec(f"{OURS}{os.getpid()}", max_message_bytes=100_000, depth=4, delivery=self.delivery)
        with ExitStack() as undo:
            self.address = self.backend.create(spec)
            undo.callback(self.backend.destroy, self.address)
            writer = self.backend.open_writer(self.address)
            undo.callback(writer.close)
            reader = self.backend.open_reader(self.address, 0)
            undo.callback(reader.close)
            for number in range(MESSAGES):
                message = bytes([number]) * (1 + 7919 * number)
                writer.write(message, PATIENCE_S)
                assert bytes(reader.read(PATIENCE_S)) == message, f"message {number} is wrong"

    def check(self) -> None:
        if self.address is not None:
            self.backend.destroy(self.address)


class Recorder(Scenario):
    """Traced calls: the application meets no error but one of its own asking, and what is stored is whole."""

    def carry_out(self) -> None:
        trace.start(self.folder / "trace", sample=2)  # records and histograms
        try:
            for number in range(CALLS):
                with trace.call(f"method {number % 3}") as call:
                    call.serialized(number)
                    call.sent()
                    call.received(number)
        finally:
            trace.stop()

    def check(self) -> None:
        path = self.folder / "trace"
        if path.exists():
            check_whole(records(path))
            assert calls_count(path) <= CALLS


SCENARIOS = {
    "store": Store,
    "recorder": Recorder,
    "pipe every_message": partial(Channel, "pipe", "every_message"),
    **{
        f"{name} {delivery}": partial(Channel, name, delivery)
        for name in ("shm", "lmdb")
        for delivery in get_args(Delivery)
    },
}


class Library:
    """inject.c, as this process has loaded it."""

    def __init__(self) -> None:
        whole = ctypes.CDLL(None)
        self._arm, self._disarm = whole.inject_arm, whole.inject_disarm
        self._arm.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_char_p)
        self._disarm.restype = ctypes.c_long

    def carry_out(self, scenario: Scenario, call: str, number: int, error: int, word: str) -> tuple[str, int]:
        """Carry out a scenario with a fault; return what was wrong about its outcome, and how many calls were counted.

        The outcome is `no error`, `our error` or something wrong.
        """
        outcome = "no error"
        self._arm(call.encode(), number, error, word.encode())
        try:
            scenario.carry_out()
        except TransportTimeout as failure:
            outcome = f"wrong: a time-out: {failure}"
        except IpcbenchError as failure:
            outcome = "our error" if "\n" not in str(failure) else f"wrong: {failure!r}"
        except Exception as failure:
            outcome = f"wrong: {failure!r}"
        count: int = self._disarm()
        try:
            scenario.check()
        except Exception as failure:
            outcome = f"wrong: after {outcome}: {failure!r}"
        return outcome, count


def state() -> tuple[Counter[str], set[str]]:
    """Return what this process has open, and what lies on the host."""
    gc.collect()
    return Counter(descriptors().values()), {trace.what for trace in files(OURS)}


def main(name: str, folder: Path) -> None:
    """Carry out a scenario with every fault."""
    library = Library()

    def outcome_of(call: str, number: int, error: int, word: str) -> tuple[str, int]:
        before, place = state(), Path(tempfile.mkdtemp(dir=folder, prefix=OURS))
        outcome, count = library.carry_out(SCENARIOS[name](place), call, number, error, word)
        shutil.rmtree(place)
        after = state()
        left = [*(after[0] - before[0]), *(after[1] - before[1])]
        return f"wrong: {left} left after {outcome}" if left else outcome, count

    cases = []
    for call, errors in ERRORS.items():
        for word in (OURS, "socket:"):
            outcome, count = outcome_of(call, NEVER, 0, word)
            assert outcome == "no error", outcome
            cases += [(call, number, error, word) for number in range(1, count + 1) for error in errors]
    counts: Counter[str] = Counter()
    for call, number, error, word in cases:
        outcome, _ = outcome_of(call, number, error, word)
        counts[outcome.partition(":")[0]] += 1
        if outcome.startswith("wrong"):
            print(f"{call} {number} of {word!r} fails with {errno.errorcode[error]}: {outcome}")
    print(f"{name}: {len(cases)} faults: {dict(counts)}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
