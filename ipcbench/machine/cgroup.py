"""The cgroup of this process: CPU quota, memory limit, throttled time, kills for want of memory. Versions 1 and 2.

Every group on the way to the root can have a limit; the tightest counts. Inside a container, the path that the kernel
names may not exist under the mount, which then shows the container's own group at its root; both places are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNLIMITED_BYTES = 2**60
"""Version 1 writes "no limit" as the largest multiple of a page."""


def read_text(path: Path) -> str | None:
    """Return the stripped text of a small file of the kernel, None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def cpu_quota_cores(root: Path) -> float | None:
    """Return how many cores' worth of time the group may use, None without a limit."""
    quotas = []
    for folder in _folders(root, "cpu"):
        words = (read_text(folder / "cpu.max") or "").split()
        if not words:
            words = [read_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit_bytes(root: Path) -> int | None:
    """Return how much memory the group may use, None without a limit."""
    limits = []
    for folder in _folders(root, "memory"):
        text = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes") or ""
        if text.isdigit() and int(text) < _UNLIMITED_BYTES:
            limits.append(int(text))
    return min(limits, default=None)


def memory_kills_count(root: Path) -> int:
    """Return how many processes of the group the kernel has killed so far because it was out of memory."""
    counts = [0]
    for folder in _folders(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            count = _fields(folder / name).get("oom_kill", "")
            counts += [int(count)] if count.isdigit() else []
    return max(counts)


def throttled_s(root: Path) -> float | None:
    """Return for how long the group's quota has stopped its processes so far, None if the kernel does not report it."""
    times_s = []
    for folder in _folders(root, "cpu"):
        fields = _fields(folder / "cpu.stat")
        for key, unit_s in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):
            if fields.get(key, "").isdigit():
                times_s.append(int(fields[key]) * unit_s)
    return max(times_s, default=None)


def _fields(path: Path) -> dict[str, str]:
    """Return name → value of a file with a pair on each line; empty if it cannot be read."""
    return dict(line.split(None, 1) for line in (read_text(path) or "").splitlines() if " " in line)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that contain this process, from its own to the root, for one controller."""
    mount = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            bases = [mount]
        elif controller in controllers.split(","):
            bases = [mount / controllers, mount / controller]
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for base in bases:
            yield from (base / group for group in (inner, *inner.parents))
