"""The contract between transports and everything that uses them. docs/contract.md states its laws."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any, ClassVar, Literal, NoReturn, Protocol, Self

from ipcbench.errors import (
    BackendUnavailable,
    ConfigError,
    EndpointClosed,
    MessageTooLarge,
    PayloadTypeError,
    TransportError,
    TransportTimeout,
    Unsupported,
)
from ipcbench.spec import ChannelSpec, Delivery, Pattern, WaitStrategy

Launcher = Literal["spawn", "fork", "mpiexec", "inline"]
WhenFull = Literal["block", "drop", "overwrite"]
Message = bytes | bytearray | memoryview | Any
"""What `write` takes: any contiguous buffer. Its bytes are the message, whatever its items are."""

PLAIN_TYPES = frozenset({bytes, bytearray})
"""Messages of these types have one byte per item, so that `len` is their size; others go through `bytes_of`."""

_REFERENCES = frozenset("O&Pz")
_FIELD_NAME = re.compile(r":[^:]*:")


def bytes_of(message: Message) -> memoryview | bytes:
    """Return a buffer as a view of its bytes; only those of structures and complex numbers are copied.

    Raises:
        PayloadTypeError: it is no buffer, is not contiguous, or holds references to Python objects.
    """
    try:
        view = memoryview(message)
    except (TypeError, ValueError, BufferError) as error:
        raise PayloadTypeError(type(message).__name__, str(error)) from error
    if not view.c_contiguous:
        raise PayloadTypeError(type(message).__name__, "its items are not contiguous in C order; pass a copy")
    if _has_references(view):
        raise PayloadTypeError(type(message).__name__, "its items are references into this process's memory; encode it")
    if not view.nbytes:
        return b""
    try:
        return view.cast("B")
    except TypeError:  # structures and complex numbers, for which `cast` has no format
        return view.tobytes()


def joined(parts: Iterable[Message]) -> bytes:
    """Return the bytes of all parts, one behind the other.

    Raises:
        PayloadTypeError: a part is no contiguous buffer.
    """
    return b"".join([part if type(part) in PLAIN_TYPES else bytes_of(part) for part in parts])


def require_size(size_bytes: int) -> None:
    """Raise ConfigError unless `size_bytes` is a number of bytes."""
    if isinstance(size_bytes, bool) or not hasattr(size_bytes, "__index__") or size_bytes < 0:
        raise ConfigError("size_bytes", size_bytes, "a number of bytes, at least 0")


def require_some(most: int) -> None:
    """Raise ConfigError unless `most` is a number of messages."""
    if isinstance(most, bool) or not hasattr(most, "__index__") or most < 1:
        raise ConfigError("most", most, "a number of messages, at least 1")


def _has_references(view: memoryview) -> bool:
    """Return whether items hold references: to Python objects (O), or pointers of ctypes (&, P, z). The names of fields
    in a format may have any letter.
    """
    if not _REFERENCES.intersection(view.format):
        return False
    known = getattr(getattr(view.obj, "dtype", None), "hasobject", None)
    return bool(known) if known is not None else bool(_REFERENCES.intersection(_FIELD_NAME.sub("", view.format)))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, fixed by its class. The harness asks for these, never for a backend's name."""

    deliveries: frozenset[Delivery]
    """Which deliveries it offers: `every_message`, `latest_value`, or both."""
    when_full: WhenFull
    """What an `every_message` channel does when it holds `depth` unread messages."""
    max_message_bytes: int
    """Size of the largest message that a channel of this backend can carry."""
    max_readers: int
    """Largest number of readers of a channel, and of writers of a fan-in."""
    zero_copy_read: bool
    """True if `read` returns the transport's own memory; False if it returns a private copy."""
    waits: frozenset[WaitStrategy]
    """How an endpoint can wait; `auto` is always accepted and not listed."""
    launcher: Launcher
    """What starts the processes: any parent (`spawn`), the one parent that also makes their channels, since these have
    no address (`fork`), an MPI launcher (`mpiexec`), or nothing, since all endpoints are in one process (`inline`)."""
    remote: bool
    """True if the endpoints may be on different hosts."""
    persistent: bool
    """True if messages outlive the processes (until `destroy`)."""
    detects_peer_exit: bool
    """True if a blocked call raises PeerLost after its peer was killed; otherwise it ends by its time-out."""
    private: bool = True
    """False if other users of the host can read the messages, or take part."""
    writes_in_place: bool = False
    """True if `reserve` returns the transport's own memory; False if `commit` copies."""
    patterns: frozenset[Pattern] = frozenset({"broadcast"})
    """Which patterns it offers."""
    redelivers: bool = False
    """True if the messages that a dead worker of a queue had not finished are given to others."""
    holds_one_of_max: bool = False
    """True if a channel takes one message of maximum size before anybody reads: two peers may then both write, and read
    afterwards."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: sets become sorted lists."""
        return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a channel is: all that a process needs to open it. Picklable; `as_dict` is fit for msgpack and JSON."""

    backend: str
    """Registered name of the backend that made it."""
    channel: ChannelSpec
    """The channel as it was asked for; `channel.name` is the prefix of every resource of the channel."""
    location: str
    """The backend's own part: a path, a URL, a token. Empty if the channel's name suffices."""

    def __post_init__(self) -> None:
        if not isinstance(self.channel, ChannelSpec):
            raise ConfigError("address.channel", self.channel, "a ChannelSpec")
        for field in ("backend", "location"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.replace("\n", "").isprintable():
                raise ConfigError(f"address.{field}", value, "a text, as `create` returned it")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for msgpack or JSON."""
        return {"backend": self.backend, "channel": self.channel.as_dict(), "location": self.location}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make an address from what `as_dict` returned; ConfigError for anything else."""
        try:
            return cls(values["backend"], ChannelSpec.from_dict(values["channel"]), values["location"])
        except (LookupError, TypeError) as error:
            raise ConfigError("address", values, "what `Address.as_dict` returned") from error


class Decoder(Protocol):
    """The part of a codec that `Reader.read_object` uses."""

    def decode(self, view: memoryview) -> Any:
        """Return the object encoded in `view`."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How the waits of an endpoint ended: calls for which there was nothing to read, or no room, at first."""

    spun_count: int
    """While it looked again and again, without giving up its core."""
    yielded_count: int
    """While it let others run between looks."""
    slept_count: int
    """After it had gone to sleep."""

    def __add__(self, other: Waits) -> Waits:
        """Return the waits of two endpoints, or of two spans of time, together."""
        return Waits(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __sub__(self, other: Waits) -> Waits:
        """Return the waits since there were `other`."""
        return Waits(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


class Endpoint(ABC):
    """What a writer and a reader have in common: they close, and are context managers."""

    @property
    def waits(self) -> Waits | WaitStrategy | None:
        """Return how its waits have ended since it was opened; the name of the way if it has only one; None if unknown.

        Optional; the harness reads it before and after a window.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything this endpoint holds; a second call does nothing (law C11)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Writer(Endpoint):
    """The sending endpoint of a channel; there is one."""

    @abstractmethod
    def write(self, message: Message, timeout_s: float | None = None) -> None:
        """Hand one message to the channel; `message` may be reused when the call returns (law C10).

        Args:
            message: any contiguous buffer (`bytes`, `memoryview`, `array`, NumPy array …), of which all bytes are sent;
                at most `channel.max_message_bytes`, may be empty.
            timeout_s: how long to wait for room, and the first time for all readers; None waits forever.

        Raises:
            TransportTimeout: there was no room by then; nothing was sent.
            PayloadTypeError: `message` is not such a buffer.
            MessageTooLarge: the channel does not carry messages of that size; nothing was sent.
            PeerLost: a reader died (if `detects_peer_exit`).
            EndpointClosed: after `close`.
        """

    def write_parts(self, parts: Iterable[Message], timeout_s: float | None = None) -> None:
        """Hand over one message that consists of the bytes of all parts, one behind the other.

        Args:
            parts: buffers, as `write` takes them.
            timeout_s: as of `write`.

        Raises:
            as `write`.
        """
        self.write(joined(parts), timeout_s)

    def write_many(self, messages: Sequence[Message], timeout_s: float | None = None) -> int:
        """Hand over messages one after another, which costs less than as many calls of `write`; return how many.

        Args:
            messages: buffers, as `write` takes them.
            timeout_s: how long to wait for room for each.

        Raises:
            as `write`, for the first message that could not be handed over; those before it have been, and how many
            they are is returned instead if the reason is a time-out and there is at least one.
        """
        self._require_open()
        for count, message in enumerate(messages):
            try:
                self.write(message, timeout_s)
            except TransportTimeout:
                if count:
                    return count
                raise
        return len(messages)

    def reserve(self, size_bytes: int, timeout_s: float | None = None) -> memoryview:
        """Return room for a message of up to `size_bytes`, to be filled and sent by `commit`.

        If the capability `writes_in_place` says so, it is the transport's own memory, and `commit` copies nothing. What
        is in it at first is undefined. Until `commit`, readers see nothing of it (law C23). A `write` or another
        `reserve` in between may give it up (`commit` then raises TransportError), and `close` does.

        Args:
            size_bytes: at most `channel.max_message_bytes`, may be 0.
            timeout_s: as of `write`.

        Raises:
            as `write`.
        """
        require_size(size_bytes)
        self._require_open()
        if size_bytes > self._limit_bytes:
            raise MessageTooLarge(size_bytes, self._limit_bytes)
        self._reserved = memoryview(bytearray(size_bytes))
        return self._reserved

    def commit(self, size_bytes: int | None = None, timeout_s: float | None = None) -> None:
        """Send what was reserved.

        Args:
            size_bytes: how many bytes of it, from its beginning; None sends all.
            timeout_s: as of `write`; never needed if the backend `writes_in_place`.

        Raises:
            TransportError: nothing is reserved.
            ConfigError: more than was reserved.
            Others: as `write`; after a time-out it may be called again.
        """
        self._require_open()
        self.write(self._committed(size_bytes), timeout_s)
        self._give_up_reserved()

    def _require_open(self) -> None:
        """Raise EndpointClosed if the writer has an attribute `closed` that says so, as every `Owned` one has."""
        if getattr(self, "closed", False):
            raise EndpointClosed("this writer is closed")

    _limit_bytes: int = sys.maxsize
    """Size of the largest message; built-in writers set it."""
    _reserved: memoryview | None = None

    def _committed(self, size_bytes: int | None) -> memoryview:
        """Return the part of what is reserved that is to be sent."""
        reserved = self._reserved
        if reserved is None:
            self._nothing_reserved()
        if size_bytes is None:
            return reserved
        require_size(size_bytes)
        if size_bytes > len(reserved):
            self._too_much(size_bytes, reserved)
        return reserved[:size_bytes]

    def _nothing_reserved(self) -> NoReturn:
        raise TransportError("nothing is reserved: call `reserve` first, and no `write` in between")

    def _too_much(self, size_bytes: int, reserved: memoryview) -> NoReturn:
        raise ConfigError("size_bytes", size_bytes, f"0 to {len(reserved)}, as many as are reserved")

    def _give_up_reserved(self) -> None:
        """Forget what is reserved; unless the caller has views of it, writing to it is an error from now on."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            with suppress(BufferError):
                reserved.release()


class Reader(Endpoint):
    """A receiving endpoint of a channel; there are `channel.readers`, numbered from 0."""

    @abstractmethod
    def read(self, timeout_s: float | None = None) -> memoryview:
        """Return the next message as a one-dimensional view of bytes, valid until the next `read` or `close` (law C9).

        Args:
            timeout_s: how long to wait for a message; 0 only looks; None waits forever.

        Raises:
            TransportTimeout: there was no message by then; never raised earlier (law C7).
            EndOfStream: the writer has closed and everything was read (law C12).
            PeerLost: the writer died (if `detects_peer_exit`).
            EndpointClosed: after `close`.
        """

    def release(self) -> None:
        """Say that the view of the last `read` is not needed any more: it gives up its room in the channel, as the next
        `read` would. To call it again, or after `close`, does nothing (law C25).
        """

    def read_many(self, most: int, timeout_s: float | None = None) -> list[memoryview]:
        """Return the next messages: at least one, and no more than `most`, as many as cost little to return together.

        Their views are valid until the next `read`, `read_many`, `release` or `close`, and until then all of them take
        room in the channel.

        Args:
            most: at least 1.
            timeout_s: how long to wait for the first.

        Raises:
            as `read`.
        """
        require_some(most)
        return [self.read(timeout_s)]

    def fileno(self) -> int | None:
        """Return a descriptor to wait on for messages, with `select`, `poll` or an event loop; None if there is none.

        Read with `timeout_s=0` until TransportTimeout; the descriptor then becomes readable when there may be something
        to read: a message, the end of the stream, or an error. It may be readable although there is nothing. The death
        of the writer need not make it readable: whoever waits for long reads once a second.

        Raises:
            EndpointClosed: after `close`.
        """
        return None

    def read_object(self, codec: Decoder, timeout_s: float | None = None) -> Any:
        """Read the next message and decode it; with a zero-copy codec the object may share the view's memory."""
        return codec.decode(self.read(timeout_s))


class Backend(ABC):
    """A transport: makes channels, opens their endpoints, removes them. Stateless, picklable, cheap to construct."""

    name: ClassVar[str]
    """The registered name."""
    summary: ClassVar[str]
    """One line for `ipcbench list`: the mechanism, in the field's words."""
    capabilities: ClassVar[Capabilities]

    @classmethod
    @abstractmethod
    def probe(cls) -> None:
        """Check that the transport can be used here; leave no lasting resource.

        Raises:
            BackendUnavailable: with the reason and how to install what is missing.
        """

    @abstractmethod
    def create(self, channel: ChannelSpec) -> Address:
        """Make the channel's resources, all named after `channel.name`, and return where they are.

        Raises:
            Unsupported: the channel asks for something that `capabilities` does not offer (see `require`).
            TransportError: the resources could not be made (no space, the name is in use).
        """

    @abstractmethod
    def open_writer(self, address: Address, index: int = 0) -> Writer:
        """Open the writer, or writer `index` of `0 … channel.writers − 1` of a fan-in.

        Endpoints of a channel may open in any order (law C17), and opening never waits for the others, except under
        `mpiexec`, where all endpoints of the channel open together.

        Raises:
            TransportError: there is no such channel, or its writer is open already (law C15).
        """

    @abstractmethod
    def open_reader(self, address: Address, index: int) -> Reader:
        """Open reader `index` of `0 … channel.readers − 1`.

        Raises:
            TransportError: there is no such channel, or that reader is already open.
        """

    @abstractmethod
    def destroy(self, address: Address) -> None:
        """Remove everything that carries the channel's name, whatever has happened to its processes; a second call does
        nothing (law C14).
        """

    def release(self, address: Address) -> None:  # noqa: B027 # most transports keep nothing
        """Give up what this process keeps for a channel that it made, such as a reserved port, when no endpoint is
        expected to open any more. The channel itself stays as it is.
        """

    def require(self, channel: ChannelSpec) -> None:
        """Raise Unsupported unless `capabilities` offers everything that `channel` asks for."""
        can = self.capabilities
        pattern, only = channel.pattern.replace("_", "-"), ", ".join(sorted(can.patterns))
        requests = (
            (channel.delivery in can.deliveries, f"delivery {channel.delivery}"),
            (channel.pattern in can.patterns, f"pattern {pattern}, only {only}"),
            (channel.readers <= can.max_readers, f"{channel.readers} readers (at most {can.max_readers})"),
            (channel.writers <= can.max_readers, f"{channel.writers} writers (at most {can.max_readers})"),
            (
                channel.max_message_bytes <= can.max_message_bytes,
                f"messages of {channel.max_message_bytes} bytes (at most {can.max_message_bytes})",
            ),
            (channel.wait == "auto" or channel.wait in can.waits, f"wait strategy {channel.wait}"),
            (can.remote or not channel.host, "channels between hosts"),
        )
        for offered, what in requests:
            if not offered:
                raise Unsupported(f"backend {self.name!r} does not offer {what}")


def unavailable(name: str, error: ModuleNotFoundError, requirement: str, hint: str) -> BackendUnavailable:
    """Return BackendUnavailable if the package `requirement` is missing; re-raise any other import failure, which
    is a broken installation and must not look like a missing option.
    """
    if error.name is None or error.name.partition(".")[0] != requirement:
        raise error
    return BackendUnavailable(name, f"Python package {requirement!r} is not installed", hint)


CAPABILITY_FIELDS = tuple(field.name for field in fields(Capabilities))
"""Names of the capabilities, in the order in which tables show them."""
