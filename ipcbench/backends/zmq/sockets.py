"""The ZeroMQ sockets of an endpoint: made, tuned, waited on, and closed without losing messages."""

from __future__ import annotations

import _thread
import errno
import mmap
import os
import resource
import select
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ipcbench.errors import StoreError, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync.descriptors import expect_descriptors, require_descriptors
from ipcbench.sync.directory import write_private
from ipcbench.sync.interrupts import in_background
from ipcbench.sync.liveness import Liveness
from ipcbench.sync.peers import far_count
from ipcbench.util.clock import now_ns
from ipcbench.util.files import advice_on, read_limited

try:
    import zmq
except ModuleNotFoundError as error:
    absence: ModuleNotFoundError | None = error
else:
    absence = None
"""Why the library is not there; the backend's `probe` says how to install it."""

TRY_S, _TRY_MS = 0.1, 2
"""A call with this time-out or a longer one first waits `_TRY_MS` inside libzmq, which spares most messages an
exception. Shorter time-outs only look, and then wait exactly. It is short because pyzmq begins it anew after each
signal: a timer of less than 500 Hz must not make it last forever."""

_SLICE_MS = 100
"""Longest wait between two checks of whether the peers live."""

_RECONNECT_MS, _MOST_RECONNECT_MS = 5, 800
"""How soon libzmq tries again to connect to a peer that is not there, at first and at most: a queue's writer awaits
many workers that may never come, and would take a tenth of a core to try every 5 ms."""

_CREDIT_BYTES = 5 * 2**18
"""With late receipts, up to about 2 MiB are under way: then the C library reuses the writer's memory. Beyond, it gives
memory back and fetches it again: 5 MiB of messages of 55 KB cost 5 page faults and a third more CPU time a message."""

_LEAST_COUNT, _MOST_COUNT = 4, 1024

_HEARTBEAT_MS, _SILENCE_MS = 1000, 5000
"""Between hosts, how often libzmq asks a silent peer whether it is there, and how long it waits for an answer."""

_LINGER_S = 30
"""How long messages that a stopped reader does not take are kept after the writer's `close`."""

_DRAIN_NS = 1_000_000_000
"""The longest time that active readers need to read to the end of the stream."""

UNSUBSCRIBED = b"\0"
"""First byte of XPUB's report that a topic was unsubscribed."""

_CLOSE_S = 0.01
"""How long `close` itself waits for the last messages to leave before it leaves that to a thread."""

_KEYS_NAME, _KEYS_BYTES = "keys", 81
"""A file of two lines, which nobody makes longer."""

_DESCRIPTORS_COUNT = 16
"""More than libzmq opens for a context, its two threads, two sockets and their listeners."""
_PER_READER_COUNT = 2
"""Connections that the writer accepts."""
_THREADS_COUNT = 3
"""What libzmq starts for a context, and one that closes it."""
_THREAD_BYTES = 64 * 2**20
"""What a thread may take of the address space: a stack, and the heap of its own that the C library reserves."""

_in_use: dict[Any, Any] = {}
"""Context → its sockets, until they are closed; in a forked child, those of its parent for good. If the garbage
collector found them with an endpoint, it would wait in the context for sockets that nobody has closed yet."""


class Places(NamedTuple):
    """Where a channel's sockets are, and where their keys are."""

    messages: str
    receipts: str
    keys: Path | None = None


def keys_path(directory: Path) -> Path:
    """Return the file of the keys of a channel that has some."""
    return directory / _KEYS_NAME


def make_keys(directory: Path) -> None:
    """Write a new CURVE key pair for all endpoints of a channel into its directory, for its owner only.

    Nobody connects without the public half, since a CURVE client needs its server's; it never crosses the wire.

    Raises:
        OSError: the file cannot be written, or this libzmq was built without CURVE.
    """
    if not zmq.has("curve"):
        raise OSError("this libzmq was built without CURVE, and cannot encrypt")
    write_private(keys_path(directory), b"\n".join(zmq.curve_keypair()))


def credit(channel: ChannelSpec) -> tuple[int, int]:
    """Return how many messages the slowest reader may be behind, and after how many it sends a receipt."""
    fitting = _CREDIT_BYTES // max(1, channel.max_message_bytes)
    count = max(min(channel.depth, _LEAST_COUNT), min(fitting, max(channel.depth, _MOST_COUNT)))
    count = far_count(channel) if channel.host else count
    batch = 1 if count <= _LEAST_COUNT else count // 2
    return count + batch - 1, batch


def _require_threads(count: int) -> None:
    """Make sure that this process may start so many more threads: where libzmq may not, it aborts the process.

    Raises:
        OSError: it may not.
    """
    gate = threading.Lock()

    def wait() -> None:
        with gate:
            pass

    with gate:
        try:
            for _ in range(count):
                _thread.start_new_thread(wait, ())
            if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
                mmap.mmap(-1, count * _THREAD_BYTES).close()  # libzmq's may start before these have ended
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"{error}; raise the limit of processes (`ulimit -u`)") from error


def terminate(context: Any) -> None:
    """Terminate a context, once its sockets have closed, while other threads take the signals. pyzmq takes a context
    for terminated whose `term` a signal interrupts; its descriptors and a thread would stay.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        context.term()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class SocketPair:
    """An endpoint's two sockets, for messages and for receipts, with its liveness."""

    __slots__ = (
        "__weakref__",
        "_context",
        "_expected_count",
        "_pid",
        "_places",
        "channel",
        "liveness",
        "receipts",
        "socket",
    )

    def __init__(self, channel: ChannelSpec, places: Places, liveness: Liveness, kind: int, receipts_kind: int) -> None:
        """Make the sockets of an endpoint; `bind` or `connect` opens them.

        Raises:
            TransportError: there can be no sockets, or the keys cannot be used.
        """
        self.channel, self.liveness = channel, liveness
        self._places = places
        self._pid, self._expected_count = os.getpid(), 0
        none = f"no sockets for the {liveness.role} of channel {channel.name!r}"
        try:
            to_accept = _PER_READER_COUNT * channel.readers if liveness.role == "writer" else 0
            require_descriptors(_DESCRIPTORS_COUNT + to_accept)
            _require_threads(_THREADS_COUNT)
            self._context = zmq.Context()
        except (OSError, zmq.ZMQError) as error:
            advice = advice_on(error) if isinstance(error, OSError) else ""
            raise TransportError(f"{none}: {error.strerror}{advice}") from error
        try:
            self.socket = self._context.socket(kind)
            self.receipts = self._context.socket(receipts_kind)
            _in_use[self._context] = self.socket, self.receipts
        except zmq.ZMQError as error:
            self._destroy()
            raise TransportError(f"{none}: {error}") from error
        for socket in (self.socket, self.receipts):
            socket.set(zmq.SNDHWM, 0)
            socket.set(zmq.RCVHWM, 0)
            socket.set(zmq.RCVTIMEO, _TRY_MS)
            socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
            socket.set(zmq.RECONNECT_IVL_MAX, _MOST_RECONNECT_MS)
            if channel.host:  # a link that is cut tells nobody
                socket.set(zmq.IPV6, int(":" in channel.host))
                socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
                socket.set(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
        if places.keys is not None:
            try:
                self._use_keys(places.keys)
            except (OSError, StoreError, ValueError, zmq.ZMQError) as error:
                self._destroy()
                remedy = "destroy the channel and create it anew"
                raise TransportError(f"{none}: its keys in {places.keys} cannot be used ({error}); {remedy}") from error

    def _use_keys(self, path: Path) -> None:
        """Encrypt with the keys that `make_keys` wrote, the writer as the server."""
        if not path.is_file():
            raise OSError("it is no file")
        public, _, secret = read_limited(path, _KEYS_BYTES).partition(b"\n")
        for socket in (self.socket, self.receipts):
            socket.curve_publickey, socket.curve_secretkey = public, secret
            if self.liveness.role == "writer":
                socket.curve_server = True
            else:
                socket.curve_serverkey = public

    def bell_path(self, role: str) -> Path:
        """Return where the bell of a reader is that waits on a descriptor."""
        return self.liveness.directory / f"{role}.bell"

    def bind(self) -> None:
        """Bind both sockets, for peers to connect to, until `all_came`.

        Raises:
            TransportError: an address cannot be used.
        """
        self._expected_count = _PER_READER_COUNT * self.channel.readers
        expect_descriptors(self)
        self._attach((self.socket.bind, self.receipts.bind))

    def all_came(self) -> None:
        """Note that no connection is awaited any more."""
        self._expected_count = 0

    def expected_descriptors(self) -> int:
        """Return how many connections the writer may have still to accept."""
        return self._expected_count if os.getpid() == self._pid else 0

    def connect(self) -> None:
        """Connect both sockets; libzmq retries until the peer has bound. Raises as `bind`."""
        self._attach((self.socket.connect, self.receipts.connect))

    def _attach(self, attach: tuple[Callable[[str], Any], ...]) -> None:
        try:
            for attach_one, endpoint in zip(attach, self._places[:2], strict=True):
                attach_one(endpoint)
        except zmq.ZMQError as error:
            self._destroy()
            what = f"channel {self.channel.name!r} cannot use its sockets {' and '.join(self._places[:2])}"
            raise TransportError(f"{what}: {error}; destroy it and create it anew") from error

    def wait(self, socket: zmq.Socket[bytes], deadline: int | None, check: Callable[[], bool]) -> bool:
        """Wait for a message of a socket; return False if `check` ends the wait.

        Args:
            socket: one of the two.
            deadline: in ns on the clock; None for never.
            check: called about every `_SLICE_MS`; returns whether to stop waiting, and raises if waiting is pointless.

        Raises:
            TransportTimeout: no message came before `deadline`.
        """
        poller = select.poll()
        poller.register(int(socket.get(zmq.FD)), select.POLLIN)  # readable when the socket's state has changed
        while True:
            if int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
                return True
            if self.liveness.is_check_due() and check():
                return False
            left_ms = _SLICE_MS if deadline is None else -(-(deadline - now_ns()) // 1_000_000)
            if left_ms <= 0:
                what = f"{self.liveness.role} of channel {self.channel.name!r}: no progress before the time-out"
                raise TransportTimeout(what)
            poller.poll(min(left_ms, _SLICE_MS))

    def _destroy(self) -> None:
        """Undo what was done of an opening that failed."""
        self._context.destroy(0)
        self.all_came()
        _in_use.pop(self._context, None)

    def close(self) -> None:
        """Close the sockets, drop what they still hold, and release the endpoint lock."""
        self.receipts.close(0)
        self.socket.close(0)
        self._finish()

    def let_go(self) -> None:
        """Release what this process holds, and tell the peers nothing. A forked child must not touch the sockets: their
        state is partly in descriptors that it shares with its parent.
        """
        if self._pid == os.getpid():
            self.close()
        else:
            self.liveness.release()

    def close_gently(self, peers: set[bytes]) -> None:
        """Close the sockets after everything is sent, in a thread that runs for up to `_LINGER_S`.

        Until then, the process does not end and the endpoint stays locked. The thread first waits for all `peers` to
        unsubscribe, as they do at the end of the stream, or to be found dead: libzmq's own linger may wait for a peer
        that has gone.
        """
        self.receipts.close(0)
        in_background(lambda: self._flush(peers), f"{self.channel.name} flush", _CLOSE_S)

    def _flush(self, peers: set[bytes]) -> None:
        deadline = now_ns() + _DRAIN_NS
        poller = select.poll()
        poller.register(int(self.socket.get(zmq.FD)), select.POLLIN)
        while peers and now_ns() < deadline:
            if not int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN:  # to receive in vain would raise `zmq.Again`, which …
                poller.poll(_TRY_MS)  # … pyzmq cannot make while the interpreter ends
                if self.liveness.is_check_due() and self.liveness.is_current():
                    peers -= {peer for peer in peers if self.liveness.is_gone(peer.decode())}
                continue
            report = self.socket.recv(zmq.NOBLOCK)
            if report[:1] == UNSUBSCRIBED:
                peers.discard(report[1:])
        self.socket.close(_LINGER_S * 1000 if peers else 0)
        self._finish()

    def _finish(self) -> None:
        terminate(self._context)
        self.all_came()
        _in_use.pop(self._context, None)
        self.liveness.release()
