"""Whatever else could carry the data is beside an idle link: the verdict is then open, and contradicts no right log."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ipcbench.diagnose.endpoints import agrees, links
from tests.diagnose.pairs import both, forked, program, python, started
from tests.diagnose.test_matrix import OWN, SEGMENT, free_port, may_unshare, require, require_unknown
from tests.diagnose.test_relays import MAKE, joined

MAP = "f = open('{at}/file', 'r+b')\nm = mmap.mmap(f.fileno(), 4096)\n"
LMDB = "import lmdb\ne = lmdb.open('{at}/db')\nwith e.begin({write}) as t: t.{use}\n"
QUEUE = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
q, b = c.msgget({key}, 0o1600), ctypes.create_string_buffer(b"\\1" + bytes(120))
"""
MQUEUE = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
q, b = c.mq_open(b"/{name}", 0o102, 0o600, None), ctypes.create_string_buffer(8192)
"""
PTY = """
import pty
m, s = pty.openpty()
open("{at}/t", "w").write(os.ttyname(s))
os.rename("{at}/t", "{at}/tty"), os.read(m, 9), os.close(s)
"""
OPEN_PTY = """
while not os.path.exists("{at}/tty"): pass
d = os.open(open("{at}/tty").read(), os.O_RDWR | os.O_NOCTTY)
os.write(d, b"x")
"""
MAP_ALONE = """
import ctypes
c = ctypes.CDLL(None)
c.mmap.restype, c.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_long] * 5]
p = c.mmap(None, 4096, {rights}, {way}, {file}, 0)
os.close({file})
"""
"""The descriptor is closed then; mmap.mmap keeps one."""
OPEN = "d = os.open('{at}/file', os.O_RDWR)\n"
WAIT_FOR = "while not os.path.exists('{at}/up'): pass\n"
UP = "open('{at}/up', 'w').close()\n"


def filled(code: str, **needs: object) -> str:
    """Return code with what it needs in place of its names."""
    for name, value in needs.items():
        code = code.replace(f"{{{name}!r}}", repr(value)).replace(f"{{{name}}}", str(value))
    return code


WAYS = {
    "mapped file": (f"{MAP}m[:1] = b'x'", f"{MAP}m[:1]", "mapped file", "mmap"),
    "segment": (SEGMENT, SEGMENT, "shared memory", "shm"),
    "LMDB": (LMDB.replace("{write}", "write=True").replace("{use}", "put(b'k', b'v')"),
             LMDB.replace("{write}", "").replace("{use}", "get(b'k')"), "mapped file", "LMDB"),
    "ipcbench": (OWN.replace("{backend!r}", "'shm'") + "c.send(b'x')", OWN.replace("{backend!r}", "'shm'") + "c.recv()",
                 "shared memory", "shm"),
    "UDP": (f"u = socket.socket(2, 2)\nu.bind(('127.0.0.1', {{port}}))\n{UP}u.recv(9)",
            f"u = socket.socket(2, 2)\n{WAIT_FOR}u.sendto(b'x', ('127.0.0.1', {{port}}))", "udp", "UDP"),
    "open file": ("d = os.open('{at}/file', os.O_RDWR)\nos.pwrite(d, b'x', 0)",
                  "d = os.open('{at}/file', os.O_RDONLY)\nos.pread(d, 9, 0)", "file", "file"),
    "file written in memory": (OPEN + filled(MAP_ALONE, rights=3, way=1, file="d") + "ctypes.memset(p, 65, 9)",
                               f"{OPEN}os.pread(d, 9, 0)", "file", "file"),
    "file read in memory": (f"{OPEN}os.pwrite(d, b'x', 0)",
                            OPEN + filled(MAP_ALONE, rights=1, way=1, file="d") + "ctypes.string_at(p, 9)",
                            "file", "mmap"),
    "private mapping": (f"{OPEN}os.pwrite(d, b'x', 0)",
                        OPEN + filled(MAP_ALONE, rights=1, way=2, file="d") + "ctypes.string_at(p, 9)",
                        "file", "mmap"),
    "private mapping of memory": (f"{MAP}m[:1] = b'x'", OPEN + filled(MAP_ALONE, rights=1, way=2, file="d"),
                                  "file", "mmap"),
    "terminal": (PTY, OPEN_PTY, "terminal", "pty"),
    "message queue": (f"{QUEUE}c.msgsnd(q, b, 100, 0)", f"{QUEUE}c.msgrcv(q, b, 100, 0, 0)", "message queue", "mq"),
    "mqueue": (f"{MQUEUE}c.mq_send(q, b, 100, 0)", f"{MQUEUE}c.mq_receive(q, b, 8192, None)", "file", "mqueue"),
    "datagrams": (f"s = socket.socket(1, 2)\ns.bind('{{at}}/d')\n{UP}s.recv(9)",
                  f"s = socket.socket(1, 2)\n{WAIT_FOR}s.sendto(b'x', '{{at}}/d')", "unix", "unix"),
}  # fmt: skip
"""Name → code of the two, kind of link, and the word of a log that is right."""


@contextmanager
def way(name: str, at: Path, channel: str) -> Iterator[tuple[str, str]]:
    """Yield the code of the two processes, with what they need."""
    (at / "file").write_bytes(bytes(4096))
    (at / "db").mkdir()
    key, libc = os.getpid() + 2**24, ctypes.CDLL(None)
    first, second, _, _ = WAYS[name]
    needs = {"at": at, "name": f"way{channel[-18:]}", "key": key, "port": free_port()}
    try:
        yield filled(first, **needs), filled(second, **needs)
    finally:
        Path("/dev/shm", str(needs["name"])).unlink(missing_ok=True)
        if name == "message queue":
            libc.msgctl(libc.msgget(key, 0), 0, None)
        if name == "mqueue":
            libc.mq_unlink(f"/{needs['name']}".encode())


@pytest.mark.parametrize("direct", MAKE)
@pytest.mark.parametrize("name", WAYS)
def test_an_idle_link_beside_a_busy_way_is_in_use(tmp_path: Path, channel_name: str, name: str, direct: str) -> None:
    with way(name, tmp_path, channel_name) as codes, joined(direct, *codes) as pair:
        for found in (links(*pair), links(*reversed(pair))):
            require_unknown(found, "cannot tell which of these carries the data")
            assert {WAYS[name][2], direct} <= {link.kind for link in found.carriers}, found.verdict
            assert agrees(found, WAYS[name][3]).answer == "cannot tell"
            assert agrees(found, direct).answer == "cannot tell"


@pytest.mark.parametrize("name", WAYS)
def test_a_way_alone_is_not_named(tmp_path: Path, channel_name: str, name: str) -> None:
    kind = WAYS[name][2]
    with way(name, tmp_path, channel_name) as codes, both(*codes) as pair:
        found = links(*pair)
        assert agrees(found, WAYS[name][3]).answer != "contradicts"
        if name in {"segment", "LMDB", "ipcbench"}:
            assert {link.kind for link in found.carriers} == {kind}, found.verdict
        else:
            require_unknown(found, "whether one reads what the other writes is not shown")
            assert kind in {link.kind for link in found.links}


def test_an_empty_file_and_a_log_are_taken_for_a_way(tmp_path: Path) -> None:
    """A file for locks carries nothing, and what both append to is read by neither."""
    (tmp_path / "lock").touch()
    code = f"f, g = open('{tmp_path}/lock', 'r+'), open('{tmp_path}/log', 'a')\ng.write('x'), g.flush()"
    with joined("unix", code, code) as pair:
        require(links(*pair), "unix", "pair without a name")


CHILD = "child = os.fork()\n"
WAIT = "__import__('signal').pause()"


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("e = os.eventfd(0); os.eventfd_write(e, 7)", "eventfd "),
        ("m = mmap.mmap(-1, 4096); m[0] = 1", "anonymous segment"),
        ("f = open(os.memfd_create('q'), 'w+b', 0); f.write(b'x')", "/memfd:q"),
    ],
)
def test_an_idle_pair_beside_what_a_fork_has_copied_is_in_use(made: str, named: str) -> None:
    touch = "m[1] = 2; " if "mmap" in made else ""
    inside = f"    a.close(); {touch}os.write(w, b'x'); os.close(w); os.close(r); {WAIT}\n"
    ready = f"r, w = os.pipe()\n{CHILD}if not child:\n{inside}"
    code = f"{made}\na, b = socket.socketpair()\n{ready}b.close(); os.read(r, 1); os.close(r); os.close(w)"
    with forked(code) as pair:
        found = links(*pair)
        require_unknown(found, "cannot tell which of these carries the data")
        assert named in found.verdict
        assert "pair without a name" in found.verdict


def test_an_idle_pair_beside_memory_that_only_one_maps_is_in_use() -> None:
    """The other has it open; a second mapping of that name is none of theirs."""
    code = f"f = os.memfd_create('q', 0)\nos.ftruncate(f, 4096)\na, b = socket.socketpair()\n{CHILD}"
    code += f"if not child:\n    a.close(); {WAIT}\nb.close()\n{filled(MAP_ALONE, rights=3, way=1, file='f')}"
    with forked(code) as pair:
        require_unknown(links(*pair), "open file /memfd:q join them")


def test_a_file_that_neither_may_write_is_taken_for_a_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    code = f"d = os.open('{tmp_path}/file', os.O_RDONLY)\n"
    with joined("unix", code + filled(MAP_ALONE, rights=1, way=2, file="d"), code) as pair:
        require(links(*pair), "unix", "pair without a name")


@pytest.mark.parametrize("is_parent", [True, False])
def test_an_idle_pair_beside_a_terminal_of_standard_streams_is_in_use(is_parent: bool) -> None:
    """That of the user is no way: neither of two children holds its master."""
    code = f"""
import pty, subprocess
m, s = pty.openpty()
a, b = socket.socketpair()
first = subprocess.Popen(["sleep", "600"], stdin=s, stdout=s, stderr=s, pass_fds=[b.fileno()])
second = subprocess.Popen(["sleep", "600"], stdin=s, stdout=s, stderr=s, pass_fds=[a.fileno()])
b.close()
if not {is_parent}: a.close()
print("ready", os.getpid() if {is_parent} else second.pid, first.pid, flush=True)
sys.stdin.readline()
first.kill(), second.kill()
"""
    with started(*python(code)) as process:
        assert process.stdout is not None
        found = links(*map(int, process.stdout.readline().split()[1:]))
        assert ("terminal" in found.verdict) == is_parent, found.verdict
        assert "pair without a name" in found.verdict


def test_a_broker_of_datagrams_is_not_seen(tmp_path: Path) -> None:
    """One is connected to it, and the other has only a name that it sends to."""
    bound = "s = socket.socket(1, 2)\ns.bind({!r})\n"
    broker = f"{bound.format(f'{tmp_path}/broker')}open('{tmp_path}/up', 'w').close()\n"
    sends = f"{bound.format(f'{tmp_path}/a')}{WAIT_FOR.replace('{at}', str(tmp_path))}s.connect('{tmp_path}/broker')"
    with program(*python(broker)), joined("unix", sends, bound.format(f"{tmp_path}/b")) as pair:
        require_unknown(
            links(*pair), f"unix datagram sockets whose peer is not one of the two ({tmp_path}/a, {tmp_path}/b)"
        )


def test_a_thread_is_taken_for_another_process() -> None:
    code = (
        "import threading, time\na, b = socket.socketpair()\nids = []\n"
        "def work():\n    ids.append(threading.get_native_id())\n    b.recv(9), b.recv(9)\n"
        "threading.Thread(target=work, daemon=True).start(); a.send(b'x')\n"
        "while not ids: pass\nprint('ready', ids[0], flush=True)"
    )
    with started(*python(code)) as process:
        assert process.stdout is not None
        thread = int(process.stdout.readline().split()[1])
        require_unknown(links(process.pid, thread), f"both are process {process.pid} ({thread} is one of its threads)")
        require_unknown(links(thread, process.pid), f"both are process {process.pid}")


LEAVE = "import ctypes\nassert ctypes.CDLL(None).unshare(0x40000000) == 0\n"


@pytest.mark.skipif(not may_unshare("--net"), reason="may not make network namespaces")
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_sockets_of_the_namespace_that_both_have_left_are_not_seen(kind: str) -> None:
    with joined(kind, LEAVE, LEAVE) as pair:
        require(links(*pair), kind)


@pytest.mark.skipif(not may_unshare("--net"), reason="may not make network namespaces")
def test_sockets_of_a_namespace_without_a_process_are_said_not_to_be_there() -> None:
    """The namespace that lists them has no process left."""
    fork = f"{CHILD}(a if child else b).close()\nif not child:\n    {{end}}{WAIT}\n"
    code = f"{LEAVE}a, b = socket.socketpair()\n{LEAVE}{{more}}{fork}"
    with forked(code.format(more="", end="")) as pair:
        found = links(*pair)
        counts = f"(process {pair[0]}: 1, process {pair[1]}: 1)"
        require_unknown(found, f"sockets that no network namespace which is seen here lists {counts}")
        assert agrees(found, "unix").answer == "cannot tell"
    more = "c, d = socket.socketpair()\n"
    with forked(code.format(more=more, end="c.close(); ") + "d.close()") as pair:
        require_unknown(links(*pair), "lists (process ")
        assert "pair without a name" in links(*pair).verdict


MOVING = """
import threading, time
direct = socket.socket(fileno={fd})
through = socket.create_connection(('127.0.0.1', {port}))
"""
SENDS = """
direct.sendall(bytes(5_000_000))
def work():
    while True:
        through.sendall(bytes(1000)), through.recv(1)
through.sendall(bytes(1000)), through.recv(1)
threading.Thread(target=work, daemon=True).start()
"""
RECEIVES = """
direct.recv(5_000_000, socket.MSG_WAITALL)
def work():
    while True:
        through.recv(1000, socket.MSG_WAITALL), through.sendall(b"x")
through.recv(1000, socket.MSG_WAITALL), through.sendall(b"x")
threading.Thread(target=work, daemon=True).start()
"""
PASSES = """
l = socket.create_server(("127.0.0.1", 0))
print(l.getsockname()[1], flush=True)
one = l.accept()[0]
print("next", flush=True)
two = l.accept()[0]
print("ready", flush=True)
while True:
    two.sendall(one.recv(1000, socket.MSG_WAITALL)), one.sendall(two.recv(1))
"""


def test_a_connection_that_carried_much_at_first_is_in_use_while_a_broker_passes_all() -> None:
    near, far = (ends[0] for ends in MAKE["tcp"]())
    with started(sys.executable, "-c", f"import socket\n{PASSES}") as broker:
        assert broker.stdout is not None
        port = int(broker.stdout.readline())
        with started(*python(MOVING.format(fd=near, port=port) + SENDS), pass_fds=(near,)) as one:
            assert broker.stdout.readline() == "next\n"
            with started(*python(MOVING.format(fd=far, port=port) + RECEIVES), pass_fds=(far,)) as two:
                os.close(near)
                os.close(far)
                for each in (one, two):
                    assert each.stdout is not None
                    assert each.stdout.readline() == "ready\n"
                found = links(one.pid, two.pid)
                require_unknown(found, f"both are connected to process {broker.pid} (")
        broker.kill()


WATCHED = """
import multiprocessing as mp, signal
if __name__ == "__main__":
    context = mp.get_context("fork")
    a, b = socket.socketpair()
    def run(own, other):
        other.close(), os.write(w, b"x"), os.close(w), os.close(r), signal.pause()
    r, w = os.pipe()
    both = [context.Process(target=run, args=ends) for ends in ((a, b), (b, a))]
    for each in both:
        each.start()
    a.close(), b.close(), os.read(r, 1), os.read(r, 1), os.close(r), os.close(w)
    print("ready", *(each.pid for each in both), flush=True)
    sys.stdin.readline()
    for each in both:
        each.kill(), each.join()
"""


def test_pipes_that_watch_a_sibling_are_taken_for_a_way(tmp_path: Path) -> None:
    """A fork leaves the parent's ends of them in the next child."""
    script = tmp_path / "script.py"
    script.write_text(f"import os, socket, sys\n{WATCHED}")
    with started(sys.executable, str(script)) as parent:
        assert parent.stdout is not None
        first, second = map(int, parent.stdout.readline().split()[1:])
        require(links(first, second), "unix", "pair without a name", "multiprocessing")


def test_a_queue_of_two_siblings_is_said_to_be_held_by_a_stranger(tmp_path: Path) -> None:
    code = "import multiprocessing as mp, os, sys, signal\n"
    code += "def put(q, e): q.put(1); e.set(); signal.pause()\ndef get(q, e): q.get(); e.set(); signal.pause()\n"
    code += "if __name__ == '__main__':\n    c = mp.get_context('fork'); q = c.Queue(); e = c.Event(), c.Event()\n"
    code += "    both = [c.Process(target=f, args=(q, g)) for f, g in zip((put, get), e)]\n"
    code += (
        "    [(p.start()) for p in both]; [g.wait() for g in e]; print('ready', *(p.pid for p in both), flush=True)\n"
    )
    code += "    sys.stdin.readline(); [(p.kill(), p.join()) for p in both]\n"
    (tmp_path / "script.py").write_text(code)
    with started(sys.executable, str(tmp_path / "script.py")) as parent:
        assert parent.stdout is not None
        pair = [int(word) for word in parent.stdout.readline().split()[1:]]
        require_unknown(links(*pair), f"an mp.Queue that their parent (process {parent.pid}) holds, too: it may also")


def test_a_link_of_the_users_beside_idle_mpi_or_memory_is_a_companion(tmp_path: Path, channel_name: str) -> None:
    """A named socket that a user has made is nobody's bell."""
    name = channel_name[-22:].lstrip("-")
    code = OWN.format(name=name, backend="shm")
    serve = f"l = socket.socket(1); l.bind('{tmp_path}/s'); l.listen(); c.send(b'x'); s, _ = l.accept()"
    connect = f"c.recv(); s = socket.socket(1); s.connect('{tmp_path}/s')"
    with both(code + serve, code + connect) as pair:
        found = links(*pair)
        require_unknown(found, f"unix socket {tmp_path}/s join them")
        assert agrees(found, "unix").answer == agrees(found, "shm").answer == "cannot tell"


def test_closing_of_ends_is_seen() -> None:
    """What remains alone is in use again."""
    one, two = socket.socketpair()
    with closing(one), closing(two):
        code = "u = socket.socket(2, 2)\nprint('open', flush=True)\nsys.stdin.readline()\nu.close()"
        with (
            started(*python(code), pass_fds=(one.fileno(),)) as first,
            started(*python(code), pass_fds=(two.fileno(),)) as second,
        ):
            one.close()
            two.close()
            for each in (first, second):
                assert each.stdin is not None
                assert each.stdout is not None
                each.stdout.readline()
            require_unknown(links(first.pid, second.pid), "UDP sockets (process ")
            for each in (first, second):
                assert each.stdin is not None
                assert each.stdout is not None
                each.stdin.write("\n")
                each.stdin.flush()
                assert each.stdout.readline() == "ready\n"
            require(links(first.pid, second.pid), "unix", "pair without a name")
