"""Inputs: what is refused, with which words, and that specs survive the way to other processes."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import msgpack
import pytest

from ipcbench.errors import ConfigError
from ipcbench.spec import AUTO_PACED_MESSAGES, AUTO_RATE_BYTES_PER_S, AUTO_RATE_PER_S, ChannelSpec, SweepSpec, TrialSpec

REFUSED_BY_CHANNEL: dict[str, list[Any]] = {
    "name": ["", "a/b", "-a", "a" * 49],
    "readers": [0, True, 1025],
    "max_message_bytes": [-1, 2**40 + 1],
    "depth": [1, 2**16 + 1],
    "delivery": ["some"],
    "wait": ["sleep"],
    "processes": [(0,), (1, 1)],
}
REFUSED_BY_SWEEP: dict[str, list[Any]] = {
    "backends": [(), ("shm", "shm")],
    "sizes": [(), (1, 1), (-1,), (10**6 + 1,)],
    "modes": [(), ("fast",)],
    "payload": ["text"],
    "codec": ["json", "raw"],
    "delivery": ["some"],
    "rate_per_s": [0.0, 1e7],
    "readers": [0, -1],
    "rounds": [0],
    "budget_s": [0.5],
    "seed": [-1],
    "warmup_s": [0.0],
    "window_s": [0.001],
    "depth": [1],
    "wait": ["sleep"],
    "pin": ["0,", "all"],
    "touch": ["some"],
}
CALLED = {"name": "channel name", "rate_per_s": "rate", "budget_s": "budget"}
"""Fields that the error calls by another name."""


def each(refused: dict[str, list[Any]]) -> list[tuple[dict[str, Any], str]]:
    return [({name: value}, CALLED.get(name, name)) for name, values in refused.items() for value in values]


@pytest.mark.parametrize(("values", "field"), each(REFUSED_BY_CHANNEL), ids=str)
def test_channel_refuses(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ChannelSpec(**{"name": "ipcb-x", **values})
    assert caught.value.field == field


def test_channel_takes_its_limits() -> None:
    ChannelSpec("a" * 48, readers=1024, max_message_bytes=2**40, depth=2**16)
    ChannelSpec("a", readers=1, max_message_bytes=0, depth=2)


def test_channel_survives_the_way() -> None:
    channel = ChannelSpec("ipcb-x", readers=2, processes=(3, 1, 2), delivery="latest_value")
    assert ChannelSpec.from_dict(msgpack.unpackb(msgpack.packb(channel.as_dict()))) == channel
    assert ChannelSpec.from_dict(json.loads(json.dumps(channel.as_dict()))) == channel
    assert pickle.loads(pickle.dumps(channel)) == channel
    assert channel.process_numbers() == (3, 1, 2)
    assert ChannelSpec("ipcb-x", readers=2).process_numbers() == (0, 1, 2)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        *each(REFUSED_BY_SWEEP),
        ({"payload": "bytes", "sizes": (2**30 + 1,)}, "sizes"),
        ({"codec": "raw", "payload": "ndarray"}, "codec"),
        ({"codec": "msgpack", "payload": "ndarray"}, "codec"),
        ({"modes": ("pingpong",), "delivery": "latest_value"}, "modes"),
    ],
    ids=str,
)
def test_sweep_refuses(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SweepSpec(**values)
    assert caught.value.field == field


def test_sweep_survives_the_way_and_is_frozen() -> None:
    sweep = SweepSpec(backends=("a", "b"), sizes=(1, 2), rate_per_s=5.0)
    assert SweepSpec.from_dict(json.loads(json.dumps(sweep.as_dict()))) == sweep
    with pytest.raises(FrozenInstanceError):
        sweep.readers = 2  # type: ignore[misc]


def test_a_trial_carries_everything_of_its_sweep() -> None:
    sweep = SweepSpec(payload="bytes", codec="raw", sizes=(64,), depth=8, wait="spin", readers=2, pin="0,1")
    trial = sweep.trial("shm", 64, 64, "paced", 1)
    assert (trial.payload, trial.codec, trial.depth, trial.wait, trial.readers) == ("bytes", "raw", 8, "spin", 2)
    assert (trial.pin, trial.touch, trial.round_index) == ("0,1", "header", 1)
    assert TrialSpec.from_dict(msgpack.unpackb(msgpack.packb(trial.as_dict()))) == trial


@pytest.mark.parametrize(
    ("payload_bytes", "rate_per_s"),
    [(0, AUTO_RATE_PER_S), (100_000, AUTO_RATE_PER_S), (1_000_000, 100.0), (10_000_000, 10.0)],
)
def test_the_automatic_rate_falls_with_size(payload_bytes: int, rate_per_s: float) -> None:
    trial = SweepSpec().trial("shm", 10, payload_bytes, "paced", 0)
    assert trial.rate_per_s == rate_per_s
    assert trial.rate_per_s * payload_bytes <= AUTO_RATE_BYTES_PER_S


def test_a_paced_window_is_long_enough_to_see_messages() -> None:
    fast, slow = (SweepSpec(window_s=0.05).trial("shm", 10, size, "paced", 0) for size in (100, 10**7))
    assert fast.window_s * fast.rate_per_s == pytest.approx(AUTO_PACED_MESSAGES)
    assert 0.05 < slow.window_s < 1
    saturated = SweepSpec(window_s=0.05).trial("shm", 10, 100, "saturate", 0)
    assert (saturated.rate_per_s, saturated.window_s) == (0.0, 0.05)


def test_rounds_replicate_the_same_cell() -> None:
    first, second = (SweepSpec().trial("shm", 10, 100, "paced", index) for index in (0, 1))
    assert first != second
    assert first.cell == second.cell
    assert first.cell != SweepSpec().trial("zmq", 10, 100, "paced", 0).cell
