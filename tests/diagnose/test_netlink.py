"""Replies of the kernel, built here byte by byte, and what is read from them."""

from __future__ import annotations

import os
import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcbench.diagnose.endpoints.netlink import (
    ESTABLISHED,
    LISTEN,
    SocketList,
    TcpSocket,
    UnixSocket,
    attributes,
    parse_proc_tcp,
    parse_tcp,
    parse_unix,
)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def unix_reply(inode: int, state: int, *more: bytes) -> bytes:
    return struct.pack("=BBBBIII", socket.AF_UNIX, socket.SOCK_STREAM, state, 0, inode, 7, 0) + b"".join(more)


def tcp_reply(family: int, state: int, ends: list[tuple[str, int]], inode: int, *more: bytes) -> bytes:
    ports = b"".join(port.to_bytes(2, "big") for _, port in ends)
    hosts = b"".join(socket.inet_pton(family, host).ljust(16, b"\0") for host, _ in ends)
    fixed = struct.pack("=BBBB", family, state, 0, 0) + ports + hosts + struct.pack("=III", 0, 1, 2)
    return fixed + struct.pack("=IIIII", 0, 0, 0, 1000, inode) + b"".join(more)


def tcp_info(rtt_us: int, received: int, sent: int, again: int, size_bytes: int = 240) -> bytes:
    info = bytearray(max(size_bytes, 216))
    struct.pack_into("=I", info, 68, rtt_us)
    struct.pack_into("=Q", info, 128, received)
    struct.pack_into("=II", info, 152, 3, 4)  # segments
    struct.pack_into("=QQ", info, 200, sent, again)
    return bytes(info[:size_bytes])


MEMORY = attribute(5, struct.pack("=9I", 1, 100, 2, 200, 0, 0, 0, 0, 0))
TCP_MEMORY = attribute(7, struct.pack("=9I", 1, 100, 2, 200, 0, 0, 0, 0, 0))


def test_a_path_keeps_its_zero_or_a_peer_is_lost() -> None:
    file = attribute(1, struct.pack("=II", 55, 254 << 20 | 3))
    data = b"before" + unix_reply(
        11, ESTABLISHED, attribute(0, b"/a/path\0"), file, attribute(2, struct.pack("=I", 12)), MEMORY
    )
    assert parse_unix(data, 6, len(data)) == UnixSocket(
        11, 1, ESTABLISHED, 12, "/a/path", 55, os.makedev(254, 3), False, 200, 100
    )


def test_an_abstract_name_is_cut_or_no_peer_becomes_inode_zero() -> None:
    data = unix_reply(11, LISTEN, attribute(0, b"\0name"), attribute(2, struct.pack("=I", 0)))
    assert parse_unix(data, 0, len(data)) == UnixSocket(11, 1, LISTEN, None, "@name", None, None, False, None, None)


def test_bytes_sent_again_are_counted_twice_or_ports_are_swapped() -> None:
    ends = [("10.0.0.1", 80), ("10.0.0.2", 4000)]
    data = tcp_reply(socket.AF_INET, ESTABLISHED, ends, 9, attribute(2, tcp_info(33, 500, 700, 100)), TCP_MEMORY)
    expected = TcpSocket(9, ESTABLISHED, ends[0], ends[1], 1000, 600, 500, 33, 200, 100, 7)
    assert parse_tcp(data, 0, len(data)) == expected


def test_ipv4_inside_ipv6_is_another_address_than_ipv4() -> None:
    ends = [("::ffff:10.0.0.1", 80), ("::ffff:10.0.0.2", 4000)]
    data = tcp_reply(socket.AF_INET6, ESTABLISHED, ends, 9)
    found = parse_tcp(data, 0, len(data))
    assert (found.local, found.remote) == (("10.0.0.1", 80), ("10.0.0.2", 4000))
    plain = tcp_reply(socket.AF_INET6, ESTABLISHED, [("::1", 80), ("fe80::1", 4000)], 9)
    assert parse_tcp(plain, 0, len(plain)).local == ("::1", 80)


def test_an_older_kernels_missing_counters_become_zero() -> None:
    ends = [("10.0.0.1", 80), ("10.0.0.2", 4000)]
    data = tcp_reply(socket.AF_INET, ESTABLISHED, ends, 9, attribute(2, tcp_info(0, 500, 0, 0, size_bytes=104)))
    found = parse_tcp(data, 0, len(data))
    assert (found.sent_bytes, found.received_bytes, found.rtt_us) == (None, None, None)


def test_the_counters_of_a_listening_socket_are_taken_for_bytes() -> None:
    ends = [("10.0.0.1", 80), ("0.0.0.0", 0)]
    data = tcp_reply(socket.AF_INET, LISTEN, ends, 9, attribute(2, tcp_info(5, 128, 9, 0)))
    assert parse_tcp(data, 0, len(data)).received_bytes is None


TABLES = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: {here}:0050 {there}:0FA0 01 00000000:00000000 00:00000000 00000000  1000        0 77 1 0 20 4 30 10 -1
   1: {here}:0050 {there}:0FA0 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
"""


@pytest.mark.parametrize(("one", "two"), [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "::1"), ("::ffff:10.0.0.1", "::2")])
def test_a_table_of_proc_is_read_backwards(one: str, two: str) -> None:
    def written(host: str) -> str:
        raw = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
        return "".join(f"{int.from_bytes(raw[at : at + 4], sys.byteorder):08X}" for at in range(0, len(raw), 4))

    (found,) = parse_proc_tcp(TABLES.format(here=written(one), there=written(two)))
    expected = TcpSocket(77, 1, (one.removeprefix("::ffff:"), 80), (two, 4000), 1000, None, None, None, None, None)
    assert found == expected


@given(st.binary(max_size=64))
def test_a_damaged_reply_has_no_end(data: bytes) -> None:
    assert all(len(value) <= len(data) for value in attributes(data, 0, len(data)).values())


def test_the_kernel_lists_no_socket_that_is_there() -> None:
    one, two = socket.socketpair()
    with one, two, SocketList() as sockets:
        near, far = (os.fstat(s.fileno()).st_ino for s in (one, two))
        found = sockets.unix({near})
        assert found.keys() == {near}
        assert found[near].peer == far
        assert sockets.tcp({near}) == {}
