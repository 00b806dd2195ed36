"""The reading end of a Unix stream socket, and what both ends agree on: framing, credit, wake-ups."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterable
from pathlib import Path
from struct import Struct

from ipcbench.backend import Address, Reader
from ipcbench.errors import EndOfStream, EndpointClosed, PeerLost, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec, WaitStrategy
from ipcbench.sync.liveness import CHECK_NS, Liveness, reader_role
from ipcbench.sync.wait import Doorbell
from ipcbench.util.clock import deadline_ns, now_ns, remaining_s

SIZE = Struct("<Q")
"""What comes before a message: its size."""
END = 2**64 - 1
"""The size that ends a stream."""

_HEAD_BYTES = SIZE.size
_TIMEVAL = Struct("@ll")
_PROMPT_BYTES = 2**16
"""From this size on, a receipt is cheap beside a message."""
_MOST_RECEIPTS = 64
_CHUNK_BYTES = 2**16
"""How much a reader takes at once while messages are small."""
_TRY_S, _TRY_US = 0.1, 10_000
"""A read with this time-out or a longer one first waits `_TRY_US` inside the kernel's receive: a single system call."""


def credit(channel: ChannelSpec) -> tuple[int, int]:
    """Return how many messages the slowest reader may be behind, and after how many it sends a receipt.

    There are never more receipts under way than the kernel has room for.
    """
    batch = max(1, channel.depth // (_MOST_RECEIPTS if channel.max_message_bytes >= _PROMPT_BYTES else 4))
    return channel.depth + batch - 1, batch


def doorbell_path(directory: Path) -> Path:
    """Return where the doorbell is on which the writer waits for its readers."""
    return directory / "writer.bell"


def _ring(directory: Path) -> None:
    doorbell = Doorbell(doorbell_path(directory))
    doorbell.ring()
    doorbell.close()


def wait_ready(
    sockets: Iterable[socket.socket], event: int, deadline: int | None, strategy: WaitStrategy = "block"
) -> bool:
    """Wait until one of the sockets is ready for `event` or broken; return False if none is by `deadline` (ns)."""
    poller = select.poll()
    for one in sockets:
        poller.register(one, event)
    if strategy in {"auto", "block"}:
        left_s = remaining_s(deadline)
        return bool(poller.poll(None if left_s is None else left_s * 1e3))
    while not poller.poll(0):
        if deadline is not None and now_ns() >= deadline:
            return False
        if strategy == "yield":
            os.sched_yield()
    return True


class PipeReader(Reader):
    """Listens, and reads into one buffer that it keeps."""

    def __init__(self, address: Address, index: int) -> None:
        role = reader_role(address.channel, index)
        self._channel = address.channel
        self._liveness = Liveness(address.channel, role)
        self._socket = socket.socket(socket.AF_UNIX)
        path = self._liveness.directory / role
        try:
            path.unlink(missing_ok=True)  # a reader that died may have left it
            self._socket.bind(str(path))
            self._socket.listen(1)
            _ring(self._liveness.directory)
        except (OSError, TransportError) as error:
            self._release()
            raise TransportError(f"cannot listen at {path}: {error}") from error
        self._listening = True
        self._buffer = bytearray(_CHUNK_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._ask_bytes = _CHUNK_BYTES
        self._until_receipt = self._batch = credit(address.channel)[1]
        self._failure: TransportError | None = None

    def read(self, timeout_s: float | None = None) -> memoryview:
        start = self._start + _HEAD_BYTES
        if start > self._end or (stop := start + SIZE.unpack_from(self._buffer, self._start)[0]) > self._end:
            self._fill(timeout_s)
            start = self._start + _HEAD_BYTES
            stop = start + SIZE.unpack_from(self._buffer, self._start)[0]
        self._start = stop
        self._until_receipt -= 1
        if not self._until_receipt:
            self._until_receipt = self._batch
            with contextlib.suppress(OSError):  # the writer may have closed
                self._socket.send(b"\1", socket.MSG_DONTWAIT)
        return self._view[start:stop]

    def _fill(self, timeout_s: float | None) -> None:
        """Take in more until a whole message is there."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        deadline = deadline_ns(timeout_s)
        if self._listening:
            self._accept(deadline)
        sleepy = self._channel.wait in {"auto", "block"} and (timeout_s is None or timeout_s >= _TRY_S)
        need = self._needed()
        while self._end - self._start < need:
            self._make_space(need)
            stop = max(self._start + need, min(self._start + self._ask_bytes, len(self._buffer)))
            try:
                got = self._socket.recv_into(self._view[self._end : stop], 0, 0 if sleepy else socket.MSG_DONTWAIT)
            except BlockingIOError:
                got = -1
            except OSError:
                got = 0
            if got > 0:
                self._end += got
                need = self._needed()
            elif got == 0:
                self._stop(PeerLost(f"the writer of channel {self._channel.name!r} died without closing"))
            elif not wait_ready([self._socket], select.POLLIN, deadline, self._channel.wait):
                raise TransportTimeout(f"no message in channel {self._channel.name!r} within {timeout_s} s")
        self._ask_bytes = max(
            _CHUNK_BYTES, need
        )  # the next one is likely to be as large: take it in one go, and no more

    def _needed(self) -> int:
        """Return how many bytes the next message takes with its head, as far as that is known."""
        if self._end - self._start < _HEAD_BYTES:
            return _HEAD_BYTES
        size_bytes: int = SIZE.unpack_from(self._buffer, self._start)[0]
        if size_bytes == END:
            self._stop(EndOfStream(f"channel {self._channel.name!r} has ended"))
        return _HEAD_BYTES + size_bytes

    def _make_space(self, need: int) -> None:
        """Make sure that `need` bytes fit from the start on; a view that was returned is not valid any more."""
        have = self._end - self._start
        if self._start + need <= len(self._buffer) and have:
            return
        rest = self._view[self._start : self._end]
        if need > len(self._buffer):
            self._buffer = bytearray(max(need, 2 * len(self._buffer)))
            self._view = memoryview(self._buffer)
        self._view[:have] = rest
        self._start, self._end = 0, have

    def _accept(self, deadline: int | None) -> None:
        """Wait for the writer's connection."""
        while True:
            slice_end = now_ns() + CHECK_NS
            if wait_ready([self._socket], select.POLLIN, slice_end if deadline is None else min(slice_end, deadline)):
                break
            if self._liveness.is_check_due():
                self._check_writer()
            if deadline is not None and now_ns() >= deadline:
                raise TransportTimeout(f"the writer of channel {self._channel.name!r} has not written yet")
        listener, self._listening = self._socket, False
        self._socket, _ = listener.accept()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, _TRY_US))
        listener.close()

    def _check_writer(self) -> None:
        if self._liveness.note_of("writer") == "unused":
            raise EndOfStream(f"channel {self._channel.name!r} was closed without a message")
        if self._liveness.is_gone("writer"):
            raise PeerLost(f"the writer of channel {self._channel.name!r} died without closing")

    def _stop(self, failure: TransportError) -> None:
        self._failure = failure
        self._start = self._end = 0
        raise failure

    def _release(self) -> None:
        self._socket.close()
        self._liveness.release()

    def close(self) -> None:
        if isinstance(self._failure, EndpointClosed):
            return
        self._failure = EndpointClosed(f"this reader of channel {self._channel.name!r} is closed")
        self._start = self._end = 0
        self._liveness.leave_note()
        with contextlib.suppress(TransportError):  # the channel was destroyed before
            _ring(self._liveness.directory)
        self._release()
