"""What is measured without the transports to choose from."""

from __future__ import annotations

import sys

import pytest

from ipcbench.diagnose.empty_call import EmptyCall, measure_empty_call


def test_an_empty_call_takes_time_on_both_sides() -> None:
    made = measure_empty_call()
    assert min(made.gap_ns, made.before_ns, made.after_ns, made.server_ns) > 0


def test_an_empty_call_that_cannot_be_measured_takes_nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert measure_empty_call() == EmptyCall()
