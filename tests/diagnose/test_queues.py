"""Servers that listen and cannot be reached: a full queue, a removed file, another family, another namespace."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from ipcbench.diagnose.endpoints import health
from ipcbench.diagnose.endpoints.url import parse_endpoint
from tests.diagnose.pairs import program, python
from tests.diagnose.test_health import as_nobody, in_namespace, is_root, needs_ipv6, problems

FILL = """
clients = []
for _ in range(4):
    clients.append(socket.socket({family}))
    clients[-1].setblocking(False)
    clients[-1].connect_ex(s.getsockname())
"""


def test_a_server_that_does_not_accept_is_called_well(tmp_path: Path) -> None:
    """One place more is taken than was asked for: so the kernel counts."""
    code = f"s = socket.socket(1)\ns.bind('{tmp_path}/s'); s.listen({{}})\n" + FILL.format(family=1)
    with program(*python(code.format(1))) as pid:
        said = problems(health(f"ipc://{tmp_path}/s"))
        assert f"its queue of 2 connections is full: process {pid} (" in said
        assert "does not accept" in said
    (tmp_path / "s").unlink()
    with program(*python(code.format(9))):
        assert health(f"ipc://{tmp_path}/s").is_healthy


def test_a_tcp_server_that_does_not_accept_is_called_well() -> None:
    code = "s = socket.socket()\ns.bind(('127.0.0.1', 0)); s.listen({})\n" + FILL.format(family=2)
    ready = "print('ready', s.getsockname()[1], flush=True)\nsys.stdin.readline()"
    with program(*python(code.format(1) + ready)) as port:
        said = problems(health(f"tcp://127.0.0.1:{port}"))
        assert "its queue of 2 connections is full: process " in said
    with program(*python(code.format(9) + ready)) as port:
        assert health(f"tcp://127.0.0.1:{port}").is_healthy


def test_a_server_whose_file_was_removed_is_called_missing(tmp_path: Path) -> None:
    with program(*python(f"s = socket.socket(1); s.bind('{tmp_path}/s'); s.listen()")) as pid:
        (tmp_path / "s").unlink()
        said = problems(health(f"ipc://{tmp_path}/s"))
        assert f"{tmp_path}/s does not exist: process {pid} (" in said
        assert "listens, and its file was removed or moved → restart the server" in said


def test_a_path_below_a_file_is_only_called_missing(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert f"{tmp_path}/a is a file, not a folder → correct" in problems(health(f"ipc://{tmp_path}/a/b/s"))


@needs_ipv6
def test_a_server_of_ipv4_is_told_to_bind_to_all_of_ipv4_for_ipv6() -> None:
    with program(*python("s = socket.create_server(('127.0.0.1', 0))\nprint('ready', s.getsockname()[1])")) as port:
        said = problems(health(f"tcp://[::1]:{port}"))
        assert f"connect to tcp://127.0.0.1:{port}, or bind the server to tcp://[::]:{port} (ZeroMQ: ZMQ_IPV6" in said
        assert f"or bind the server to tcp://*:{port}" in problems(health(f"tcp://127.0.0.9:{port}"))


@pytest.mark.skipif(not in_namespace("--net"), reason="may not make namespaces")
def test_a_port_of_another_network_namespace_is_called_unserved() -> None:
    code = "s = socket.create_server(('0.0.0.0', 0))\nprint('ready', s.getsockname()[1], os.getpid())"
    with program("unshare", "--net", *python(code)) as port:
        found = health(f"tcp://127.0.0.1:{port}")
        assert f"tcp://127.0.0.1:{port} is served in another network namespace (process " in problems(found)
        assert found.listeners == ()


def test_an_address_as_zmq_writes_it_is_not_taken() -> None:
    """An interface's name is its address, and a source before a semicolon is not where the server is."""
    with program(*python("s = socket.create_server(('127.0.0.1', 0))\nprint('ready', s.getsockname()[1])")) as port:
        if "lo" in os.listdir("/sys/class/net"):
            assert health(f"tcp://lo:{port}").is_healthy
        assert health(f"tcp://127.0.0.1:0;127.0.0.1:{port}").is_healthy
    assert parse_endpoint("tcp://127.0.0.1:0;[::1]:5").address == "::1"


@needs_ipv6
def test_an_own_address_with_a_scope_is_called_foreign() -> None:
    rows = (line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines())
    local = [(row[0], row[5]) for row in rows if row[3] == "20"]
    if not local:
        pytest.skip("no link-local address here")
    host = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(local[0][0]))
    with program(*python("s = socket.create_server(('::', 0), family=10)\nprint('ready', s.getsockname()[1])")) as port:
        assert health(f"tcp://[{host}%{local[0][1]}]:{port}").is_healthy


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_stopped_server_is_called_well(tmp_path: Path, kind: str) -> None:
    make = f"s = socket.socket(1); s.bind('{tmp_path}/s'); s.listen()" if kind == "unix" else (
        "s = socket.create_server(('127.0.0.1', 0)); open('{at}/port', 'w').write(str(s.getsockname()[1]))"
    ).replace("{at}", str(tmp_path))  # fmt: skip
    with program(*python(make)) as pid:
        url = f"ipc://{tmp_path}/s" if kind == "unix" else f"tcp://127.0.0.1:{(tmp_path / 'port').read_text()}"
        os.kill(pid, signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, pid, os.WSTOPPED)
            assert f"process {pid} is stopped, and answers nothing → kill -CONT {pid}" in problems(health(url))
        finally:
            os.kill(pid, signal.SIGCONT)
        os.waitid(os.P_PID, pid, os.WCONTINUED)
        assert health(url).is_healthy


def test_zeros_before_a_port_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert health(f"tcp://127.0.0.1:0{server.getsockname()[1]}").is_healthy


@is_root
def test_a_link_into_a_forbidden_folder_names_the_folder_of_the_link() -> None:
    code = "from ipcbench.diagnose.endpoints import health\nfor f in health({!r}).findings: print(f)"
    with tempfile.TemporaryDirectory() as at:
        Path(at).chmod(0o755)
        Path(at, "closed/in").mkdir(parents=True)
        Path(at, "closed").chmod(0o700)
        Path(at, "s").symlink_to("closed/in/../in/s")
        said = as_nobody(code.format(f"ipc://{at}/s"))
        assert f"user 65534 may not look into {at}/closed'" in said
        assert f"chmod o+x {at}/closed;" in said
