"""Namespaces: how a process becomes the first one of an emulated host."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from ipcbench.errors import ConfigError

NEW_TIME, NEW_MOUNTS, NEW_NAME, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = (
    0x00000080,
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
"""The flags CLONE_NEW… of unshare(2)."""

_PRIVATE, _BIND, _RECURSIVE, _NO_SET_ID, _NO_DEVICES = 1 << 18, 1 << 12, 1 << 14, 2, 4
_SET_DEATH_SIGNAL, _SET_TIMER_SLACK = 1, 29
_LIBC = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library that returns 0.

    Raises:
        OSError: it returned something else.
    """
    if getattr(_LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def leave_shared(flags: int) -> None:
    """Leave the namespaces that this process shares with others; who is not root becomes so in a new one of users.

    Raises:
        ConfigError: the system allows neither.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        call("unshare", flags if user == 0 else flags | NEW_USER)
    except OSError as error:
        allowed = f"root, or a system that lets users make namespaces ({error})"
        raise ConfigError("emulated hosts", f"user {user}", allowed) from error
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends."""
    call("prctl", _SET_DEATH_SIGNAL, signal.SIGKILL)


def wait_precisely() -> None:
    """Let waits of this process end when they are due, and not up to 50 µs later."""
    call("prctl", _SET_TIMER_SLACK, 1)


def run_ip(*words: str, pid: int = 0) -> None:
    """Run the program `ip`, in the network of another process if its ID is given.

    Raises:
        OSError: it fails; with what it says.
    """
    enter = ["nsenter", "--target", str(pid), "--net"] if pid else []
    done = subprocess.run([*enter, "ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def own_mounts() -> None:
    """Keep what is mounted from now on from other processes."""
    call("unshare", NEW_MOUNTS)
    call("mount", None, b"/", None, _PRIVATE | _RECURSIVE, None)


def cover(path: Path, content: Path) -> None:
    """Let a file be seen in another's place."""
    call("mount", bytes(content), bytes(path), None, _BIND, None)


def empty_folder(path: Path, kept: Iterable[Path] = ()) -> None:
    """Mount an empty folder there, in which only the `kept` folders below it are still seen."""
    held = [(folder, os.open(folder, os.O_PATH | os.O_CLOEXEC)) for folder in kept if path in folder.parents]
    call("mount", b"tmpfs", bytes(path), b"tmpfs", _NO_SET_ID | _NO_DEVICES, b"mode=1777")
    for folder, descriptor in held:
        folder.mkdir(parents=True, exist_ok=True)
        call("mount", f"/proc/self/fd/{descriptor}".encode(), bytes(folder), None, _BIND | _RECURSIVE, None)
        os.close(descriptor)


def start_host(name: str, clock_offset_ns: int, kept: Iterable[Path]) -> int:
    """Start an emulated host without network; return the process ID of its first process, which lives as long as this
    one, and with which all others of the host end.

    Args:
        name: the host's.
        clock_offset_ns: what its monotonic clock reads more than this process's.
        kept: folders that it sees although they lie in its own, otherwise empty /tmp.
    """
    reading, writing = os.pipe()
    between = os.fork()
    if not between:
        _run_host(name, clock_offset_ns, kept, writing)
    os.close(writing)
    with os.fdopen(reading) as told:
        words = told.read()
    pid, _, reason = words.partition(" ")
    if reason:
        raise OSError(f"host {name}: {reason}")
    return int(pid)


def _run_host(name: str, clock_offset_ns: int, kept: Iterable[Path], told: int) -> NoReturn:
    """Be the process between: it makes the namespaces, starts the first process in them and waits for it."""
    pid = 0
    try:
        die_with_parent()
        call("unshare", NEW_NAME | NEW_IPC | NEW_PIDS | NEW_NET | NEW_TIME)
        seconds, rest_ns = divmod(clock_offset_ns, 10**9)
        Path("/proc/self/timens_offsets").write_text(f"monotonic {seconds} {rest_ns}\n")
        pid = os.fork()
        if not pid:
            _be_first(name, kept, told)
        os.write(told, f"{pid} ".encode())
    except OSError as error:
        os.write(told, f"{pid} {error}".encode())
        os._exit(1)
    os.close(told)
    os.waitpid(pid, 0)
    os._exit(0)


def _be_first(name: str, kept: Iterable[Path], told: int) -> NoReturn:
    """Be the first process of a host: make its folders, then reap what others leave."""
    try:
        die_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        socket.sethostname(name)
        own_mounts()
        call("mount", b"proc", b"/proc", b"proc", _NO_SET_ID | _NO_DEVICES, None)
        empty_folder(Path("/dev/shm"))  # noqa: S108 - the host's own
        empty_folder(Path("/tmp"), kept)  # noqa: S108
        run_ip("link", "set", "lo", "up")
    except OSError as error:
        os.write(told, str(error).encode())
        os._exit(1)
    os.closerange(0, told + 1)  # what the station says and hears, so that nobody waits for this process
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigwait({signal.SIGCHLD})
