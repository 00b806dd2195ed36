"""The conformance suite as a function: the table of laws, and `check_backend`, which checks a backend against them."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ipcbench.backend import Backend
from ipcbench.errors import ConfigError
from ipcbench.testing.agents.pool import Pools
from ipcbench.testing.failure import Failure, LawBroken, LawSkipped
from ipcbench.testing.fixture import Fixture, Scope
from ipcbench.testing.laws import delivery, endpoints, limits, patterns, shape, system, verbs
from ipcbench.util.clock import now_ns

_SWITCH_S = 1e-4
"""How long a thread runs before it yields: short, so that agents that are threads interleave often."""

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Law:
    """One law of the contract and how it is checked."""

    number: str
    title: str
    check: Callable[[Fixture], None]
    """Raises LawBroken, or LawSkipped if the capabilities say that the law does not apply; else the law is kept."""


LAWS: dict[str, Law] = {
    law.number: law
    for law in (
        Law("C1", "bytes read equal bytes written", delivery.bytes_arrive_unchanged),
        Law("C2", "each reader gets messages in order", delivery.order_is_kept),
        Law("C3", "each message arrives once; latest values only get newer", delivery.each_comes_once),
        Law("C4", "what one reader gets, every reader gets", delivery.every_reader_gets_it),
        Law("C5", "nothing is missed once all endpoints are open", delivery.nothing_is_missed_at_the_start),
        Law("C6", "a value is never torn", delivery.values_are_never_torn),
        Law("C7", "`read` waits out its time-out, then raises", limits.reading_waits),
        Law("C8", "a full channel does exactly what `when_full` says", limits.full_channel),
        Law("C9", "a view stays unchanged until the next `read`", endpoints.views_stay),
        Law("C10", "the caller's buffer is free when `write` returns", endpoints.buffers_are_free),
        Law("C11", "`close` is final and may be repeated", endpoints.closing_is_final),
        Law("C12", "readers drain a closed stream, then reach its end", endpoints.streams_end),
        Law("C13", "a killed peer is an error or a time-out", system.killed_peers),
        Law("C14", "`destroy` leaves nothing behind", system.nothing_remains),
        Law("C15", "channels do not affect each other; an endpoint opens once", system.channels_do_not_meet),
        Law("C16", "a message that is too large is refused whole", limits.too_large_is_refused),
        Law("C17", "endpoints open in any order", endpoints.any_order_opens),
        Law("C18", "importing touches nothing; backends and addresses can be pickled", shape.importing_is_pure),
        Law("C19", "every error is an `IpcbenchError`, with its cause", shape.errors_are_ours),
        Law("C20", "the place of an endpoint that closed or died stays empty", system.places_are_not_taken_again),
        Law("C21", "a stalled worker of a queue holds at most `depth` messages", patterns.stalled_workers_hold_little),
        Law("C22", "with `holds_one_of_max`, one message of maximum size fits before a read", verbs.holds_one_of_max),
        Law("C23", "what is reserved is unseen, and then as long as was committed", verbs.reserved_is_unseen),
        Law("C24", "parts are one message", verbs.parts_are_one_message),
        Law("C25", "`release` gives up the room of the last message", verbs.released_is_free),
        Law("C26", "`write_many` and `read_many` are as single calls", verbs.many_are_as_single_ones),
        Law("C27", "a reader's descriptor tells when there is something to read", verbs.descriptors_tell),
        Law("C28", "fan-in keeps the order of each writer", patterns.writers_keep_their_order),
        Law("C29", "each message of a queue goes to one worker", patterns.each_goes_to_one_worker),
        Law("C30", "with `redelivers`, others get what is unfinished", patterns.others_get_what_is_unfinished),
    )
}
"""Number → law, in order."""


@dataclass(frozen=True, slots=True)
class LawResult:
    """The result of one law."""

    law: str
    """Its number, `C1` and so on."""
    title: str
    outcome: Outcome
    reason: str
    """What was seen if it failed, or the capability that skips it; else empty. May have several lines."""
    seconds: float
    """How long the check took."""


@cache
def shared_pools() -> Pools:
    """Return the agents that all checks of this process share; they end with the process or at the pool's `close`."""
    pools = Pools()
    atexit.register(pools.close)
    return pools


def check_backend(
    backend_class: type[Backend],
    *,
    laws: Collection[str] | None = None,
    readers: Sequence[int] = (1, 3),
    quick: bool = False,
) -> list[LawResult]:
    """Check a backend against the contract and return one result per law, in order.

    A failed law hides no other. A backend that hangs fails the law in which it hangs, with the stacks of its threads.

    Args:
        backend_class: the class; unless its launcher is `inline`, processes import it by its module and name.
        laws: numbers of the laws to check; all by default.
        readers: reader counts to check with; those above the backend's `max_readers` are left out.
        quick: fewer and smaller messages in less time; finds less.

    Raises:
        BackendUnavailable: the backend cannot run here.
        ConfigError: no such law, or no reader count that the backend allows.
    """
    for number in laws or ():
        if number not in LAWS:
            raise ConfigError("laws", number, LAWS)
    if not any(1 <= count <= backend_class.capabilities.max_readers for count in readers):
        raise ConfigError("readers", tuple(readers), f"1 to {backend_class.capabilities.max_readers}")
    backend_class.probe()
    scope = Scope(tuple(readers), quick)
    return [_check(law, backend_class, scope) for law in LAWS.values() if laws is None or law.number in laws]


def _check(law: Law, backend_class: type[Backend], scope: Scope) -> LawResult:
    fixture = Fixture(backend_class, shared_pools(), scope)
    start = now_ns()
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        outcome, reason = _verdict(law, fixture)
    finally:
        sys.setswitchinterval(switch_s)
    fixture.end(failed=outcome == "failed")
    return LawResult(law.number, law.title, outcome, reason, (now_ns() - start) / 1e9)


def _verdict(law: Law, fixture: Fixture) -> tuple[Outcome, str]:
    try:
        law.check(fixture)
    except LawSkipped as skipped:
        return "skipped", str(skipped)
    except LawBroken as broken:
        return "failed", str(broken)
    except Exception as error:  # a broken backend may break the check itself, which is a verdict too
        failure = Failure.of(error)
        return "failed", f"the check could not be carried out: {failure}\n{failure.trace}"
    return "passed", ""
