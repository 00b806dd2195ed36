"""iceoryx2's publish/subscribe: samples in shared memory, which a publisher loans and subscribers read where they lie.

iceoryx2 waits for nobody: a full subscriber loses samples in silence (`DiscardData`; tests/conformance/test_iox2.py
shows it), or the publisher retries without a time-out. And nothing here blocks until a sample comes. So the cursors do
both, and the library is asked for a sample only where there is one.
"""

from __future__ import annotations

import os
import shutil
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from ctypes import c_char, c_uint8, c_uint64
from dataclasses import replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from ipcbench.backend import PLAIN_TYPES, Address, Capabilities, Message, bytes_of, require_size, unavailable
from ipcbench.errors import BackendUnavailable, EndOfStream, PeerLost, TransportError
from ipcbench.patterns import with_patterns
from ipcbench.spec import ChannelSpec
from ipcbench.sync import PUBLISHED, CarriedBackend, CarriedReader, CarriedWriter, CursorsEndpoint
from ipcbench.sync.carried import CarriedEndpoint
from ipcbench.sync.cursors import CLOSED
from ipcbench.sync.descriptors import require_descriptors
from ipcbench.sync.directory import channel_directory, channel_token, directory_lock, open_directory, remove_with_file
from ipcbench.sync.interrupts import whole
from ipcbench.util.files import require_space

_SEGMENTS = Path("/dev/shm")  # noqa: S108 - where iceoryx2 has its segments
_HELD_BYTES, _LEAST_HELD = 2**24, 4
"""How many bytes of messages a channel holds at most, unless fewer messages than that fit."""
_LONGEST_PLACE_BYTES = 255 - 131
"""Of folder and prefix together: iceoryx2 ends the process where a path has more than 255 with what it adds."""
_CONNECTED = 3
"""Word of a reader: 1 as soon as it keeps what the publisher has sent, though that one goes."""
_LEAVES = 4
"""Word of a reader: 1 from when the publisher may send without it; it still holds samples, so it still counts."""
_SPARE_BYTES = 2**20
"""More than iceoryx2 takes beside messages."""
_LOANED = 2
"""At most: the one that is filled, and one of a call that was interrupted."""
_ONCE: tuple[tuple[()]] = ((),)
_NOWHERE = memoryview(bytearray(8 * 8)).cast("Q")
"""Words of a closed reader: nothing arrives there."""
_length = c_uint64.from_address


def held_messages(channel: ChannelSpec) -> int:
    """Return how many messages a channel holds."""
    return min(channel.depth, max(_LEAST_HELD, _HELD_BYTES // max(1, channel.max_message_bytes)))


def _prefix(address: Address) -> str:
    """Return what the names of all files of a channel begin with. It is no other channel's, for the token."""
    return f"{address.channel.name}-{channel_token(address)}-"


def _require_memory(channel: ChannelSpec) -> None:
    """Refuse segments that do not fit: iceoryx2 reserves nothing, and the system kills who touches what is absent."""
    count = held_messages(channel) + channel.readers + _LOANED
    needed_bytes, free_bytes = _SPARE_BYTES + count * channel.max_message_bytes, shutil.disk_usage(_SEGMENTS).free
    if free_bytes < needed_bytes:
        raise TransportError(
            f"up to {count} messages of iceoryx2 take {needed_bytes / 1e6:.1f} MB of {_SEGMENTS}, and "
            f"{free_bytes / 1e6:.1f} MB are free; use smaller messages, or enlarge it (`docker run --shm-size`)"
        )


def _remove_segments(prefix: str) -> None:
    for path in _SEGMENTS.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)


def _node(address: Address) -> Any:
    """Return a node that leaves what dead ones have left: readers may still read it, and `destroy` removes it."""
    import iceoryx2 as iox

    folder = channel_directory(address)
    require_space(folder)  # iceoryx2 would only say that it makes no node
    iox.set_log_level(iox.LogLevel.Fatal)
    config = iox.config.default()
    parts = config.global_cfg
    try:
        parts.prefix = iox.FileName.new(_prefix(address))
        parts.root_path = iox.Path.new(f"{folder}/")
    except iox.SemanticStringError as error:
        raise OSError(f"iceoryx2 takes no such path as {folder}; set TMPDIR to another folder") from error
    parts.node.cleanup_dead_nodes_on_creation = parts.node.cleanup_dead_nodes_on_destruction = False
    parts.service.cleanup_dead_nodes_on_open = False
    builder = iox.NodeBuilder.new().config(config).signal_handling_mode(iox.SignalHandlingMode.Disabled)
    try:
        return builder.create(iox.ServiceType.Ipc)
    except iox.NodeCreationFailure as error:
        raise OSError(f"iceoryx2 makes no node: {error}") from error


class _Endpoint(CarriedEndpoint):
    """What both have in common. Their steps are such that a call that a handler interrupts may be made again."""

    library_folder: ClassVar[str] = "/iceoryx2/"
    descriptors: ClassVar[tuple[int, int]] = 10, 1
    _room = 0
    """The first message before which a writer looks whether it is closed, who lives, and who has room."""

    waits = CursorsEndpoint.waits

    def disconnect(self) -> None:
        self._samples.clear()
        self._end.delete()

    @abstractmethod
    def _make_end(self, iox: Any, service: Any) -> Any:
        """Return the publisher or the subscriber."""

    def connect(self) -> list[Any]:
        """Open the service, one endpoint at a time: two may block each other, and what opens while the channel is
        destroyed would leave files. Returns what a forked child must not free.
        """
        import iceoryx2 as iox

        channel = self.address.channel
        self.depth = held_messages(channel)
        self._payload = (c_char * channel.max_message_bytes).from_address
        with directory_lock(channel_directory(self.address)):
            open_directory(self.address)
            node = _node(self.address)
            builder = node.service_builder(iox.ServiceName.new("messages")).publish_subscribe(iox.Slice[c_uint8])
            builder = builder.user_header(c_uint64).max_publishers(1).max_subscribers(channel.readers)
            builder = builder.max_nodes(channel.readers + 1).enable_safe_overflow(False)
            builder = builder.subscriber_max_buffer_size(self.depth).subscriber_max_borrowed_samples(1)
            service = builder.open_or_create()
            self._end = self._make_end(iox, service)
        self._samples: list[Any] = []
        """Of the writer, the one that it fills; of a reader, the one that it shows."""
        self._words, self._fenced = self._cursors.words, self._cursors.fenced
        return [self._end, self._samples, service, node]

    def _meet(self, meet: Callable[[], object]) -> None:
        """Map what a peer that opened later has made."""
        with directory_lock(channel_directory(self.address)):
            open_directory(self.address)
            meet()

    def _is_of_library(self, error: BaseException) -> bool:
        return type(error).__module__ == "iceoryx2_ffi_python"

    def _judge(self, error: BaseException) -> NoReturn:
        if self._is_of_library(error):
            self._room = 0
            super()._judge(error)
        raise error


class Iox2Writer(_Endpoint, CarriedWriter):
    """The writer: the publisher. It fills samples where readers will read them."""

    def _make_end(self, iox: Any, service: Any) -> Any:
        self._limit_bytes, self._live_count = self.address.channel.max_message_bytes, self.address.channel.readers
        self._reached: list[int] = []
        """How many subscribers got what was sent and is not counted yet."""
        self._sleep_word, *self._more_sleep_words = self._cursors.sleep_words
        builder = service.publisher_builder().backpressure_strategy(iox.BackpressureStrategy.DiscardData)
        builder = builder.initial_max_slice_len(max(1, self._limit_bytes)).max_loaned_samples(_LOANED)
        publisher = builder.override_sample_preallocation(self.depth + _LOANED).create()
        for path in _SEGMENTS.glob(f"{_prefix(self.address)}*.data"):
            with path.open("r+b") as file:  # else a full /dev/shm would end the process while it fills a sample
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        # Without the Python code around them, which costs as much, and which a handler may interrupt.
        self._loan = getattr(publisher, "__loan_slice_uninit", publisher.loan_slice_uninit)
        self._assume_init = getattr(iox.SampleMutUninit, "__assume_init", iox.SampleMutUninit.assume_init)
        self._send_sample = iox.SampleMut.send
        return publisher

    def await_peers(self, timeout_s: float | None) -> None:
        self._meet(self._end.update_connections)

    def is_handed_over(self) -> bool:
        words = self._cursors.words
        return all(words[state - 1 + _CONNECTED] or words[state] == CLOSED for state in self._states)

    def send(self, message: bytes | bytearray | memoryview) -> None:
        """Wake who waits for the end: no sample says it."""
        self._cursors.ring_sleepers()

    def write(self, message: Message, timeout_s: float | None = None) -> None:
        if type(message) not in PLAIN_TYPES:
            message = bytes_of(message)
        self._find_room(len(message), timeout_s).raw = message
        self._send(len(message))

    def reserve(self, size_bytes: int, timeout_s: float | None = None) -> memoryview:
        require_size(size_bytes)
        self._reserved = memoryview(self._find_room(size_bytes, timeout_s)).cast("B")[:size_bytes]
        return self._reserved

    def commit(self, size_bytes: int | None = None, timeout_s: float | None = None) -> None:
        self._require_open()
        size_bytes = len(self._committed(size_bytes))
        self._give_up_reserved()
        self._send(size_bytes)

    def write_parts(self, parts: Iterable[Message], timeout_s: float | None = None) -> None:
        pieces = [part if type(part) in PLAIN_TYPES else bytes_of(part) for part in parts]
        room = self.reserve(sum(map(len, pieces)), timeout_s)
        for piece in pieces:
            room[: len(piece)] = piece
            room = room[len(piece) :]
        self.commit()

    def _find_room(self, size_bytes: int, timeout_s: float | None) -> Any:
        """Return a sample's memory, once each reader has room for it; raises what `write` does."""
        if self._reached:
            self._require_open()
            self._count_sent()
        if self._count >= self._room or size_bytes > self._limit_bytes:
            self._require_open()
            self._await_room(size_bytes, timeout_s)
            self._room = self._cursors.slowest() + self.depth
        if self._reserved is not None:
            self._give_up_reserved()
        try:
            self._samples[:] = [self._loan(size_bytes)]
        except BaseException as error:
            self._judge(error)
        return self._payload(self._samples[0].payload_ptr)

    def _send(self, size_bytes: int) -> None:
        samples = self._samples
        try:
            _length(samples[0].user_header_ptr).value = size_bytes
            # No handler runs before it is written down that the sample was sent.
            self._reached.extend(map(self._send_sample, map(self._assume_init, samples)))
        except BaseException as error:
            self._judge(error)
        self._count_sent()

    def _count_sent(self) -> None:
        """Tell the readers of what was sent: it is the last step of sending, or the first one after an interrupt."""
        if self._reached[0] < self._live_count:
            self._live = self._not_closed()  # one may have closed since the last look for room
            self._live_count = len(self._live)
            if self._reached[0] < self._live_count:
                self._room, self._failure = 0, TransportError(f"channel {self.address.channel.name!r} lost a message")
                raise self._failure
        if self._fenced:
            self._cursors.store_published(PUBLISHED, self._count + 1)
        self._count = self._words[PUBLISHED] = self._count + 1
        del self._reached[:]  # together with the line before, as there is no call in between
        if self._words[self._sleep_word] or self._more_sleep_words:
            self._cursors.ring_sleepers()

    def _not_closed(self) -> list[int]:
        words = self._words
        return [index for index in super()._not_closed() if not words[self._states[index] - 1 + _LEAVES]]

    def _close(self) -> None:
        self._room = 0
        if self._reached and self._failure is None:
            self._count_sent()
        super()._close()

    def _drop(self) -> None:
        self._room = 0
        self._give_up_reserved()
        super()._drop()


class Iox2Reader(_Endpoint, CarriedReader):
    """A reader: a subscriber. It shows a sample where it lies."""

    _is_shown = _is_connected = False

    def _make_end(self, iox: Any, service: Any) -> Any:
        return service.subscriber_builder().buffer_size(self.depth).create()

    def fileno(self) -> int:
        return self._cursors.watch()

    def release(self) -> None:
        if self._is_shown and not self.closed:
            del self._samples[:]
            self._cursors.done_with(self._count)
            self._is_shown = False

    def read(self, timeout_s: float | None = None) -> memoryview:
        if self._is_shown:
            self.release()
        if self._words[PUBLISHED] == self._count or self._failure is not None:
            self._require_open()
            self._await(timeout_s)
        if self._fenced:
            self._cursors.fence()
        view = self.receive(0.0)
        self._count += 1  # from here on, no call in which a handler might run
        self._is_shown = True
        return view

    def receive(self, timeout_s: float) -> memoryview:
        samples = self._samples
        try:
            if not self._is_connected:
                self._meet(self._end.has_samples)
                self._cursors.store_published(self._cursors.consumed_word + _CONNECTED, 1)
                self._is_connected = True
            if not samples:
                samples.extend(starmap(self._end.receive, _ONCE))  # no handler runs between the two
        except BaseException as error:
            self._judge(error)
        if samples[0] is None:
            self._failure = PeerLost(f"the writer of channel {self.address.channel.name!r} is gone with its messages")
            raise self._failure
        payload = memoryview(self._payload(samples[0].payload_ptr)).cast("B")
        return payload[: _length(samples[0].user_header_ptr).value]

    def _await(self, timeout_s: float | None) -> None:
        words, count, waiter = self._words, self._count, self._cursors.waiter
        waiter.begun_count += 1
        for _ in waiter.looks:
            if words[PUBLISHED] != count:
                return
        if not self._cursors.wait_until(lambda: words[PUBLISHED] != count, timeout_s, counted=True):
            raise EndOfStream(f"the writer of channel {self.address.channel.name!r} has closed")

    def _close(self) -> None:
        """Give its samples back before its places: the publisher has no memory for both."""
        self._cursors.store_published(self._cursors.consumed_word + _LEAVES, 1)
        self.disconnect()
        self.library = None
        super()._close()

    def _drop(self) -> None:
        super()._drop()
        self._words, self._count = _NOWHERE, 0


@with_patterns
class Iox2(CarriedBackend):
    """iceoryx2 within one host."""

    name: ClassVar[str] = "iox2"
    summary: ClassVar[str] = "iceoryx2 publish/subscribe: loaned samples in shared memory, zero-copy reads"
    capabilities: ClassVar[Capabilities] = replace(
        CarriedBackend.capabilities,
        zero_copy_read=True,
        waits=frozenset({"spin", "yield", "block"}),
        writes_in_place=True,
        holds_one_of_max=True,
    )
    writer, reader = Iox2Writer, Iox2Reader

    @classmethod
    def probe(cls) -> None:
        if sys.platform != "linux":
            raise BackendUnavailable(cls.name, "its segments are found and removed on Linux only", "run it on Linux")
        try:
            import iceoryx2  # noqa: F401 - here and not above: it starts a thread (law C18)
        except ModuleNotFoundError as error:
            raise unavailable(cls.name, error, "iceoryx2", "pip install 'ipcbench[iox2]'") from error
        except Exception as error:  # a broken installation must not hide the other backends
            text = f"iceoryx2 cannot be imported: {type(error).__name__}: {error}"
            raise BackendUnavailable(cls.name, text, "install it anew") from error

    def prepare(self, folder: Path, address: Address, undo: ExitStack) -> None:
        prefix = _prefix(address)
        if len(os.fsencode(folder)) + 1 + len(prefix) > _LONGEST_PLACE_BYTES:
            raise TransportError(f"{folder} is too long a path for iceoryx2; set TMPDIR to a shorter folder")
        _require_memory(address.channel)
        undo.callback(_remove_segments, prefix)
        require_descriptors(_Endpoint.descriptors[0])
        _node(address)
        for path in _SEGMENTS.glob(f"{prefix}*"):  # the library makes one that every user may write to
            path.chmod(0o600)

    @whole
    def destroy(self, address: Address) -> None:
        prefix = _prefix(address)
        remove_with_file(address, _SEGMENTS / prefix, partial(_remove_segments, prefix))
