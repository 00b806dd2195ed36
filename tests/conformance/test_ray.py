"""Backend `ray` against the contract, in one cluster; and what happens to a cluster of the channels' own."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ipcbench import Address, get_backend
from ipcbench.backends.ray import cluster, head
from ipcbench.errors import BackendUnavailable, PeerLost, TransportError
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import channel_directory
from ipcbench.sync.service import SERVICE_SUFFIX
from ipcbench.testing import ConformanceSuite
from ipcbench.testing.agents.client import until
from ipcbench.testing.leaks import traces
from tests.conformance.served import WAIT_S

if find_spec("ray") is None:
    pytest.skip("ray is not installed", allow_module_level=True)


SERVERS = ("gcs_server", "raylet/raylet")


@pytest.fixture(scope="module", autouse=True)
def host() -> Iterator[Address]:
    """Keep a channel, and so the cluster, which takes seconds to start."""
    backend = get_backend("ray")()
    address = backend.create(ChannelSpec(f"ipcb-ray-host-{os.getpid()}"))
    yield address
    backend.destroy(address)


class TestRay(ConformanceSuite):
    backend = "ray"


for _law in (1, 2, 3, 4, 14, 20, 23, 24, 25, 26):  # a call of Ray takes a millisecond, and these make thousands
    _name = next(name for name in dir(ConformanceSuite) if name.startswith(f"test_c{_law:02}_"))
    setattr(TestRay, _name, pytest.mark.soak(getattr(ConformanceSuite, _name)))


_LISTED = """
import sys
from ipcbench import get_backend, registry
registry.status("ray")
get_backend("ray")()
assert "ray" not in sys.modules
"""


def test_ray_is_not_imported_until_a_channel_is_opened() -> None:
    subprocess.run([sys.executable, "-c", _LISTED], timeout=120, check=True)


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("garbage", "'garbage' is no HOST:PORT"),
        ("127.0.0.1:port", "'127.0.0.1:port' is no HOST:PORT"),
        ("127.0.0.1:99999", "'127.0.0.1:99999' is no HOST:PORT"),
        ("ray://127.0.0.1:1", "'ray://127.0.0.1:1' is no HOST:PORT"),
    ],
)
def test_a_named_cluster_that_is_not_there_is_said_beforehand(named, reason, monkeypatch) -> None:
    """Ray waited for it for minutes, or raised errors of its own."""
    monkeypatch.setenv(cluster.SERVER.variable, named)
    with pytest.raises(
        BackendUnavailable,
        match=f"RAY_ADDRESS names none that serves: .*{re.escape(reason)}; mend or unset RAY_ADDRESS",
    ):
        get_backend("ray")().create(ChannelSpec("ipcb-ray-nowhere"))
    command = [sys.executable, "-m", "ipcbench", "list", "ray"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "here no: RAY_ADDRESS names none that serves" in " ".join(listed.stdout.split())


def test_a_named_cluster_that_has_died_is_an_error_when_an_endpoint_opens(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(cluster.SERVER.variable, "127.0.0.1:{1}".format(*server.getsockname()))
        backend = get_backend("ray")()
        address = backend.create(ChannelSpec(f"ipcb-ray-gone-{os.getpid()}"))
    with pytest.raises(TransportError, match="Connection refused"):
        backend.open_writer(address)
    backend.destroy(address)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """Make a channel with a cluster of its own, in another temporary folder."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        backend = get_backend("ray")()
        address = backend.create(ChannelSpec(f"ipcb-ray-{os.getpid()}", max_message_bytes=100_000, depth=4))
        yield address
        backend.destroy(address)
        backend.destroy(address)
        place = folder.rpartition("/")[2]
        assert until(lambda: not traces(place), WAIT_S), traces(place)
        assert os.listdir(folder) == []


def group_of(address: Address) -> int:
    return int((cluster.Cluster(address).folder / f"ray{SERVICE_SUFFIX}").read_text())


_KILLED = """
import json, os, signal, sys
from contextlib import suppress
from pathlib import Path
from ipcbench import Address, get_backend
from ipcbench.errors import PeerLost

address, victim, group = Address.from_dict(json.loads(sys.argv[1])), sys.argv[2], int(sys.argv[3])
backend = get_backend("ray")()
with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
    writer.write(b"x", timeout_s=60.0)
    assert reader.read(timeout_s=60.0) == b"x"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if victim in path.read_text() and os.getpgid(int(path.parent.name)) == group:
                os.kill(int(path.parent.name), signal.SIGKILL)
    for call in (reader.read, lambda: [writer.write(b"y", timeout_s=60.0) for _ in range(9)]) * 2:
        try:
            call()
        except PeerLost:
            print("lost")
"""


@pytest.mark.parametrize("victim", ["head.py", *(pytest.param(server, marks=pytest.mark.soak) for server in SERVERS)])
def test_when_a_process_of_the_cluster_is_killed_everybody_loses_it(alone: Address, victim: str) -> None:
    assert _in_process(_KILLED, alone, victim, str(group_of(alone))).splitlines().count("lost") == 4


def test_a_channel_whose_cluster_has_died_takes_no_later_one_for_its_own(alone: Address) -> None:
    """Its readers waited for messages of a cluster that did not know it."""
    used = cluster.Cluster(alone)
    place = used.folder / head.ADDRESS
    place.unlink()
    place.symlink_to("127.0.0.1:1")  # as a new one does
    with pytest.raises(PeerLost, match=r"the cluster of channel .* has died"):
        used.check()
    with pytest.raises(PeerLost, match=r"the cluster of channel .* has died"):
        get_backend("ray")().open_reader(alone, 0)


_FAILS_ONCE = """
import os, sys
if os.path.basename(sys.orig_argv[2]) == "head.py":
    from ipcbench.backends.ray.head import _SETTINGS
    os.environ.update(_SETTINGS)
    import ray
    def init(*where, **named):
        ray.init = ray._private.worker.init
        ray.init(*where, **named)
        raise Exception("The current node timed out during startup.")
    ray.init = init
"""


def test_a_cluster_that_does_not_start_in_time_is_started_once_more(tmp_path, monkeypatch, request) -> None:
    """Ray itself gives it half a minute."""
    (tmp_path / "sitecustomize.py").write_text(_FAILS_ONCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    alone = request.getfixturevalue("alone")
    monkeypatch.delenv("PYTHONPATH")
    assert _in_process(_USED, alone).count("read") == 9


def test_what_is_in_the_way_of_the_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        Path(folder, f"ipcb-cluster-{os.geteuid()}").mkdir(mode=0o755)
        with pytest.raises(TransportError, match="remove it, or set TMPDIR to another folder"):
            get_backend("ray")().create(ChannelSpec(f"ipcb-ray-{os.getpid()}", max_message_bytes=100, depth=4))
        assert os.listdir(folder) == [f"ipcb-cluster-{os.geteuid()}"]


def _in_process(program: str, address: Address, *arguments: str) -> str:
    """Run a program in a process of its own: Ray keeps descriptors in one that was connected to a cluster."""
    command = [sys.executable, "-c", program, json.dumps(address.as_dict()), *arguments]
    return subprocess.run(command, timeout=200, check=True, capture_output=True, text=True).stdout


def test_a_cluster_ends_when_the_folders_of_its_channels_are_gone(alone: Address) -> None:
    folder = cluster.Cluster(alone).folder
    shutil.rmtree(channel_directory(alone))
    assert until(lambda: not folder.exists(), WAIT_S)


_USED = """
import json, sys
from ipcbench import Address, get_backend

address = Address.from_dict(json.loads(sys.argv[1]))
backend = get_backend("ray")()
with backend.open_reader(address, 0) as reader, backend.open_writer(address) as writer:
    for number in range(9):
        writer.write(bytes([number]) * 100_000, timeout_s=60.0)
        assert reader.read(timeout_s=60.0) == bytes([number]) * 100_000
        print("read")
"""


@pytest.fixture
def there(host: Address, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """Make a channel in a cluster that was there."""
    backend, used = get_backend("ray")(), cluster.Cluster(host)
    monkeypatch.setenv(cluster.SERVER.variable, used.address)
    for name, value in head.ONLY_HERE.items():
        monkeypatch.setenv(name, value)
    address = backend.create(ChannelSpec(f"ipcb-ray-{os.getpid()}", max_message_bytes=100_000, depth=4))
    yield address
    backend.destroy(address)
    assert not used.is_lost()


def test_a_cluster_that_was_there_is_used_and_left_as_it_was(there: Address) -> None:
    said = _in_process(_USED, there).splitlines()
    assert [line for line in said if not line.startswith("\x1b[")] == ["read"] * 9, "what the raylet says left out"


_WRITTEN = """
import json, os, signal, sys
from ipcbench import Address, get_backend

get_backend("ray")().open_writer(Address.from_dict(json.loads(sys.argv[1]))).write(b"x", timeout_s=60.0)
os.kill(os.getpid(), signal.SIGKILL)
"""

_READ_LATE = f"""
import json, subprocess, sys
from ipcbench import Address, get_backend
from ipcbench.errors import PeerLost

with get_backend("ray")().open_reader(Address.from_dict(json.loads(sys.argv[1])), 0) as reader:
    subprocess.run([sys.executable, "-c", {_WRITTEN!r}, sys.argv[1]], timeout=100)
    try:
        while True:
            reader.read(timeout_s=60.0)
    except PeerLost:
        print("lost")
"""


def test_a_reader_that_first_reads_when_the_actor_is_gone_has_lost_the_writer(there: Address) -> None:
    """Ray then says that nobody has made such an actor, by a ValueError."""
    assert "lost" in _in_process(_READ_LATE, there).splitlines()
