"""Whether the buffers that were asked for took effect, as far as the kernel can show."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ipcbench.diagnose.endpoints.health import Finding
from ipcbench.diagnose.endpoints.netlink import LISTEN, SocketList, TcpSocket, UnixSocket
from ipcbench.diagnose.endpoints.process import Unreadable, read_process, require_running
from ipcbench.util.units import format_bytes

_LIMITS: Final = Path("/proc/sys/net/core")


def check_buffers(
    pid: int,
    *,
    send_bytes: int | None = None,
    receive_bytes: int | None = None,
    high_water_mark: int | None = None,
) -> tuple[Finding, ...]:
    """Return whether a process's connected sockets have the buffers that it asked for.

    Args:
        pid: the process.
        send_bytes: what it gave for SO_SNDBUF (ZMQ_SNDBUF); None means nothing.
        receive_bytes: what it gave for SO_RCVBUF (ZMQ_RCVBUF).
        high_water_mark: what it gave for ZMQ_SNDHWM or ZMQ_RCVHWM, in messages.

    Raises:
        ConfigError: there is no such process.
    """
    require_running("pid", pid)
    findings: list[Finding] = []
    if send_bytes is not None or receive_bytes is not None:
        try:
            findings += _of_sockets(pid, {"send": send_bytes, "receive": receive_bytes})
        except Unreadable as reason:
            findings.append(Finding("unknown", f"cannot tell: {reason}"))
        except OSError as error:
            findings.append(Finding("unknown", f"cannot tell: the kernel lists no sockets here ({error.strerror})"))
    if high_water_mark is not None:
        text = f"cannot tell whether a high-water mark of {high_water_mark} took effect: it is ZeroMQ's own"
        findings.append(Finding("unknown", text, "set it before bind and connect, and read it back (getsockopt)"))
    return tuple(findings)


def _of_sockets(pid: int, wanted: dict[str, int | None]) -> list[Finding]:
    process = read_process(pid)
    with SocketList() as sockets:
        unix, tcp = sockets.unix(process.inodes), sockets.tcp(process.inodes)
    every: list[UnixSocket | TcpSocket] = [*unix.values(), *tcp.values()]
    connected = [s for s in every if s.state != LISTEN and (isinstance(s, TcpSocket) or s.peer is not None)]
    if not connected:
        return [Finding("unknown", f"cannot tell: process {pid} has no connected socket that the kernel lists here")]
    return [
        _finding(f"process {pid} fd {process.sockets(s.inode)[0].fd}", way, bytes_, actual)
        for s in connected
        for way, bytes_, actual in (
            ("send", wanted["send"], s.send_buffer_bytes),
            ("receive", wanted["receive"], s.receive_buffer_bytes),
        )
        if bytes_ is not None
    ]


def _finding(where: str, way: str, wanted_bytes: int, actual_bytes: int | None) -> Finding:
    """Compare: the kernel cuts what is asked for at its limit, and then doubles it, for its own use."""
    setting = "wmem_max" if way == "send" else "rmem_max"
    if actual_bytes is None:
        return Finding("unknown", f"{where}: cannot tell, the kernel does not say how large its {way} buffer is")
    got = f"{where}: its {way} buffer has {format_bytes(actual_bytes)}, as the kernel counts (twice what was set)"
    if actual_bytes >= 2 * wanted_bytes:
        return Finding("ok", f"{got}; {format_bytes(wanted_bytes)} took effect")
    try:
        limit_bytes = int((_LIMITS / setting).read_text())
    except OSError:
        return Finding("problem", f"{got}; {format_bytes(wanted_bytes)} did not take effect, and the limit is unknown")
    if wanted_bytes > limit_bytes and actual_bytes >= 2 * limit_bytes:
        text = f"{got}; {format_bytes(wanted_bytes)} was cut by net.core.{setting}, {format_bytes(limit_bytes)}"
        return Finding("problem", text, f"sysctl -w net.core.{setting}={wanted_bytes}")
    text = f"{got}; {format_bytes(wanted_bytes)} was not set on it"
    return Finding("problem", text, "set it before bind and connect; later it changes no socket that is connected")
