"""Pairs of real processes over every transport: no verdict is wrong, and `cannot tell` only where the kernel cannot."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ipcbench.diagnose.endpoints import Links, agrees, links
from ipcbench.testing.agents.client import until
from tests.diagnose.pairs import both, forked, program, python, started

MP = """
import multiprocessing as mp
def work{definition}
if __name__ == "__main__":
    context = mp.get_context("{method}")
    {make}
    ready, say = context.Event(), None
    process = context.Process(target=work, args=(ready, {arguments}))
    process.start()
    assert ready.wait(60)
    {use}
    print("ready", process.pid, flush=True)
    import sys
    sys.stdin.readline()
    process.kill()
    process.join()
"""


def require(found: Links, kind: str, address: str = "", library: str | None = None) -> None:
    """Require a verdict that names one transport, each time with evidence that the reader can check."""
    assert found.state == "in use", found.verdict
    assert {link.kind for link in found.carriers} == {kind}, found.verdict
    assert any(address in link.address for link in found.carriers), found.verdict
    assert {link.library for link in found.carriers} == {library}, found.verdict
    assert found.verdict.startswith("in use: ")
    assert "evidence: " in found.verdict
    assert all(str(pid) in found.verdict for pid in (found.first, found.second))
    mirrored = links(found.second or 0, found.first)
    assert (mirrored.state, {link.kind for link in mirrored.carriers}) == ("in use", {kind}), mirrored.verdict


def require_unknown(found: Links, reason: str) -> None:
    assert found.state == "cannot tell"
    assert found.verdict.startswith("cannot tell: ")
    assert reason in found.verdict


ZMQ_SERVER = "import zmq\ns = zmq.Context().socket(zmq.REP)\ns.bind({url!r})\ns.recv()\ns.send(b'x' * 5000)"
ZMQ_CLIENT = "import zmq\ns = zmq.Context().socket(zmq.REQ)\ns.connect({url!r})\ns.send(b'y' * 3000)\ns.recv()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_zmq_ipc_is_called_something_else(tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/z"
    with both(ZMQ_SERVER.format(url=url), ZMQ_CLIENT.format(url=url)) as pair:
        found = links(*pair)
        require(found, "unix", f"{tmp_path}/z", "ZeroMQ")
        assert "only a trace proves flow" in found.verdict
        assert found.carriers[0].sent_bytes is None
        assert agrees(found, "IPC").text == "the log says IPC: agrees"
        assert agrees(found, "zmq").answer == "agrees"
        assert agrees(found, "TCP").answer == "contradicts"
        assert agrees(found, "shm").answer == "contradicts"


def test_zmq_tcp_is_called_something_else_or_its_bytes_are_unknown() -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    with both(ZMQ_SERVER.format(url=url), ZMQ_CLIENT.format(url=url)) as pair:
        found = links(*pair)
        require(found, "tcp", url, "ZeroMQ")
        link = found.carriers[0]
        assert link.sent_bytes is not None
        assert link.received_bytes is not None
        assert 5000 < link.sent_bytes < 6000
        assert 3000 < link.received_bytes < 4000
        assert link.rtt_us
        assert agrees(found, "TCP").answer == "agrees"
        assert agrees(found, "IPC").answer == "contradicts"


def test_what_passes_inside_one_process_is_claimed_to_be_seen() -> None:
    code = (
        "import zmq\nc = zmq.Context()\na, b = c.socket(zmq.PAIR), c.socket(zmq.PAIR)\n"
        "a.bind('inproc://x'); b.connect('inproc://x'); a.send(b'x'); b.recv()"
    )
    with program(*python(code)) as pid:
        require_unknown(links(pid, pid), "inside one process")


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("what", ["Pipe", "Queue", "nothing"])
def test_multiprocessing(tmp_path: Path, method: str, what: str) -> None:
    """A pipe that only watches the child is taken for a transport, or the transport is not seen beside it."""
    definition, make, arguments, use = {
        "Pipe": ("(ready, end):\n    end.send(1); ready.set(); end.recv()", "a, b = context.Pipe()", "b", "a.recv()"),
        "Queue": ("(ready, q):\n    q.put(1); ready.set(); q.get(); q.get()", "q = context.Queue()", "q", "pass"),
        "nothing": ("(ready):\n    import signal\n    ready.set(); signal.pause()", "pass", "", "pass"),
    }[what]  # fmt: skip
    script = tmp_path / "script.py"
    script.write_text(MP.format(definition=definition, make=make, arguments=arguments, use=use, method=method))
    with started(sys.executable, str(script)) as parent:
        assert parent.stdout is not None
        pair = parent.pid, int(parent.stdout.readline().split()[1])
        found = links(*pair)
        if what == "nothing":
            require_unknown(found, "wake-up channels")  # the event's semaphores
        else:
            require(found, "unix" if what == "Pipe" else "pipe", library="multiprocessing")


def test_watch_pipes_of_multiprocessing_are_taken_for_data(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, signal, sys\nif __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('fork').Process(target=signal.pause); p.start()\n"
        "    print('ready', p.pid, flush=True); sys.stdin.readline(); p.kill(); p.join()\n"
    )
    with started(sys.executable, str(script)) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        assert until(lambda: links(parent.pid, child).state == "cannot tell", 60.0), (
            "it closes its copies after the fork"
        )
        require_unknown(links(parent.pid, child), "notice its end")


def test_an_inherited_socket_pair_is_not_seen() -> None:
    one, two = socket.socketpair()
    with one, two:
        code = "s = socket.socket(fileno={fd})\ns.sendall(b'x')"
        with (
            program(*python(code.format(fd=one.fileno())), pass_fds=(one.fileno(),)) as first,
            program(*python(code.format(fd=two.fileno())), pass_fds=(two.fileno(),)) as second,
        ):
            require_unknown(links(first, second), f"is held by process {os.getpid()}, too: any of them may use it")
            one.close()
            two.close()
            require(links(first, second), "unix", "without a name")


def socket_pair() -> list[int]:
    return [each.detach() for each in socket.socketpair()]


@pytest.mark.parametrize("make", [os.pipe, socket_pair])
def test_what_two_children_only_inherit_is_taken_for_their_transport(make: Callable[[], Iterable[int]]) -> None:
    """As the pipes of make's jobserver: neither has ever touched them."""
    ends = tuple(make())
    try:
        with program(*python("pass"), pass_fds=ends) as first, program(*python("pass"), pass_fds=ends) as second:
            require_unknown(links(first, second), f"is held by process {os.getpid()}, too: any of them may use it")
    finally:
        for end in ends:
            os.close(end)


def test_workers_of_a_pool_are_joined_by_the_pipes_of_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "        pids = [process.pid for process in pool._pool]\n        pool.map(abs, range(10))\n"
        "        print('ready', *pids, flush=True); sys.stdin.readline()\n"
    )
    with started(sys.executable, str(script)) as parent:
        assert parent.stdout is not None
        first, second = map(int, parent.stdout.readline().split()[1:])
        assert links(first, second).state == "cannot tell", links(first, second).verdict


@pytest.mark.parametrize("name", ["{folder}/s", "@ipcb-{folder}"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_SEQPACKET"])
def test_a_named_socket_is_not_seen_or_named_wrongly(tmp_path: Path, name: str, kind: str) -> None:
    name = name.format(folder=tmp_path)
    address = name.replace("@", "\0")
    listen = f"l = socket.socket(1, socket.{kind})\nl.bind({address!r}); l.listen()\n"
    server = f"{listen}print('bound', flush=True)\ns, _ = l.accept()"
    client = f"s = socket.socket(1, socket.{kind})\ns.connect({address!r})"
    with started(*python(server)) as one:
        assert one.stdout is not None
        one.stdout.readline()
        with program(*python(client)) as second:
            assert one.stdout.readline() == "ready\n"
            require(links(one.pid, second), "unix", name)


def test_a_datagram_socket_is_not_seen(tmp_path: Path) -> None:
    server = f"s = socket.socket(1, socket.SOCK_DGRAM)\ns.bind('{tmp_path}/d')"
    client = f"s = socket.socket(1, socket.SOCK_DGRAM)\ns.connect('{tmp_path}/d')"
    with program(*python(server)) as first, program(*python(client)) as second:
        require(links(first, second), "unix", f"{tmp_path}/d")


HOSTS = ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here"))]


@contextmanager
def tcp_pair(host: str, server_more: str = "", client_more: str = "", listen: str = "") -> Iterator[tuple[int, int]]:
    server = (
        f"l = socket.create_server(({listen or host!r}, 0), family={10 if ':' in (listen or host) else 2})\n"
        f"print(l.getsockname()[1], flush=True)\ns, _ = l.accept()\ns.sendall(b'x' * 70000)\n{server_more}"
    )
    with started(*python(server)) as one:
        assert one.stdout is not None
        port = int(one.stdout.readline())
        client = f"s = socket.create_connection(({host!r}, {port}))\ns.recv(70000, socket.MSG_WAITALL)\n{client_more}"
        with program(*python(client)) as second:
            assert one.stdout.readline() == "ready\n"
            yield one.pid, second


@pytest.mark.parametrize("host", HOSTS)
def test_a_tcp_connection_is_not_seen_or_counted_wrongly(host: str) -> None:
    with tcp_pair(host) as pair:
        found = links(*pair)
        require(found, "tcp", f"[{host}]" if ":" in host else host)
        assert (found.carriers[0].sent_bytes, found.carriers[0].received_bytes) == (70000, 0)
        swapped = links(pair[1], pair[0])
        assert (swapped.carriers[0].sent_bytes, swapped.carriers[0].received_bytes) == (0, 70000)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_ipv4_through_a_socket_of_ipv6_is_not_seen() -> None:
    server = (
        "l = socket.create_server(('::', 0), family=10, dualstack_ipv6=True)\n"
        "print(l.getsockname()[1], flush=True)\ns, _ = l.accept()\ns.recv(1)"
    )
    with started(*python(server)) as one:
        assert one.stdout is not None
        client = f"s = socket.create_connection(('127.0.0.1', {int(one.stdout.readline())})); s.sendall(b'x')"
        with program(*python(client)) as second:
            assert one.stdout.readline() == "ready\n"
            require(links(one.pid, second), "tcp", "127.0.0.1")


def test_a_named_pipe_is_not_seen(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    with both(f"f = open('{tmp_path}/f', 'wb', 0); f.write(b'x')", f"f = open('{tmp_path}/f', 'rb', 0)") as pair:
        require(links(*pair), "pipe", f"{tmp_path}/f")


def test_a_pipe_is_not_seen() -> None:
    with ExitStack() as ends:
        reads, writes = os.pipe()
        ends.callback(os.close, reads)
        ends.callback(os.close, writes)
        with (
            program(*python("pass"), pass_fds=(reads,)) as first,
            program(*python("pass"), pass_fds=(writes,)) as second,
        ):
            ends.close()
            require(links(first, second), "pipe")


def test_standard_input_is_not_seen() -> None:
    with program(*python("pass")) as pid:
        require(links(os.getpid(), pid), "pipe", "standard input")


def test_the_same_output_of_both_is_taken_for_a_link() -> None:
    reads, writes = os.pipe()
    try:
        with (
            program(*python(f"os.dup2({writes}, 2)"), pass_fds=(writes,)) as first,
            program(*python(f"os.dup2({writes}, 2)"), pass_fds=(writes,)) as second,
        ):
            require_unknown(links(first, second), "no socket pair, TCP connection, pipe or shared mapping joins them")
    finally:
        os.close(reads)
        os.close(writes)


OWN = "from ipcbench import connect\nc = connect({name!r}, backend={backend!r})\n"


@pytest.mark.parametrize(
    ("backend", "kind", "library"),
    [
        ("shm", "shared memory", "ipcbench"),
        ("lmdb", "mapped file", "LMDB"),
        ("pipe", "unix", "ipcbench"),
        ("tcp", "tcp", "ipcbench"),
    ],
)
def test_ipcbenchs_own_channels(channel_name: str, backend: str, kind: str, library: str) -> None:
    name = channel_name[-22:].lstrip("-")
    code = OWN.format(name=name, backend=backend)
    with both(code + "c.send(b'x' * 1000)\nc.recv()", code + "c.recv()\nc.send(b'y')") as pair:
        found = links(*pair)
        require(found, kind, library=library)
        word = {"pipe": "unix", "shm": "shared memory"}.get(backend, backend)
        assert agrees(found, word).answer == "agrees"
        contrary = "TCP" if backend != "tcp" else "shm"
        assert agrees(found, contrary).answer == "contradicts"


@pytest.mark.parametrize("options", ["", ", writemap=True", ", subdir=False", ", lock=True, map_size=2**30"])
def test_lmdb_is_not_seen(tmp_path: Path, options: str) -> None:
    where = f"{tmp_path}/db" if "subdir" in options else str(tmp_path)
    code = f"import lmdb\ne = lmdb.open({where!r}{options})\n"
    with (
        program(*python(code + "with e.begin(write=True) as t: t.put(b'k', b'v')")) as first,
        program(*python(code + "with e.begin() as t: t.get(b'k')")) as second,
    ):
        require(links(first, second), "mapped file", where, "LMDB")


@pytest.mark.skipif(shutil.which("mpiexec", path=str(Path(sys.executable).parent)) is None, reason="no mpiexec here")
def test_mpi_ranks_are_not_seen_to_share_memory(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import os\nfrom mpi4py import MPI\nw = MPI.COMM_WORLD\nall = w.allgather(os.getpid())\n"
        "if w.rank == 0:\n    print('ready', *all, flush=True)\n    input()\nw.barrier()\n"
    )
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    with started(mpiexec, "-n", "2", sys.executable, str(script)) as launcher:
        assert launcher.stdout is not None
        pair = [int(word) for word in launcher.stdout.readline().split()[1:]]
        found = links(*pair)
        require(found, "shared memory", library="MPI")
        assert agrees(found, "MPI").answer == "agrees"


def test_anonymous_memory_of_a_fork_is_not_seen() -> None:
    fork = (
        "child = os.fork()\nif not child:\n    m[:1] = b'x'\n    import signal\n    os.write(w, b'x'); signal.pause()\n"
    )
    code = (
        "m = mmap.mmap(-1, 8192)\nm[:1] = b'y'\nr, w = os.pipe()\n" + fork + "os.read(r, 1); os.close(r); os.close(w)"
    )
    with forked(code) as pair:
        require(links(*pair), "shared memory", "anonymous segment")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("e = os.eventfd(0)", "only wake-up channels join them (eventfd "),
        (
            "import asyncio; e = asyncio.new_event_loop()",
            "no socket pair, TCP connection, pipe or shared mapping joins them",
        ),
        ("import zmq; e = zmq.Context(); s = e.socket(zmq.REP)", "only wake-up channels join them (eventfd "),
    ],
)
def test_what_a_fork_copies_is_taken_for_a_transport(made: str, reason: str) -> None:
    fork = "child = os.fork()\nif not child:\n    import signal\n    signal.pause()\n"
    with forked(f"{made}\n{fork}") as pair:
        require_unknown(links(*pair), reason)


def test_memory_that_a_child_has_never_touched_is_taken_for_a_data_path() -> None:
    fork = "child = os.fork()\nif not child:\n    import signal\n    signal.pause()\n"
    with forked("m = mmap.mmap(-1, 8192)\nm[:1] = b'y'\n" + fork) as pair:
        require_unknown(links(*pair), f"it is not resident in process {pair[1]} now")


def test_memory_of_python_is_not_seen(channel_name: str) -> None:
    code = "from multiprocessing.shared_memory import SharedMemory\n"
    make = f"s = SharedMemory({channel_name!r}, create=True, size=10000)\ns.buf[0] = 1\n"
    with started(
        *python(code + make + "print('made', flush=True)"),
    ) as one:
        assert one.stdout is not None
        one.stdout.readline()
        attach = "import multiprocessing.resource_tracker as t\nt.register = lambda *_: None\n"
        attach += f"s = SharedMemory({channel_name!r})\nassert s.buf[0] == 1\n"
        with program(*python(code + attach)) as second:
            require(links(one.pid, second), "shared memory", channel_name, "ipcbench")


def test_two_processes_with_nothing_between_them_are_joined_by_invention() -> None:
    with program(*python("pass")) as first, program(*python("import zmq, numpy, asyncio")) as second:
        found = links(first, second)
        require_unknown(found, "no socket pair, TCP connection, pipe or shared mapping joins them")
        assert found.links == ()
        assert agrees(found, "IPC").answer == "cannot tell"
        assert agrees(found, "carrier pigeon").answer == "cannot tell"


def test_a_broker_between_two_processes_is_not_named() -> None:
    code = "a = socket.create_connection(('127.0.0.1', {port}))"
    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
        with both(code.format(port=port), code.format(port=port)) as pair:
            require_unknown(links(*pair), f"both are connected to tcp://127.0.0.1:{port}")


SEGMENT = """
f = os.open('/dev/shm/{name}', os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 65536)
m = mmap.mmap(f, 65536)
m[:1] = b'x'
"""


def test_tcp_beside_a_segment_is_decided_by_guess(channel_name: str) -> None:
    """The kernel cannot tell which carries the data, however few bytes TCP has carried: memory is not counted."""
    memory = SEGMENT.format(name=channel_name)
    url = f"tcp://127.0.0.1:{free_port()}"
    try:
        for pairs in (
            tcp_pair("127.0.0.1", memory, memory),
            both(ZMQ_SERVER.format(url=url) + memory, ZMQ_CLIENT.format(url=url) + memory),
        ):
            with pairs as pair:
                found = links(*pair)
                require_unknown(found, "cannot tell which of these carries the data")
                assert {link.kind for link in found.carriers} == {"tcp", "shared memory"}
                assert agrees(found, "TCP").answer == agrees(found, "shm").answer == "cannot tell"
                assert agrees(found, "pipe").answer == "contradicts"
    finally:
        Path("/dev/shm", channel_name).unlink(missing_ok=True)


C_SOCKET = """
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
int main(int n, char **a) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, a[1]);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(s, (void *)&at, sizeof at)) return 1;
    puts("ready"); fflush(stdout); getchar(); return 0;
}
"""
C_MEMORY = """
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int n, char **a) {
    int f = shm_open(a[1], O_RDWR | O_CREAT, 0600);
    if (f < 0 || ftruncate(f, 8192)) return 1;
    char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    close(f); m[0] = 1;
    puts("ready"); fflush(stdout); getchar(); return 0;
}
"""
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler here")


def compiled(folder: Path, source: str) -> str:
    (folder / "program.c").write_text(source)
    subprocess.run(["gcc", "-o", f"{folder}/program", f"{folder}/program.c", "-lrt"], check=True, timeout=60)
    return f"{folder}/program"


@needs_gcc
def test_a_program_in_c_with_a_socket_is_not_seen(tmp_path: Path) -> None:
    name = compiled(tmp_path, C_SOCKET)
    server = f"l = socket.socket(1)\nl.bind('{tmp_path}/s'); l.listen()\nprint('bound', flush=True)\ns, _ = l.accept()"
    with started(*python(server)) as one:
        assert one.stdout is not None
        one.stdout.readline()
        with program(name, f"{tmp_path}/s") as second:
            assert one.stdout.readline() == "ready\n"
            require(links(one.pid, second), "unix", f"{tmp_path}/s")


@needs_gcc
def test_programs_in_c_with_a_segment_are_not_seen(tmp_path: Path, channel_name: str) -> None:
    name = compiled(tmp_path, C_MEMORY)
    try:
        with program(name, f"/{channel_name}") as first, program(name, f"/{channel_name}") as second:
            require(links(first, second), "shared memory", f"/dev/shm/{channel_name}", "ipcbench")
    finally:
        Path("/dev/shm", channel_name).unlink(missing_ok=True)


def may_unshare(*options: str) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", *options, "true"], capture_output=True, timeout=30, check=False).returncode == 0


@pytest.mark.skipif(not may_unshare("--net"), reason="may not make network namespaces")
def test_processes_in_a_network_namespace_of_their_own_are_not_seen(tmp_path: Path) -> None:
    """A Unix socket across two namespaces, and TCP inside one that is not this one."""
    server = f"l = socket.socket(1)\nl.bind('{tmp_path}/s'); l.listen()\nprint('bound', flush=True)\ns, _ = l.accept()"
    client = f"s = socket.socket(1)\ns.connect('{tmp_path}/s')"
    with started(*python(server)) as one:
        assert one.stdout is not None
        one.stdout.readline()
        with program("unshare", "--net", *python(client)) as second:
            assert one.stdout.readline() == "ready\n"
            found = links(one.pid, second)
            require(found, "unix", f"{tmp_path}/s")
            assert "the processes are in two net namespaces" in found.notes


@pytest.mark.skipif(not may_unshare("--net", "--pid", "--fork"), reason="may not make namespaces")
def test_tcp_inside_a_container_is_not_seen() -> None:
    inside = (
        "import os, sys, socket, fcntl, struct\ns = socket.socket()\n"
        "fcntl.ioctl(s, 0x8914, struct.pack('16sH14x', b'lo', 1))\n"  # SIOCSIFFLAGS: up
        "l = socket.create_server(('127.0.0.1', 0))\nchild = os.fork()\n"
        "if not child:\n    l2 = socket.create_connection(l.getsockname()); l.close(); import signal\n"
        "    l2.sendall(b'x' * 10); signal.pause()\n"
        "c, _ = l.accept(); c.recv(10); print('ready', flush=True); sys.stdin.readline(); os.kill(child, 9)\n"
    )
    with started("unshare", "--net", "--pid", "--fork", sys.executable, "-c", inside) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        (first,) = children(launcher.pid)
        (second,) = children(first)
        found = links(first, second)
        require(found, "tcp", "127.0.0.1")
        assert found.carriers[0].received_bytes == 10


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_other_process_is_not_found_when_none_is_named(tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/z"
    with both(ZMQ_SERVER.format(url=url), ZMQ_CLIENT.format(url=url)) as pair:
        found = links(pair[0])
        assert found.state == "in use"
        assert f"with process {pair[1]} (" in found.verdict
        assert [link.second for link in found.carriers if link.kind == "unix"] == [pair[1]]


def test_a_process_alone_is_joined_by_invention() -> None:
    code = "import os, sys\nif os.fork(): os._exit(0)\nos.setsid()\nprint('ready', os.getpid(), flush=True)\n"
    with started(sys.executable, "-c", code + "sys.stdin.readline()") as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline().split()[1])
        found = links(pid)
        assert {link.role for link in found.links} <= {"standard stream"}
