"""`ipcbench doctor`: what this machine is, what to change before measuring on it, and what could not be read."""

from __future__ import annotations

import os
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ipcbench.cli.options import format_option
from ipcbench.cli.output import text_width
from ipcbench.render.document import document
from ipcbench.util.native import PURE

_BUSY_NS = 1_000_000_000
_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


@click.command("doctor")
@click.option("--leftovers", is_flag=True, help="Only list what killed runs left, and what `clean` would remove.")
@format_option("text", "json")
def command(form: str, leftovers: bool) -> None:
    """Describe this machine, and advise what to change before measuring on it, largest effect first.

    Keeps one core busy for a second, to see what else wants it. Changes nothing.
    """
    if leftovers:
        _show_leftovers(form)
        return
    from ipcbench.machine.advice import advise, unknown_facts
    from ipcbench.machine.describe import describe_versions

    facts, versions = _facts(), describe_versions()
    advice, unknown = advise(facts), unknown_facts(facts)
    if form == "json":
        fields = {
            "facts": facts,
            "versions": versions,
            "advice": [asdict(item) for item in advice],
            "unreadable": unknown,
        }
        click.echo(document("doctor", fields), nl=False)
        return
    sections = [list(_machine_lines(facts, versions))]
    if advice:
        lines = [_wrapped(f"{item.rank}. {item.title}", f"   {item.fact}", f"   do: {item.action}") for item in advice]
        sections.append(["What to change, largest effect first:", *(line for part in lines for line in part)])
    if unknown:
        sections.append(_wrapped(f"Could not be read here: {', '.join(unknown)}"))
    click.echo("\n\n".join("\n".join(section) for section in sections))


def _show_leftovers(form: str) -> None:
    from ipcbench.cli.clean import lines
    from ipcbench.processes.cleanup import survey

    resources = survey()
    if form == "json":
        entries = [{**asdict(resource), "path": str(resource.path)} for resource in resources]
        click.echo(document("leftovers", {"leftovers": entries}), nl=False)
    else:
        click.echo("\n".join(lines(resources, "`ipcbench clean` would remove")) or "nothing is left")


def _facts() -> dict[str, Any]:
    """Return the facts that advice may rest on; None where the system does not reveal one."""
    from ipcbench.harness.floor import measure_floor
    from ipcbench.machine.cgroup import read_text
    from ipcbench.machine.describe import describe_machine
    from ipcbench.trace.record.hot import IS_C

    floor = measure_floor()
    return {
        **describe_machine(),
        **_busy_second(),
        "clock_ns": floor.clock_ns,
        "clock_resolution_ns": floor.clock_resolution_ns,
        "clock_source": read_text(_CLOCK_SOURCE),
        "swap_used_bytes": _swap_used_bytes(),
        "debug_build": bool(sysconfig.get_config_var("Py_DEBUG")),
        "missing_backends": _missing_backends(),
        "tracer_in_c": IS_C,
        "ring_in_c": import_module("ipcbench.sync.native").NATIVE is not None,
    }


def _how_built(is_in_c: bool) -> str:
    if is_in_c:
        return "in C"
    return f"in Python, slower, as {PURE} says" if os.environ.get(PURE) else "in Python, slower: it was not built in C"


def _busy_second() -> dict[str, float | None]:
    """Read the clock for a second without a break: time is stolen only from a process that wants to run."""
    from ipcbench.machine.describe import ConditionsProbe
    from ipcbench.util.clock import now_ns

    probe = ConditionsProbe()
    probe.start()
    longest_ns, before = 0, now_ns()
    end = before + _BUSY_NS
    while before < end:
        now = now_ns()
        longest_ns = max(longest_ns, now - before)
        before = now
    load = probe.stop()
    cores = os.cpu_count() or 1
    return {
        "load_1min": None if "load_1min" in probe.unreadable else load.load_1min,
        "stolen_cores": None if "steal_ratio" in probe.unreadable else load.steal_ratio * cores,
        "longest_pause_ns": float(longest_ns),
    }


def _swap_used_bytes() -> int | None:
    import psutil

    try:
        return int(psutil.swap_memory().used)
    except OSError:
        return None


def _missing_backends() -> dict[str, tuple[str, str]]:
    """Return name → (reason, how to get it) of the backends that cannot run here."""
    from ipcbench.registry import names, status

    states = [status(name) for name in names()]
    return {state.name: (state.reason, state.hint) for state in states if not state.available}


def _machine_lines(facts: Mapping[str, Any], versions: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each part of the machine; unknown facts belong to the last section."""
    parts = {
        "processor": (facts["cpu_model"], facts["architecture"], "virtual" if facts["virtual"] else None),
        "cores": (
            f"{facts['usable_cores']:g} usable of {facts['logical_cores']} logical",
            _with("{} physical", facts["physical_cores"]),
            _with("quota {:g}", facts["cpu_quota_cores"]),
            _with("SMT {}", _on_off(facts["smt"])),
            _with("NUMA nodes {}", facts["numa_nodes"]),
            _with("governor {}", facts["governor"]),
            _with("turbo {}", _on_off(facts["turbo"])),
        ),
        **_memory(facts),
        "system": (facts["os"], facts["kernel"]),
        "python": (facts["python"], facts["python_compiler"], None if facts["gil"] else "free-threaded"),
        "clock": (
            f"{facts['clock_ns']:.0f} ns per reading",
            f"step {facts['clock_resolution_ns']:.0f} ns",
            facts["clock_source"],
        ),
        "now": (
            _with("load {:.2f}", facts["load_1min"]),
            _with("{:.2f} cores stolen", facts["stolen_cores"]),
            f"longest pause in a busy second {facts['longest_pause_ns'] / 1e6:.2f} ms",
        ),
        "tracer": (_how_built(facts["tracer_in_c"]),),
        "shm ring": (_how_built(facts["ring_in_c"]),),
        "versions": tuple(f"{name} {number}" for name, number in versions.items() if name != "commit"),
    }
    for name, values in parts.items():
        known = [str(value) for value in values if value is not None]
        if known:
            yield from _wrapped(f"{name:10} {', '.join(known)}", indent=11)


def _memory(facts: Mapping[str, Any]) -> dict[str, tuple[str | None, ...]]:
    return {
        "memory": (
            _with("{:.1f} GiB", _gib(facts["memory_bytes"])),
            _with("limit {:.1f} GiB", _gib(facts["memory_limit_bytes"])),
            _with("{:.1f} GiB of swap in use", _gib(facts["swap_used_bytes"])),
            _with("huge pages {}", facts["huge_pages"]),
        ),
        "shared": (
            _with("{:.2f} GiB", _gib(facts["shm_bytes"])),
            _with("{:.2f} GiB free", _gib(facts["shm_free_bytes"])),
        ),
    }


def _with(form: str, value: Any) -> str | None:
    return None if value is None else form.format(value)


def _gib(count: int | None) -> float | None:
    return None if count is None else count / 2**30


def _on_off(flag: bool | None) -> str | None:
    return None if flag is None else "on" if flag else "off"


def _wrapped(*lines: str, indent: int = 3) -> list[str]:
    wrapper = textwrap.TextWrapper(text_width(), subsequent_indent=" " * indent, break_on_hyphens=False)
    return [part for line in lines for part in wrapper.wrap(line)]
