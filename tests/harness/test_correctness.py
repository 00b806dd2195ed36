"""Every backend, few and many readers, payloads from 0 to 64 MiB: every reader validates every message."""

from __future__ import annotations

import os
from collections.abc import Collection

import pytest

from ipcbench.registry import get_backend, names, status
from tests.harness.small_runs import raw, sound

HUGE = 2**26
FAMILIES = ("shm", "zmq", "lmdb", "mpi", "pipe", "null")
"""One backend of each: the others differ from it in what happens to a message of any size."""
OF_EACH_KIND = (*FAMILIES, "mp-queue", "redis", "grpc", "nng")
"""One backend for each way to keep the latest value; the laws are checked of all."""

HEAVY = {"gloo", "ray"}
"""Backends whose library the tests do not install."""


def marks_of(backend: str, readers: int) -> Collection[pytest.MarkDecorator]:
    return () if readers == 3 or backend in FAMILIES else (pytest.mark.soak,)


def require(backend: str) -> None:
    availability = status(backend)
    if not availability.available and (backend in HEAVY or os.environ.get("IPCBENCH_EXPECT") != "all"):
        pytest.skip(f"{availability.reason}; {availability.hint}")


@pytest.mark.parametrize(
    ("backend", "readers", "sizes"),
    [
        pytest.param(backend, readers, sizes, marks=marks_of(backend, readers))
        for backend in names()
        for readers, sizes in ((1, (0, 4096, HUGE)), (3, (0, 1, 4096, 2**20 + 1)), (7, (1, 2**20 + 1)))
    ],
)
def test_every_reader_validates_every_message(backend, readers, sizes, tmp_path):
    require(backend)
    for trial in sound(raw(*sizes, backends=(backend,), readers=readers, depth=8), tmp_path, stall_s=30.0).trials:
        for reader in trial.readers:
            counts = reader.integrity
            assert (counts.errors_count, counts.received_count) == (0, counts.expected_count)
            assert counts.hashed_count > 0
            assert reader.messages_count == trial.writer.messages_count >= 2


@pytest.mark.parametrize(
    ("backend", "readers"),
    [
        pytest.param(each, readers, marks=() if readers == 3 and each in OF_EACH_KIND else pytest.mark.soak)
        for each in names()
        for readers in (1, 3)
    ],
)
def test_the_latest_value_is_whole_and_never_older_than_the_one_before(backend, readers, tmp_path):
    require(backend)
    if "latest_value" not in get_backend(backend).capabilities.deliveries:
        pytest.skip(f"{backend} does not offer latest_value")
    window_s = 0.4  # a reader that gets no core for all of it sees nothing
    sweep = raw(0, 65_536, backends=(backend,), readers=readers, delivery="latest_value", window_s=window_s)
    run = sound(sweep, tmp_path)
    assert all(reader.integrity.errors_count == 0 for trial in run.trials for reader in trial.readers)
