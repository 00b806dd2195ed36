"""Each piece of advice has the fact that calls for it, and no other; what is unknown gives none."""

from __future__ import annotations

from typing import Any

import pytest

from ipcbench.machine import advice
from ipcbench.machine.advice import advise, unknown_facts

FINE: dict[str, Any] = {
    "cpu_model": "Example CPU",
    "logical_cores": 16,
    "physical_cores": 16,
    "usable_cores": 16.0,
    "cpu_quota_cores": None,
    "smt": False,
    "numa_nodes": 1,
    "governor": "performance",
    "turbo": False,
    "virtual": False,
    "memory_bytes": 16 * 2**30,
    "memory_limit_bytes": None,
    "shm_bytes": 8 * 2**30,
    "shm_free_bytes": 7 * 2**30,
    "huge_pages": "madvise",
    "python": "CPython 3.11.7",
    "gil": True,
    "unreadable": [],
    "load_1min": 0.2,
    "stolen_cores": 0.0,
    "longest_pause_ns": 80_000.0,
    "clock_ns": 45.0,
    "clock_resolution_ns": 1.0,
    "clock_source": "tsc",
    "swap_used_bytes": 0,
    "debug_build": False,
    "missing_backends": {},
}

CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"cpu_quota_cores": 4.0, "usable_cores": 4.0}, "quota of 4 cores on 16", "--cpus"),
    ({"usable_cores": 2.0, "logical_cores": 2}, "2 usable", "ipcbench run small"),
    ({"usable_cores": 1.0, "logical_cores": 1}, "1 usable", "a machine with one core for each process"),
    ({"shm_bytes": 64 * 2**20, "shm_free_bytes": 64 * 2**20}, "64.0 MiB", "--shm-size"),
    ({"shm_free_bytes": 100 * 2**20}, "100 MiB of 8.00 GiB", "ipcbench clean"),
    ({"stolen_cores": 0.25}, "0.25 cores", "dedicated"),
    ({"load_1min": 9.5}, "load average 9.50 on 16 cores", "stop them"),
    ({"swap_used_bytes": 2**30}, "1.00 GiB of swap", "swapoff"),
    ({"debug_build": True}, "CPython 3.11.7", "release build"),
    ({"gil": False}, "without the GIL", "build that you will use"),
    ({"clock_ns": 900.0, "clock_source": "hpet"}, "900 ns per reading (clock source hpet)", "tsc"),
    ({"clock_resolution_ns": 1e6, "clock_source": None}, "1.00 ms (clock source unknown)", "tsc"),
    ({"virtual": True}, "flip between two levels", "more rounds"),
    ({"numa_nodes": 2}, "2 NUMA nodes", "numactl"),
    ({"governor": "powersave"}, "`powersave`", "cpupower"),
    ({"longest_pause_ns": 12e6}, "12.0 ms in a busy second", "--pin"),
    ({"smt": True, "physical_cores": 8}, "8 physical cores are 16 logical", "lscpu -e"),
    ({"turbo": True}, "turbo is on", "no_turbo"),
    ({"huge_pages": "always"}, "`always`", "madvise"),
    ({"missing_backends": {"mpi": ("no MPI", "pip install x")}}, "mpi: no MPI", "pip install x"),
]


def test_a_fine_machine_needs_no_advice() -> None:
    assert advise(FINE) == []


@pytest.mark.parametrize(("facts", "fact", "action"), CASES, ids=lambda value: str(value)[:40])
def test_one_fact_one_advice(facts: dict[str, Any], fact: str, action: str) -> None:
    (item,) = advise({**FINE, **facts})
    assert item.rank == 1
    assert fact in item.fact
    assert action in item.action
    assert item.title


def test_every_rule_has_a_case() -> None:
    titles = {advise({**FINE, **facts})[0].title for facts, _, _ in CASES}
    assert len(titles) >= len(advice._RULES)


def test_advice_is_ranked_and_what_fails_trials_comes_before_what_spreads_them() -> None:
    everything: dict[str, Any] = dict(FINE)
    for facts, _, _ in reversed(CASES):
        everything |= facts
    ranked = advise(everything)
    assert [item.rank for item in ranked] == list(range(1, len(ranked) + 1))
    actions = " ".join(item.action for item in ranked)
    order = ["--shm-size", "swapoff", "numactl", "cpupower", "no_turbo", "pip install"]
    assert [actions.index(word) for word in order] == sorted(actions.index(word) for word in order)


@pytest.mark.parametrize("facts", [{}, dict.fromkeys(FINE), {"unreadable": list(FINE)}])
def test_what_is_unknown_gives_no_advice(facts: dict[str, Any]) -> None:
    assert advise(facts) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"cpu_quota_cores": 16.0},
        {"cpu_quota_cores": 8.0, "usable_cores": 4.0},
        {"usable_cores": float(advice.PROCESSES_COUNT)},
        {"shm_bytes": advice.MIN_SHM_BYTES, "shm_free_bytes": advice.MIN_SHM_BYTES},
        {"load_1min": 16 * advice.MAX_LOAD_PER_CORE},
        {"stolen_cores": advice.MAX_STOLEN_CORES},
        {"swap_used_bytes": advice.MAX_SWAP_USED_BYTES},
        {"clock_ns": advice.MAX_CLOCK_NS, "clock_resolution_ns": advice.MAX_CLOCK_RESOLUTION_NS},
        {"longest_pause_ns": advice.MAX_PAUSE_NS},
        {"huge_pages": "never"},
    ],
    ids=str,
)
def test_at_the_threshold_nothing_is_said(facts: dict[str, Any]) -> None:
    assert advise({**FINE, **facts}) == []


def test_backends_missing_for_one_reason_are_said_once() -> None:
    missing = {"mpi": ("no MPI", "get it"), "mpi-p2p": ("no MPI", "get it"), "x": ("broken", "reinstall")}
    (item,) = advise({**FINE, "missing_backends": missing})
    assert item.fact == "mpi, mpi-p2p: no MPI; x: broken"
    assert item.action == "get it; reinstall"


def test_what_could_not_be_read_is_named_once_and_no_limit_is_not_unknown() -> None:
    facts = {**FINE, "governor": None, "turbo": None, "stolen_cores": None, "unreadable": ["governor", "turbo"]}
    assert unknown_facts(facts) == ["governor", "turbo", "stolen_cores"]
    assert unknown_facts(FINE) == []
