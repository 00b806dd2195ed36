"""Advice on a machine: what to change before its figures can be trusted, the largest effect first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ipcbench.machine.describe import NONE_WITHOUT_LIMIT
from ipcbench.util.units import format_duration_ns, format_significant

Facts = Mapping[str, Any]
"""What `describe.describe_machine` returns, and as far as known:

load_1min; stolen_cores: cores' worth of time that the hypervisor took in a busy second; longest_pause_ns: the longest
time for which a busy-looping process was preempted in that second; clock_ns: cost of one reading of the clock;
clock_resolution_ns; clock_source; swap_used_bytes; debug_build; missing_backends: name → (reason, how to get it).
"""

PROCESSES_COUNT = 4
"""Processes of the default sweep: one writer and three readers."""
MIN_SHM_BYTES = 256 * 2**20
MIN_SHM_FREE_RATIO = 0.1
MAX_STOLEN_CORES = 0.01
MAX_LOAD_PER_CORE = 0.5
MAX_PAUSE_NS = 5e6
MAX_SWAP_USED_BYTES = 64 * 2**20
MAX_CLOCK_NS = 200.0
MAX_CLOCK_RESOLUTION_NS = 1000.0


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change."""

    rank: int
    """From 1, the largest effect first."""
    title: str
    """What is wrong."""
    fact: str
    """What was read or measured, and its effect on figures."""
    action: str
    """What to do."""


_Answer = tuple[str, str, str] | None
"""Title, fact and action; None if there is nothing to change."""
Rule = Callable[[Facts], _Answer]


def advise(facts: Facts) -> list[Advice]:
    """Return what to change, the largest effect first; empty if there is nothing to say.

    The order is that of the rules: what stops or fails a trial, what multiplies its times, what spreads them, and last
    what changes no figure.
    """
    answers = [answer for rule in _RULES if (answer := rule(facts)) is not None]
    return [Advice(rank, *answer) for rank, answer in enumerate(answers, 1)]


def unknown_facts(facts: Facts) -> list[str]:
    """Return the names of the facts that the system does not report."""
    missing = (name for name, value in facts.items() if value is None and name not in NONE_WITHOUT_LIMIT)
    return list(dict.fromkeys((*facts.get("unreadable", ()), *missing)))


def _number(facts: Facts, name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _size(count_bytes: float) -> str:
    unit, name = (2**30, "GiB") if count_bytes >= 2**30 else (2**20, "MiB")
    return f"{format_significant(count_bytes / unit)} {name}"


def _quota(facts: Facts) -> _Answer:
    quota, cores = _number(facts, "cpu_quota_cores"), _number(facts, "logical_cores")
    usable = _number(facts, "usable_cores")
    if quota is None or cores is None or quota >= cores or (usable is not None and usable < quota):
        return None
    return (
        "the cgroup CPU quota throttles processes",
        f"quota of {quota:g} cores on {cores:g}: once it is used up, all processes stop until the next period (often "
        "100 ms)",
        "raise the limit (`docker run --cpus`, `resources.limits.cpu`), or run at most as many processes as the quota "
        "has cores",
    )


def _oversubscribed(facts: Facts) -> _Answer:
    cores = _number(facts, "usable_cores")
    if cores is None or cores >= PROCESSES_COUNT:
        return None
    remedy = "`ipcbench run small` has one reader, two processes; " if cores >= 2 else ""
    return (
        f"fewer cores than the {PROCESSES_COUNT} processes of the default sweep",
        f"{cores:g} usable: processes share cores, latencies include waiting for a core, and ranks may differ "
        "with more cores",
        f"{remedy}for as many readers as you have, use a machine with one core for each process",
    )


def _shared_memory(facts: Facts) -> _Answer:
    size, free = _number(facts, "shm_bytes"), _number(facts, "shm_free_bytes")
    if size is not None and size < MIN_SHM_BYTES:
        return (
            "the shared memory folder is small",
            f"{_size(size)} in all: large messages in deep channels do not fit, and such trials fail",
            "make it larger: `docker run --shm-size=1g`, or `mount -o remount,size=1G /dev/shm`",
        )
    if size is not None and free is not None and free < MIN_SHM_FREE_RATIO * size:
        return (
            "the shared memory folder is nearly full",
            f"{_size(free)} of {_size(size)} are free: the next trial may fail",
            "`ipcbench clean` removes what killed runs left; `ls -l /dev/shm` shows the rest",
        )
    return None


def _above(name: str, limit: float, title: str, effect: Callable[[float], str], action: str) -> Rule:
    """Return the rule that a number may be at most `limit`."""

    def rule(facts: Facts) -> _Answer:
        value = _number(facts, name)
        return None if value is None or value <= limit else (title, effect(value), action)

    return rule


def _when(name: str, value: object, title: str, effect: Callable[[Facts], str], action: str) -> Rule:
    """Return the rule that a fact must not be `value`."""
    return lambda facts: (title, effect(facts), action) if facts.get(name) == value else None


def _load(facts: Facts) -> _Answer:
    load, cores = _number(facts, "load_1min"), _number(facts, "logical_cores")
    if load is None or not cores or load <= MAX_LOAD_PER_CORE * cores:
        return None
    return (
        "the machine is busy with other work",
        f"load average {load:.2f} on {cores:g} cores in the last minute: other processes compete with every trial",
        "stop them (`top` lists them), then measure",
    )


def _clock(facts: Facts) -> _Answer:
    cost, step = _number(facts, "clock_ns"), _number(facts, "clock_resolution_ns")
    source = f"clock source {facts.get('clock_source') or 'unknown'}"
    remedy = "see /sys/devices/system/clocksource/clocksource0/: use `tsc`, which is fast and precise, if available"
    if cost is not None and cost > MAX_CLOCK_NS:
        fact = f"{format_duration_ns(cost)} per reading ({source}), and each message needs a few"
        return "the clock is slow to read", fact, remedy
    if step is not None and step > MAX_CLOCK_RESOLUTION_NS:
        fact = f"its resolution is {format_duration_ns(step)} ({source}): shorter times cannot be told apart"
        return "the clock is coarse", fact, remedy
    return None


def _governor(facts: Facts) -> _Answer:
    governor = facts.get("governor")
    if governor is None or governor == "performance":
        return None
    return (
        "idle cores reduce their frequency",
        f"frequency governor `{governor}`: paced messages arrive at cores that must speed up first",
        "`sudo cpupower frequency-set -g performance`",
    )


def _missing_backends(facts: Facts) -> _Answer:
    missing: Mapping[str, tuple[str, str]] = facts.get("missing_backends") or {}
    if not missing:
        return None
    groups: dict[tuple[str, str], list[str]] = {}
    for name, (reason, hint) in missing.items():
        groups.setdefault((reason, hint), []).append(name)
    return (
        "some transports cannot be measured here",
        "; ".join(f"{', '.join(names)}: {reason}" for (reason, _), names in groups.items()),
        "; ".join(dict.fromkeys(hint for _, hint in groups)),
    )


_RULES: tuple[Rule, ...] = (
    _quota,
    _oversubscribed,
    _shared_memory,
    _above(
        "stolen_cores",
        MAX_STOLEN_CORES,
        "the hypervisor gives this machine's time to others",
        lambda cores: (
            f"{format_significant(cores, 2)} cores' worth of one busy second was stolen: such trials are marked noisy"
        ),
        "use dedicated cores, or more rounds at a quieter time",
    ),
    _load,
    _above(
        "swap_used_bytes",
        MAX_SWAP_USED_BYTES,
        "memory has been swapped out",
        lambda used: f"{_size(used)} of swap are in use: touching a page again waits for the disk",
        "free some memory, then `swapoff -a && swapon -a`",
    ),
    _when(
        "debug_build",
        True,
        "Python is a debug build",
        lambda facts: f"{facts.get('python')}: every call takes longer, in the harness and in every transport",
        "measure with a release build",
    ),
    _when(
        "gil",
        False,
        "Python is a free-threaded build",
        lambda facts: (
            f"{facts.get('python')} without the GIL: single-threaded code costs differ from those of the usual build"
        ),
        "measure with the build that you will use",
    ),
    _clock,
    _when(
        "virtual",
        True,
        "this is a virtual machine",
        lambda _: "its cores move on the host, close together or far apart, and latencies flip between two levels",
        "take more rounds, read the line `placement` above the tables, and compare only runs where it agrees",
    ),
    _above(
        "numa_nodes",
        1,
        "memory has several nodes",
        lambda nodes: f"{nodes:g} NUMA nodes: a message between two nodes takes longer than within one",
        "keep the processes on one node: `--pin` with its cores (`lscpu` lists them), or `numactl --cpunodebind=0 "
        "--membind=0 ipcbench run`",
    ),
    _governor,
    _above(
        "longest_pause_ns",
        MAX_PAUSE_NS,
        "a busy-looping process was preempted",
        lambda pause: (
            f"for {format_duration_ns(pause)} in a busy second: such pauses appear in p99 and in the largest values"
        ),
        "find out what else runs on its core; `--pin` gives each process its own core",
    ),
    _when(
        "smt",
        True,
        "two processes may share one physical core",
        lambda facts: (
            f"{facts.get('physical_cores') or 'unknown number of'} physical cores are {facts.get('logical_cores')} "
            "logical ones: which processes share one is left to chance"
        ),
        "`--pin` one logical core of each physical one (`lscpu -e` shows which belong together)",
    ),
    _when(
        "turbo",
        True,
        "the clock frequency depends on load and temperature",
        lambda _: "turbo is on: the same trial runs at different frequencies from round to round",
        "for comparisons, turn it off: write 1 to /sys/devices/system/cpu/intel_pstate/no_turbo, or 0 to cpufreq/boost",
    ),
    _when(
        "huge_pages",
        "always",
        "the kernel makes huge pages by itself",
        lambda _: "transparent huge pages are `always`: the kernel assembles them at unpredictable moments",
        "`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`",
    ),
    _missing_backends,
)
