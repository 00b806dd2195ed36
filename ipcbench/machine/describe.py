"""The machine: its description, versions of packages, usable cores, and what it did during a trial.

The functions take the root of the file system, so that tests can present another machine.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from ipcbench import __version__
from ipcbench.errors import IpcbenchError
from ipcbench.machine.cgroup import cpu_quota_cores, memory_limit_bytes, read_text, throttled_s

_ROOT = Path("/")
_PACKAGES = ("numpy", "pyzmq", "lmdb", "msgpack", "mpi4py", "mpich", "openmpi", "impi-rt")
"""The last three are MPI libraries that are installed as Python packages."""
NONE_WITHOUT_LIMIT = frozenset({"cpu_quota_cores", "memory_limit_bytes"})
"""Facts that are None if there is no limit; any other fact that is None is unknown."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SYS_CPU = "sys/devices/system/cpu"


def usable_cores(root: Path = _ROOT) -> float:
    """Return how many cores this process may keep busy: the lesser of its affinity and its cgroup CPU quota."""
    quota = cpu_quota_cores(root)
    return float(_allowed_cores()) if quota is None else min(float(_allowed_cores()), quota)


def require_proc() -> None:
    """Refuse a Linux without /proc, as in a namespace whose maker has not mounted it.

    Raises:
        IpcbenchError: it has none.
    """
    if sys.platform == "linux" and not Path("/proc/self/stat").exists():
        raise IpcbenchError(
            "/proc is not mounted, and processes, their CPU time and the machine are read from it: `mount -t proc proc "
            "/proc`, or give the container a /proc"
        )


def describe_machine(root: Path = _ROOT) -> dict[str, Any]:
    """Return facts of the machine as plain values; one that the system does not report is None, its name in
    `unreadable`.
    """
    require_proc()
    import psutil

    facts: dict[str, Any] = {
        "cpu_model": _cpu_model(root),
        "architecture": platform.machine(),
        "logical_cores": os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cores": usable_cores(root),
        "cpu_quota_cores": cpu_quota_cores(root),
        "smt": _flag(read_text(root / _SYS_CPU / "smt/active")),
        "numa_nodes": _numa_nodes(root),
        "governor": read_text(root / _SYS_CPU / "cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(root),
        "virtual": _is_virtual(root),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": memory_limit_bytes(root),
        **_shared_memory(root),
        "huge_pages": _chosen(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        "kernel": f"{platform.system()} {platform.release()}",
        "os": _os_name(root),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "python_build": " ".join(platform.python_build()),
        "python_compiler": platform.python_compiler(),
        "gil": not sysconfig.get_config_var("Py_GIL_DISABLED"),
    }
    facts["unreadable"] = [name for name, value in facts.items() if value is None and name not in NONE_WITHOUT_LIMIT]
    return facts


def describe_versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, ipcbench, the packages that it uses, and `more` packages, if installed.

    Transport libraries are not imported for it: the version of libzmq is known only if pyzmq is loaded already.
    """
    versions = {"ipcbench": __version__, "python": platform.python_version()}
    for package in (*_PACKAGES, *more):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    zmq = sys.modules.get("zmq")
    if zmq is not None:
        versions["libzmq"] = str(zmq.zmq_version())
    commit = _commit(Path(__file__).resolve().parents[2])
    if commit is not None:
        versions["commit"] = commit
    return versions


class MachineLoad(NamedTuple):
    """What the machine did between two readings; 0.0 if it does not report it (see `ConditionsProbe.unreadable`)."""

    load_1min: float
    """Load average of the minute before the second reading."""
    steal_ratio: float
    """Share of all CPU time that the hypervisor gave to others."""
    throttled_s: float
    """Time for which the cgroup CPU quota stopped its processes."""
    others_cpu_ratio: float | None
    """Share of all CPU time that processes other than the given ones took; None if the machine does not report it."""


class ConditionsProbe:
    """Reads the machine's counters before and after a trial, from a few small files.

    Attributes:
        unreadable: which of `load_1min`, `steal_ratio` and `throttled_s` the system does not report.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._ticks: _Ticks | None = None
        self._own_ticks: dict[int, int] = {}
        self._throttled_s = 0.0
        self.unreadable: tuple[str, ...] = ()

    def start(self, pids: Iterable[int] = ()) -> None:
        """Take the first reading; `pids` are the processes that are not others."""
        self._ticks = _cpu_ticks(self._root)
        self._own_ticks = {pid: _process_ticks(self._root, pid) for pid in pids}
        self._throttled_s = throttled_s(self._root) or 0.0

    def stop(self) -> MachineLoad:
        """Return what happened since `start`."""
        ticks, throttled, load = _cpu_ticks(self._root), throttled_s(self._root), _load_1min(self._root)
        readings = {"load_1min": load, "steal_ratio": ticks, "throttled_s": throttled}
        self.unreadable = tuple(name for name, value in readings.items() if value is None)
        first = self._ticks or ticks or _Ticks(0, 0, 0)
        steal, busy, total = (now - then for now, then in zip(ticks or first, first, strict=True))
        # a process that has ended counts as one of the others: its time is no longer known
        own = sum(max(0, _process_ticks(self._root, pid) - then) for pid, then in self._own_ticks.items())
        return MachineLoad(
            load_1min=load or 0.0,
            steal_ratio=max(0.0, steal / total) if total > 0 else 0.0,
            throttled_s=max(0.0, (throttled or 0.0) - self._throttled_s),
            others_cpu_ratio=max(0.0, (busy - own) / total) if total > 0 else None,
        )


def _allowed_cores() -> int:
    cores = os.cpu_count() or 1
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    return cores


class _Ticks(NamedTuple):
    """Ticks of all cores since the system started."""

    stolen: int
    busy: int
    all: int


def _cpu_ticks(root: Path) -> _Ticks | None:
    words = (read_text(root / "proc/stat") or "").partition("\n")[0].split()
    # user nice system idle iowait irq softirq steal; guests' time is part of `user`
    if len(words) < 9 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:9]):
        return None
    ticks = [int(word) for word in words[1:9]]
    return _Ticks(ticks[7], sum(ticks[:3] + ticks[5:7]), sum(ticks))


def _process_words(root: Path, pid: int) -> list[str]:
    """Return what the system tells of a process, from its state on; nothing if it has ended."""
    return (read_text(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()


def _process_ticks(root: Path, pid: int) -> int:
    """Return the ticks that a process has run; 0 if it has ended."""
    return sum(int(word) for word in _process_words(root, pid)[11:13])


def last_core(pid: int, root: Path = _ROOT) -> int | None:
    """Return the core on which a process runs or ran last; None if the system does not tell."""
    words = _process_words(root, pid)
    return int(words[36]) if len(words) > 36 else None


def _load_1min(root: Path) -> float | None:
    first = (read_text(root / "proc/loadavg") or "").partition(" ")[0]
    if re.fullmatch(r"\d+\.\d+", first):
        return float(first)
    try:
        return os.getloadavg()[0] if root == _ROOT else None
    except OSError:
        return None


def _cpu_info(root: Path, key: str) -> str | None:
    match = re.search(rf"^{key}\s*:\s*(.+)$", read_text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return match[1].strip() if match else None


def _cpu_model(root: Path) -> str | None:
    return _cpu_info(root, "model name") or platform.processor() or None


def _is_virtual(root: Path) -> bool | None:
    flags = _cpu_info(root, "flags")
    return None if flags is None else "hypervisor" in flags.split()


def _flag(text: str | None) -> bool | None:
    return {"0": False, "1": True}.get(text or "")


def _turbo(root: Path) -> bool | None:
    disabled = _flag(read_text(root / _SYS_CPU / "intel_pstate/no_turbo"))
    return not disabled if disabled is not None else _flag(read_text(root / _SYS_CPU / "cpufreq/boost"))


def _numa_nodes(root: Path) -> int | None:
    return len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None


def _chosen(text: str | None) -> str | None:
    """Return the word in brackets of `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", text or "")
    return match[1] if match else None


def _os_name(root: Path) -> str | None:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', read_text(root / "etc/os-release") or "", re.MULTILINE)
    return match[1] if match else platform.platform()


def _shared_memory(root: Path) -> dict[str, int | None]:
    try:
        state = os.statvfs(root / "dev/shm")
    except OSError:
        return {"shm_bytes": None, "shm_free_bytes": None}
    return {"shm_bytes": state.f_blocks * state.f_frsize, "shm_free_bytes": state.f_bavail * state.f_frsize}


def _commit(checkout: Path) -> str | None:
    """Return the commit of a git checkout, read from its files; None if `checkout` is not the top of one."""
    git = checkout / ".git"
    pointer = re.fullmatch(r"gitdir: (.+)", (read_text(git) or "") if git.is_file() else "")
    if pointer:
        git = checkout / pointer[1]
    head = read_text(git / "HEAD") or ""
    if _COMMIT.fullmatch(head):
        return head
    name = head.removeprefix("ref: ")
    common = git / (read_text(git / "commondir") or ".")
    for folder in (git, common):
        text = read_text(folder / name) if name else None
        if text and _COMMIT.fullmatch(text):
            return text
    packed = re.search(rf"^(\w+) {re.escape(name)}$", read_text(common / "packed-refs") or "", re.MULTILINE)
    return packed[1] if packed and _COMMIT.fullmatch(packed[1]) else None
