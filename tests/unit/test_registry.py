"""Names and what they lead to: the built-in table, third-party entry points, and clear words for all else."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ipcbench import registry
from ipcbench.backend import Backend
from ipcbench.errors import BackendUnavailable, ConfigError, UnknownBackend
from ipcbench.harness.prepare import usable_backends
from ipcbench.spec import ChannelSpec

MISSION = {
    "zmq",
    "zmq-tcp",
    "zmq-tcp-insecure",
    "shm",
    "lmdb",
    "mpi",
    "mpi-pkl5",
    "mpi-buffer",
    "mpi-p2p",
    "mpi-rma",
    "pipe",
    "tcp",
    "flight",
    "gloo",
    "grpc",
    "grpc-tcp",
    "hybrid",
    "mp-queue",
    "mp-manager",
    "mp-pipe",
    "nats",
    "ray",
    "redis",
    "iox2",
    "nng",
    "zenoh",
    "null",
}


def test_the_built_in_names() -> None:
    assert set(registry.names()) >= MISSION


@pytest.mark.parametrize("name", registry.names())
def test_each_name_leads_to_a_backend_of_that_name(name: str) -> None:
    backend = registry.get_backend(name)
    assert issubclass(backend, Backend)
    assert backend.name == name
    assert backend.summary


@pytest.mark.parametrize("name", registry.names())
def test_status_says_why_not_and_what_to_do(name: str) -> None:
    status = registry.status(name)
    assert status.name == name
    assert bool(status.reason) == bool(status.hint) == (not status.available)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownBackend, match=r"'nope'.*zmq, zmq-tcp, zmq-tcp-insecure, shm"):
        registry.get_backend("nope")
    with pytest.raises(UnknownBackend):
        registry.status("nope")


def test_module_and_class() -> None:
    assert registry.get_backend("ipcbench.backends.shm.backend:Shm") is registry.get_backend("shm")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no_such_module_at_all:Thing", "can be imported"),
        (":", "module:name"),
        (":Shm", "module:name"),
        ("ipcbench.spec:", "module:name"),
        (".spec:SweepSpec", "module:name"),
        ("ipcbench.backends.shm.backend:Nothing", "a name that exists"),
        ("ipcbench.spec:SweepSpec", "a subclass"),
        ("ipcbench.spec:NAME_PREFIX", "a subclass"),
    ],
)
def test_a_target_that_is_no_backend(target: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        registry.get_backend(target)


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "SystemExit"])
def test_a_broken_library_hides_no_other_backend(error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of all transports refused to begin, since the library of one was broken."""
    (tmp_path / f"broken_by_{error.lower()}.py").write_text(f"raise {error}('libstdc++: no GLIBCXX')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    register(monkeypatch, ("broken", f"broken_by_{error.lower()}:Thing"))
    status = registry.status("broken")
    assert not status.available
    assert "its module cannot be loaded: " in status.reason
    assert "no GLIBCXX" in status.reason
    usable, skipped = usable_backends(["broken", "shm"], ChannelSpec("ipcb-check"))
    assert (list(usable), list(skipped)) == (["shm"], ["broken"])


def register(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    entry_points = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in points]
    groups = {registry.ENTRY_POINT_GROUP: entry_points}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: groups.get(group, []))


def test_third_party_backends_come_after_ours_and_cannot_replace_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shm = registry.get_backend("shm")
    register(
        monkeypatch, ("zeta", "ipcbench.backends.shm.backend:Shm"), ("alpha", "x:Y"), ("shm", "ipcbench.spec:SweepSpec")
    )
    assert registry.names()[-2:] == ("alpha", "zeta")
    assert registry.names().count("shm") == 1
    assert registry.get_backend("zeta") is shm
    assert registry.get_backend("shm") is shm


def test_a_probe_that_refuses_becomes_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cls: type[Backend]) -> None:
        raise BackendUnavailable(cls.name, "no such thing", "get one")

    monkeypatch.setattr(registry.get_backend("shm"), "probe", classmethod(refuse))
    assert registry.status("shm") == registry.BackendStatus("shm", False, "no such thing", "get one")


def test_looking_up_one_backend_loads_no_other_transport() -> None:
    code = (
        "import sys, ipcbench; ipcbench.get_backend('shm'); loaded = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted({'zmq', 'lmdb', 'mpi4py', 'numpy', 'click', 'rich'} & loaded))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout == "[]\n"


_TOGETHER = """
import threading
from ipcbench import get_backend
together, failures = threading.Barrier(4), []

def work(name):
    together.wait()
    try:
        get_backend(name)
    except Exception as error:
        failures.append(error)

threads = [threading.Thread(target=work, args=(name,)) for name in ("zmq", "pipe", "shm", "lmdb")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
"""


def test_threads_can_ask_for_their_first_backends_together() -> None:
    """A defect: they import parts of one package in different orders, and see modules that are not complete."""
    for _ in range(5):
        subprocess.run([sys.executable, "-c", _TOGETHER], check=True, timeout=60)


LIBRARIES = ("grpc", "hiredis", "iceoryx2", "mpi4py", "nats", "pyarrow", "pynng", "redis", "zenoh")
"""What the transports of optional extras import."""


def test_a_library_that_is_not_installed_is_named_with_the_command_that_brings_it() -> None:
    """Without zenoh, `ipcbench list` ended in a traceback: the package was looked for under another name."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({LIBRARIES!r}))\n"
        "from ipcbench import registry\n"
        "for name in registry.names():\n"
        "    found = registry.status(name)\n"
        "    print(name, '|', found.reason, '|', found.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    rows = [[part.strip() for part in line.split("|")] for line in done.stdout.splitlines()]
    missing = {name: (reason, hint) for name, reason, hint in rows if reason}
    assert {name for name, *_ in rows} - missing.keys() >= {"shm", "lmdb", "pipe", "tcp", "zmq", "mp-queue", "null"}
    assert missing.keys() >= {"mpi", "grpc", "grpc-tcp", "redis", "nng", "flight", "nats", "iox2", "zenoh"}
    for name, (reason, hint) in missing.items():
        assert "is not installed" in reason, name
        assert "pip install" in hint, name
