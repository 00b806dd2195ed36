"""Verdicts on links that are rare together, and a log's words for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipcbench.diagnose.endpoints.link import Link
from ipcbench.diagnose.endpoints.verdict import agrees_with, judge

UNIX = Link("unix", "/a/socket", 1, 2, ("Unix socket, process 1 fd 3 inode 5",))
TCP = Link("tcp", "tcp://127.0.0.1:80", 1, 2, ("TCP",), sent_bytes=10, received_bytes=20, rtt_us=5)
BUSY = replace(TCP, sent_bytes=2**16)
IDLE = replace(TCP, sent_bytes=0, received_bytes=0)
PIPE = Link("pipe", "pipe without a name", 1, 2, ("pipe",))
OUTPUT = replace(PIPE, address="pipe without a name (standard output)", role="standard stream")
INPUT = replace(PIPE, address="pipe without a name (standard input)", role="standard stream")
TALK = replace(INPUT, role="dialogue")
ERRORS = replace(OUTPUT, address="pipe without a name (standard error, standard input)")
WATCH = replace(PIPE, role="watch")
SEGMENT = Link("shared memory", "/dev/shm/x", 1, 2, ("shared memory 00:1b inode 7",))
UNTOUCHED = replace(SEGMENT, role="untouched")
SHARED = replace(PIPE, role="shared", others=(7,))
UNCOUNTED = replace(TCP, sent_bytes=None)
ZMQ = replace(UNIX, library="ZeroMQ")
OWN = replace(SEGMENT, address="/dev/shm/ipcb-x", library="ipcbench")
HANDSHAKE = replace(TCP, role="handshake")
FILE = Link("file", "/a/file", 1, 2, ("open file",), "unclear")
BELL = Link("eventfd", "eventfd 4", 1, 2, ("eventfd 4",), "wake-up")


@pytest.mark.parametrize(
    ("links", "verdict", "carriers"),
    [
        ([UNIX, OUTPUT, WATCH], "in use: unix socket /a/socket; evidence: Unix socket, process 1 fd 3", [UNIX]),
        ([UNIX, UNIX], "in use: unix socket /a/socket ×2; evidence", [UNIX, UNIX]),
        ([UNIX, TCP], "cannot tell: unix socket /a/socket, tcp://127.0.0.1:80 join them", [UNIX, TCP]),
        ([UNIX, IDLE], "in use: unix socket", [UNIX]),
        ([TCP], "in use: tcp://127.0.0.1:80; evidence: TCP; process 1 has sent 10 B and received 20 B", [TCP]),
        ([IDLE], "cannot tell: tcp://127.0.0.1:80 has carried nothing yet", []),
        ([IDLE, INPUT], "cannot tell: tcp://127.0.0.1:80 has carried nothing yet", []),
        ([SEGMENT, BELL], "cannot tell: shared memory /dev/shm/x, eventfd 4 join them", [SEGMENT, BELL]),
        ([UNIX, BELL], "cannot tell: unix socket /a/socket, eventfd 4 join them", [UNIX, BELL]),
        ([UNIX, replace(BELL, library="ZeroMQ")], "in use: unix socket /a/socket", [UNIX]),
        ([SEGMENT, OWN], "cannot tell: shared memory /dev/shm/x, shared memory", [SEGMENT, OWN]),
        ([UNIX, FILE], "cannot tell: unix socket /a/socket, open file /a/file join them", [UNIX, FILE]),
        ([FILE, SHARED], "cannot tell: pipe without a name is held by process 7, too: any of them may use it; let", []),
        ([FILE], "cannot tell: both have open file /a/file; whether one reads what the other writes is not", []),
        ([TCP, HANDSHAKE], "in use: tcp://127.0.0.1:80", [TCP]),
        ([SEGMENT, replace(SHARED, library="MPI")], "in use: shared memory", [SEGMENT]),
        ([SEGMENT, IDLE], "in use: shared memory /dev/shm/x; evidence", [SEGMENT]),
        ([SEGMENT, UNIX, BELL], "cannot tell: shared memory /dev/shm/x, unix socket", [SEGMENT, UNIX, BELL]),
        ([SEGMENT, PIPE], "cannot tell: shared memory /dev/shm/x, pipe", [SEGMENT, PIPE]),
        ([SEGMENT, SHARED], "cannot tell: shared memory /dev/shm/x, pipe", [SEGMENT, SHARED]),
        ([SEGMENT, UNCOUNTED], "cannot tell: shared memory /dev/shm/x, tcp", [SEGMENT, UNCOUNTED]),
        ([OWN, UNIX, BELL], "cannot tell: shared memory /dev/shm/ipcb-x (ipcbench), unix socket", [OWN, UNIX, BELL]),
        ([OWN, ZMQ], "cannot tell: shared memory /dev/shm/ipcb-x (ipcbench), unix socket", [OWN, ZMQ]),
        ([OWN, SEGMENT, UNIX], "cannot tell: shared memory", [OWN, SEGMENT, UNIX]),
        ([SHARED], "cannot tell: pipe without a name is held by process 7, too: any of them may use it; let each", []),
        ([SHARED, INPUT], "cannot tell: pipe without a name is held by process 7, too", []),
        ([SHARED, IDLE], "cannot tell: pipe without a name is held by process 7, too", []),
        ([SHARED, TCP], "cannot tell: tcp://127.0.0.1:80, pipe without a name join them", [TCP, SHARED]),
        ([UNTOUCHED], "cannot tell: shared memory /dev/shm/x is mapped in both, but", []),
        ([SEGMENT, TCP], "cannot tell: shared memory /dev/shm/x, tcp", [SEGMENT, TCP]),
        ([SEGMENT, BUSY], "cannot tell: shared memory /dev/shm/x, tcp", [SEGMENT, BUSY]),
        ([UNTOUCHED, PIPE], "cannot tell: pipe without a name, shared memory", [PIPE, UNTOUCHED]),
        ([UNTOUCHED, OWN], "cannot tell", [OWN, UNTOUCHED]),
        ([replace(OWN, role="untouched"), OWN], "in use: shared memory /dev/shm/ipcb-x (ipcbench)", [OWN]),
        ([TALK, TCP], "cannot tell: tcp://127.0.0.1:80, pipe", [TCP, TALK]),
        ([TALK, IDLE], "cannot tell", [IDLE, TALK]),
        ([TALK], "in use: pipe", [TALK]),
        ([OUTPUT], "cannot tell: only standard streams join them", []),
        ([ERRORS], "cannot tell: only standard streams", []),
        ([OUTPUT, INPUT], "in use: pipe", [OUTPUT, INPUT]),
        ([WATCH, WATCH, OUTPUT], "cannot tell: two pipes join them", []),
        ([BELL], "cannot tell: only wake-up channels join them (eventfd 4)", []),
        ([], "cannot tell: no socket pair, TCP connection, pipe or shared mapping joins them", []),
    ],
)  # fmt: skip
def test_a_verdict_is_wrong(links: list[Link], verdict: str, carriers: list[Link]) -> None:
    state, text, found = judge(links)
    assert text.startswith(verdict)
    assert text.startswith(state)
    assert list(found) == carriers


@pytest.mark.parametrize(
    ("links", "word", "answer"),
    [
        ([UNIX], "ipc://", "agrees"),
        ([UNIX], "Unix-Socket", "agrees"),
        ([UNIX], "pipe", "cannot tell"),  # multiprocessing.Pipe is a pair of Unix sockets
        ([UNIX], "ZMQ", "cannot tell"),
        ([replace(UNIX, library="ZeroMQ")], "ZMQ", "agrees"),
        ([SEGMENT], "IPC", "cannot tell"),  # any way between processes is also called so
        ([SEGMENT], "shared_memory", "agrees"),
        ([SEGMENT], "TCP", "contradicts"),
        ([TCP], "IPC", "contradicts"),
        ([UNIX, TCP], "TCP", "cannot tell"),
        ([UNIX, TCP], "shm", "contradicts"),
        ([SEGMENT, UNIX], "shm", "cannot tell"),
        ([SEGMENT, UNIX], "TCP", "contradicts"),
        ([UNIX, FILE], "TCP", "cannot tell"),  # what is open as a file may be anything
        ([UNIX, FILE], "IPC", "cannot tell"),
        ([IDLE], "TCP", "cannot tell"),
        ([IDLE], "shm", "cannot tell"),
        ([SHARED], "TCP", "cannot tell"),
        ([UNTOUCHED], "TCP", "cannot tell"),
        ([UNTOUCHED, PIPE], "shm", "cannot tell"),
        ([UNIX], "inproc", "contradicts"),
        ([UNIX, TCP], "inproc://", "contradicts"),
        ([], "inproc", "cannot tell"),
        ([UNIX], "IPC (ipc:///tmp/x)", "agrees"),
        ([UNIX], "TCP (tcp://host:1)", "contradicts"),
        ([], "TCP", "cannot tell"),
        ([TCP], "?", "cannot tell"),
    ],
)
def test_a_logs_word_is_judged_wrongly(links: list[Link], word: str, answer: str) -> None:
    state, _, carriers = judge(links)
    found = agrees_with(state, carriers, word)
    assert found.answer == answer
    assert found.text.startswith(f"the log says {word}: ")
