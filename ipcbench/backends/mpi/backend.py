"""MPI: `bcast` of a pickled object, the same by pickle protocol 5, `Bcast` of a buffer, `Isend`/`Recv` to each reader,
and a window of shared memory.

All data goes through the MPI call that a backend is named after. On one host, the words by which the endpoints agree on
each call lie in a file in shared memory; between hosts they are messages of MPI (far.py). A process starts MPI when it
opens its first endpoint, and MPI's start waits for all processes of the launch.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer, unavailable
from ipcbench.backends.mpi.endpoints import MOST_AHEAD, RUN_WORDS, MpiReader, MpiWriter
from ipcbench.backends.mpi.far import FarReader, FarWriter, Frames, Pickle5Frames, PickledFrames
from ipcbench.backends.mpi.links import Bcast, MpiLink, Pickle5Bcast, PickledBcast, PointToPoint
from ipcbench.backends.mpi.rma import RmaReader, RmaWriter, Window
from ipcbench.errors import BackendUnavailable, TransportError, TransportTimeout
from ipcbench.spec import ChannelSpec
from ipcbench.sync.cursors import (
    CLOSED,
    MAX_READERS,
    NEW,
    WRITER_STATE,
    ReaderCursors,
    WriterCursors,
    consumed_word,
    cursors_bytes,
    make_doorbells,
)
from ipcbench.sync.directory import (
    channel_directory,
    is_still,
    new_directory,
    no_channel,
    open_directory,
    remove_directory,
    remove_with_file,
    require_ours,
)
from ipcbench.sync.ring_memory import Layout
from ipcbench.sync.wait import Waiter
from ipcbench.util.clock import deadline_ns
from ipcbench.util.files import advice_on

_Far = TypeVar("_Far", FarWriter, FarReader)

_HINT = "pip install 'ipcbench[mpi]'"
_OPEN_S = 60.0
"""How long an endpoint that opens waits for the channel's other endpoints."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - named after the channel, for this user only
_MPICH_SEGMENT = re.compile(rf"{_SHARED_MEMORY}/mpich_shm_\w+$", re.MULTILINE)
_START_BYTES, _RANK_BYTES = 6_600_000, 5_600_000
"""What MPI's start takes of shared memory, once and for each rank: MPICH 5.0, 3 to 8 ranks on one host."""


def start_mpi(name: str) -> ModuleType:
    """Return mpi4py's module MPI; importing it starts MPI.

    It starts at mpi4py's default level of thread support, `multiple`, unless `MPI4PY_RC_THREAD_LEVEL` says otherwise.
    At `serialized` MPICH takes no locks and never yields: between two processes with a core each, small messages are
    twice as fast and large ones at most half as fast; four processes on two cores take hundreds of times as long
    (`MPI4PY_RC_THREAD_LEVEL=serialized python benchmarks/peers/contract_cost.py --backends mpi`).
    """
    try:
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise unavailable(name, error, "mpi4py", _HINT) from error
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(name, f"no MPI library: {error}", _HINT) from error
    return MPI


def _require_shared_memory(needed_bytes: int, what: str) -> None:
    """Refuse segments that do not fit: touching them would end MPI's processes by a bus error."""
    try:
        memory = shutil.disk_usage(_SHARED_MEMORY)
    except OSError:  # no such folder: no such segments
        return
    if memory.free < needed_bytes:
        raise TransportError(
            f"{what} {needed_bytes / 1e6:.1f} MB of {_SHARED_MEMORY}, and {memory.free / 1e6:.1f} MB are free; enlarge "
            "it (`docker run --shm-size`), or measure fewer backends in one run"
        )


def _unlink_segments() -> None:
    """Remove the names of the segments that MPICH has mapped: it would at its end, but not if a process is killed.

    All processes of the launch must have started MPI, and so have mapped them. What is mapped stays usable.
    """
    with suppress(OSError):  # no /proc: no such segments
        for path in set(_MPICH_SEGMENT.findall(Path("/proc/self/maps").read_text(errors="replace"))):
            Path(path).unlink(missing_ok=True)


def _make_words(path: Path, size_bytes: int) -> os.stat_result:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        return os.fstat(fd)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(fd)


def _unlink_words(path: Path, made: os.stat_result) -> None:
    if is_still(path, made):
        path.unlink(missing_ok=True)


class _Words:
    """A channel's file of shared words, mapped."""

    def __init__(self, address: Address) -> None:
        directory, channel = open_directory(address), address.channel
        size_bytes, path = _words_bytes(channel), _words_path(directory)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise no_channel(f"{path} on this host", error) from error
        try:
            require_ours(fd)
            self._map = mmap.mmap(fd, size_bytes)
        finally:
            os.close(fd)
        self.words = memoryview(self._map).cast("Q")
        self.runs = cursors_bytes(channel.readers) // 8, _run_slots(channel)

    def close(self) -> None:
        self.words.release()
        with suppress(BufferError):  # a traceback still refers to a view and frees the memory later
            self._map.close()


def _run_slots(channel: ChannelSpec) -> int:
    return min(channel.depth, MOST_AHEAD) + 4


def _words_bytes(channel: ChannelSpec) -> int:
    return cursors_bytes(channel.readers) + 8 * RUN_WORDS * _run_slots(channel)


def _words_path(directory: Path) -> Path:
    """Return the file of the words: in /dev/shm, or in the channel's directory where there is no such folder."""
    return _SHARED_MEMORY / directory.name if _SHARED_MEMORY.is_dir() else directory / "words"


def _await_all(cursors: WriterCursors | ReaderCursors) -> None:
    """Wait until all endpoints of the channel are open: then a collective call is certain to return."""
    words, channel = cursors.words, cursors.channel
    states = [WRITER_STATE, *(consumed_word(index) + 1 for index in range(channel.readers))]
    waiter = Waiter(
        channel.wait,
        channel.readers + 1,
        doorbell=None,
        arm=lambda: None,
        disarm=lambda: None,
        check_peers=cursors.check_peers,
    )
    if not waiter.until(lambda: all(words[state] != NEW for state in states), deadline_ns(_OPEN_S)):
        raise TransportTimeout(f"not all endpoints of channel {channel.name!r} opened within {_OPEN_S:g} s")
    if any(words[state] == CLOSED for state in states):
        raise TransportError(f"an endpoint of channel {channel.name!r} closed before all were open")


class _Mpi(Backend):
    """What the MPI backends share."""

    link: ClassVar[type[MpiLink | Window]]
    frames: ClassVar[type[Frames] | None] = None
    """How a message is broadcast between hosts; None if it is sent point to point."""
    writer: ClassVar[Callable[..., Writer]] = MpiWriter
    reader: ClassVar[Callable[..., Reader]] = MpiReader
    adapts: ClassVar[bool] = False
    """Whether the cursors' way of waiting adapts."""
    owns_segments: ClassVar[bool] = False
    """True if a channel started MPI in this process, until the names of its segments are removed."""
    capabilities: ClassVar[Capabilities] = Capabilities(
        deliveries=frozenset({"every_message"}),
        when_full="block",
        max_message_bytes=2**31 - 2**16,
        max_readers=MAX_READERS,
        zero_copy_read=False,
        waits=frozenset({"spin", "yield", "block"}),
        launcher="mpiexec",
        remote=True,
        persistent=False,
        detects_peer_exit=True,
    )

    @classmethod
    def probe(cls) -> None:
        try:
            import mpi4py  # noqa: F401 - the package alone starts nothing
        except ModuleNotFoundError as error:
            raise unavailable(cls.name, error, "mpi4py", _HINT) from error
        beside = str(Path(sys.executable).parent)
        if not any(shutil.which("mpiexec", path=path) for path in (beside, None)):
            raise BackendUnavailable(cls.name, "there is no mpiexec beside this Python or in PATH", _HINT)

    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        with new_directory(channel.name) as (directory, location, undo):
            if channel.host:
                return Address(self.name, channel, location)
            try:
                make_doorbells(directory, channel.readers)
                made = _make_words(_words_path(directory), _words_bytes(channel))
            except OSError as error:
                what = f"{error.filename or directory}: {error.strerror}{advice_on(error)}"
                raise TransportError(f"cannot make channel {channel.name!r}: {what}") from error
            undo.callback(_unlink_words, _words_path(directory), made)
        return Address(self.name, channel, location)

    def open_writer(self, address: Address, index: int = 0) -> Writer:
        if address.channel.host:
            return self._far(FarWriter, address)
        with ExitStack() as undo:
            words = _Words(address)
            undo.callback(words.close)
            mpi = self._start(address.channel, 0)
            cursors = WriterCursors(words.words, address, adapts=self.adapts)
            undo.callback(cursors.close)
            link = self._join(mpi, cursors)
            undo.pop_all()
            return self.writer(cursors, words.runs, link, words.close)

    def open_reader(self, address: Address, index: int) -> Reader:
        if address.channel.host:
            return self._far(FarReader, address, index)
        with ExitStack() as undo:
            words = _Words(address)
            undo.callback(words.close)
            mpi = self._start(address.channel, index + 1)
            cursors = ReaderCursors(words.words, address, index, adapts=self.adapts)
            undo.callback(cursors.close)
            link = self._join(mpi, cursors)
            undo.pop_all()
            return self.reader(cursors, words.runs, link, words.close, index)

    def _far(self, kind: Callable[..., _Far], address: Address, *index: int) -> _Far:
        """Open an endpoint of a channel between hosts."""
        channel = address.channel
        mpi = self._start(channel, index[0] + 1 if index else 0)
        endpoint = kind(address, mpi, self.frames, *index)
        self._forget_segments(mpi, channel)
        return endpoint

    def _start(self, channel: ChannelSpec, member: int) -> Any:
        """Start MPI, and check that this process is the one that the channel names."""
        if "mpi4py.MPI" not in sys.modules:
            _Mpi.owns_segments = True
            if member == 0:  # the others map theirs meanwhile
                count = len(channel.process_numbers())
                _require_shared_memory(_START_BYTES + count * _RANK_BYTES, f"as they start, {count} MPI ranks take")
        mpi: Any = start_mpi(self.name)
        ranks, rank, size = channel.process_numbers(), mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
        if max(ranks) >= size:
            raise TransportError(f"channel {channel.name!r} names rank {max(ranks)}; there are {size}, from 0")
        if member < len(ranks) and ranks[member] != rank:
            raise TransportError(f"this endpoint of channel {channel.name!r} is for rank {ranks[member]}, not {rank}")
        return mpi

    def _forget_segments(self, mpi: Any, channel: ChannelSpec) -> None:
        """Have nothing left of MPI's segments, if a process is killed, once all of the launch have started it."""
        if self.owns_segments and len(channel.process_numbers()) == mpi.COMM_WORLD.Get_size():
            _Mpi.owns_segments = False
            _unlink_segments()

    def _join(self, mpi: Any, cursors: WriterCursors | ReaderCursors) -> MpiLink | Window:
        _await_all(cursors)
        self._forget_segments(mpi, cursors.channel)
        try:
            return self.link(mpi, cursors.channel)
        except mpi.Exception as error:
            raise TransportError(f"MPI gave channel {cursors.channel.name!r} no communicator: {error}") from error

    def destroy(self, address: Address) -> None:
        if address.channel.host:
            remove_directory(address)
            return
        words = _words_path(channel_directory(address))
        remove_with_file(address, words, words.unlink)


class MpiNative(_Mpi):
    """`bcast` of a pickled message."""

    name: ClassVar[str] = "mpi"
    summary: ClassVar[str] = "MPI bcast of a pickled message"
    link, frames = PickledBcast, PickledFrames


class MpiPkl5(_Mpi):
    """`bcast` of `mpi4py.util.pkl5`."""

    name: ClassVar[str] = "mpi-pkl5"
    summary: ClassVar[str] = "MPI bcast by pickle protocol 5, large messages out of band"
    link, frames = Pickle5Bcast, Pickle5Frames


class MpiBuffer(_Mpi):
    """`Bcast` of a buffer."""

    name: ClassVar[str] = "mpi-buffer"
    summary: ClassVar[str] = "MPI Bcast of a buffer, into a preallocated one"
    link, frames = Bcast, Frames


class MpiP2p(_Mpi):
    """`Isend` and `Recv`."""

    name: ClassVar[str] = "mpi-p2p"
    summary: ClassVar[str] = "MPI Isend to each reader, Recv into a preallocated buffer"
    link = PointToPoint


class MpiRma(_Mpi):
    """A window of shared memory."""

    name: ClassVar[str] = "mpi-rma"
    summary: ClassVar[str] = "MPI window of shared memory (Win.Allocate_shared), zero-copy reads"
    link, writer, reader, adapts = Window, RmaWriter, RmaReader, True
    capabilities: ClassVar[Capabilities] = replace(
        _Mpi.capabilities,
        max_message_bytes=2**40,
        zero_copy_read=True,
        writes_in_place=True,
        holds_one_of_max=True,
        remote=False,
    )

    def create(self, channel: ChannelSpec) -> Address:
        self.require(channel)
        _require_window(channel)
        return super().create(channel)

    def _join(self, mpi: Any, cursors: WriterCursors | ReaderCursors) -> MpiLink | Window:
        _require_window(cursors.channel)
        return super()._join(mpi, cursors)


def _require_window(channel: ChannelSpec) -> None:
    _require_shared_memory(Layout(channel).total_bytes, f"the window of channel {channel.name!r} takes")
