"""The worker shell serves the harness and the conformance suite alike; what goes wrong at its start is one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipcbench.backends.null import Null
from ipcbench.errors import BackendUnavailable
from ipcbench.harness.group import Group
from ipcbench.harness.worker import Worker
from ipcbench.processes.control_channel import EXIT, Switchboard
from ipcbench.processes.launch import MPIEXEC_VARIABLE
from ipcbench.processes.worker import LAUNCH_VARIABLE, ORPHANED, RANK_VARIABLES
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.agents.pool import Pools

LIMIT_S = 60
HARNESS, SUITE = "ipcbench.harness.worker:Worker", "ipcbench.testing.agents.verbs:Dispatcher"
both_users = pytest.mark.parametrize("verbs", [HARNESS, SUITE])


class Stuck:
    """Verbs that never return."""

    def __init__(self, index: int) -> None:
        self.index = index

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        signal.pause()
        return request


def start(verbs: str, control: str, **variables: str) -> subprocess.Popen[str]:
    plain = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    command = [sys.executable, "-m", "ipcbench.processes.worker", "--verbs", verbs, "--control", control]
    return subprocess.Popen(
        command, env=plain | variables, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True
    )


@both_users
@pytest.mark.parametrize("variable", RANK_VARIABLES)
def test_every_rank_variable_is_honoured(verbs: str, variable: str, tmp_path: Path) -> None:
    with Switchboard(tmp_path) as switchboard:
        variables = {**switchboard.environment(), LAUNCH_VARIABLE: "x", variable: "3"}
        with start(verbs, switchboard.address, **variables) as process:
            channel = switchboard.accept(LIMIT_S)
            assert channel is not None
            hello = channel.receive(LIMIT_S)
            channel.send(EXIT)
            assert process.wait(LIMIT_S) == 0
        channel.close()
    assert hello == {"index": 3, "pid": process.pid, "launch": "x"}


@both_users
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, f"no rank: the launcher sets none of {RANK_VARIABLES[0]}"),
        ({"PMI_RANK": "0"}, "no coordinator at /nowhere"),
    ],
)
def test_a_worker_that_cannot_start_says_why_in_one_line(verbs: str, variables: dict[str, str], words: str) -> None:
    with start(verbs, "/nowhere", **variables) as process:
        _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode not in {0, ORPHANED}
    (line,) = stderr.splitlines()
    assert words in line


def test_a_worker_ends_with_its_coordinator_whatever_it_is_busy_with(tmp_path: Path) -> None:
    with Switchboard(tmp_path) as switchboard:
        verbs = f"{__name__}:Stuck"
        with start(verbs, switchboard.address, **switchboard.environment(), PMI_RANK="0") as process:
            channel = switchboard.accept(LIMIT_S)
            assert channel is not None
            assert channel.receive(LIMIT_S)["index"] == 0
            channel.send({"do": "anything"})
            channel.close()
            assert process.wait(LIMIT_S) == ORPHANED


def test_a_missing_mpiexec_is_the_same_error_for_both_and_skips_laws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.delenv(MPIEXEC_VARIABLE, raising=False)
    with Switchboard(tmp_path) as switchboard, pytest.raises(BackendUnavailable, match="no mpiexec") as harness:
        Group("mpiexec", 1, switchboard)
    with pytest.raises(BackendUnavailable) as suite:
        Pools().pool("mpiexec")
    assert str(suite.value) == str(harness.value)

    class NeedsMpiexec(Null):
        capabilities = replace(Null.capabilities, launcher="mpiexec")

    class Bound(ConformanceSuite):
        backend = NeedsMpiexec

    monkeypatch.delenv("IPCBENCH_EXPECT", raising=False)
    with pytest.raises(unittest.SkipTest, match="no mpiexec"):
        Bound().check("C1")


@pytest.mark.parametrize(
    "function", ["os:getcwd", "ipcbench.util.files:temporary_folder", "ipcbench.replay.parts:none"]
)
def test_a_worker_calls_verbs_only(function: str) -> None:
    answer = Worker(0).answer({"do": "call", "function": function})
    assert (answer["ok"], answer["error"]) == (False, "ConfigError")
