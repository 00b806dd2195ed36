"""In which order trials go through their steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ipcbench.harness import sweep


class Recorded:
    """A trial that only says what it is asked for."""

    message_s = 0.0

    def __init__(self, name: str, said: list[str], *, is_shared: bool, in_steps: bool) -> None:
        self.spec, self.in_steps = SimpleNamespace(is_shared=is_shared), in_steps
        self._name, self._said = name, said

    def __getattr__(self, step: str) -> Any:
        def take(*_: object) -> str:
            self._said.append(f"{self._name} {step}")
            return self._name

        return take


def test_a_trial_between_hosts_begins_its_window_when_the_warm_up_is_read_also_on_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was left of the warm-up on a slow link was in the latencies of the window."""
    monkeypatch.setattr(sweep, "watch_machines", lambda _: lambda: None)
    monkeypatch.setattr(sweep, "turns_for", lambda *_: 1)
    said: list[str] = []
    runs = [
        Recorded("far", said, is_shared=False, in_steps=True),
        Recorded("near", said, is_shared=False, in_steps=False),
        Recorded("also far", said, is_shared=False, in_steps=True),
    ]
    assert sweep.run_all(runs) == ["far", "near", "also far"]  # type: ignore[arg-type, comparison-overlap]
    steps = ["open", "opened", "warm_up", "turn", "finish", "close", "closed", "release", "outcome"]
    assert said == [*(f"far {step}" for step in steps), "near run", *(f"also far {step}" for step in steps)]
