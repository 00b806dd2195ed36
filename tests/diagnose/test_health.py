"""Endpoints that are well, stale, forbidden, elsewhere; buffers that were cut; processes that cannot be looked at."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread

import lmdb
import pytest

from ipcbench.cli import main
from ipcbench.diagnose.endpoints import Health, check_buffers, health, links
from ipcbench.errors import ConfigError
from tests.diagnose.pairs import ROOT, program, python, started

is_root = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")


def problems(found: Health) -> str:
    """Return the problems as one text, each with its remedy."""
    bad = [finding for finding in found.findings if finding.level == "problem"]
    assert all(finding.remedy for finding in bad)
    return "; ".join(f"{finding.text} → {finding.remedy}" for finding in bad)


@pytest.fixture(autouse=True)
def no_addresses_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in os.environ.items():
        if "://" in value:
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "url", ["", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:99999", "tcp://host:x", "tcp://localhost:1/", "tcp://a@localhost:1",
            "ipc://relative", "shm://",
            "shm://a/b", "lmdb://x", "http://host:1", "udp://host:1", "ipc://@", "name"],
)  # fmt: skip
def test_a_bad_url_is_taken(url: str) -> None:
    with pytest.raises(ConfigError, match="endpoint: "):
        health(url)


@pytest.mark.parametrize("scheme", ["ipc://", "unix://", ""])
def test_who_listens_is_not_told(tmp_path: Path, scheme: str) -> None:
    with program(*python(f"s = socket.socket(1)\nos.chdir('{tmp_path}'); s.bind('s'); s.listen()")) as pid:
        found = health(f"{scheme}{tmp_path}/s")
        assert found.is_healthy, problems(found)
        assert [each[0] for each in found.listeners] == [pid]
        assert sys.executable in found.listeners[0][1]


def test_an_abstract_name_is_not_found(channel_name: str) -> None:
    assert "nobody in this network namespace listens" in problems(health(f"ipc://@{channel_name}"))
    with program(*python(f"s = socket.socket(1)\ns.bind('\\0{channel_name}'); s.listen()")) as pid:
        assert health(f"ipc://@{channel_name}").listeners[0][0] == pid


def test_a_stale_file_is_called_well(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/s")
    assert f"{tmp_path}/s is stale" in problems(health(f"ipc://{tmp_path}/s"))
    assert f"rm {tmp_path}/s" in problems(health(f"ipc://{tmp_path}/s"))


def test_what_is_not_there_or_no_socket_is_called_well(tmp_path: Path) -> None:
    assert "does not exist" in problems(health(f"ipc://{tmp_path}/s"))
    assert f"nor does its folder {tmp_path}/a" in problems(health(f"ipc://{tmp_path}/a/b/s"))
    (tmp_path / "s").write_text("")
    assert "is not a socket" in problems(health(f"ipc://{tmp_path}/s"))


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def as_nobody(code: str) -> str:
    command = [*NOBODY, sys.executable, "-B", "-c", code]
    reached = subprocess.run(
        [*NOBODY, sys.executable, "-c", "import ipcbench"], cwd=ROOT, capture_output=True, check=False
    )
    if reached.returncode:
        pytest.skip("another user cannot read this checkout or its Python")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


@is_root
def test_a_forbidden_socket_is_called_well() -> None:
    code = "from ipcbench.diagnose.endpoints import health\nfor f in health({!r}).findings: print(f)"
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        Path(folder).chmod(0o755)
        server.bind(f"{folder}/s")
        server.listen()
        Path(folder, "s").chmod(0o600)
        said = as_nobody(code.format(f"ipc://{folder}/s"))
        assert "user 65534 may not write" in said
        assert "is served by: a process that is not seen here (another user or PID namespace)" in said
        Path(folder, "deep").mkdir(mode=0o700)
        assert "may not look into" in as_nobody(code.format(f"ipc://{folder}/deep/s"))


@is_root
def test_a_process_of_another_user_is_taken_for_one_with_nothing() -> None:
    code = f"from ipcbench.diagnose.endpoints import links\nimport os\nprint(links(os.getpid(), {os.getpid()}).verdict)"
    assert f"cannot tell: process {os.getpid()} (user 0) cannot be read by user 65534; run this as" in as_nobody(code)


INSIDE = """
import os, signal, socket, sys
l = socket.create_server(("127.0.0.1", 0))
a, b = socket.socketpair()
child = os.fork()
if not child:
    c = {child}
    l.close(), a.close()
    signal.pause()
d = {parent}
l.close(), b.close()
print("ready", child, flush=True)
sys.stdin.readline()
os.kill(child, 9)
"""


@is_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare here")
@pytest.mark.parametrize("tcp", [True, False])
def test_a_users_own_container_is_not_seen_without_rights(tcp: bool) -> None:
    """Nobody may enter a network namespace: TCP is seen uncounted, and a Unix socket is not claimed to be missing."""
    inside = INSIDE.format(
        child="socket.create_connection(l.getsockname())" if tcp else "b",
        parent="(b.close(), a.close(), l.accept())" if tcp else "a",
    ).replace("l.close(), a.close()", "l.close(), a.close(), b.close()" if tcp else "l.close(), a.close()")
    start = (
        "import fcntl, os, socket, struct, sys\n"
        "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 1))\n"  # SIOCSIFFLAGS: up
        f"os.execvp('setpriv', {[*NOBODY, sys.executable, '-c', inside]!r})\n"
    )
    with started("unshare", "--net", sys.executable, "-c", start) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        code = f"from ipcbench.diagnose.endpoints import links\nprint(links({parent.pid}, {child}).verdict)"
        said = as_nobody(code)
    if tcp:
        assert said.startswith("in use: tcp://127.0.0.1:")
        assert "the kernel does not count its bytes" in said
    else:
        assert said.startswith("cannot tell: ")
        assert "is in another network namespace, whose Unix sockets cannot be listed" in said


def test_tcp_is_served_by_the_wrong_process_or_at_another_address() -> None:
    with program(*python("s = socket.create_server(('127.0.0.1', 0))\nprint('ready', s.getsockname()[1])")) as port:
        found = health(f"tcp://127.0.0.1:{port}")
        assert found.is_healthy
        assert len(found.listeners) == 1
        assert health(f"tcp://localhost:{port}").listeners == found.listeners
        assert f"but on tcp://127.0.0.1:{port}" in problems(health(f"tcp://127.0.0.9:{port}"))
    assert "nobody in this network namespace listens" in problems(health(f"tcp://127.0.0.1:{port}"))


def test_a_remote_address_is_called_well_or_bad() -> None:
    found = health("tcp://192.0.2.1:80")
    assert {finding.level for finding in found.findings} == {"unknown"}
    assert "is not an address of this host" in found.findings[0].text
    assert "has no address" in problems(health("tcp://no-such-host.invalid:80"))


def test_a_variable_that_names_another_address_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"ipc://{tmp_path}/s"
    with program(*python(f"s = socket.socket(1); s.bind('{tmp_path}/s'); s.listen()"),
                 env={**os.environ, "SERVER": "tcp://127.0.0.1:5555", "DOCKER_HOST": "unix:///d"}) as pid:  # fmt: skip
        found = health(url, pid)
        assert found.is_healthy, problems(found)  # it is no problem unless the program reads it
        text = "; ".join(f"{f.text} → {f.remedy}" for f in found.findings if f.level == "note")
        assert f"SERVER of process {pid} names another address, tcp://127.0.0.1:5555 → if the program reads" in text
        assert "DOCKER" not in text
        monkeypatch.setenv("SERVER", url)
        assert health(url).is_healthy
        monkeypatch.setenv("PROXY", "http://host:80")
        assert health(url).is_healthy


def test_a_segment_is_stale_or_mapped_by_nobody(channel_name: str) -> None:
    path = Path("/dev/shm", channel_name)
    assert "does not exist" in problems(health(f"shm://{channel_name}"))
    try:
        path.write_bytes(bytes(100))
        assert "maps" in next(f.text for f in health(f"shm://{channel_name}").findings if f.level == "unknown")
        with program(*python(f"m = mmap.mmap(os.open('{path}', 2), 100)")) as pid:
            assert health(f"shm://{channel_name}").listeners[0][0] == pid
    finally:
        path.unlink()


def test_a_database_is_mapped_by_nobody(tmp_path: Path) -> None:
    with program(*python(f"import lmdb; e = lmdb.open('{tmp_path}')")) as pid:
        found = health(f"lmdb://{tmp_path}")
        assert found.is_healthy
        assert found.listeners[0][0] == pid
    assert "does not exist" in problems(health(f"lmdb://{tmp_path}/x"))


def in_namespace(*options: str) -> bool:
    command = ["unshare", *options, "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not in_namespace("--net", "--mount"), reason="may not make namespaces")
def test_another_namespace_is_not_seen(tmp_path: Path) -> None:
    hide = f"import subprocess; subprocess.run(['mount', '-t', 'tmpfs', 'none', '{tmp_path}'], check=True)"
    with socket.socket(socket.AF_UNIX) as server, program("unshare", "--net", "--mount", *python(hide)) as pid:
        server.bind(f"{tmp_path}/s")
        server.listen()
        assert f"does not see the same {tmp_path}/s" in problems(health(f"ipc://{tmp_path}/s", pid))
        assert "is not the same place there" in problems(health("tcp://127.0.0.1:1", pid))


@pytest.mark.skipif(not in_namespace("--net"), reason="may not make namespaces")
def test_a_server_in_another_network_namespace_leaves_its_file_stale(tmp_path: Path) -> None:
    with program("unshare", "--net", *python(f"s = socket.socket(1); s.bind('{tmp_path}/s'); s.listen()")) as pid:
        found = health(f"ipc://{tmp_path}/s")
        assert found.is_healthy, problems(found)
        assert [each[0] for each in found.listeners] == [pid]


def test_a_dead_or_impossible_process_is_looked_at() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    for pid in (process.pid, 0, -1, 2**40):
        with pytest.raises(ConfigError, match="number of a running process"):
            links(pid, os.getpid())
        with pytest.raises(ConfigError, match="number of a running process"):
            links(os.getpid(), pid)


def test_a_process_that_has_ended_is_taken_for_one_with_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still listed
    try:
        assert links(os.getpid(), process.pid).verdict == f"cannot tell: process {process.pid} has ended"
    finally:
        process.wait()


def test_processes_that_end_meanwhile_end_the_look() -> None:
    failures: list[BaseException] = []

    def look(pid: int) -> None:
        try:
            while "ended" not in links(os.getpid(), pid).verdict:
                pass
        except ConfigError:
            pass
        except BaseException as error:
            failures.append(error)

    with started(*python("import zmq")) as process:
        thread = Thread(target=look, args=(process.pid,))
        thread.start()
    thread.join()
    assert failures == []


def test_buffers_that_the_kernel_has_cut_are_called_well() -> None:
    limit = int(Path("/proc/sys/net/core/wmem_max").read_text())
    code = "a, b = socket.socketpair()\na.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, {0})\n" \
           "b.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, {0})"  # fmt: skip
    with program(*python(code.format(4 * limit))) as pid:
        cut = check_buffers(pid, send_bytes=4 * limit)
        assert {finding.level for finding in cut} == {"problem"}
        assert all("was cut by net.core.wmem_max" in finding.text for finding in cut)
        assert cut[0].remedy == f"sysctl -w net.core.wmem_max={4 * limit}"
        assert {finding.level for finding in check_buffers(pid, send_bytes=limit)} == {"ok"}
        assert "was not set on it" in check_buffers(pid, receive_bytes=limit)[0].text
        assert [finding.level for finding in check_buffers(pid, high_water_mark=5)] == ["unknown"]
        assert check_buffers(pid) == ()
    with program(*python("pass")) as pid:
        assert "no connected socket" in check_buffers(pid, send_bytes=1)[0].text


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ipc:///tmp/s/", "no slash at its end"),
        ("/tmp/s/", "no slash at its end"),
        (f"ipc:///tmp/{'é' * 52}", "at most 107 bytes"),
        (f"ipc://@{'a' * 108}", "at most 107 bytes"),
        ("ipc://run/s", "absolute"),
        ("run/s", "absolute"),
    ],
)
def test_a_path_that_no_socket_can_have_is_taken(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        health(url)


@pytest.mark.parametrize("name", ["{}/s", "@ipcb-{}"])
def test_a_socket_that_is_only_bound_is_called_served(tmp_path: Path, name: str) -> None:
    path = name.format(tmp_path)
    with program(*python(f"s = socket.socket(1); s.bind({path.replace('@', chr(0))!r})")) as pid:
        found = health(f"ipc://{path}")
        assert f"{path} is bound, and not listened on: process {pid} (" in problems(found)
        assert found.listeners == ()


def test_a_socket_of_another_type_is_called_well_for_zmq(tmp_path: Path) -> None:
    with program(*python(f"s = socket.socket(1, 2); s.bind('{tmp_path}/s')")) as pid:
        assert "is no stream (datagram socket), and ZeroMQ (ipc://) needs one" in problems(
            health(f"ipc://{tmp_path}/s")
        )
        for url in (f"unix://{tmp_path}/s", f"{tmp_path}/s"):
            assert health(url).is_healthy
            assert health(url).listeners[0][0] == pid


def test_a_server_of_a_file_that_was_removed_serves_the_new_one(tmp_path: Path) -> None:
    with program(*python(f"s = socket.socket(1); s.bind('{tmp_path}/s'); s.listen()")) as pid:
        (tmp_path / "s").unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(f"{tmp_path}/s")
        found = health(f"ipc://{tmp_path}/s")
        assert f"{tmp_path}/s is stale: process {pid} (" in problems(found)
        assert "listens on a file of this name that was removed or moved" in problems(found)
        assert found.listeners == ()


@pytest.mark.skipif(not in_namespace("--net"), reason="may not make namespaces")
def test_an_abstract_name_of_another_network_namespace_is_called_served(channel_name: str) -> None:
    """Neither is a process that only is in that namespace named as the one that listens."""
    code = f"s = socket.socket(1); s.bind('\\0{channel_name}'); s.listen()\n"
    fork = "if os.fork(): sys.stdin.readline(), os._exit(0)\n"
    with program("unshare", "--net", *python(fork + code)) as parent:
        found = health(f"ipc://@{channel_name}")
        (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        assert f"served in another network namespace (process {child} (" in problems(found)
        assert found.listeners == ()


@pytest.mark.skipif(not in_namespace("--net", "--mount"), reason="may not make namespaces")
def test_a_container_with_a_file_of_the_same_name_is_taken_for_the_server(tmp_path: Path) -> None:
    hide = f"import subprocess; subprocess.run(['mount', '-t', 'tmpfs', 'none', '{tmp_path}'], check=True)\n"
    listen = f"s = socket.socket(1); s.bind('{tmp_path}/s'); s.listen()"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/s")
    for options in (("--mount",), ("--net", "--mount")):
        with program("unshare", *options, *python(hide + listen)):
            assert f"{tmp_path}/s is stale" in problems(health(f"ipc://{tmp_path}/s"))


def test_ipv4_inside_ipv6_is_not_found() -> None:
    with program(*python("s = socket.create_server(('127.0.0.1', 0))\nprint('ready', s.getsockname()[1])")) as port:
        assert health(f"tcp://[::ffff:127.0.0.1]:{port}").is_healthy
        assert health(f"tcp://[::1]:{port}").is_healthy is not True


def test_any_address_of_ipv4_serves_ipv6() -> None:
    with program(*python("s = socket.create_server(('0.0.0.0', 0))\nprint('ready', s.getsockname()[1])")) as port:
        assert health(f"tcp://127.0.0.1:{port}").is_healthy
        assert health(f"tcp://[::1]:{port}").is_healthy is not True


@needs_ipv6
def test_a_server_of_all_of_ipv4_is_told_to_bind_to_all() -> None:
    with program(*python("s = socket.create_server(('0.0.0.0', 0))\nprint('ready', s.getsockname()[1])")) as port:
        said = problems(health(f"tcp://[::1]:{port}"))
        assert f"but on tcp://0.0.0.0:{port} → connect to tcp://127.0.0.1:{port}, or have the server take IPv6" in said
        assert "tcp://*" not in said


def test_all_addresses_are_served_by_whoever_listens_anywhere() -> None:
    """A client that connects to all of IPv4 reaches 127.0.0.1 alone."""
    code = "s = socket.create_server(('{}', 0){})\nprint('ready', s.getsockname()[1])"
    with program(*python(code.format("127.0.0.2", ""))) as port:
        for host in ("0.0.0.0", "*"):
            assert f"but on tcp://127.0.0.2:{port} → connect to tcp://127.0.0.2:{port}" in problems(
                health(f"tcp://{host}:{port}")
            )
    for host in ("127.0.0.1", "0.0.0.0"):
        with program(*python(code.format(host, ""))) as port:
            assert health(f"tcp://0.0.0.0:{port}").is_healthy
            assert health(f"tcp://[::]:{port}").is_healthy is not True


@needs_ipv6
def test_all_addresses_of_ipv6_are_those_of_ipv4() -> None:
    for host in ("::1", "::"):
        with program(
            *python(f"s = socket.create_server(('{host}', 0), family=10)\nprint('ready', s.getsockname()[1])")
        ) as port:
            assert health(f"tcp://[::]:{port}").is_healthy
            assert f"but on tcp://[{host}]:{port} → connect to tcp://[::1]:{port}" in problems(
                health(f"tcp://0.0.0.0:{port}")
            )


@pytest.mark.parametrize("host", ["*", "lo"])
def test_what_only_a_server_may_name_is_said_to_be_for_clients(host: str) -> None:
    with program(*python("s = socket.create_server(('0.0.0.0', 0))\nprint('ready', s.getsockname()[1])")) as port:
        found = health(f"tcp://{host}:{port}")
        assert found.is_healthy
        remedies = [finding.remedy for finding in found.findings if finding.text.startswith(f"{host} is for bind only")]
        assert remedies == [f"connect to tcp://127.0.0.1:{port}"]


def test_a_tcp_socket_that_is_only_bound_is_called_missing() -> None:
    """The kernel lists such sockets from Linux 6.8 on."""
    code = "s = socket.socket()\ns.bind(('127.0.0.1', 0))\nprint('ready', s.getsockname()[1])"
    with program(*python(code)) as port:
        said = problems(health(f"tcp://127.0.0.1:{port}"))
        is_listed = tuple(map(int, platform.release().split(".")[:2])) >= (6, 8)
        assert ("is bound, and not listened on: process " if is_listed else "nobody in this") in said


def test_variables_of_a_container_are_taken_for_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    with program(*python("s = socket.create_server(('127.0.0.1', 0))\nprint('ready', s.getsockname()[1])")) as port:
        for name in ("KUBERNETES_X", "REDIS_PORT", "REDIS_PORT_6379_TCP", "REDIS_SERVICE_URL"):
            monkeypatch.setenv(name, "tcp://10.0.0.1:6379")
        monkeypatch.setenv("WORKER_ADDR", "10.0.0.2:5000")
        monkeypatch.setenv("SERVER_ENDPOINT", f"localhost:{port}")
        monkeypatch.setenv("VERSION", "10.0.0.3:5000")
        found = health(f"tcp://127.0.0.1:{port}")
        assert found.is_healthy
        assert [f.text for f in found.findings if f.level == "note"] == [
            "WORKER_ADDR of this process names another address, 10.0.0.2:5000"
        ]
        assert "SERVER_ENDPOINT of this process names it" in [f.text for f in found.findings]


def test_a_path_in_a_remedy_is_two_words_of_a_shell(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/a b;c")
    assert f"(rm '{tmp_path}/a b;c')" in problems(health(f"ipc://{tmp_path}/a b;c"))


def test_the_address_of_a_segment_a_database_or_a_pipe_is_not_told(tmp_path: Path, channel_name: str) -> None:
    segment = Path("/dev/shm", channel_name)
    try:
        segment.write_bytes(b"x")
        assert f"it is shm://{channel_name}" in problems(health(str(segment)))
    finally:
        segment.unlink()
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "data.mdb").write_bytes(b"x")
    assert f"it is lmdb://{tmp_path}/db" in problems(health(f"{tmp_path}/db"))
    os.mkfifo(tmp_path / "f")
    assert "it is a named pipe" in problems(health(f"{tmp_path}/f"))


def test_a_name_moves_the_cursor_of_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{tmp_path}/\x1b[2J\nok: it is served"
    server = f"l = socket.socket(1); l.bind({name!r}); l.listen(); print('bound', flush=True)\ns, _ = l.accept()"
    with started(*python(server)) as one:
        assert one.stdout is not None
        one.stdout.readline()
        with program(*python(f"s = socket.socket(1); s.connect({name!r})")) as pid:
            assert one.stdout.readline() == "ready\n"
            for options in (["--endpoint", name], ["--pids", f"{one.pid},{pid}"], ["--pids", str(pid)]):
                main(["diagnose", *options])
                said = capsys.readouterr().out
                assert "�[2J�ok: it is served" in said
                assert "\x1b" not in said


def test_a_listener_of_ipv6_alone_is_said_to_serve_ipv4() -> None:
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind(("::", 0))
        server.listen()
        port = server.getsockname()[1]
        said = problems(health(f"tcp://127.0.0.1:{port}"))
        assert f"connect to tcp://[::1]:{port}, or have the server take IPv4" in said
        assert health(f"tcp://[::1]:{port}").is_healthy


def test_a_remedy_removes_a_database(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as database, database.begin(write=True) as transaction:
        transaction.put(b"k", b"v")
    found = health(f"lmdb://{tmp_path}")
    assert found.is_healthy is None
    assert not any("rm " in (finding.remedy or "") for finding in found.findings)


@is_root
def test_a_socket_that_may_only_be_written_is_called_forbidden() -> None:
    code = "from ipcbench.diagnose.endpoints import health\nprint(health({!r}).is_healthy)"
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        Path(folder).chmod(0o755)
        server.bind(f"{folder}/s")
        server.listen()
        Path(folder, "s").chmod(0o722)
        assert as_nobody(code.format(f"ipc://{folder}/s")).strip() == "True"


def test_a_command_to_paste_has_another_name_than_the_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/a\nb")
    (remedy,) = [finding.remedy for finding in health(f"ipc://{tmp_path}/a\nb").findings if finding.level == "problem"]
    assert remedy is not None
    assert "rm " not in remedy
