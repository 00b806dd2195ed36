"""Backend `gloo` against the contract, what its library does where it waits, and a writer that dies with a child."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest

from ipcbench import get_backend
from ipcbench.errors import PeerLost, TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync import channel_directory
from ipcbench.testing import ConformanceSuite

if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)


class TestGloo(ConformanceSuite):
    backend = "gloo"


_LISTED = """
import sys
from ipcbench import get_backend, registry
registry.status("gloo")
get_backend("gloo")()
assert "torch" not in sys.modules
"""


def test_torch_is_not_imported_until_a_channel_is_opened() -> None:
    subprocess.run([sys.executable, "-c", _LISTED], timeout=120, check=True)


def test_gloo_hands_over_nothing_unasked_and_a_time_out_closes_the_connection(tmp_path: Path) -> None:
    import torch
    import torch.distributed as dist

    def join(rank: int) -> dist.ProcessGroupGloo:
        return dist.ProcessGroupGloo(dist.FileStore(str(tmp_path / "store"), 2), rank, 2, timedelta(seconds=60))

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(join, range(2))
    sent = one.send([torch.ones(1)], 1, 0)
    with pytest.raises(RuntimeError, match="Timed out"):
        sent.wait(timedelta(milliseconds=200))  # a byte would have its place in any buffer
    into = torch.zeros(1)
    with pytest.raises(RuntimeError):
        other.recv([into], 0, 0).wait()
    with pytest.raises(RuntimeError):
        one.send([torch.ones(1)], 1, 0).wait()
    assert into.item() == 0


_WRITER = """
import os, signal, sys
from ipcbench import Address, get_backend
from ipcbench.spec import ChannelSpec

address = Address("gloo", ChannelSpec(sys.argv[1], max_message_bytes=10_000_000, depth=4), sys.argv[2])
writer = get_backend("gloo")().open_writer(address)
for number in range(4):
    writer.write(bytes([number]) * 10_000_000, timeout_s=60.0)
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_dead_writer_had_kept_is_lost_though_a_child_holds_its_connection() -> None:
    backend = get_backend("gloo")()
    address = backend.create(ChannelSpec(f"ipcb-gloo-{os.getpid()}", max_message_bytes=10_000_000, depth=4))
    reader = backend.open_reader(address, 0)
    command = [sys.executable, "-c", _WRITER, address.channel.name, address.location]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as writer:
        writer.wait(timeout=120)
        numbers = []
        with suppress(PeerLost):
            while len(numbers) < 4:
                message = reader.read(timeout_s=60.0)
                numbers.append(message[0])
                assert message == message[:1].tobytes() * 10_000_000
    with pytest.raises(PeerLost):
        reader.read(timeout_s=60.0)
    reader.close()
    backend.destroy(address)
    assert numbers == [0, 1, 2, 3][: len(numbers)]
    assert len(numbers) < 4


def test_a_channel_whose_folder_has_lost_a_file_is_refused() -> None:
    backend = get_backend("gloo")()
    address = backend.create(ChannelSpec(f"ipcb-gloo-{os.getpid()}"))
    (channel_directory(address) / "lengths").unlink()
    with pytest.raises(TransportError):
        backend.open_reader(address, 0)
    backend.destroy(address)
