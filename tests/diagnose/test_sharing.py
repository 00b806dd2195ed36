"""Links that only look like the data path: a flag in memory, ends that others hold too, a cache, a dead pair."""

from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from ipcbench.diagnose.endpoints import agrees, links
from tests.diagnose.pairs import both, forked, program, python, started
from tests.diagnose.test_matrix import ZMQ_CLIENT, ZMQ_SERVER, free_port, require, require_unknown

PAUSE = "import signal; signal.pause()"
FLAG = "import multiprocessing as mp\nflag = mp.Value('i', 0)\n"
LMDB = "\nimport lmdb\ne = lmdb.open({!r})\nwith e.begin(write=True) as t: t.put(b'k', b'v')"
SQLITE = """
import sqlite3
d = sqlite3.connect({!r}, timeout=60)
d.execute("insert into t values (1)"), d.commit()
"""


@pytest.mark.parametrize("make", ["mp.Pipe()", "os.pipe()[::-1]"])
def test_a_flag_in_memory_beside_a_pipe_is_taken_for_the_data_path(make: str) -> None:
    write = "b.send(b'x' * 5000)" if "mp" in make else "os.write(a, b'x' * 5000)"
    read = "a.recv()" if "mp" in make else "os.read(b, 5000)"
    code = f"{FLAG}a, b = {make}\nchild = os.fork()\nif not child:\n    flag.value = 1; {write}; {PAUSE}\n{read}\n"
    with forked(code) as pair:
        found = links(*pair)
        require_unknown(found, "cannot tell which of these carries the data")
        assert agrees(found, "shm").answer == "cannot tell"
        assert agrees(found, "tcp").answer == "contradicts"


@pytest.mark.parametrize("code", [LMDB, SQLITE])
def test_a_database_beside_zmq_is_taken_for_the_data_path(tmp_path: Path, code: str) -> None:
    """With SQLite, what both map is an index, and its file and log are open in both."""
    url, more = f"ipc://{tmp_path}/z", code.format(f"{tmp_path}/db")
    if code is SQLITE:  # two that change the mode at once do not wait for one another
        with closing(sqlite3.connect(tmp_path / "db")) as database:
            database.execute("pragma journal_mode=wal")
            database.execute("create table t (a)")
    with both(ZMQ_SERVER.format(url=url) + more, ZMQ_CLIENT.format(url=url) + more) as pair:
        found = links(*pair)
        require_unknown(found, "cannot tell which of these carries the data")
        if code is SQLITE:
            assert f"open file {tmp_path}/db" in found.verdict
            assert {link.role for link in found.links if link.kind == "mapped file"} == {"wake-up"}


def test_what_is_only_read_is_taken_for_a_data_path(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(4096))
    code = f"f = open('{tmp_path}/log', 'r+b')\nm = mmap.mmap(f.fileno(), 4096, access=mmap.ACCESS_READ)\nm[0]"
    with program(*python(code)) as first, program(*python(code)) as second:
        require_unknown(links(first, second), f"both have open file {tmp_path}/log; whether one reads what the other")


TWO = f"""
others = []
for _ in range(2):
    child = os.fork()
    if not child:
        {PAUSE}
    others.append(child)
print("ready", *others, flush=True)
sys.stdin.readline()
for each in others:
    os.kill(each, 9)
"""


@pytest.mark.parametrize("make", ["mp.Pipe()", "mp.Pipe(duplex=False)", "os.pipe()"])
def test_a_pipe_for_two_workers_is_taken_for_that_of_their_parent(make: str) -> None:
    with started(*python(f"import multiprocessing as mp\na, b = {make}\n{TWO}")) as parent:
        assert parent.stdout is not None
        first, second = map(int, parent.stdout.readline().split()[1:])
        require_unknown(links(parent.pid, first), f"is held by process {second}, too: any of them may use it")
        require_unknown(links(first, second), f"is held by process {parent.pid}, too")
        assert agrees(links(parent.pid, first), "tcp").answer == "cannot tell"
        assert f"is held by process {second}, too" in links(first).verdict


FORKING = """
{listen}
print({address}, flush=True)
s, _ = l.accept()
child = os.fork()
if not child:
    s.recv(1), s.sendall(b"x" * 99), {pause}
print("ready", child, flush=True)
sys.stdin.readline()
{close}
print("closed", flush=True)
sys.stdin.readline()
os.kill(child, 9)
"""


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_forking_server_whose_parent_keeps_what_it_accepts_is_named_wrongly(tmp_path: Path, kind: str) -> None:
    """Only when the parent has closed it, the child is known to use it."""
    listen = "l = socket.create_server(('127.0.0.1', 0))"
    unix = f"l = socket.socket(1); l.bind('{tmp_path}/s'); l.listen()"
    server = FORKING.format(
        listen=listen if kind == "tcp" else unix,
        address="l.getsockname()[1]" if kind == "tcp" else "0",
        pause=PAUSE.replace("import signal; signal", "__import__('signal')"),
        close="s.close()",
    )
    with started(*python(server)) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        connect = f"s = socket.create_connection(('127.0.0.1', {port}))" if kind == "tcp" else ""
        connect = connect or f"s = socket.socket(1); s.connect('{tmp_path}/s')"
        with program(*python(f"{connect}\ns.sendall(b'x')\ns.recv(99, socket.MSG_WAITALL)")) as client:
            child = int(parent.stdout.readline().split()[1])
            require_unknown(links(client, child), f"is held by process {parent.pid}, too")
            require_unknown(links(client, parent.pid), f"is held by process {child}, too")
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "closed\n"
            require(links(client, child), kind)


def test_a_named_pipe_that_a_third_process_reads_is_taken_for_that_of_two(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    os.link(tmp_path / "f", tmp_path / "g")  # the same pipe by another name
    code = "f = os.open('{}', os.{})"
    with (
        both(code.format(tmp_path / "f", "O_RDONLY"), code.format(tmp_path / "f", "O_WRONLY")) as pair,
        program(*python(code.format(tmp_path / "g", "O_RDONLY"))) as third,
    ):
        require_unknown(links(*pair), f"is held by process {third}, too")
        assert "or look again when a child that only inherited it has ended" in links(*pair).verdict


def test_a_channel_of_two_is_in_use_beside_one_that_others_hold_too() -> None:
    one, two = socket.socketpair()
    kept, other = socket.socketpair()
    with one, two, kept, other:
        ends = ((one.fileno(), kept.fileno()), (two.fileno(), other.fileno()))
        with program(*python("pass"), pass_fds=ends[0]) as first, program(*python("pass"), pass_fds=ends[1]) as second:
            one.close()
            two.close()
            found = links(first, second)
            require_unknown(found, "unix socket pair without a name ×2 join them")
            assert [link.role for link in found.links if link.others] == ["shared"]
            assert agrees(found, "TCP").answer == "contradicts"


def test_a_connection_that_has_carried_nothing_is_taken_for_the_transport() -> None:
    server = "l = socket.create_server(('127.0.0.1', 0))\nprint(l.getsockname()[1], flush=True)\ns, _ = l.accept()"
    with started(*python(server)) as one:
        assert one.stdout is not None
        with program(*python(f"s = socket.create_connection(('127.0.0.1', {one.stdout.readline()}))")) as second:
            assert one.stdout.readline() == "ready\n"
            found = links(one.pid, second)
            require_unknown(found, "has carried nothing yet")
            assert agrees(found, "TCP").answer == agrees(found, "shm").answer == "cannot tell"


def test_a_pair_that_is_shut_down_is_taken_for_a_link() -> None:
    code = "a, b = socket.socketpair()\na.shutdown(socket.SHUT_RDWR)\nchild = os.fork()\n"
    code += f"if not child:\n    a.close(); {PAUSE}\nb.close()\n"
    with forked(code) as pair:
        require_unknown(links(*pair), "no socket pair, TCP connection, pipe or shared mapping joins them")


@pytest.mark.parametrize("make", ["a, b = os.pipe()", "a, b = (s.detach() for s in socket.socketpair())"])
def test_what_two_children_only_inherited_is_in_use(make: str) -> None:
    code = TWO.replace('print("ready"', 'os.close(a); os.close(b)\nprint("ready"')
    with started(*python(f"{make}\n{code}")) as parent:
        assert parent.stdout is not None
        first, second = map(int, parent.stdout.readline().split()[1:])
        require_unknown(links(first, second), "as a fork leaves it")


def test_a_pipe_that_a_third_process_reads_is_in_use_between_two_others() -> None:
    """The parent reads what the first prints; the second has it as its input, and reads nothing."""
    code = """
import subprocess
first = subprocess.Popen(["yes"], stdout=-1)
second = subprocess.Popen(["sleep", "600"], stdin=first.stdout)
first.stdout.read(1000)
print("ready", first.pid, second.pid, flush=True)
sys.stdin.readline()
first.kill(), second.kill()
"""
    with started(*python(code)) as parent:
        assert parent.stdout is not None
        first, second = map(int, parent.stdout.readline().split()[1:])
        require_unknown(links(first, second), f"is held by process {parent.pid}, too")


def test_an_idle_pair_beside_udp_is_in_use() -> None:
    code = "a, b = socket.socketpair()\nu = socket.socket(2, 2)\nu.bind(('127.0.0.1', 0))\nchild = os.fork()\n"
    with forked(f"{code}(a if child else b).close()\nif not child:\n    {PAUSE}") as pair:
        found = links(*pair)
        require_unknown(found, "UDP sockets (process ")
        assert agrees(found, "unix").answer == "cannot tell"


def test_weights_that_two_programs_only_read_are_a_data_path(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(4096))
    code = f"f = open('{tmp_path}/weights', 'r+b')\nm = mmap.mmap(f.fileno(), 4096)\nm[0]"
    with program(*python(code)) as first, program(*python(code)) as second:
        require_unknown(links(first, second), "whether one reads what the other writes is not shown")


QUIET_SERVER = "import zmq\ns = zmq.Context().socket(zmq.REP)\ns.heartbeat_ivl = {beat}\ns.bind({url!r})\ns.poll(100)"
QUIET_CLIENT = """
import zmq
s = zmq.Context().socket(zmq.REQ)
s.heartbeat_ivl = {beat}
m = s.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
s.connect({url!r})
assert m.poll(30000)
"""


@pytest.mark.parametrize("security", ["", "CURVE"])
def test_a_handshake_of_zmq_is_taken_for_data(security: str) -> None:
    """The kernel counts its bytes, too: 195 without security, 849 with CURVE."""
    url = f"tcp://127.0.0.1:{free_port()}"
    server, client = QUIET_SERVER.format(url=url, beat=0), QUIET_CLIENT.format(url=url, beat=0)
    if security == "CURVE":
        keys = zmq.curve_keypair()
        server = server.replace(
            "s.bind", f"s.curve_server = True\ns.curve_publickey, s.curve_secretkey = {keys}\ns.bind"
        )
        own = f"s.curve_serverkey = {keys[0]}\ns.curve_publickey, s.curve_secretkey = {zmq.curve_keypair()}\n"
        client = client.replace("s.connect", f"{own}s.connect")
    with both(server, client) as pair:
        found = links(*pair)
        require_unknown(found, "no more than what ZeroMQ says by itself (handshake, heartbeats)")
        assert [link.role for link in found.links if link.kind == "tcp"] == ["handshake"]
        assert 0 < (found.links[0].carried_bytes or 0) < 1536
        assert agrees(found, "TCP").answer == agrees(found, "IPC").answer == "cannot tell"


def test_heartbeats_of_zmq_are_no_data() -> None:
    beat = 100  # ms; on a busy machine, quicker ones travel together, and look like messages
    url = f"tcp://127.0.0.1:{free_port()}"
    beats = "\nimport time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: s.poll(100)"
    with both(QUIET_SERVER.format(url=url, beat=beat) + beats, QUIET_CLIENT.format(url=url, beat=beat)) as pair:
        require_unknown(links(*pair), "no more than what ZeroMQ says by itself (handshake, heartbeats)")


def test_a_few_messages_of_zmq_beside_an_idle_pair_are_no_handshake() -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    near, far = socket.socketpair()
    with near, far:
        server = f"import zmq\ns = zmq.Context().socket(zmq.REP)\ns.bind({url!r})\ns.recv()\ns.send(b'x')"
        client = f"import zmq\ns = zmq.Context().socket(zmq.REQ)\ns.connect({url!r})\ns.send(b'y')\ns.recv()"
        with (
            started(*python(server), pass_fds=(near.fileno(),)) as one,
            started(*python(client), pass_fds=(far.fileno(),)) as two,
        ):
            near.close()
            far.close()
            for each in (one, two):
                assert each.stdout is not None
                assert each.stdout.readline() == "ready\n"
            found = links(one.pid, two.pid)
            require_unknown(found, "cannot tell which of these carries the data")
            assert agrees(found, "TCP").answer == "cannot tell"


def test_the_connection_that_carried_more_is_named_second() -> None:
    """A few bytes of a connection of no known library are use, and said."""
    server = (
        "l = socket.create_server(('127.0.0.1', 0))\nprint(l.getsockname()[1], flush=True)\n"
        "s, t = l.accept()[0], l.accept()[0]\ns.recv(5, socket.MSG_WAITALL), t.recv(70000, socket.MSG_WAITALL)"
    )
    with started(*python(server)) as one:
        assert one.stdout is not None
        at = ("127.0.0.1", int(one.stdout.readline()))
        client = f"s, t = socket.create_connection({at}), socket.create_connection({at})\n"
        with program(*python(f"{client}s.sendall(b'x' * 5), t.sendall(b'x' * 70000)")) as second:
            assert one.stdout.readline() == "ready\n"
            found = links(second, one.pid)
            require(found, "tcp", "tcp://127.0.0.1:")
            assert [link.sent_bytes for link in found.carriers] == [70000, 5]
            assert "has sent 70,000 B and received 0 B since it was opened" in found.verdict
            assert "; the other: 5 B" in found.verdict


def test_a_file_that_was_moved_is_named_as_if_it_were_there(tmp_path: Path) -> None:
    server = (
        f"l = socket.socket(1); l.bind('{tmp_path}/s'); l.listen(); os.rename('{tmp_path}/s', '{tmp_path}/t')\n"
        "print('up', flush=True)\ns, _ = l.accept()"
    )
    with started(*python(server)) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "up\n"
        with program(*python(f"s = socket.socket(1); s.connect('{tmp_path}/t')")) as second:
            assert one.stdout.readline() == "ready\n"
            require(links(one.pid, second), "unix", f"(bound as {tmp_path}/s; no such file now)")
            (tmp_path / "t").rename(tmp_path / "s")
            assert links(one.pid, second).carriers[0].address == f"{tmp_path}/s"
