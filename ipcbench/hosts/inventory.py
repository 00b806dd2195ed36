"""Which hosts take part, and which endpoint runs on which of them."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ipcbench.errors import ConfigError, closest, did_you_mean
from ipcbench.util.files import as_store_errors

SLURM = "slurm"
"""In place of names: the hosts of the Slurm allocation in which this process runs."""

_OPTION = "--hosts"
_ALLOWED = "names of hosts (a,b,c), the path of a hostfile or of a TOML inventory, or `slurm` within an allocation"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_@-]*[A-Za-z0-9])?")
_HOSTFILE_LINE = re.compile(r"(?P<name>[^\s:]+)(?:\s+slots\s*=\s*(?P<slots>\d+)|:(?P<count>\d+))?\s*(?:#.*)?")
_RANGES = re.compile(r"(?P<before>[^\[\],]*)(?:\[(?P<ranges>[\d,-]+)\])?(?P<after>[^\[\],]*)(?:,|$)")


@dataclass(frozen=True, slots=True)
class Host:
    """A host of an inventory."""

    name: str
    """As the remote shell and the network know it."""
    python: str = sys.executable
    """The interpreter there that has ipcbench."""
    slots: int = 1
    """How many endpoints `--place pack` puts there before it takes the next host."""
    address: str = ""
    """Where the other hosts reach its transports; by default its name."""


class _HostTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    python: str = sys.executable
    slots: int = 1
    address: str = ""


class _Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hosts: dict[str, _HostTable]


def read_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts that a user names.

    Args:
        text: names with commas between; or the path of a hostfile, a line a host (`a`, `a slots=4`, `a:4`), or of a
            TOML file with a table `[hosts.NAME]` each (`python`, `slots`, `address`); or `slurm`.

    Raises:
        ConfigError: it is none of these, or names a host twice.
        StoreError: the file cannot be read.
    """
    path = Path(text)
    if text == SLURM:
        hosts = [Host(name) for name in _slurm_names()]
    elif path.suffix == ".toml" or "/" in text or path.is_file():
        with as_store_errors(path):
            content = path.read_text()
        hosts = _of_toml(content, text) if path.suffix == ".toml" else _of_hostfile(content, text)
    else:
        hosts = [Host(name.strip()) for name in text.split(",")]
    for host in hosts:
        if not _NAME.fullmatch(host.name):
            raise ConfigError(_OPTION, host.name, _ALLOWED)
    twice = [name for name, count in Counter(host.name for host in hosts).items() if count > 1]
    if twice or not hosts:
        raise ConfigError(_OPTION, text, f"each host once, not {twice[0]} again" if twice else _ALLOWED)
    return tuple(hosts)


def _of_toml(content: str, path: str) -> list[Host]:
    try:
        read = msgspec.convert(tomllib.loads(content), _Inventory)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(_OPTION, path, f"a TOML file with a table [hosts.NAME] each ({error})") from error
    for name, table in read.hosts.items():
        if table.slots < 1:
            raise ConfigError(f"{path}: hosts.{name}.slots", table.slots, "1 or more")
    return [Host(name, table.python, table.slots, table.address) for name, table in read.hosts.items()]


def _of_hostfile(content: str, path: str) -> list[Host]:
    hosts = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _HOSTFILE_LINE.fullmatch(line.strip())
        slots = int(match["slots"] or match["count"] or 1) if match else 0
        if match is None or slots < 1:
            raise ConfigError(f"{path}: line {number}", line, "a host: `a`, `a slots=4` or `a:4`")
        hosts.append(Host(match["name"], slots=slots))
    return hosts


def _slurm_names() -> list[str]:
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    if not listed:
        raise ConfigError(_OPTION, SLURM, "this only within an allocation: SLURM_JOB_NODELIST is not set")
    return expanded(listed)


def expanded(nodes: str) -> list[str]:
    """Return the names in a Slurm list of nodes: `a[1-3,07],b` is a1, a2, a3, a07, b."""
    names: list[str] = []
    for match in _RANGES.finditer(nodes):
        if match["ranges"] is None:
            names += [match["before"]] if match["before"] else []
            continue
        for part in match["ranges"].split(","):
            low, _, high = part.partition("-")
            numbers = range(int(low), int(high or low) + 1)
            names += [f"{match['before']}{number:0{len(low)}}{match['after']}" for number in numbers]
    return names


def place(rule: str, hosts: Sequence[Host], endpoints: int) -> tuple[int, ...]:
    """Return on which host each endpoint runs, by its number in `hosts`; endpoint 0 is the writer.

    Args:
        rule: `spread`, one on each host in turn; `pack`, as many as a host has slots, then the next host; `writer=a`,
            the writer alone on host a, the others on the other hosts in turn.
        hosts: all that take part.
        endpoints: how many there are.

    Raises:
        ConfigError: there is no such rule or host, or there are too few slots.
    """
    numbers = range(len(hosts))
    if rule == "spread":
        return tuple(index % len(hosts) for index in range(endpoints))
    if rule == "pack":
        slots = [number for number in numbers for _ in range(hosts[number].slots)]
        if len(slots) < endpoints:
            raise ConfigError(
                "--place", rule, f"hosts with {endpoints} slots, a line `NAME slots=N` each in a hostfile"
            )
        return tuple(slots[:endpoints])
    key, _, name = rule.partition("=")
    names = [host.name for host in hosts]
    if key != "writer":
        raise ConfigError("--place", rule, ("spread", "pack", "writer=HOST"))
    if name not in names:
        raise ConfigError("--place", rule, f"writer= and one of {', '.join(names)}{did_you_mean(closest(name, names))}")
    writer = names.index(name)
    others = [number for number in numbers if number != writer] or [writer]
    return (writer, *(others[index % len(others)] for index in range(endpoints - 1)))
