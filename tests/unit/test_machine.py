"""The machine is read from its files: another machine is a folder, and what cannot be read is None, never a crash."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

import ipcbench
from ipcbench.machine import describe as machine
from ipcbench.machine.cgroup import cpu_quota_cores, memory_limit_bytes, throttled_s
from ipcbench.machine.describe import ConditionsProbe, describe_machine, describe_versions, usable_cores
from ipcbench.util.clock import longest_wait_ns, run_queue_wait_ns, run_queue_waits_ns

CPUINFO = "processor\t: 0\nmodel name\t: Example CPU @ 3 GHz\nflags\t\t: fpu hypervisor sse\n"
STAT = "cpu  {user} 0 100 900 0 0 0 {steal} 7 7\ncpu0 1 2 3\n"


def host(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group_v2(root: Path, path: str, files: dict[str, str]) -> Path:
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return host(root, {"proc/self/cgroup": f"0::{path}\n", **groups})


def test_this_machine_is_described_in_plain_values() -> None:
    facts = describe_machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["memory_bytes"] > 2**20
    assert facts["python"].split()[1] == sys.version.split()[0]
    assert 0 < facts["usable_cores"] <= facts["logical_cores"]
    assert "cpu_quota_cores" not in facts["unreadable"]


def test_nothing_personal_is_recorded(monkeypatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    text = json.dumps([describe_machine(), describe_versions()])
    assert "hunter2" not in text
    assert os.uname().nodename not in text or len(os.uname().nodename) < 4


def test_another_machine(tmp_path: Path) -> None:
    cpu, node = "sys/devices/system/cpu", "sys/devices/system/node"
    files = {
        "proc/cpuinfo": CPUINFO,
        f"{cpu}/smt/active": "1\n",
        f"{cpu}/cpu0/cpufreq/scaling_governor": "powersave\n",
        f"{cpu}/intel_pstate/no_turbo": "1\n",
        f"{cpu}/cpufreq/boost": "1\n",
        **{f"{node}/{name}": "0" for name in ("node0/cpulist", "node12/cpulist", "online")},
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "etc/os-release": 'NAME="X"\nPRETTY_NAME="Example OS 3"\n',
        "dev/shm/file": "",
    }
    facts = describe_machine(host(tmp_path, files))
    read = {"cpu_model": "Example CPU @ 3 GHz", "virtual": True, "smt": True, "governor": "powersave", "turbo": False}
    read |= {"numa_nodes": 2, "huge_pages": "always", "os": "Example OS 3"}
    assert {name: facts[name] for name in read} == read
    assert facts["shm_bytes"] >= facts["shm_free_bytes"] >= 0


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    facts = describe_machine(tmp_path)
    for name in ("smt", "governor", "turbo", "virtual", "numa_nodes", "huge_pages", "shm_bytes"):
        assert facts[name] is None
        assert name in facts["unreadable"]
    assert facts["usable_cores"] >= 1


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", None), ("150000 100000", 1.5), ("50000 100000", 0.5), ("garbage", None), ("5 0", None), ("", None)],
)
def test_quota_of_version_2(tmp_path: Path, text: str, cores: float | None) -> None:
    assert cpu_quota_cores(group_v2(tmp_path, "/a/b", {"a/b/cpu.max": text})) == cores


LIMITS = {"a/b/cpu.max": "400000 100000", "a/cpu.max": "120000 100000", "cpu.max": "max 100000"}
LIMITS |= {"a/b/memory.max": "max", "a/memory.max": "1073741824", "memory.max": "2147483648"}


@pytest.mark.parametrize(
    ("path", "files", "cores", "memory_bytes"),
    [
        ("/a/b", LIMITS, 1.2, 2**30),
        ("/docker/0123", {"cpu.max": "200000 100000", "memory.max": "1000000"}, 2.0, 1_000_000),
    ],
    ids=["the tightest of all groups", "inside a container the mount shows the own group at its root"],
)
def test_limits_of_groups(tmp_path: Path, path: str, files: dict[str, str], cores: float, memory_bytes: int) -> None:
    root = group_v2(tmp_path, path, files)
    assert (cpu_quota_cores(root), memory_limit_bytes(root)) == (cores, memory_bytes)


def test_quota_and_limits_of_version_1(tmp_path: Path) -> None:
    cpu, memory = "sys/fs/cgroup/cpu,cpuacct/c", "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "12:memory:/c\n4:cpu,cpuacct:/c\n1:name=systemd:/\n0::/\n",
        f"{cpu}/cpu.cfs_quota_us": "250000",
        f"{cpu}/cpu.cfs_period_us": "100000",
        f"{cpu}/cpu.stat": "nr_periods 9\nnr_throttled 2\nthrottled_time 1500000000\n",
        f"{memory}/c/memory.limit_in_bytes": "5000000",
        f"{memory}/memory.limit_in_bytes": "9223372036854771712",
    }
    root = host(tmp_path, files)
    assert (cpu_quota_cores(root), memory_limit_bytes(root), throttled_s(root)) == (2.5, 5_000_000, 1.5)
    assert cpu_quota_cores(host(root, {f"{cpu}/cpu.cfs_quota_us": "-1"})) is None, "minus one is no quota"


def test_usable_cores_are_the_lesser_of_affinity_and_quota(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(machine, "_allowed_cores", lambda: 4)
    assert usable_cores(tmp_path) == 4.0
    assert usable_cores(group_v2(tmp_path / "half", "/", {"cpu.max": "50000 100000"})) == 0.5
    assert usable_cores(group_v2(tmp_path / "many", "/", {"cpu.max": "6400000 100000"})) == 4.0


def started(*root: Path) -> ConditionsProbe:
    probe = ConditionsProbe(*root)
    probe.start()
    return probe


def test_conditions_are_differences(tmp_path: Path) -> None:
    def state(user: int, steal: int, load: str, throttled_us: int) -> dict[str, str]:
        stat = {"proc/stat": STAT.format(user=user, steal=steal), "proc/loadavg": f"{load} 0.2 0.3 1/2 3\n"}
        return {"sys/fs/cgroup/cpu.stat": f"usage_usec 5\nthrottled_usec {throttled_us}\n", **stat}

    probe = started(host(group_v2(tmp_path, "/", {}), state(1000, 50, "0.10", 1_000_000)))
    host(tmp_path, state(1090, 60, "2.50", 1_250_000))
    assert probe.stop() == pytest.approx((2.5, 10 / 100, 0.25, 90 / 100))
    assert probe.unreadable == ()


@pytest.mark.parametrize("stat", [None, "", "cpu\n", "cpu 1 2 3\n", "cpu a b c d e f g h\n", "intr 5\n"])
def test_conditions_that_cannot_be_read_are_named(tmp_path: Path, stat: str | None) -> None:
    if stat is not None:
        host(tmp_path, {"proc/stat": stat})
    probe = started(tmp_path)
    assert probe.stop() == (0.0, 0.0, 0.0, None)
    assert probe.unreadable == ("load_1min", "steal_ratio", "throttled_s")


def test_counters_that_vanish_or_run_backwards_do_no_harm(tmp_path: Path) -> None:
    host(tmp_path, {"proc/stat": STAT.format(user=1000, steal=50)})
    probe = started(tmp_path)
    host(tmp_path, {"proc/stat": STAT.format(user=500, steal=20)})
    assert probe.stop().steal_ratio == 0.0
    (tmp_path / "proc/stat").unlink()
    assert probe.stop().steal_ratio == 0.0
    assert "steal_ratio" in probe.unreadable


def test_the_run_s_own_processes_are_not_others(tmp_path: Path) -> None:
    def state(user: int, **processes: int) -> dict[str, str]:
        stats = {f"proc/{pid[1:]}/stat": f"1 (a b) c) {'0 ' * 11}{ticks} 5 0 0" for pid, ticks in processes.items()}
        return {"proc/stat": STAT.format(user=user, steal=0), **stats}

    probe = ConditionsProbe(host(tmp_path, state(1000, p1=100, p2=100, p3=100)))
    probe.start([1, 2, 4])
    host(tmp_path, state(1090, p1=130, p2=120, p3=140))
    assert probe.stop().others_cpu_ratio == pytest.approx(40 / 90)
    (tmp_path / "proc/2/stat").unlink()
    assert probe.stop().others_cpu_ratio == pytest.approx(60 / 90), "the time of an ended process is unknown"


@pytest.mark.parametrize(
    ("text", "waited"), [("5000 2500000000 7", 2_500_000_000), ("0 0 1", 0), ("", None), ("1 2", None), ("a b c", None)]
)
def test_waiting_for_a_core(tmp_path: Path, text: str, waited: int | None) -> None:
    assert run_queue_wait_ns(f"{host(tmp_path, {'schedstat': text})}") == waited
    assert run_queue_wait_ns(f"{tmp_path}/absent") is None


def test_of_several_threads_the_one_that_waited_the_most_counts() -> None:
    assert longest_wait_ns({"1": 5, "2": 9, "4": 100}, {"1": 7, "2": 10, "3": 4}) == 4  # 3 is new, 4 has ended
    assert longest_wait_ns({"1": 5}, {}) is None
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert {str(thread.native_id), str(os.getpid())} <= run_queue_waits_ns().keys()
    finally:
        done.set()
        thread.join()


def test_conditions_of_this_machine() -> None:
    load = started().stop()
    assert load.load_1min >= 0
    assert 0 <= load.steal_ratio <= 1
    assert load.throttled_s >= 0


def test_versions_are_those_installed() -> None:
    versions = describe_versions()
    assert versions["ipcbench"] == ipcbench.__version__
    assert all(isinstance(value, str) and value for value in versions.values())
    assert {"python", "numpy"} <= set(versions)


def test_libzmq_is_asked_only_if_it_is_loaded(monkeypatch) -> None:
    class Loaded:
        @staticmethod
        def zmq_version() -> str:
            return "4.3.5"

    monkeypatch.setitem(sys.modules, "zmq", Loaded)
    assert describe_versions()["libzmq"] == "4.3.5"
    monkeypatch.delitem(sys.modules, "zmq")
    assert "libzmq" not in describe_versions()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "files",
    [
        {".git/HEAD": COMMIT},
        {".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": f"{COMMIT}\n"},
        {
            ".git/HEAD": "ref: refs/heads/main\n",
            ".git/packed-refs": f"# pack\n{'f' * 40} refs/heads/main2\n{COMMIT} refs/heads/main\n",
        },
        {".git": "gitdir: other/tree\n", "other/tree/HEAD": COMMIT},
        {
            ".git": "gitdir: other/tree\n",
            "other/tree/HEAD": "ref: refs/heads/x",
            "other/tree/commondir": "..\n",
            "other/refs/heads/x": COMMIT,
        },
    ],
    ids=["detached", "branch", "packed", "worktree", "worktree-branch"],
)
def test_the_commit_of_a_checkout(tmp_path: Path, files: dict[str, str]) -> None:
    assert machine._commit(host(tmp_path, files)) == COMMIT


@pytest.mark.parametrize(
    "files", [{}, {".git/HEAD": "ref: refs/heads/new\n"}, {".git/HEAD": ""}, {".git": "gitdir: nowhere"}, {".git": "x"}]
)
def test_no_commit_is_no_error(tmp_path: Path, files: dict[str, str]) -> None:
    assert machine._commit(host(tmp_path, files)) is None
