"""What the links between two processes mean, in words; and whether a log's word for its transport fits them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ipcbench.diagnose.endpoints.link import MEMORY, Kind, Link, Relay, Role, processes
from ipcbench.util.units import format_bytes

State = Literal["in use", "cannot tell"]
Answer = Literal["agrees", "contradicts", "cannot tell"]

_MUCH_MORE: Final = 10
"""How many times as much a TCP connection must have carried than a third process can have passed on."""
_DOUBTFUL: Final[frozenset[Role]] = frozenset({"shared", "inherited", "unclear", "untouched", "handshake"})
"""What may carry the data, and is no evidence by itself that it does."""
_QUIET: Final[frozenset[Role]] = frozenset({"untouched", "handshake"})
"""What is no rival of the same kind and library."""
_NO_COUNT = "the kernel does not count the bytes of it: only a trace proves flow"
_NAMES: dict[Kind, str] = {
    "unix": "unix socket",
    "udp": "UDP",
    "file": "open file",
    "message queue": "SysV message queue",
}
_TWO_WAYS = "cannot tell: {}; cannot tell which of these carries the data; trace one of the processes"

_REASONS: Final[dict[Role, str]] = {
    "shared": "{names} is held by {holders}, too: any of them may use it; let each process close what it does not use, "
    "or look again when a child that only inherited it has ended",
    "inherited": "{names} is held by both with both its ends, as a fork leaves it: either may use it, or neither",
    "unclear": "both have {names}; whether one reads what the other writes is not shown",
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

_PARENTS: Final = "{names}: an mp.Queue that their parent ({holders}) holds, too: it may also read or write it"

_WORDS: dict[str, frozenset[Kind]] = {
    **dict.fromkeys(("ipc", "unix", "uds", "unix socket", "unix domain socket", "af_unix"), frozenset({"unix"})),
    **dict.fromkeys(("tcp", "tcp/ip", "socket/tcp"), frozenset({"tcp"})),
    **dict.fromkeys(("shm", "shared memory", "sharedmemory", "mmap", "memory"), MEMORY),
    **dict.fromkeys(("pipe", "fifo", "named pipe", "stdio"), frozenset({"pipe"})),
    **dict.fromkeys(("udp", "socket/udp"), frozenset({"udp"})),
    **dict.fromkeys(("file", "regular file"), frozenset({"file"})),
    **dict.fromkeys(("pty", "terminal"), frozenset({"terminal"})),
    **dict.fromkeys(("mq", "mqueue", "message queue"), frozenset({"message queue", "file"})),
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


def judge(links: Sequence[Link], relays: Sequence[Relay] = ()) -> tuple[State, str, tuple[Link, ...]]:
    """Return what is in use between two processes, as state and text, and the links that may carry the data.

    It is in use if it is the one thing that can carry data, of all that could.

    Args:
        links: what joins them.
        relays: third processes that may pass it on.
    """
    data = _candidates(links)
    if not data:
        return _nothing(links)
    things = {_thing(link) for link in data}
    doubtful = [
        link
        for link in _doubtful(links)
        if link not in data and (link.role not in _QUIET or _thing(link) not in things)
    ]
    between = [relay for relay in relays if _may_carry(relay, [*data, *doubtful])]
    if len(things) == 1 and not doubtful and not between:
        data.sort(key=lambda link: (link.role != "data", -(link.carried_bytes or 0)))
        return "in use", _in_use(data), tuple(data)
    data += doubtful
    ways = [f"{_join(data)}{_carried(data) if between else ''}", *(relay.text for relay in between)]
    legs = [leg for relay in between for leg in relay.legs]
    return "cannot tell", _TWO_WAYS.format(", and ".join(ways)), (*data, *legs)


def _thing(link: Link) -> tuple[str, str | None]:
    """Return what links are one and the same way, whatever their number: those of a library; else those of a kind."""
    return "" if link.library and link.kind in MEMORY else link.kind, link.library


def _may_carry(relay: Relay, data: Sequence[Link]) -> bool:
    """Return whether a third process may carry the data in place of these links: always, unless the kernel counts all
    that either has carried, and it is next to nothing beside theirs; or it is the launcher of MPI, which starts both.
    """
    if relay.is_launcher and {link.library for link in data} == {"MPI"}:
        return False
    return relay.carried_bytes is None or relay.carried_bytes * _MUCH_MORE > counted(data)


def counted(data: Sequence[Link]) -> int:
    """Return what links have carried; 0 if the kernel does not count all of it."""
    counts = [link.carried_bytes for link in data]
    return sum(count or 0 for count in counts) if None not in counts else 0


def unless_elsewhere(
    before: tuple[Sequence[Link], Sequence[Relay]], after: tuple[Sequence[Link], Sequence[Relay]]
) -> str | None:
    """Return why it cannot be told after all that counted links are in use: what has moved between two looks has passed
    a third process. None if nothing has, or the links have moved far more.
    """
    passed = sum(each.carried_bytes or 0 for each in after[1]) - sum(each.carried_bytes or 0 for each in before[1])
    direct = sum(each.carried_bytes or 0 for each in after[0]) - counted(before[0])
    if passed <= 0 or direct >= passed * _MUCH_MORE:
        return None
    ways = [f"{_join(before[0])}{_carried(before[0])}", *(relay.text for relay in after[1])]
    return _TWO_WAYS.format(f"{', and '.join(ways)}, through which data passes now")


def _carried(data: Sequence[Link]) -> str:
    """Return what the links have carried, in brackets; nothing where that is not known."""
    counts = [link.carried_bytes for link in data if link.carried_bytes is not None]
    return f" ({format_bytes(sum(counts))} in all)" if counts and len(counts) == len(data) else ""


def _candidates(links: Sequence[Link]) -> list[Link]:
    """Return the links that can carry the data; standard streams only if there is nothing else."""
    data = [link for link in links if link.role == "data"]
    if data or any(link.role in _DOUBTFUL for link in links):
        talk = any(link.role == "dialogue" for link in links)
        return [link for link in data if link.carried_bytes != 0 or talk]
    streams = [link for link in links if link.role in {"standard stream", "dialogue"}]
    return streams if any(_is_fed(link) for link in streams) else []


def _doubtful(links: Sequence[Link]) -> list[Link]:
    """Return the links that may carry the data, too: all but a library's own beside its channel."""
    return [
        link
        for link in links
        if link.role == "dialogue"
        or (link.role in _DOUBTFUL and not (link.role == "shared" and link.library == "MPI"))
        or (link.kind == "eventfd" and link.library is None)
    ]


def _is_fed(link: Link) -> bool:
    """Return whether a standard stream carries more than what a process prints: another's input, but from no errors."""
    only_errors = "standard error" in link.address and "standard output" not in link.address
    return link.kind != "pipe" or ("standard input" in link.address and not only_errors)


def _nothing(links: Sequence[Link]) -> tuple[State, str, tuple[Link, ...]]:
    reasons: list[str] = []
    for role, reason in _REASONS.items():
        if (found := [link for link in links if link.role == role]) and (role in _DOUBTFUL or not reasons):
            holders = processes({pid for link in found for pid in link.others})
            carried = format_bytes(sum(link.carried_bytes or 0 for link in found))
            why = found[-1].evidence[-1]
            is_queue = role == "shared" and {link.library for link in found} == {"multiprocessing"}
            text = _PARENTS if is_queue else reason
            reasons.append(text.format(names=listed(found), holders=holders, why=why, carried=carried))
    nothing = "no socket pair, TCP connection, pipe or shared mapping joins them"
    return "cannot tell", f"cannot tell: {'; '.join(reasons) or nothing}", ()


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
    if link.kind == "socket" or link.address.startswith((f"{link.kind} ", f"{link.kind}://")):
        return f"{link.address}{library}"
    return f"{_NAMES.get(link.kind, link.kind)} {link.address}{library}"


def listed(links: Iterable[Link]) -> str:
    """Return the links by kind and address; equal ones are counted."""
    counts: dict[str, int] = {}
    for link in links:
        counts[_name(link)] = counts.get(_name(link), 0) + 1
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in counts.items())


def _join(links: Sequence[Link]) -> str:
    return f"{listed(links)} join{'' if len(links) > 1 else 's'} them"


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
    if link.kind in {"socket", "file"}:
        return None  # it may be of any kind; a segment that is not mapped is a file
    loose = word == "ipc" and link.kind not in {"tcp", "udp"}  # any channel inside one host is also called IPC
    python_pipe = word == "pipe" and link.kind == "unix"  # multiprocessing.Pipe is a pair of Unix sockets
    return None if loose or python_pipe else False
