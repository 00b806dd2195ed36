"""The parent of the workers that the launcher `fork` has started, for what has no address and can only be inherited.

A worker has the parent make such a thing, and later hand it over: by the pickling of multiprocessing, which takes
queues and locks only while it starts a process. So does its start method `forkserver`, whose children are forked by a
small process without threads, as these are, and get queues as pickles and descriptors; here they may run already.
What the parent hands over it keeps no longer, so that the descriptors of an end go with the process that has it. Nor
do forked children of that process keep them.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from multiprocessing import Pipe, context, reduction
from multiprocessing.connection import Connection, wait
from typing import Any
from weakref import WeakSet

from ipcbench.errors import TransportError
from ipcbench.sync.descriptors import require_descriptors
from ipcbench.sync.interrupts import no_fork
from ipcbench.sync.ownership import own

_NEEDS = "only the workers of one parent can have its channels: let `ipcbench` start them, by the launcher `fork`"


class _Connections:
    """Those of this process's ends. A pipe ends only when nobody has its other end, and no child may hide that."""

    def __init__(self) -> None:
        self.open = WeakSet[Connection]()

    def let_go(self) -> None:
        """Close them, in a forked child."""
        for connection in list(self.open):
            connection.close()


_connections = _Connections()


def close_in_children(*ends: Any) -> None:
    """Have every forked child of this process close these connections, and those of Queues."""
    for end in ends:
        held = (end, getattr(end, "_reader", None), getattr(end, "_writer", None))
        _connections.open.update(each for each in held if isinstance(each, Connection))
    own(_connections)


class _Handed:
    """A descriptor within a pickle: which of those that come with it."""

    received: Sequence[int] = ()

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """Return the descriptor, as multiprocessing asks for it."""
        return _Handed.received[self._index]


class _Handing:
    """What multiprocessing takes for the process that is being started, while it pickles."""

    DupFd = _Handed

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        """Return the number of a descriptor that is to come with the pickle."""
        self.fds.append(fd)
        return len(self.fds) - 1


class Parent:
    """The parent's side: it forks the workers, each with a link to it, and answers what they ask."""

    def __init__(self) -> None:
        self._links: list[Connection] = []
        _Link.is_parent = True

    def fork(self) -> int:
        """Fork a worker; return its process ID, and 0 in the worker, which can then ask."""
        ours, theirs = Pipe()
        child = os.fork()
        if not child:
            for link in (*self._links, ours):
                link.close()
            _Link.of_process, _Link.is_parent = theirs, False
            return 0
        theirs.close()
        self._links.append(ours)
        return child

    def serve(self, pids: Collection[int]) -> int:
        """Answer until one of these workers has ended; return which. It is still to be reaped."""
        ended, ending = os.pipe()
        os.set_blocking(ending, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without it, nothing is written at its end
        before = signal.set_wakeup_fd(ending, warn_on_full_buffer=False)
        try:
            while not (gone := [pid for pid in pids if _has_ended(pid)]):
                for ready in wait([*self._links, ended]):
                    if isinstance(ready, Connection):
                        self._answer(ready)
                    else:
                        os.read(ended, 4096)
        finally:
            signal.set_wakeup_fd(before)
            os.close(ended)
            os.close(ending)
        return gone[0]

    def _answer(self, link: Connection) -> None:
        try:
            function, arguments = link.recv()
            try:
                answer = True, function(*arguments)
            except (TransportError, OSError) as error:
                answer = False, error
            except Exception as error:  # whatever it is, the worker raises it; some errors cannot be pickled
                answer = False, RuntimeError(f"{type(error).__name__}: {error}")
            _hand_over(link, answer)
        except (EOFError, OSError):  # the worker has ended
            link.close()
            self._links.remove(link)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _hand_over(link: Connection, answer: tuple[bool, Any]) -> None:
    """Send an answer, and wait until the worker has it: only then may the names of semaphores go."""
    handing = _Handing()
    context.set_spawning_popen(handing)  # type: ignore[arg-type]
    try:
        pickled = bytes(reduction.ForkingPickler.dumps(answer))
    finally:
        context.set_spawning_popen(None)
    link.send((len(handing.fds), pickled))
    if handing.fds:
        with socket.fromfd(link.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as sending:
            reduction.sendfds(sending, handing.fds)
    link.recv()


class _Link:
    """The worker's side."""

    of_process: Connection | None = None
    is_parent = False
    lock = threading.Lock()


def has_parent() -> bool:
    """Return whether this process is a worker that can ask its parent, or is that parent."""
    return _Link.is_parent or _Link.of_process is not None


def in_parent(function: Callable[..., Any], *arguments: Any) -> Any:
    """Have the parent call a function of a module, and return what it returns, queues and connections included.

    Raises:
        TransportError: this process has no such parent, the parent has ended, or the function raised something.
    """
    if _Link.is_parent:
        return function(*arguments)
    if _Link.of_process is None:
        raise TransportError(_NEEDS)
    try:
        with no_fork(), _Link.lock:
            is_done, value = _ask(_Link.of_process, function, arguments)
    except (EOFError, ConnectionError) as error:
        raise TransportError(
            "the parent of this process, which makes its channels, or what it has made has ended"
        ) from error
    if not is_done:
        raise TransportError(str(value)) from value
    close_in_children(*(value if isinstance(value, list | tuple) else [value]))
    return value


def _ask(link: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    link.send((function, arguments))
    count, pickled = link.recv()
    try:
        _Handed.received = _received(link, count) if count else ()
        answer: tuple[bool, Any] = reduction.ForkingPickler.loads(pickled)
    finally:
        link.send(None)
    return answer


def _received(link: Connection, count: int) -> list[int]:
    """Return the descriptors that come with an answer.

    Raises:
        OSError: this process may not have so many more.
    """
    receiving = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=link.fileno())
    try:
        try:
            require_descriptors(count)
        except OSError:
            receiving.recv(1)  # the kernel drops what comes with it
            raise
        fds = reduction.recvfds(receiving, count)
    finally:
        receiving.detach()
    for fd in fds:
        os.set_inheritable(fd, False)
    return fds


def _forget() -> None:
    """Forget the link in a forked child of a worker, which is not its parent's."""
    link, _Link.of_process = _Link.of_process, None
    _Link.is_parent = False
    if link is not None:
        with suppress(OSError):
            link.close()


os.register_at_fork(after_in_child=_forget)
