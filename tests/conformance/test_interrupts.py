"""An exception that a signal handler raises in the middle of a call tears no message and loses none in silence."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "interrupted.py"
BROKEN = {"flight", "gloo", "nats", "nng", "pipe", "zenoh", "zmq"}
"""Who cannot always go on as if nothing had happened: then the endpoint says so, and its peer loses it."""

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.mark.parametrize("side", ["read", "write"])
@pytest.mark.parametrize(
    ("backend", "delivery", "size"),
    [
        ("pipe", "every_message", 400_000),
        ("zmq", "every_message", 400_000),
        ("pipe", "latest_value", 40),
        ("zmq", "latest_value", 40),
        ("shm", "every_message", 4_000),
        ("lmdb", "every_message", 400_000),
        ("shm", "latest_value", 400),
        ("lmdb", "latest_value", 400),
        ("nats", "every_message", 40_000),
        ("nng", "every_message", 40_000),
        ("redis", "every_message", 40_000),
        ("flight", "every_message", 40_000),
        pytest.param("gloo", "every_message", 40_000, marks=needs_torch),
        ("zenoh", "every_message", 40_000),
        ("iox2", "every_message", 40_000),
        ("redis", "latest_value", 400),
    ],
)
def test_an_interrupted_call_tears_and_loses_nothing(backend: str, delivery: str, size: int, side: str) -> None:
    command = [sys.executable, str(PROGRAM), backend, delivery, side, str(size), "12", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    counts = json.loads(done.stdout)
    assert sum(counts.values()) == 12
    allowed = {"whole", "broken"} if backend in BROKEN else {"whole"}
    assert set(counts) <= allowed, counts


@pytest.mark.parametrize(
    ("backend", "delivery"),
    [
        *itertools.product(["shm", "lmdb", "pipe", "zmq", "redis"], ["every_message", "latest_value"]),
        ("flight", "every_message"),
        pytest.param("gloo", "every_message", marks=needs_torch),
        ("iox2", "every_message"),
    ],
)
def test_an_interrupted_call_of_a_channels_life_is_done_or_not_begun(backend: str, delivery: str) -> None:
    command = [sys.executable, str(PROGRAM), backend, delivery, "life", "0", "60", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"whole": 60}, done.stderr
