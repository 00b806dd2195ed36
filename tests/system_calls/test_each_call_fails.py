"""Each system call of a store, a channel or a recorder fails once: the error is ours, nothing is torn or left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.shell import ROOT
from tests.system_calls.injected import SCENARIOS

LIMIT_S = 250


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_call_that_fails_is_our_error_and_leaves_nothing(
    scenario: str, loaded: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.system_calls.injected", scenario, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=loaded(), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    *wrong, total = done.stdout.splitlines()
    assert wrong == [], total
    assert "our error" in total or scenario == "recorder"
