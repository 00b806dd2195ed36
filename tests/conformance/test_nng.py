"""Backend `nng` against the contract, and what the kit does where its library refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ipcbench.testing import ConformanceSuite

pytest.importorskip("pynng")


class TestNng(ConformanceSuite):
    backend = "nng"


_TAKEN = """
import os
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync import channel_file

backend = get_backend("nng")()
address = backend.create(ChannelSpec(f"ipcb-nng-{os.getpid()}", max_message_bytes=100))
taken = channel_file(address, "reader-0")
taken.mkdir()
try:
    backend.open_reader(address, 0)
except TransportError as error:
    print(type(error).__name__)
taken.rmdir()
with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
    writer.write(b"x", timeout_s=60.0)
    print(bytes(reader.read(timeout_s=60.0)).decode())
backend.destroy(address)
"""


def test_a_reader_that_the_library_refuses_may_be_opened_later() -> None:
    done = subprocess.run([sys.executable, "-c", _TAKEN], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "TransportError\nx\n"), done.stderr
