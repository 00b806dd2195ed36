"""Replays of calls that nobody made: their messages are sent, and nothing is said of times that nobody knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipcbench.errors import ConfigError
from ipcbench.replay import render
from ipcbench.replay.clients import read_traffic
from ipcbench.replay.outcome import conclude
from ipcbench.replay.run import Request, replay
from ipcbench.trace.record.planned import write_planned
from tests.trace.made import record

CALLS = (("Small", 16, 64), ("Large", 300_000, 100_000), ("Silent", 8, 0)) * 7


def test_a_replay_of_planned_calls_is_a_lower_bound_alone(tmp_path: Path) -> None:
    write_planned(tmp_path / "t", "model", CALLS)
    outcome = conclude(replay(read_traffic(tmp_path / "t"), Request(("pipe", "shm"), rounds=3)))
    found = json.loads(render.as_json(outcome))
    assert (found["recorded_ns"], found["calls_count"], found["server_known"]) == (None, 21, False)
    assert len(found["backends"]) == 2
    for backend in found["backends"]:
        assert backend["predicted_ns"]["estimate"] == backend["replayed_ns"] > 0
        assert [backend[name] for name in ("at_most_ns", "gain_ratio", "verdict")] == [None] * 3
    assert {method["recorded_ns"] for method in found["methods"]} == {None}
    assert [remark for remark in found["remarks"] if "at least what they take" in remark]
    for text in (render.as_text(outcome), render.as_markdown(outcome)):
        assert "as recorded" not in text
        assert "saved" not in text
        assert "unknown" in text
        assert "%" not in text
    assert ",,," in render.as_csv(outcome)


def test_planned_calls_have_no_transport_to_compare_with(tmp_path: Path) -> None:
    write_planned(tmp_path, "model", CALLS)
    with pytest.raises(ConfigError, match=r"^--recorded-over: 'pipe' is not valid"):
        replay(read_traffic(tmp_path), Request(("pipe",), source="pipe"))


def test_planned_calls_beside_real_ones_make_the_whole_time_unknown(tmp_path: Path) -> None:
    record(tmp_path, 5)
    write_planned(tmp_path / "other", "model", CALLS)
    (tmp_path / "other" / "t-planned-0.ipct").rename(tmp_path / "t-planned-0.ipct")
    traffic = read_traffic(tmp_path)
    assert len(traffic.threads) == 2
    assert not traffic.is_timed
