"""What looks like a library's own, or like nothing, and may carry the data: it is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipcbench.diagnose.endpoints import agrees, links
from tests.diagnose.pairs import forked
from tests.diagnose.test_matrix import require, require_unknown

TWO_PIPES = """
{more}
(r, w), (s, v) = os.pipe(), os.pipe()
{pair}
child = os.fork()
if not child:
    os.close(r), os.close(v), {child_end}
    os.write(w, b'x')
    __import__('signal').pause()
os.close(w), os.close(s), {parent_end}, os.read(r, 1)
"""


@pytest.mark.parametrize("more", ["", "import multiprocessing.connection, multiprocessing.synchronize"])
def test_two_pipes_of_a_program_are_taken_for_those_of_multiprocessing(more: str) -> None:
    with forked(TWO_PIPES.format(more=more, pair="", child_end="0", parent_end="0")) as pair:
        found = links(*pair)
        require(found, "pipe")
        assert "in use: pipe without a name ×2" in found.verdict
        assert agrees(found, "pipe").answer == "agrees"
    ends = {"pair": "a, b = socket.socketpair()", "child_end": "a.close()", "parent_end": "b.close()"}
    with forked(TWO_PIPES.format(more=more, **ends)) as pair:
        found = links(*pair)
        require_unknown(found, "cannot tell which of these carries the data")
        assert "multiprocessing" not in found.verdict
        assert agrees(found, "pipe").answer == "cannot tell"


BESIDE_A_PAIR = """
{made}
a, b = socket.socketpair()
r, w = os.pipe()
child = os.fork()
if not child:
    a.close()
    {used}
    os.write(w, b'x'), os.close(w), os.close(r)
    __import__('signal').pause()
b.close()
{more}
os.read(r, 1), os.close(r), os.close(w)
"""
NETLINK = "s = socket.socket(16, 3, 2); s.bind((os.getpid(), 0))"
SEMAPHORE = """
at = '/dev/shm/sem.%d' % os.getpid()
f = os.open(at, os.O_RDWR | os.O_CREAT)
os.ftruncate(f, {size}), os.unlink(at)
m = mmap.mmap(f, {size})
os.close(f)
m[0] = 1
"""


@pytest.mark.parametrize(
    ("made", "used", "more", "named"),
    [
        ("m = mmap.mmap(-1, 4096); m[0] = 1", "m[0]; m.madvise(mmap.MADV_DONTNEED)", "", "anonymous segment"),
        ("m = mmap.mmap(-1, 4096); m[0] = 1", "pass", "", "anonymous segment"),
        ("", NETLINK, NETLINK, "NETLINK sockets"),
        (SEMAPHORE.format(size=4096), "m[0]", "", "shared memory /dev/shm/sem."),
    ],
)
def test_what_is_beside_an_idle_pair_is_passed_over(made: str, used: str, more: str, named: str) -> None:
    with forked(BESIDE_A_PAIR.format(made=made, used=used, more=more)) as pair:
        found = links(*pair)
        require_unknown(found, "cannot tell which of these carries the data")
        assert named in found.verdict
        assert agrees(found, "unix").answer == agrees(found, "shm").answer == "cannot tell"


def test_a_semaphore_is_taken_for_memory() -> None:
    with forked(BESIDE_A_PAIR.format(made=SEMAPHORE.format(size=32), used="m[0]", more="")) as pair:
        require(links(*pair), "unix", "pair without a name")


ECHO = """
import subprocess
server = socket.create_server(('127.0.0.1', 0))
code = "import socket\\nk = socket.create_connection(('127.0.0.1', %d))\\nk.send(b'hello'), input()"
filter = subprocess.Popen([sys.executable, '-c', code % server.getsockname()[1]], stdin=-1, stdout={out})
k, _ = server.accept()
server.close(), k.recv(5)
child = filter.pid
"""


def test_a_dialogue_by_standard_streams_is_passed_over_beside_tcp() -> None:
    with forked(ECHO.format(out=-1)) as pair:
        found = links(*pair)
        require_unknown(found, "cannot tell which of these carries the data")
        assert {link.kind for link in found.carriers} == {"tcp", "pipe"}
        assert agrees(found, "pipe").answer == agrees(found, "TCP").answer == "cannot tell"
    with forked(ECHO.format(out=2)) as pair:  # to one's input alone goes what a harness says
        require(links(*pair), "tcp")


def test_a_file_that_is_emptied_after_each_message_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    opens = f"f = os.open('{tmp_path}/f', os.O_RDWR)"
    used = f"{opens}; import time; end = time.monotonic() + 0.1"  # what is as old as the processes is not theirs
    used += "\n    while time.monotonic() < end: os.pwrite(f, b'x', 0), os.ftruncate(f, 0)"
    with forked(BESIDE_A_PAIR.format(made="", used=opens, more=opens)) as pair:
        require(links(*pair), "unix")
    with forked(BESIDE_A_PAIR.format(made="", used=used, more=opens)) as pair:
        require_unknown(links(*pair), "cannot tell which of these carries the data")
