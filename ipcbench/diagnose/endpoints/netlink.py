"""The kernel's list of sockets, read by netlink sock_diag: who is whose peer, names, byte counters, buffers.

It needs no rights, and shows the sockets of one network namespace.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

_NETLINK_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST_DUMP: Final = 0x301
_ERROR, _DONE = 2, 3
_CLONE_NEWNET: Final = 0x40000000
_ANY: Final = 0xFFFFFFFF
_REPLY_BYTES: Final = 2**18

_HEADER = struct.Struct("=IHHII")  # bytes, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # bytes, type
_UNIX_REQUEST = struct.Struct("=BBHIIIII")  # family, protocol, -, states, inode, what to show, cookie
_UNIX_SHOWN: Final = 0x01 | 0x02 | 0x04 | 0x10 | 0x20  # name, file, peer, queue, memory
_UNIX_REPLY = struct.Struct("=BBBxI8x")  # family, type, state, inode, cookie
_UNIX_NAME, _UNIX_FILE, _UNIX_PEER, _UNIX_QUEUE, _UNIX_MEMORY, _UNIX_SHUTDOWN = 0, 1, 2, 4, 5, 6
_BOTH_WAYS: Final = b"\x03"
_MINOR_BITS: Final = 20  # of a device's number inside the kernel
_INET_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, what to show, states, any address
_INET_SHOWN: Final = 1 << 1 | 1 << 6  # tcp_info, memory
_INET_REPLY = struct.Struct("=BBxx2s2s16s16s12x4xIIII")  # family, state, ports, addresses, queue, limit, user, inode
_INET_INFO, _INET_MEMORY, _INET_V6_ONLY = 2, 7, 11
_MEMORY = struct.Struct("=4xI4xI")  # of the received, its limit, of the sent, its limit
_RTT_AT, _RECEIVED_AT, _SEGMENTS_AT, _SENT_AT = 68, 128, 152, 200  # in struct tcp_info
_MAPPED: Final = bytes(10) + b"\xff\xff"

ESTABLISHED, CLOSED, LISTEN = 1, 7, 10
"""States of a socket. A datagram socket is always in `CLOSED` or `ESTABLISHED`."""


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A socket of AF_UNIX."""

    inode: int
    """Its number, the one in /proc/PID/fd."""
    type: int
    """Kind, `socket.SOCK_STREAM` and the like."""
    state: int
    """`ESTABLISHED`, `LISTEN` or `CLOSED`."""
    peer: int | None
    """Inode of the socket at the other side; None without one, or if no process holds it yet."""
    name: str | None
    """Path, or `@` and an abstract name; None if it is bound to no name."""
    file: int | None
    """Inode of the socket's file."""
    device: int | None
    """Device on which that file lies, as `os.stat` gives it for most file systems."""
    is_shut: bool
    """Whether it is shut down in both directions."""
    send_buffer_bytes: int | None
    """Limit of what waits in it, as the kernel counts; None if it does not say."""
    receive_buffer_bytes: int | None
    """As above, of what it has received."""
    queue: tuple[int, int] | None = None
    """Of one that listens: connections that nobody has accepted, and their limit; None if the kernel does not say."""


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """A TCP socket; an IPv4 address inside IPv6 is written as IPv4."""

    inode: int
    """Its number, the one in /proc/PID/fd."""
    state: int
    """`ESTABLISHED`, `LISTEN` or another of the kernel's states."""
    local: tuple[str, int]
    """Address and port."""
    remote: tuple[str, int]
    """Address and port of the other side."""
    uid: int
    """User that opened it."""
    sent_bytes: int | None
    """Payload sent for the first time; None if the kernel does not count it."""
    received_bytes: int | None
    """Payload received in order."""
    rtt_us: int | None
    """Smoothed round-trip time that the kernel has measured; None before the first."""
    send_buffer_bytes: int | None
    """Limit of what waits to be sent and acknowledged, as the kernel counts."""
    receive_buffer_bytes: int | None
    """As above, of what waits to be read."""
    segments_count: int | None = None
    """Segments with payload, sent and received; None if the kernel does not count them."""
    is_v6_only: bool = False
    """Whether a socket that listens on all of IPv6 takes no IPv4."""
    queue: tuple[int, int] | None = None
    """As for a Unix socket."""


def attributes(data: bytes, start: int, end: int) -> dict[int, bytes]:
    """Return the attributes of a reply, type → value."""
    values = {}
    while start + 4 <= end:
        size_bytes, kind = _ATTRIBUTE.unpack_from(data, start)
        if size_bytes < 4:
            break
        values[kind] = data[start + 4 : start + size_bytes]
        start += -(-size_bytes // 4) * 4
    return values


def parse_unix(data: bytes, start: int, end: int) -> UnixSocket:
    """Return the socket of one reply, whose body lies from `start` to `end`."""
    _, kind, state, inode = _UNIX_REPLY.unpack_from(data, start)
    values = attributes(data, start + _UNIX_REPLY.size, end)
    peer = _number(values.get(_UNIX_PEER), 0)
    send, receive = _buffers(values.get(_UNIX_MEMORY))
    file, device = (_number(values.get(_UNIX_FILE), at) for at in (0, 4))
    return UnixSocket(inode, kind, state, peer or None, _name(values.get(_UNIX_NAME)), file,
                      None if device is None else os.makedev(device >> _MINOR_BITS, device & (1 << _MINOR_BITS) - 1),
                      values.get(_UNIX_SHUTDOWN) == _BOTH_WAYS, send, receive,
                      _queue(state, *(_number(values.get(_UNIX_QUEUE), at) for at in (0, 4))))  # fmt: skip


def parse_tcp(data: bytes, start: int, end: int) -> TcpSocket:
    """Return the socket of one reply, whose body lies from `start` to `end`."""
    family, state, local_port, remote_port, local, remote, waiting, limit, uid, inode = _INET_REPLY.unpack_from(
        data, start
    )
    values = attributes(data, start + _INET_REPLY.size, end)
    send, receive = _buffers(values.get(_INET_MEMORY))
    info = values.get(_INET_INFO) if state != LISTEN else None
    again = _number(info, _SENT_AT + 8, "=Q")
    sent = _number(info, _SENT_AT, "=Q")
    return TcpSocket(
        inode,
        state,
        (_address(family, local), int.from_bytes(local_port, "big")),
        (_address(family, remote), int.from_bytes(remote_port, "big")),
        uid,
        sent - again if sent is not None and again is not None else None,
        _number(info, _RECEIVED_AT, "=Q"),
        _number(info, _RTT_AT) or None,
        send,
        receive,
        _sum(_number(info, _SEGMENTS_AT), _number(info, _SEGMENTS_AT + 4)),
        values.get(_INET_V6_ONLY, b"\0")[:1] == b"\1",
        _queue(state, waiting, limit),
    )


def _number(value: bytes | None, at: int, form: str = "=I") -> int | None:
    if value is None or len(value) < at + struct.calcsize(form):
        return None  # an older kernel's reply is shorter
    number: int = struct.unpack_from(form, value, at)[0]
    return number


def _queue(state: int, waiting: int | None, limit: int | None) -> tuple[int, int] | None:
    return (waiting, limit) if state == LISTEN and waiting is not None and limit is not None else None


def _sum(one: int | None, two: int | None) -> int | None:
    return None if one is None or two is None else one + two


def _buffers(value: bytes | None) -> tuple[int | None, int | None]:
    if value is None or len(value) < _MEMORY.size:
        return None, None
    receive, send = _MEMORY.unpack_from(value)
    return send, receive


def _name(value: bytes | None) -> str | None:
    if not value:
        return None
    return f"@{os.fsdecode(value[1:])}" if value[:1] == b"\0" else os.fsdecode(value.rstrip(b"\0"))


def _address(family: int, raw: bytes) -> str:
    if family == socket.AF_INET6 and not raw.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET6, raw)
    return socket.inet_ntop(socket.AF_INET, raw[12:] if family == socket.AF_INET6 else raw[:4])


def parse_proc_tcp(text: str) -> Iterator[TcpSocket]:
    """Yield the sockets of a table /proc/PID/net/tcp or tcp6: it may be read where netlink is refused, and counts no
    bytes.
    """
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[9] != "0":
            ends = (_hexadecimal(words[1]), _hexadecimal(words[2]))
            yield TcpSocket(int(words[9]), int(words[3], 16), *ends, int(words[7]), None, None, None, None, None)


def _hexadecimal(text: str) -> tuple[str, int]:
    """Return address and port of such a table: words of 4 bytes in the machine's order."""
    host, _, port = text.partition(":")
    raw = b"".join(int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8))
    return _address(socket.AF_INET6 if len(raw) == 16 else socket.AF_INET, raw), int(port, 16)


class SocketList:
    """The sockets of one network namespace; close it after use."""

    def __init__(self, network_of: int | None = None) -> None:
        """Ask for them.

        Args:
            network_of: a process in the namespace; None means the caller's own.

        Raises:
            OSError: the kernel has no netlink for this process, or lets it not into that namespace.
        """
        if network_of is None:
            self._socket = _open()
        else:
            with ThreadPoolExecutor(1) as thread:  # a thread alone enters, and ends there
                self._socket = thread.submit(_open_inside, network_of).result()

    def __enter__(self) -> SocketList:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def unix(self, inodes: Collection[int] | None = None) -> dict[int, UnixSocket]:
        """Return inode → socket, of these inodes or of all.

        Raises:
            OSError: the kernel refuses.
        """
        request = _UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, _ANY, 0, _UNIX_SHOWN, _ANY, _ANY)
        return {
            found.inode: found
            for data, start, end in self._dump(request)
            if inodes is None or _UNIX_REPLY.unpack_from(data, start)[3] in inodes
            for found in (parse_unix(data, start, end),)
        }

    def tcp(self, inodes: Collection[int] | None = None) -> dict[int, TcpSocket]:
        """Return inode → socket, of these inodes or of all; without those that no process holds any more.

        Raises:
            OSError: the kernel refuses.
        """
        sockets = {}
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _INET_REQUEST.pack(family, socket.IPPROTO_TCP, _INET_SHOWN, _ANY)
            for data, start, end in self._dump(request):
                inode = _INET_REPLY.unpack_from(data, start)[-1]
                if inode and (inodes is None or inode in inodes):
                    sockets[inode] = parse_tcp(data, start, end)
        return sockets

    def _dump(self, request: bytes) -> Iterator[tuple[bytes, int, int]]:
        """Yield each reply: the bytes it lies in, and where its body begins and ends."""
        self._socket.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _REQUEST_DUMP, 0, 0) + request)
        while True:
            data = self._socket.recv(_REPLY_BYTES)
            start = 0
            while start + _HEADER.size <= len(data):
                size_bytes, kind, *_ = _HEADER.unpack_from(data, start)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", data, start + _HEADER.size)[0]
                    raise OSError(code, os.strerror(code))
                yield data, start + _HEADER.size, start + size_bytes
                start += -(-size_bytes // 4) * 4


def _open() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    netlink.settimeout(5.0)  # the kernel answers at once; this only keeps a broken one from holding the caller
    return netlink


def _open_inside(pid: int) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return _open()
