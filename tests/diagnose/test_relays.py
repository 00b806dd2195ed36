"""An idle link between two processes, while all that they say passes a third one that both are connected to."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ipcbench.diagnose.endpoints import agrees, links
from tests.diagnose.pairs import program, python, started
from tests.diagnose.test_health import NOBODY, as_nobody, is_root
from tests.diagnose.test_matrix import may_unshare, require, require_unknown

PROXY = """
import zmq, threading
c = zmq.Context()
front, back = c.socket(zmq.ROUTER), c.socket(zmq.DEALER)
front.bind({url!r} + "f"), back.bind({url!r} + "b")
threading.Thread(target=zmq.proxy, args=(front, back), daemon=True).start()
"""
SERVER = """
import zmq
s = zmq.Context().socket(zmq.REP)
s.connect({url!r} + "b")
s.recv(), s.send(b"x" * 5000)
"""
CLIENT = """
import zmq
s = zmq.Context().socket(zmq.REQ)
s.connect({url!r} + "f")
s.send(b"y" * 3000), s.recv()
"""


def unix_pair() -> tuple[list[int], list[int]]:
    one, two = socket.socketpair()
    return [one.detach()], [two.detach()]


def pipe() -> tuple[list[int], list[int]]:
    reads, writes = os.pipe()
    return [reads], [writes]


def tcp_pair_with_5_bytes() -> tuple[list[int], list[int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near.sendall(b"x" * 5)
    far.recv(5)
    return [near.detach()], [far.detach()]


MAKE = {"unix": unix_pair, "pipe": pipe, "tcp": tcp_pair_with_5_bytes}


@contextmanager
def joined(direct: str, first: str, second: str) -> Iterator[tuple[int, int]]:
    """Start two processes with a link between them that nobody uses, and that nobody else holds."""
    near, far = MAKE[direct]()
    with ExitStack() as stack:
        one = stack.enter_context(started(*python(first), pass_fds=tuple(near)))
        two = stack.enter_context(started(*python(second), pass_fds=tuple(far)))
        for end in (*near, *far):
            os.close(end)
        for each in (one, two):
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        yield one.pid, two.pid


@pytest.mark.parametrize("direct", MAKE)
def test_an_idle_link_beside_a_proxy_of_zmq_is_in_use(tmp_path: Path, direct: str) -> None:
    url = f"ipc://{tmp_path}/"
    with (
        program(*python(PROXY.format(url=url))) as proxy,
        joined(direct, SERVER.format(url=url), CLIENT.format(url=url)) as pair,
    ):
        for found in (links(*pair), links(*reversed(pair))):
            require_unknown(found, f"both are connected to process {proxy} (")
            assert f"{tmp_path}/f" in found.verdict
            assert "cannot tell which of these carries the data" in found.verdict
            assert agrees(found, "IPC").answer == "cannot tell"
        assert agrees(links(*pair), "shm").answer == "contradicts"
        line = next(line for line in links(pair[0]).verdict.split("\n") if f"with process {pair[1]} (" in line)
        assert f"both are connected to process {proxy} (" in line


BROKER = """
{listen}
print("ready", os.getpid(), at, flush=True)
one, two = l.accept()[0], l.accept()[0]
for each in (one, two):
    each.sendall(b"x")
for sender, receiver in ((one, two), (two, one)):
    data = sender.recv({size_bytes}, socket.MSG_WAITALL)
    receiver.sendall(data)
print("passed", flush=True)
"""
THROUGH = "s = {connect}\ns.recv(1), s.sendall(bytes({size_bytes})), s.recv({size_bytes}, socket.MSG_WAITALL)\n"


@contextmanager
def brokered(tmp_path: Path, kind: str, direct: str, size_bytes: int, name: str = "") -> Iterator[tuple[int, int, int]]:
    """Start a broker that passes bytes on both ways between two processes; yield it and the two."""
    name = name or f"{tmp_path}/b"
    listen = "l = socket.create_server(('127.0.0.1', 0)); at = l.getsockname()[1]"
    if kind == "unix":
        listen = f"l = socket.socket(1); l.bind({name!r}); l.listen(); at = 0"
    with started(*python(BROKER.format(listen=listen, size_bytes=size_bytes))) as third:
        assert third.stdout is not None
        port = third.stdout.readline().split()[2]
        connect = f"socket.create_connection(('127.0.0.1', {port}))"
        if kind == "unix":
            connect = f"socket.socket(1); s.connect({name!r})"
        through = THROUGH.format(connect=connect, size_bytes=size_bytes)
        with joined(direct, through, through) as pair:
            assert third.stdout.readline() == "passed\n"
            yield third.pid, *pair


@pytest.mark.parametrize("direct", MAKE)
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_an_idle_link_beside_a_broker_is_in_use(tmp_path: Path, kind: str, direct: str) -> None:
    with brokered(tmp_path, kind, direct, 50000) as (third, *pair):
        found = links(*pair)
        require_unknown(found, f"both are connected to process {third} (")
        assert agrees(found, kind).answer == "cannot tell"
        assert agrees(found, "shm").answer == "contradicts"
        if kind == "tcp":
            assert "by which it can have passed on 100,000 B at most" in found.verdict


def test_a_tcp_connection_beside_a_broker_that_carried_less_is_not_in_use(tmp_path: Path) -> None:
    more = "d = socket.socket(fileno={})\n"
    near, far = (ends[0] for ends in tcp_pair_with_5_bytes())
    with started(*python(BROKER.format(listen="l = socket.create_server(('127.0.0.1', 0)); at = l.getsockname()[1]",
                                       size_bytes=10))) as third:  # fmt: skip
        assert third.stdout is not None
        at = ("127.0.0.1", int(third.stdout.readline().split()[2]))
        through = THROUGH.format(connect=f"socket.create_connection({at})", size_bytes=10)
        sends = f"{through}{more.format(near)}d.sendall(bytes(100_000))"
        receives = f"{through}{more.format(far)}d.recv(100_000, socket.MSG_WAITALL)"
        with (
            started(*python(sends), pass_fds=(near,)) as one,
            started(*python(receives), pass_fds=(far,)) as two,
        ):
            os.close(near)
            os.close(far)
            for each in (one, two):
                assert each.stdout is not None
                assert each.stdout.readline() == "ready\n"
            found = links(one.pid, two.pid)
            require(found, "tcp", "tcp://127.0.0.1:")
            assert any(f"both are connected to process {third.pid} (" in note for note in found.notes)


def test_the_display_that_everybody_is_connected_to_is_a_broker(tmp_path: Path) -> None:
    name = f"\0/tmp/.X11-unix/{tmp_path.name}-{os.getpid()}"
    with brokered(tmp_path, "unix", "unix", 10, name) as (_, *pair):
        require(links(*pair), "unix", "pair without a name")


MANAGER = """
import multiprocessing as mp, signal, sys
from multiprocessing.shared_memory import SharedMemory
def work(ready, proxy, name):
    segment = SharedMemory(name)
    segment.buf[0] = 1
    if proxy is not None:
        proxy.append(1)
    ready.set()
    signal.pause()
if __name__ == "__main__":
    context = mp.get_context("{method}")
    segment = SharedMemory(create=True, size=4096)
    segment.buf[0] = 1
    proxy = {proxy}
    if proxy is not None:
        proxy.append(0)
    processes = []
    for _ in range(2):
        ready = context.Event()
        processes.append(context.Process(target=work, args=(ready, proxy, segment.name)))
        processes[-1].start()
        ready.wait()
    print("ready", *(p.pid for p in processes), flush=True)
    sys.stdin.readline()
    for each in processes:
        each.kill()
        each.join()
    segment.close(), segment.unlink()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("with_manager", [True, False])
def test_a_manager_is_no_broker_or_a_tracker_is_one(tmp_path: Path, method: str, with_manager: bool) -> None:
    """All hold a pipe to the tracker of segments, and those that come from a server of forks one to that."""
    script = tmp_path / "script.py"
    proxy = "(manager := context.Manager()).list()" if with_manager else "None"
    script.write_text(MANAGER.format(method=method, proxy=proxy))
    with started(sys.executable, str(script)) as parent:
        assert parent.stdout is not None
        first, second = map(int, parent.stdout.readline().split()[1:])
        if with_manager:
            for pair in ((first, second), (parent.pid, first)):
                require_unknown(links(*pair), "both are connected to process ")
        else:
            require(links(first, second), "shared memory", library="multiprocessing")
            require(links(parent.pid, first), "shared memory", library="multiprocessing")


@is_root
def test_a_broker_of_another_user_is_not_seen(tmp_path: Path) -> None:
    """As nobody, the two can be looked at, and the broker cannot."""
    look = "from ipcbench.diagnose.endpoints import links\nprint(links({}, {}).verdict)"
    as_nobody("pass")  # skip, where that user cannot read this checkout
    near, far = (ends[0] for ends in unix_pair())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = f"s = socket.create_connection({listener.getsockname()}); s.sendall(b'x'); s.recv(1)"
        with (
            started(*NOBODY, *python(code), pass_fds=(near,)) as one,
            started(*NOBODY, *python(code), pass_fds=(far,)) as two,
        ):
            os.close(near)
            os.close(far)
            with listener.accept()[0] as a, listener.accept()[0] as b:
                for each, process in ((a, one), (b, two)):
                    each.sendall(b"x")
                    assert process.stdout is not None
                for process in (one, two):
                    assert process.stdout is not None
                    assert process.stdout.readline() == "ready\n"
                said = as_nobody(look.format(one.pid, two.pid))
                port = listener.getsockname()[1]
                assert said.startswith("cannot tell: "), said
                assert (
                    f"both are connected to tcp://127.0.0.1:{port}, served by a process that is not seen here" in said
                )


FORKING = """
l = socket.create_server(('127.0.0.1', 0)) if {tcp} else socket.socket(1)
if not {tcp}:
    l.bind({name!r}), l.listen()
print("ready", os.getpid(), l.getsockname()[1] if {tcp} else 0, flush=True)
for _ in range(2):
    s, _ = l.accept()
    if not os.fork():
        s.sendall(b'x'), s.recv(1), s.recv(1)
        os._exit(0)
    s.close()
"""


@pytest.mark.parametrize("tcp", [True, False])
def test_a_server_with_a_process_for_each_client_is_no_broker(tmp_path: Path, tcp: bool) -> None:
    name = f"{tmp_path}/b"
    with started(*python(FORKING.format(tcp=tcp, name=name))) as server:
        assert server.stdout is not None
        port = server.stdout.readline().split()[2]
        connect = (
            f"socket.create_connection(('127.0.0.1', {port}))" if tcp else f"socket.socket(1); s.connect({name!r})"
        )
        code = f"s = {connect}\ns.recv(1), s.sendall(b'x')"
        with joined("unix", code, code) as pair:
            address = f"tcp://127.0.0.1:{port}" if tcp else name
            require_unknown(links(*pair), f"both are connected to {address}, served by processes ")


def test_a_program_that_one_drives_by_its_input_is_no_broker(tmp_path: Path) -> None:
    tool = f"import socket, sys; s = socket.socket(1); s.connect('{tmp_path}/b'); sys.stdin.read()"
    drives = f"import subprocess\nt = subprocess.Popen([sys.executable, '-c', {tool!r}], stdin=-1, stdout=-1)\n"
    serves = f"l = socket.socket(1); l.bind('{tmp_path}/b'); l.listen()\nopen('{tmp_path}/l', 'w').close()\n"
    waits = f"\nwhile not os.path.exists('{tmp_path}/l'): pass\n"
    with joined("unix", f"{serves}s, _ = l.accept()", f"{waits}{drives}") as pair:
        require_unknown(links(*pair), "both are connected to process ")


@pytest.mark.skipif(not may_unshare("--net"), reason="may not make network namespaces")
def test_a_broker_that_is_a_client_from_a_container_is_not_seen(tmp_path: Path) -> None:
    """The sockets that the two have accepted are listed in its network namespace alone."""
    serve = "l = socket.socket(1); l.bind('{0}/{1}'); l.listen(); open('{0}/{1}.up', 'w').close(); s, _ = l.accept()"
    wait = f"while not all(os.path.exists(f'{tmp_path}/{{name}}.up') for name in 'ab'): pass\n"
    connect = "".join(f"{name} = socket.socket(1); {name}.connect('{tmp_path}/{name}')\n" for name in "ab")
    with (
        started("unshare", "--net", *python(wait + connect)) as third,
        joined("unix", serve.format(tmp_path, "a"), serve.format(tmp_path, "b")) as pair,
    ):
        assert third.stdout is not None
        assert third.stdout.readline() == "ready\n"
        require_unknown(links(*pair), f"both are connected to process {third.pid} (")


def test_an_idle_pipe_beside_datagrams_is_in_use(tmp_path: Path) -> None:
    """To send a datagram takes no connection."""
    with program(*python(f"s = socket.socket(1, 2); s.bind('{tmp_path}/d')")):
        code = f"s = socket.socket(1, 2); s.sendto(b'x', '{tmp_path}/d')"
        with joined("pipe", code, code) as pair:
            require_unknown(links(*pair), "unix datagram sockets whose peer is not one of the two (without a name)")


def test_a_filter_between_two_programs_of_a_shell_is_no_broker() -> None:
    """As in `first | cat | second`, which have another pipe besides."""
    code = """
import subprocess
r, w = os.pipe()
first = subprocess.Popen(["sleep", "600"], stdout=-1, pass_fds=(w,))
between = subprocess.Popen(["cat"], stdin=first.stdout, stdout=-1)
second = subprocess.Popen(["sleep", "600"], stdin=between.stdout, pass_fds=(r,))
os.close(r), os.close(w), first.stdout.close(), between.stdout.close()
print("ready", first.pid, between.pid, second.pid, flush=True)
sys.stdin.readline()
first.kill(), between.kill(), second.kill()
"""
    with started(*python(code)) as parent:
        assert parent.stdout is not None
        first, between, second = map(int, parent.stdout.readline().split()[1:])
        require_unknown(links(first, second), f"both are connected to process {between} (cat)")


@pytest.mark.parametrize(
    ("use", "is_relay"),
    [
        ("u.connect(('127.0.0.1', {port}))", True),
        ("u.sendto(b'x', ('127.0.0.1', {port}))", True),
        ("u.connect(('127.0.0.1', {other}))", False),
    ],
)
def test_an_idle_link_beside_a_process_that_one_reaches_by_udp_is_in_use(
    tmp_path: Path, use: str, is_relay: bool
) -> None:
    """The other reads what that one writes into a pipe."""
    os.mkfifo(tmp_path / "f")
    passes = (
        "u = socket.socket(2, 2)\nu.bind(('127.0.0.1', 0))\nprint(u.getsockname()[1], flush=True)\n"
        f"f = os.open('{tmp_path}/f', os.O_RDWR)"
    )
    with started(*python(passes)) as third, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        assert third.stdout is not None
        unused.bind(("127.0.0.1", 0))
        port, _ = third.stdout.readline(), third.stdout.readline()
        sends = f"u = socket.socket(2, 2)\n{use.format(port=int(port), other=unused.getsockname()[1])}"
        with joined("unix", sends, f"f = os.open('{tmp_path}/f', os.O_RDONLY)") as pair:
            for found in (links(*pair), links(*reversed(pair))):
                if is_relay:
                    require_unknown(found, f"both are connected to process {third.pid} ")
                    assert f"udp://127.0.0.1:{int(port)}" in found.verdict
                    assert agrees(found, "UDP").answer == agrees(found, "unix").answer == "cannot tell"
                else:
                    require(found, "unix", "pair without a name")
