"""nng, by its Python package pynng: a pair of sockets for each reader. nng's publish/subscribe drops messages of slow
subscribers; pairs do not, if nobody sends more than their buffers hold.
"""

from __future__ import annotations

import atexit
import math
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ipcbench.backend import Address, unavailable
from ipcbench.sync import (
    CarriedBackend,
    CarriedReader,
    CarriedWriter,
    channel_file,
    reader_role,
    require_socket_path,
)
from ipcbench.sync.interrupts import is_of_handler

absence: ModuleNotFoundError | None = None
try:
    import pynng  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    pynng, absence = None, error
else:  # a forked child would wait at its end for threads that it does not have
    os.register_at_fork(after_in_child=partial(atexit.unregister, pynng.nng._pynng_atexit))

_NEVER_MS = 2**30
"""Until nng connects again: nothing of a stream may come twice. Its timers, closed as they expire, end the process."""


def _place(address: Address, index: int) -> str:
    return str(channel_file(address, reader_role(address.channel, index)))


def _pair(depth: int) -> Any:
    return pynng.Pair0(
        send_buffer_size=depth + 1,
        recv_buffer_size=depth + 1,
        recv_max_size=0,
        reconnect_time_min=_NEVER_MS,
        reconnect_time_max=_NEVER_MS,
    )


def _close(pairs: list[Any]) -> None:
    for pair in pairs:
        pair.close()
        vars(pair).pop("_socket", None)  # or the garbage collector of a forked child would close it once more


class NngWriter(CarriedWriter):
    """The writer, which dials each reader."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (pynng.NNGException,) if pynng else ()
    descriptors: ClassVar[tuple[int, int]] = 4, 1
    bears_fork: ClassVar[bool] = False
    library_folder = "/pynng/"
    most_held = 1024  # nng allows 8192

    def connect(self) -> list[Any]:
        return [_pair(self.depth) for _ in range(self.address.channel.readers)]

    def await_peers(self, timeout_s: float | None) -> None:
        for index in self.readers():  # they listen, or have closed meanwhile
            try:
                self.library[index].dial(f"ipc://{_place(self.address, index)}", block=True)
            except pynng.NNGException:
                if index in self._not_closed():
                    raise

    def send(self, message: bytes | bytearray | memoryview) -> None:
        data = message if type(message) is bytes else pynng.ffi.from_buffer(message)
        for index in self.readers():
            try:
                self.library[index].send(data, block=False)
            except pynng.TryAgain:  # only a reader that has just closed has no room
                continue

    def disconnect(self) -> None:
        _close(self.library)


class NngReader(CarriedReader):
    """A reader, which listens in the channel's folder."""

    library_errors: ClassVar[tuple[type[Exception], ...]] = (pynng.NNGException,) if pynng else ()
    descriptors: ClassVar[tuple[int, int]] = 4, 1
    bears_fork: ClassVar[bool] = False
    library_folder = "/pynng/"
    most_held = 1024

    def connect(self) -> list[Any]:
        self._waits_ms = 0
        self.wakes_after = max(1, self.depth // 4)
        pair = _pair(self.depth)
        pair.listen(f"ipc://{_place(self.address, self.index)}")
        return [pair]

    def receive(self, timeout_s: float) -> bytes | None:
        (pair,) = self.library
        waits_ms = math.ceil(1e3 * timeout_s)
        if waits_ms and waits_ms != self._waits_ms:
            self._waits_ms = pair.recv_timeout = waits_ms
        try:
            message: bytes = pair.recv(block=waits_ms > 0)
        except (pynng.Timeout, pynng.TryAgain):
            return None
        except RuntimeError as error:  # pynng cannot unpack NULL, which nng gives for an empty message
            if is_of_handler(error, self.library_folder):
                raise
            return b""
        return message

    def disconnect(self) -> None:
        _close(self.library)


class Nng(CarriedBackend):
    """nng over Unix sockets."""

    name: ClassVar[str] = "nng"
    summary: ClassVar[str] = "nng (pynng), a pair of sockets for each reader over a Unix socket"
    writer, reader = NngWriter, NngReader

    @classmethod
    def probe(cls) -> None:
        if absence is not None:
            raise unavailable(cls.name, absence, "pynng", "pip install 'ipcbench[nng]'") from absence

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        require_socket_path(_place(address, address.channel.readers - 1))
