"""The contract between transports and everything that uses them. docs/contract.md states its laws, C1 to C20."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, Self

from ipcbench.errors import BackendUnavailable, ConfigError, PayloadTypeError, Unsupported
from ipcbench.spec import ChannelSpec, Delivery, WaitStrategy

Launcher = Literal["spawn", "mpiexec", "inline"]
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
    """Largest number of readers of a channel."""
    zero_copy_read: bool
    """True if `read` returns the transport's own memory; False if it returns a private copy."""
    waits: frozenset[WaitStrategy]
    """How an endpoint can wait; `auto` is always accepted and not listed."""
    launcher: Launcher
    """What starts the processes: any parent (`spawn`), an MPI launcher (`mpiexec`), or nothing, since all endpoints are
    in one process (`inline`)."""
    remote: bool
    """True if the endpoints may be on different hosts."""
    persistent: bool
    """True if messages outlive the processes (until `destroy`)."""
    detects_peer_exit: bool
    """True if a blocked call raises PeerLost after its peer was killed; otherwise it ends by its time-out."""
    private: bool = True
    """False if other users of the host can read the messages, or take part."""

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
    def open_writer(self, address: Address) -> Writer:
        """Open the writer. Endpoints of a channel may open in any order (law C17), and opening never waits for the
        others, except under `mpiexec`, where all endpoints of the channel open together.

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

    def require(self, channel: ChannelSpec) -> None:
        """Raise Unsupported unless `capabilities` offers everything that `channel` asks for."""
        can = self.capabilities
        requests = (
            (channel.delivery in can.deliveries, f"delivery {channel.delivery}"),
            (channel.readers <= can.max_readers, f"{channel.readers} readers (at most {can.max_readers})"),
            (
                channel.max_message_bytes <= can.max_message_bytes,
                f"messages of {channel.max_message_bytes} bytes (at most {can.max_message_bytes})",
            ),
            (channel.wait == "auto" or channel.wait in can.waits, f"wait strategy {channel.wait}"),
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
