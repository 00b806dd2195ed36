"""python -m ipcbench.hosts.simulated.station PLAN: the process that holds emulated hosts together.

It leaves the namespaces of this machine, starts the hosts, joins them and itself in a network, writes a line of JSON
when they are there, and carries their frames until its input ends. With it, all of them end: the kernel sees to that.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from ipcbench.errors import IpcbenchError
from ipcbench.hosts.simulated.links import Link, Switch, mac_of, open_tap
from ipcbench.hosts.simulated.namespaces import (
    NEW_MOUNTS,
    NEW_NET,
    cover,
    die_with_parent,
    leave_shared,
    own_mounts,
    run_ip,
    start_host,
    wait_precisely,
)

DEVICE = "eth0"
"""What a host's network device is called."""


class Plan(msgspec.Struct, frozen=True):
    """What hosts there are; the station itself is one more, after them."""

    folder: str
    """Where to write files; it is there."""
    names: list[str]
    links: list[Link]
    """How frames leave each host, and the station."""
    clock_offsets_ns: list[int]
    """What each host's monotonic clock reads more than this machine's."""
    kept: list[str]
    """Folders that hosts see although their /tmp is their own."""
    seed: int


def address_of(port: int) -> str:
    """Return the address of the host at a port."""
    return f"10.77.0.{port + 1}"


def _name_hosts(plan: Plan) -> None:
    """Let all processes of hosts and station find the hosts by their names."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{address_of(port)} {name}" for port, name in enumerate([*plan.names, "station"])]
    hosts = Path(plan.folder, "hosts")
    hosts.write_text("".join(f"{line}\n" for line in lines))
    own_mounts()
    cover(Path("/etc/hosts"), hosts)


def _in_network(pid: int, port: int, device: str) -> None:
    """Move a device into a host's network, or none if it is the station's, and start it."""
    if pid:
        run_ip("link", "set", device, "netns", str(pid))
    run_ip("link", "set", device, "name", DEVICE, "address", mac_of(port), pid=pid)
    run_ip("address", "add", f"{address_of(port)}/16", "dev", DEVICE, pid=pid)
    run_ip("link", "set", DEVICE, "up", pid=pid)


def _join_by_bridge(pids: list[int]) -> None:
    """Join hosts and station as fast as the kernel can."""
    run_ip("link", "add", "bridge0", "type", "bridge")
    run_ip("link", "set", "bridge0", "up")
    for port, pid in enumerate([*pids, 0]):
        run_ip("link", "add", f"there{port}", "type", "veth", "peer", "name", f"here{port}")
        run_ip("link", "set", f"here{port}", "master", "bridge0", "up")
        _in_network(pid, port, f"there{port}")


def _join_by_switch(pids: list[int], plan: Plan) -> Switch:
    """Join hosts and station by links that take their time."""
    whole = not any(link.loss_ratio for link in plan.links)
    taps = [open_tap(f"tap{port}", in_one_piece=whole) for port in range(len(pids) + 1)]
    for port, pid in enumerate([*pids, 0]):
        _in_network(pid, port, f"tap{port}")
    return Switch(taps, plan.links, plan.seed)


def main() -> None:
    """Start all, say so, and carry frames until standard input ends."""
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    die_with_parent()
    switch: Switch | None = None
    said: dict[str, Any]
    try:
        leave_shared(NEW_NET | NEW_MOUNTS)
        run_ip("link", "set", "lo", "up")
        _name_hosts(plan)
        kept = [Path(folder) for folder in plan.kept]
        pids = [
            start_host(name, offset_ns, kept) for name, offset_ns in zip(plan.names, plan.clock_offsets_ns, strict=True)
        ]
        slow = any(link != Link() for link in plan.links)
        if slow:
            switch = _join_by_switch(pids, plan)
        else:
            _join_by_bridge(pids)
        said = {"pids": pids}
    except (OSError, IpcbenchError) as error:
        said = {"error": str(error)}
    sys.stdout.write(f"{json.dumps(said)}\n")
    sys.stdout.flush()
    if "error" in said:
        raise SystemExit(1)
    if switch is None:
        sys.stdin.buffer.read()
        return
    wait_precisely()
    os.set_blocking(0, False)
    switch.run(until=0)


if __name__ == "__main__":
    main()
