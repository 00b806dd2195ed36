"""What all tests share: a watch for what a test leaves behind, names that nobody else has, stacks on demand."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import resource
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from ipcbench.spec import NAME_PREFIX
from ipcbench.testing.agents.client import until
from ipcbench.testing.conformance import shared_pools
from ipcbench.testing.leaks import descriptors, files, traces
from tests import selection

_FADING_S = 60.0
"""How long a test's remains may take to go: libraries close in the background, other runs on the host come and go."""

# Other tests keep the other cores busy: threads that share a product of small matrices would wait for one another. Read
# when numpy is loaded, which nothing above does, and handed on to the processes that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A GPU's figures are the benchmarks'; here, what there is on every machine, and fakes of the rest.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# A busy machine may stop a test for long.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_MEASURING = ("tests/harness/", "tests/replay/")

_TOKEN = secrets.token_hex(3)
_NUMBERS = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ipcbench", "which tests run")
    group.addoption("--changed", action="store_true", help="not those of which nothing has changed since they passed")
    group.addoption("--record", action="store_true", help="all, and write down which passed")


def pytest_configure(config: pytest.Config) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if not config.getoption("numprocesses"):  # its workers are still to read it
        os.environ.pop("PYTEST_ADDOPTS", None)  # was read; a pytest that a test starts has options of its own
    # A shell's background job ignores Ctrl-C, and so would every process that the tests start and then interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    if config.getoption("record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(selection.Recorder(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out test modules of which nothing has changed, if that is wanted."""
    if config.getoption("changed"):
        left_out = selection.unchanged({_module(item) for item in items})
        config.hook.pytest_deselected(items=[item for item in items if _module(item) in left_out])
        items[:] = [item for item in items if _module(item) not in left_out]


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_sessionfinish() -> None:
    shared_pools().close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell the CPU time of the tests: it, unlike theirs, does not grow with the load of the machine."""
    times_s = [sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    terminalreporter.write_line(f"CPU time of the tests and all their processes: {sum(times_s):.0f} s")


class _Scheduler(LoadFileScheduling):
    """Each file is one worker's; what measures is one's, all of it: two runs at once would disturb each other."""

    def _split_scope(self, nodeid: str) -> str:
        return "what measures" if nodeid.startswith(_MEASURING) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Return how tests are dealt out to workers."""
    return _Scheduler(config, log)


@pytest.fixture
def channel_name() -> str:
    """A channel name that nobody else has."""
    return f"{NAME_PREFIX}t{os.getpid()}-{_TOKEN}-{next(_NUMBERS):04}"


@pytest.fixture
def process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what `ipcbench.cli.main` changes in its process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@dataclass(frozen=True, slots=True)
class Resources:
    """What this process has, and what lies on the host under any name of ours; the suite's own agents left out."""

    children: dict[int, str]
    threads: dict[int, str]
    descriptors: dict[int, str]
    files: dict[str, str]

    @classmethod
    def now(cls) -> Resources:
        pool = shared_pools()
        gc.collect()
        kept, agents = pool.filenos(), pool.pids()
        return cls(
            children={child.pid: describe(child) for child in children_besides(agents)},
            threads={t.ident or 0: t.name for t in threading.enumerate() if not t.daemon},
            descriptors={fd: target for fd, target in descriptors().items() if fd not in kept},
            files={trace.what: str(trace) for trace in files(NAME_PREFIX)},
        )

    def since(self, before: Resources) -> list[str]:
        """Return what is here and was not there before."""
        return [
            *(f"process {pid}: {what}" for pid, what in self.children.items() if pid not in before.children),
            *(f"thread {name}" for ident, name in self.threads.items() if ident not in before.threads),
            *(f"descriptor {fd} of {what}" for fd, what in self.descriptors.items() if fd not in before.descriptors),
            *(what for name, what in self.files.items() if name not in before.files and not belongs_elsewhere(name)),
        ]


def children_besides(agents: set[int]) -> Iterator[psutil.Process]:
    """Yield all descendants of this process but the suite's agents and what is below them."""
    for child in psutil.Process().children():
        if child.pid not in agents:
            yield child
            with suppress(psutil.NoSuchProcess):
                yield from child.children(recursive=True)


def describe(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "(it has ended)"


def belongs_elsewhere(path: str) -> bool:
    """Return whether a name is that of another run on this host: it holds the number of a living process outside this
    test's tree, or such a process has something of the same family (`ipcb-<word>`) open, mapped or among its arguments.
    """
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    others = set(psutil.pids()) - ours
    parts = Path(path).name.split("-")
    numbers = {int(part) for part in parts if part.isdecimal()}
    family = traces("-".join(parts[:2]), others)
    holders = {int(trace.what.partition(":")[0]) for trace in family if trace.kind == "process"}
    return bool(numbers & others or holders & others) or any(t.kind in {"descriptor", "mapping"} for t in family)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail a test after which a process, thread, descriptor or file is still there that was not there before it."""
    before = Resources.now()
    gc.freeze()  # what is there before a test need not be looked through after it
    yield
    left: list[str] = []

    def all_gone() -> bool:
        left[:] = Resources.now().since(before)
        return not left

    if not until(all_gone, _FADING_S):
        pytest.fail(f"the test left behind: {'; '.join(left)}")
