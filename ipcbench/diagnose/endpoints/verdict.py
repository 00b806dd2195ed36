"""What the links between two processes mean, in words; and whether a log's word for its transport fits them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ipcbench.diagnose.endpoints.link import MEMORY, Kind, Link, Relay, Role, processes
from ipcbench.spec import NAME_PREFIX
from ipcbench.util.units import format_bytes

State = Literal["in use", "cannot tell"]
Answer = Literal["agrees", "contradicts", "cannot tell"]

HANDSHAKE_BYTES: Final = 2**16
"""What a TCP connection beside a shared segment may have carried to be taken for its wake-up channel."""
_MUCH_MORE: Final = 10
"""How many times as much a TCP connection must have carried than a third process can have passed on."""
_WAKING: Final = {"ipcbench", "MPI"}
"""Libraries that pass data through memory, and have sockets or pipes beside it that only wake."""
_NO_COUNT = "the kernel does not count the bytes of it: only a trace proves flow"
_NAMES: dict[Kind, str] = {"unix": "unix socket"}
_TWO_WAYS = "cannot tell: {}; cannot tell which of these carries the data; trace one of the processes"

_REASONS: Final[dict[Role, str]] = {
    "shared": "{names} is held by {holders}, too: any of them may use it; let each process close what it does not use, "
    "or look again when a child that only inherited it has ended",
    "inherited": "{names} is held by both with both its ends, as a fork leaves it: either may use it, or neither",
    "unclear": "{names} is mapped by both, and both may write it; whether one reads what the other writes is not shown",
    "untouched": "{names} is mapped in both, but {why}",
    "handshake": "{names} has carried {carried}, no more than what ZeroMQ says by itself (handshake, heartbeats); look "
    "again after some calls",
    "data": "{names} has carried nothing yet, and nothing else joins them that could; look again after some calls",
    "wake-up": "only wake-up channels join them ({names}); a trace shows what carries the data",
    "watch": "two pipes join them, as multiprocessing opens them with each child to notice its end; these may carry "
    "nothing",
    "standard stream": "only standard streams join them ({names}); those are what one prints",
}
"""Why it is not known what carries the data, the first that there is."""

_WORDS: dict[str, frozenset[Kind]] = {
    **dict.fromkeys(("ipc", "unix", "uds", "unix socket", "unix domain socket", "af_unix"), frozenset({"unix"})),
    **dict.fromkeys(("tcp", "tcp/ip", "socket/tcp"), frozenset({"tcp"})),
    **dict.fromkeys(("shm", "shared memory", "sharedmemory", "mmap", "memory"), MEMORY),
    **dict.fromkeys(("pipe", "fifo", "named pipe", "stdio"), frozenset({"pipe"})),
    "inproc": frozenset(),  # between threads, so nothing that joins two processes is it
}
_LIBRARIES: Final = {
    "zmq": "ZeroMQ",
    "zeromq": "ZeroMQ",
    "lmdb": "LMDB",
    "mpi": "MPI",
    "multiprocessing": "multiprocessing",
    "ipcbench": "ipcbench",
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether a log's word for its transport is what the kernel shows."""

    answer: Answer
    """The result."""
    text: str
    """One line: `the log says IPC: agrees`."""


def judge(
    links: Sequence[Link], rivals: Sequence[str] = (), relays: Sequence[Relay] = ()
) -> tuple[State, str, tuple[Link, ...]]:
    """Return what is in use between two processes, as state and text, and the links that may carry the data.

    Args:
        links: what joins them.
        rivals: what else they have that could carry it, in words.
        relays: third processes that may pass it on.
    """
    data = _candidates(links)
    if not data:
        return _nothing(links)
    memory = [link for link in data if link.kind in MEMORY]
    others = [link for link in data if link.kind not in MEMORY]
    if memory:
        others += [link for link in links if link.role == "shared"]
    others += [link for link in links if link.role == "handshake"]  # a few messages are no more
    data = [*memory, *others]
    if between := [relay for relay in relays if _may_carry(relay, data, memory)]:
        ways = [f"{_join((*memory, *others))}{_carried(data)}", *(relay.text for relay in between)]
        legs = [leg for relay in between for leg in relay.legs]
        return "cannot tell", _TWO_WAYS.format(", and ".join(ways)), (*memory, *others, *legs)
    if memory and others:
        if all(_is_bell(link, memory) for link in others):
            more = f"{listed(others)} joins them too: a wake-up or control channel, or more"
            return "in use", f"{_in_use(memory)}; {more}", tuple(memory)
        return "cannot tell", _TWO_WAYS.format(f"{listed(memory)} and {_join(others, True)}"), (*memory, *others)
    is_plain = not memory and all(link.carried_bytes is None and link.library is None for link in data)
    if len({link.kind for link in data}) > 1 or (rivals and is_plain):
        ways = [_join(data), *(rivals if is_plain else ())]
        return "cannot tell", _TWO_WAYS.format(" and ".join(ways)), tuple(data)
    data.sort(key=lambda link: (link.role != "data", -(link.carried_bytes or 0)))
    return "in use", _in_use(data), tuple(data)


def _may_carry(relay: Relay, data: Sequence[Link], memory: Sequence[Link]) -> bool:
    """Return whether a third process may carry the data in place of these links: always, but if the bytes that the
    kernel counts are next to nothing; or if it has started both, and what joins them is memory of a library that has
    such a process beside it.
    """
    if memory:
        if relay.is_launcher and _libraries(memory) <= _WAKING:
            return False
        return relay.carried_bytes is None or relay.carried_bytes > HANDSHAKE_BYTES
    counts = [link.carried_bytes for link in data]
    direct = sum(count or 0 for count in counts) if None not in counts else 0
    return relay.carried_bytes is None or relay.carried_bytes * _MUCH_MORE > direct


def _is_bell(link: Link, memory: Sequence[Link]) -> bool:
    """Return whether a link beside memory is known to be no data path: it has carried next to nothing; or it is not
    counted, and the memory is of a library that only wakes by such links.
    """
    if link.role == "handshake":
        return True
    if link.carried_bytes is not None:
        return link.carried_bytes <= HANDSHAKE_BYTES
    libraries = _libraries(memory)
    return link.kind != "tcp" and libraries <= _WAKING and (link.library is None or link.library in libraries)


def _libraries(memory: Sequence[Link]) -> set[str | None]:
    return {"ipcbench" if f"/{NAME_PREFIX}" in each.address else each.library for each in memory}


def _carried(data: Sequence[Link]) -> str:
    """Return what the links have carried, in brackets; nothing where that is not known."""
    counts = [link.carried_bytes for link in data if link.carried_bytes is not None]
    return f" ({format_bytes(sum(counts))} in all)" if counts and len(counts) == len(data) else ""


def _candidates(links: Sequence[Link]) -> list[Link]:
    """Return the links that may carry the data; standard streams only if there is nothing else."""
    data = [link for link in links if link.role == "data"]
    if data or any(link.role in {"shared", "handshake"} for link in links):
        return [link for link in data if link.carried_bytes != 0]
    streams = [link for link in links if link.role == "standard stream"]
    return streams if any(_is_fed(link) for link in streams) else []


def _is_fed(link: Link) -> bool:
    """Return whether a standard stream carries more than what a process prints: another's input, but from no errors."""
    only_errors = "standard error" in link.address and "standard output" not in link.address
    return link.kind != "pipe" or ("standard input" in link.address and not only_errors)


def _nothing(links: Sequence[Link]) -> tuple[State, str, tuple[Link, ...]]:
    for role, reason in _REASONS.items():
        if found := [link for link in links if link.role == role]:
            holders = processes({pid for link in found for pid in link.others})
            carried = format_bytes(sum(link.carried_bytes or 0 for link in found))
            text = reason.format(names=listed(found), holders=holders, why=found[-1].evidence[-1], carried=carried)
            return "cannot tell", f"cannot tell: {text}", ()
    nothing = (
        "no socket pair, TCP connection, pipe or shared mapping joins them (UDP and message queues are not looked at)"
    )
    return "cannot tell", f"cannot tell: {nothing}", ()


def _in_use(links: Sequence[Link]) -> str:
    first = links[0]
    parts = [f"in use: {listed(links)}", f"evidence: {first.evidence[0]}"]
    if first.kind == "tcp":
        parts.append(_counted(first))
        if counts := [format_bytes(link.carried_bytes) for link in links[1:] if link.carried_bytes is not None]:
            parts.append(f"the other{'s' * (len(counts) > 1)}: {', '.join(counts)}")
    elif first.kind in MEMORY:
        parts.append("the data path: both map it")
    else:
        parts.append(_NO_COUNT)
    return "; ".join(parts)


def _counted(link: Link) -> str:
    """Return what a TCP connection has carried, as the kernel counts."""
    if link.sent_bytes is None or link.received_bytes is None:
        return "the kernel does not count its bytes"
    rtt = "" if link.rtt_us is None else f", round-trip time {link.rtt_us} µs"
    sent, received = format_bytes(link.sent_bytes), format_bytes(link.received_bytes)
    return f"process {link.first} has sent {sent} and received {received} since it was opened{rtt}"


def _name(link: Link) -> str:
    library = f" ({link.library})" if link.library else ""
    if link.address.startswith((f"{link.kind} ", f"{link.kind}://")):
        return f"{link.address}{library}"
    return f"{_NAMES.get(link.kind, link.kind)} {link.address}{library}"


def listed(links: Iterable[Link]) -> str:
    """Return the links by kind and address; equal ones are counted."""
    counts: dict[str, int] = {}
    for link in links:
        counts[_name(link)] = counts.get(_name(link), 0) + 1
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in counts.items())


def _join(links: Sequence[Link], are_more: bool = False) -> str:
    return f"{listed(links)} join{'' if are_more or len(links) > 1 else 's'} them"


def agrees_with(state: State, carriers: Sequence[Link], word: str) -> Agreement:
    """Return whether the word is what may carry the data; see `agrees`."""
    name = re.split(r"[(\[]", word, maxsplit=1)[0]  # `IPC (ipc:///tmp/x)`
    plain = " ".join(name.lower().replace("_", " ").replace("-", " ").split()).removesuffix("://")
    library, kinds = _LIBRARIES.get(plain), _WORDS.get(plain)
    head = f"the log says {word}"
    if library is None and kinds is None:
        return Agreement("cannot tell", f"{head}: cannot tell, no transport is known by that name")
    if not carriers:
        return Agreement("cannot tell", f"{head}: cannot tell, nothing is known to carry data between them")
    fits = [_fits(link, plain) for link in carriers]
    if not any(fits) and None not in fits:
        return Agreement("contradicts", f"{head}: contradicts, what joins the processes is {listed(carriers)}")
    if state == "in use" and all(fits):
        return Agreement("agrees", f"{head}: agrees")
    return Agreement("cannot tell", f"{head}: cannot tell, what joins the processes is {listed(carriers)}")


def _fits(link: Link, word: str) -> bool | None:
    """Return whether a link is what the word says; None if the word may mean it."""
    if word in _LIBRARIES:
        return True if link.library == _LIBRARIES[word] else None
    if link.kind in _WORDS[word]:
        return True
    loose = word == "ipc" and link.kind != "tcp"  # any channel between processes of one host is also called IPC
    python_pipe = word == "pipe" and link.kind == "unix"  # multiprocessing.Pipe is a pair of Unix sockets
    return None if loose or python_pipe else False
