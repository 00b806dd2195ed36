"""Which hosts take part, and which endpoint runs on which of them."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice, product
from math import prod
from pathlib import Path

import msgspec

from ipcbench.errors import ConfigError, closest, did_you_mean
from ipcbench.util.files import as_store_errors

SLURM = "slurm"
"""In place of names: the hosts of the Slurm allocation in which this process runs."""

_OPTION = "--hosts"
_ALLOWED = "names of hosts (a,b,c), the path of a hostfile or of a TOML inventory, or `slurm` within an allocation"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_@-]*[A-Za-z0-9])?")
_HOSTFILE_LINE = re.compile(r"(?P<name>[^\s:]+)(?:\s+slots\s*=\s*(?P<slots>\d{1,9})|:(?P<count>\d{1,9}))?\s*(?:#.*)?")
_SLURM_VARIABLE = "SLURM_JOB_NODELIST"
_SLURM_WORDS = re.compile(r"(?:\[[^\]]*\]?|[^,\[])+")
_SLURM_RANGE = r"\d{1,18}(?:-\d{1,18})?"
_SLURM_WORD = re.compile(rf"(?:[^\[\]]|\[{_SLURM_RANGE}(?:,{_SLURM_RANGE})*\])+")
_SLURM_BRACKETS = re.compile(r"\[([^\]]*)\]")
_LOOPBACK = "127.0.0.1"
_MOST_HOSTS, _MOST_SLOTS = 10_000, 100_000
_TOO_MANY = f"at most {_MOST_HOSTS:,} hosts"


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
        ConfigError: it is none of these, names a host twice, or has an address that only the host itself can use.
        StoreError: the file cannot be read.
    """
    path = Path(text)
    if text == SLURM:
        hosts = [Host(name) for name in _slurm_names()]
    elif path.suffix == ".toml" or "/" in text or os.path.isfile(text):  # Path.is_file raises for a text too long
        content = _content(path)
        hosts = _of_toml(content, text) if path.suffix == ".toml" else _of_hostfile(content, text)
    else:
        hosts = [Host(name.strip()) for name in text.split(",")]
    if len(hosts) > _MOST_HOSTS:
        raise ConfigError(_OPTION, text, _TOO_MANY)
    for host in hosts:
        if not _NAME.fullmatch(host.name):
            raise ConfigError(_OPTION, host.name, _ALLOWED)
    twice = [name for name, count in Counter(host.name for host in hosts).items() if count > 1]
    if twice or not hosts:
        raise ConfigError(_OPTION, text, f"each host once, not {twice[0]} again" if twice else _ALLOWED)
    for host in hosts if len(hosts) > 1 else ():
        require_reachable(host.name, host.address)
    return tuple(hosts)


def require_reachable(name: str, address: str) -> None:
    """Raise ConfigError if an address of one of several hosts means another host to each of them."""
    try:
        known = ip_address(_LOOPBACK if address.rstrip(".").lower() == "localhost" else address)
    except ValueError:  # a name, or none, which is looked up there
        return
    known = getattr(known, "ipv4_mapped", None) or known
    if known.is_loopback or known.is_unspecified:
        allowed = 'one by which the other hosts reach it, such as `address = "10.0.0.2"` in a TOML inventory'
        raise ConfigError(f"address of host {name}", address, allowed)


def _content(path: Path) -> str:
    with as_store_errors(path):
        content = path.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(_OPTION, str(path), f"a file in UTF-8, which line {line} of this one is not") from error


def _of_toml(content: str, path: str) -> list[Host]:
    try:
        read = msgspec.convert(tomllib.loads(content), _Inventory)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        is_clear = isinstance(error, tomllib.TOMLDecodeError | msgspec.ValidationError)
        why = str(error) if is_clear else "a number is too long, or tables are nested too deeply"
        raise ConfigError(_OPTION, path, f"a TOML file with a table [hosts.NAME] each ({why})") from error
    for name, table in read.hosts.items():
        if not 1 <= table.slots <= _MOST_SLOTS:
            raise ConfigError(f"{path}: hosts.{name}.slots", table.slots, f"1 to {_MOST_SLOTS:,}")
        if not table.python.strip():
            allowed = "the path of the Python there that has ipcbench; without the line, that of this host's"
            raise ConfigError(f"{path}: hosts.{name}.python", table.python, allowed)
    return [Host(name, table.python, table.slots, table.address) for name, table in read.hosts.items()]


def _of_hostfile(content: str, path: str) -> list[Host]:
    hosts = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _HOSTFILE_LINE.fullmatch(line.strip())
        slots = int(match["slots"] or match["count"] or 1) if match else 0
        if match is None or not 1 <= slots <= _MOST_SLOTS:
            allowed = f"a host with 1 to {_MOST_SLOTS:,} slots: `a`, `a slots=4` or `a:4`"
            raise ConfigError(f"{path}: line {number}", line, allowed)
        hosts.append(Host(match["name"], slots=slots))
    return hosts


def _slurm_names() -> list[str]:
    listed = os.environ.get(_SLURM_VARIABLE, "")
    if not listed:
        raise ConfigError(_OPTION, SLURM, f"this only within an allocation: {_SLURM_VARIABLE} is not set")
    return expanded(listed)


def expanded(nodes: str) -> list[str]:
    """Return the names in a Slurm list of nodes: `a[1-3,07],b` is a1, a2, a3, a07, b.

    Raises:
        ConfigError: it is none, or has too many names.
    """
    names: list[str] = []
    for word in _SLURM_WORDS.findall(nodes):
        if not _SLURM_WORD.fullmatch(word):
            raise ConfigError(_SLURM_VARIABLE, word, "a name, with ranges in brackets if need be: a[1-3,07]")
        parts = _SLURM_BRACKETS.split(word)  # texts and, between them, what is in brackets
        choices = [_numbers(part, word) if index % 2 else [part] for index, part in enumerate(parts)]
        if len(names) + prod(map(len, choices)) > _MOST_HOSTS:
            raise ConfigError(_SLURM_VARIABLE, word, _TOO_MANY)
        names += map("".join, product(*choices))
    return names


def _numbers(ranges: str, word: str) -> list[str]:
    """Return the numbers in the brackets of a word of a Slurm list, each as long as the first of its range."""
    numbers: list[str] = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        first, last = int(low), int(high or low)
        if last < first:
            raise ConfigError(_SLURM_VARIABLE, word, f"ranges from low to high, which {part} is not")
        if len(numbers) + last - first >= _MOST_HOSTS:
            raise ConfigError(_SLURM_VARIABLE, word, _TOO_MANY)
        numbers += [f"{number:0{len(low)}}" for number in range(first, last + 1)]
    return numbers


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
        slots = tuple(islice((number for number in numbers for _ in range(hosts[number].slots)), endpoints))
        if len(slots) < endpoints:
            raise ConfigError(
                "--place", rule, f"hosts with {endpoints} slots, a line `NAME slots=N` each in a hostfile"
            )
        return slots
    key, _, name = rule.partition("=")
    names = [host.name for host in hosts]
    if key != "writer":
        raise ConfigError("--place", rule, ("spread", "pack", "writer=HOST"))
    if name not in names:
        raise ConfigError("--place", rule, f"writer= and one of {', '.join(names)}{did_you_mean(closest(name, names))}")
    writer = names.index(name)
    others = [number for number in numbers if number != writer] or [writer]
    return (writer, *(others[index % len(others)] for index in range(endpoints - 1)))
