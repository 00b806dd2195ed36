"""What client and server say to each other, and where they meet.

In the folder of a server's name are its note (`server.json`), its lock, and its doorbell. A client makes two channels,
one in each direction, writes a note with their addresses, rings, and gets a hello. From then on each message is a head
of 16 bytes, `[kind][method][number of the call]`, and an object.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any, Final

from ipcbench.backend import Address, Reader, Writer
from ipcbench.channels.rendezvous import Rendezvous
from ipcbench.channels.sender import Sender
from ipcbench.errors import TransportError

VERSION: Final = 1
"""Of this protocol."""

CALL: Final = 1
"""Client: `[arguments, keyword arguments]`, and the context of its trace behind the head."""
RESULT: Final = 2
"""Server: what the method returned."""
ERROR: Final = 3
"""Server: `[type, text, traceback]` of what the method raised."""
HELLO: Final = 4
"""Server, first: `{"methods": names}`; a method's number is its place there."""
HEAD: Final = struct.Struct("<IIQ")
CONTEXT_BYTES: Final = 40
NO_CONTEXT: Final = bytes(CONTEXT_BYTES)

SERVER_ROLE: Final = "server"
CLIENT_PREFIX: Final = "client-"
BELL: Final = "bell"


def meeting_of(name: str) -> Rendezvous:
    """Return the folder of a server's name.

    Raises:
        ConfigError: the name is not valid.
    """
    return Rendezvous("rpc", name)


@dataclass(frozen=True, slots=True)
class Options:
    """What a server decides for its clients."""

    backend: str
    max_message_bytes: int
    depth: int
    """How many calls a client may have in flight."""
    wait: str
    pid: int
    """Of the server."""

    def note(self) -> dict[str, Any]:
        """Return the server's note."""
        return {"version": VERSION, "backend": self.backend, "max_message_bytes": self.max_message_bytes,
                "depth": self.depth, "wait": self.wait, "pid": self.pid}  # fmt: skip

    @classmethod
    def from_note(cls, meeting: Rendezvous, note: dict[str, Any]) -> Options:
        """Return the options in a server's note.

        Raises:
            TransportError: it is of another version, or damaged.
        """
        if note.get("version") != VERSION:
            raise TransportError(
                f"server {meeting.name!r} speaks version {note.get('version')!r} of the protocol, and this is "
                f"{VERSION}; install one version of ipcbench on both sides"
            )
        try:
            return cls(*(note[key] for key in ("backend", "max_message_bytes", "depth", "wait", "pid")))
        except LookupError as error:
            raise TransportError(f"the note of server {meeting.name!r} in {meeting.path} is damaged") from error


class Line:
    """The two channels between a client and the server, as one of them has them open."""

    __slots__ = ("is_closed", "reader", "sender", "writer")

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self.writer, self.reader = writer, reader
        self.sender = Sender(writer)
        self.is_closed = False

    def send(self, kind: int, number: int, obj: Any, timeout_s: float | None) -> None:
        """Send a message.

        Raises:
            as `Sender.send`.
        """
        self.sender.send(obj, HEAD.pack(kind, 0, number), timeout_s)

    def fileno(self) -> int:
        """Return the descriptor to wait on for messages."""
        descriptor = self.reader.fileno()
        assert descriptor is not None  # noqa: S101 - all transports that detect a death have one
        return descriptor

    def close(self) -> None:
        """Close both ends."""
        self.is_closed = True
        try:
            self.writer.close()
        finally:
            self.reader.close()


def head_of(message: memoryview) -> tuple[int, int, int]:
    """Return the kind of a message, the method and the number of the call.

    Raises:
        TransportError: it is too short.
    """
    if len(message) < HEAD.size:
        raise TransportError(f"a message of {len(message)} bytes is none of this protocol")
    kind, method, number = HEAD.unpack_from(message)
    return kind, method, number


def client_note(requests: Address, replies: Address) -> dict[str, Any]:
    """Return the note by which a client says where its channels are."""
    return {"version": VERSION, "pid": os.getpid(), "requests": requests.as_dict(), "replies": replies.as_dict()}


def addresses_in(note: dict[str, Any]) -> tuple[Address, Address]:
    """Return the addresses in a client's note: requests and replies.

    Raises:
        TransportError, ConfigError: it is damaged, or of another version.
    """
    if note.get("version") != VERSION:
        raise TransportError(f"a client speaks version {note.get('version')!r} of the protocol, and this is {VERSION}")
    try:
        return Address.from_dict(note["requests"]), Address.from_dict(note["replies"])
    except LookupError as error:
        raise TransportError("the note of a client is damaged") from error
