"""The suite itself: it fails exactly the law that is broken, whatever a backend does."""

from __future__ import annotations

import ast
import subprocess
import sys
import unittest
from pathlib import Path

import psutil
import pytest

from ipcbench.backends.null import Null
from ipcbench.backends.shm.backend import Shm
from ipcbench.errors import ConfigError
from ipcbench.registry import get_backend, names
from ipcbench.testing import LAWS, ConformanceSuite, check_backend, faulty
from ipcbench.testing.agents.client import until
from ipcbench.testing.conformance import shared_pools
from ipcbench.testing.failure import AgentHung
from ipcbench.testing.faults import FAULTS
from ipcbench.testing.fixture import Fixture, Scope
from tests.conformance import broken_backends

PATTERN_LAWS = ("C21", "C28", "C29", "C30")


def red(results):
    return {result.law: result.reason for result in results if result.outcome == "failed"}


def bound_backends():
    """Return the `backend` of each class in this folder that inherits the suite."""
    backends = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["ConformanceSuite"]:
                assigned = [line for line in node.body if isinstance(line, ast.Assign)]
                backends |= {ast.literal_eval(a.value) for a in assigned if ast.unparse(a.targets[0]) == "backend"}
    return backends


def test_every_registered_backend_is_bound():
    assert set(names()) <= bound_backends()


def test_a_law_a_check_a_fault_and_a_test_each():
    tests = sorted(name for name in dir(ConformanceSuite) if name.startswith("test_"))
    assert [f"C{int(name[6:8])}" for name in tests] == list(LAWS)
    assert list(FAULTS) == list(LAWS)


# An agent that a broken backend has made hang is given up with its endpoints.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("law", LAWS)
def test_the_suite_turns_red_on_exactly_the_broken_law(law):
    reasons = red(check_backend(faulty(law, Null), readers=(2,), quick=True))
    # Queues and fan-in are made of channels that the other laws are about.
    assert [each for each in reasons if each == law or each not in PATTERN_LAWS] == [law], reasons


def test_null_is_green_on_all_and_skips_none():
    results = check_backend(Null, quick=True)
    assert [(result.law, result.outcome) for result in results] == [(law, "passed") for law in LAWS]


@pytest.mark.parametrize("law", ["C1", "C9", "C13", "C17"])
def test_faults_work_across_processes(law):
    broken = faulty(law, Shm)
    assert get_backend(f"{broken.__module__}:{broken.__qualname__}") is broken
    assert list(red(check_backend(broken, laws=[law, "C10"], readers=(2,), quick=True))) == [law]


@pytest.mark.parametrize("backend", [broken_backends.Hangs, broken_backends.HangsInline])
def test_a_hang_is_a_verdict_with_a_stack(backend):
    fixture = Fixture(backend, shared_pools(), Scope((1,), quick=True))
    with pytest.raises(AgentHung, match=r"(?s)reader 0.*did not return within 0.5 s.*hang_here"):  # noqa: SIM117
        with fixture.channel(settled=False) as channel:
            channel.readers[0].start("read", timeout_s=0.0).result(0.5)
    fixture.end(failed=True)


def test_a_crash_is_a_verdict_with_the_last_words_and_hides_no_other_law():
    reasons = red(check_backend(broken_backends.Crashes, laws=["C2", "C18"], quick=True))
    assert list(reasons) == ["C2"]
    assert "exit code 7" in reasons["C2"]
    assert "about to crash" in reasons["C2"]


def test_a_class_that_no_process_can_import_is_a_verdict():
    reasons = red(check_backend(broken_backends.Unfindable, laws=["C2"], quick=True))
    assert "OpensAtImport" in reasons["C2"]


def test_only_capabilities_skip_a_law():
    (result,) = check_backend(broken_backends.StreamsOnly, laws=["C6"], quick=True)
    assert (result.outcome, result.reason) == ("skipped", "capabilities.deliveries has no latest_value")


def test_an_absent_backend_is_skipped_with_its_reason_unless_all_are_expected(monkeypatch):
    suite = ConformanceSuite()
    suite.backend = broken_backends.Absent
    monkeypatch.delenv("IPCBENCH_EXPECT", raising=False)
    with pytest.raises(unittest.SkipTest, match="its library is missing"):
        suite.test_c01_bytes_arrive_unchanged()
    monkeypatch.setenv("IPCBENCH_EXPECT", "all")
    with pytest.raises(AssertionError, match="its library is missing"):
        suite.test_c01_bytes_arrive_unchanged()


def test_wrong_questions_are_refused():
    with pytest.raises(ConfigError, match="C99"):
        check_backend(Null, laws=["C99"])
    with pytest.raises(ConfigError, match="readers"):
        check_backend(Null, readers=())
    with pytest.raises(ConfigError, match="C99"):
        faulty("C99", Null)


def test_a_queue_is_no_latest_value():
    (result,) = check_backend(broken_backends.Queueing, laws=["C3"], readers=(1,), quick=True)
    assert result.outcome == "failed"
    assert "100 reads to get the latest of 100 values" in result.reason


FORKED = """
import os
from ipcbench.testing.conformance import shared_pools
if __name__ == "__main__":
    (agent,) = shared_pools().pool("spawn").acquire(1)
    if os.fork():
        os.wait()
        print(agent.start("touched_by_import", "import", module="json").result(60.0))
"""


def test_a_forked_child_ends_no_agents_of_its_parent():
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr


LONELY = """
import signal
from ipcbench.testing.agents.pool import SpawnPool
if __name__ == "__main__":
    pool = SpawnPool()
    print(*(agent.pid for agent in pool.acquire(2)), flush=True)
    signal.pause()
"""


def test_agents_die_with_the_suite():
    with subprocess.Popen([sys.executable, "-c", LONELY], stdout=subprocess.PIPE, text=True) as suite:
        try:
            agents = [psutil.Process(int(pid)) for pid in suite.stdout.readline().split()]
            assert len(agents) == 2
            assert all(agent.is_running() for agent in agents)
        finally:
            suite.kill()
    assert until(lambda: not any(agent.is_running() for agent in agents), 20)
