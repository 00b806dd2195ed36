"""Backend `zenoh` against the contract, and what zenoh does without its credit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ipcbench.testing import ConformanceSuite

pytest.importorskip("zenoh")

PROGRAM = str(Path(__file__).parent / "paused_zenoh.py")


class TestZenoh(ConformanceSuite):
    backend = "zenoh"


BEGIN = """
import os
from ipcbench import ChannelSpec, get_backend
from ipcbench.errors import TransportError
backend = get_backend("zenoh")()
address = backend.create(ChannelSpec(f"ipcb-zenoh-{os.getpid()}", 2, max_message_bytes=1_000, depth=8))
"""
UNCLOSED = """
import atexit, contextlib, threading
atexit.register(backend.destroy, address)
endpoints = [backend.open_reader(address, index) for index in range(2)]
writer = backend.open_writer(address)
def write():
    with contextlib.suppress(TransportError):
        while True:
            writer.write(b"x" * 1_000)
threading.Thread(target=write, daemon=True).start()
for _ in range(1_000):
    for endpoint in endpoints:
        endpoint.read(30.0)
"""
FORKED = """
writer = backend.open_writer(address)
if os.fork() == 0:
    try:
        backend.open_reader(address, 0)
    except TransportError as error:
        print(error)
    raise SystemExit(0)  # its interpreter ends as that of a whole program
os.wait()
writer.close()
backend.destroy(address)
"""


def run(*arguments: str) -> str:
    """Run a program, which prints nothing to stderr; return what it prints."""
    done = subprocess.run([sys.executable, "-W", "ignore", *arguments], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_child_opens_nothing_and_ends() -> None:
    assert "forked child" in run("-c", BEGIN + FORKED)


def test_a_process_ends_whose_endpoints_are_busy_and_not_closed() -> None:
    run("-c", BEGIN + UNCLOSED)


def test_block_of_zenoh_alone_loses_what_was_put() -> None:
    numbers = json.loads(run(PROGRAM, "alone", "50000"))
    assert numbers == list(range(len(numbers)))
    assert len(numbers) < 100


@pytest.mark.parametrize("size_bytes", ["1000", "50000"])
def test_a_paused_reader_loses_nothing(size_bytes: str) -> None:
    assert json.loads(run(PROGRAM, "ipcbench", size_bytes)) == list(range(100))
