"""A replay: rounds in which every backend carries the traffic once, in shuffled order, on fresh processes.

The backend that the trace was recorded over, if known, is replayed too. A first replay over it, the pilot, shows how
much work fits into the recorded times. All later replays do that much work, however long it takes: a process that was
just woken works slower, and so does one whose message lies in another core's cache.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from ipcbench.backend import Backend
from ipcbench.errors import ConfigError, IpcbenchError, TrialError
from ipcbench.harness.prepare import usable_backends
from ipcbench.processes.control_channel import HOST_VARIABLE, Switchboard
from ipcbench.processes.run_dir import RunDir, require_room_for_sockets
from ipcbench.registry import get_backend
from ipcbench.replay.latency_table import LatencyTable, ladder, make_table
from ipcbench.replay.service import DEPTH, Columns, Service, back_to_back, by_pieces, columns_of, warm_up
from ipcbench.replay.traffic import Traffic
from ipcbench.spec import NAME_PREFIX, ChannelSpec, require_range
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS
from ipcbench.trace.readers.batch import Ints

STALL_S = 10.0
_START_S = 1.0
"""Estimated time to start and end the processes of a replay."""
_RESERVE = 1.5
"""Of the time that replays took: later ones may take so many times as long."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be replayed, and how.

    Attributes:
        backends: names.
        rounds: how often each carries the traffic.
        budget_s: no further round begins if it would probably end after this.
        calls_count: the first calls of each client; None takes as many as the budget allows.
        think: whether the server does the recorded work, or none.
        source: the backend that the trace was recorded over; empty if it is none, or unknown.
        seed: of the order in each round.
        stall_s: longest wait of a single read or write, beyond the longest recorded work.

    Raises:
        ConfigError: on construction, naming the field, its value and what is allowed.
    """

    backends: tuple[str, ...]
    rounds: int = 5
    budget_s: float = 60.0
    calls_count: int | None = None
    think: bool = True
    source: str = ""
    seed: int = 1
    stall_s: float = STALL_S

    def __post_init__(self) -> None:
        if not self.backends:
            raise ConfigError("backends", "", "one or more names")
        require_range("rounds", self.rounds, 1, 10_000)
        require_range("budget", self.budget_s, 1, 7 * 24 * 3600)
        if self.calls_count is not None:
            require_range("calls", self.calls_count, 1, 10_000_000)


@dataclass(slots=True)
class Measured:
    """Measurements of one backend. Lists have one entry per round.

    Attributes:
        threads_ns: each client's time from its first call's begin to its last one's end.
        method_ns: sums of the calls' times by method, of all clients; shape (methods,).
        trips_ns: the calibration's round trips.
        failure: why there is nothing more.
    """

    threads_ns: list[list[int]] = field(default_factory=list)
    method_ns: list[Ints] = field(default_factory=list)
    trips_ns: list[Ints] = field(default_factory=list)
    failure: str = ""


@dataclass(slots=True)
class Contender:
    """One of those that take turns: traffic, and the backend that carries it.

    Attributes:
        is_calibrated: whether round trips of several sizes follow its calls.
        importance: what becomes of it after the first round if not all rounds fit into the budget: 0 is then left out,
            1 only if not even as many rounds fit as a claim needs, 2 never. Nor is 3: with it, 2 and 3 begin, and
            whatever is below has not even a first round if as many of these as a claim needs would then not fit.
        lists: the calls of each client, as the processes carry them out.
    """

    backend: str
    traffic: Traffic
    is_calibrated: bool = True
    importance: int = 2
    lists: list[Columns] = field(init=False)

    def __post_init__(self) -> None:
        self.lists = [columns_of(thread) for thread in self.traffic.threads]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay's result.

    Attributes:
        request: what was asked for.
        traffic: what was replayed, cut to what the budget allows.
        measured: by backend, in the order asked for; the source among them.
        skipped: backends that cannot run here, with the reason.
        ladder_bytes: sizes of the calibration.
    """

    request: Request
    traffic: Traffic
    measured: dict[str, Measured]
    skipped: dict[str, str]
    ladder_bytes: Ints

    def table(self, name: str) -> LatencyTable:
        """Return the table of a backend that has finished a round."""
        return make_table(self.ladder_bytes, self.measured[name].trips_ns)


def replay(traffic: Traffic, request: Request, say: Say = lambda _: None) -> Replayed:
    """Replay the traffic; a backend that fails is left out of later rounds, with its reason.

    Args:
        traffic: what was recorded.
        request: how.
        say: called with a line after every replay, and for everything that is left out.

    Raises:
        UnknownBackend, ConfigError, BackendUnavailable: before anything is started.
        TrialError: it failed over every backend.
    """
    if request.source and not traffic.is_timed:
        raise ConfigError("--recorded-over", request.source, "nothing: nobody made the calls of this trace")
    backends, skipped = select(request, traffic.largest_bytes)
    for name, reason in skipped.items():
        say(f"warning: {name} is left out: {reason}")
    traffic = traffic.limited(share_ns(request, len(backends), pilots=bool(request.source)), request.calls_count)
    contenders = {name: Contender(name, traffic if request.think else traffic.without_think()) for name in backends}
    measured = {name: Measured() for name in backends}
    result = Replayed(request, traffic, measured, skipped, ladder(traffic.largest_bytes))
    Replays(contenders, measured, request, result.ladder_bytes, say).carry_out(pilots=request.source in backends)
    require_some(measured)
    return result


def share_ns(request: Request, contenders_count: int, *, pilots: bool = False) -> float:
    """Return for how long one replay of one contender may take, so that all rounds fit into the budget."""
    share_s = request.budget_s / (request.rounds * contenders_count + pilots)
    return 1e9 * max(share_s - _START_S, share_s / 4)


def require_some(measured: Mapping[str, Measured]) -> None:
    """Raise TrialError, with all reasons, if no contender has finished a round."""
    if not any(each.threads_ns for each in measured.values()):
        raise TrialError("; ".join(f"{name}: {each.failure}" for name, each in measured.items() if each.failure))


def select(request: Request, largest_bytes: int) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return the backends that can take part, and for each other one the reason and how to get it."""
    channel = ChannelSpec(name=f"{NAME_PREFIX}check", max_message_bytes=largest_bytes, depth=DEPTH)
    names = tuple(dict.fromkeys((*request.backends, *filter(None, (request.source,)))))
    for name in names:
        if get_backend(name).capabilities.launcher in {"inline", "fork"}:
            raise ConfigError("backends", name, "transports between processes that open them by address")
    return usable_backends(names, channel)


class Replays:
    """Replays of several contenders, which take turns in rounds, each in fresh processes.

    Args:
        contenders: by name.
        measured: by the same names; what is measured is added to them.
        request: rounds, budget and seed.
        ladder_bytes: sizes of the calibration.
        say: see `replay`.
    """

    def __init__(
        self,
        contenders: Mapping[str, Contender],
        measured: Mapping[str, Measured],
        request: Request,
        ladder_bytes: Ints,
        say: Say = lambda _: None,
    ) -> None:
        self._contenders = dict(contenders)
        self._measured = measured
        self._request = request
        self._ladder_bytes = ladder_bytes
        self._say = say
        self._took_s: dict[str, float] = {}
        """By contender: its longest replay, from the start of its processes to their end."""

    def carry_out(self, *, pilots: bool = False) -> None:
        """Replay round after round while the budget lasts; the first round always runs.

        Args:
            pilots: whether a first replay over the request's source tells how many pieces of work all shall do.
        """
        require_room_for_sockets()
        started_s = time.monotonic()
        host = os.environ.get(HOST_VARIABLE)
        with RunDir() as run_dir, Switchboard(run_dir.path, host) as switchboard:
            if pilots:
                self._pilot(run_dir, switchboard)
            round_s = 0.0
            for index in range(self._request.rounds):
                begun_s = time.monotonic()
                left_s = self._request.budget_s - (begun_s - started_s)
                if 0 < index < MIN_CLAIM_ROUNDS:
                    round_s = self._leave_out_some(index, round_s, left_s)
                if index and round_s > left_s:
                    self._say(f"the budget is spent after {index} of {self._request.rounds} rounds")
                    return
                self._round(index, run_dir, switchboard, started_s + self._request.budget_s)
                round_s = time.monotonic() - begun_s

    def _leave_out_some(self, index: int, round_s: float, left_s: float) -> float:
        """Before round `index`, leave out what matters least until all rounds fit, or, of what matters more, until as
        many fit as a claim needs: the slowest first, since a change that made the calls slow is no remedy. Return what
        a round then takes.
        """
        costs = {name: self._cost_s(name) for name in self._contenders if self._measured[name].threads_ns}
        every_s = sum(costs.values())
        for importance, rounds in ((0, self._request.rounds), (1, min(self._request.rounds, MIN_CLAIM_ROUNDS))):
            names = [name for name, each in self._contenders.items() if each.importance == importance and name in costs]
            for name in sorted(names, key=lambda name: -costs[name]):
                if round_s * (rounds - index) <= left_s:
                    break
                round_s *= 1 - costs[name] / every_s
                every_s -= costs[name]
                self._leave_out(name)
        return round_s

    def _leave_out(self, name: str) -> None:
        del self._contenders[name]
        self._say(f"{name}: left out of what follows, for which the budget has no room")

    def _has_room(self, name: str, left_s: float) -> bool:
        """Return whether a contender can have its first replay, and what matters most all those that a claim needs."""
        most = [each for each, other in self._contenders.items() if other.importance > 1]
        is_usual = all(self._contenders[each].importance < 3 for each in most)
        if name in most or is_usual or self._request.rounds < MIN_CLAIM_ROUNDS:
            return True
        missing_s = sum(self._cost_s(each) * (MIN_CLAIM_ROUNDS - len(self._measured[each].threads_ns)) for each in most)
        return self._cost_s(name) + _RESERVE * missing_s <= left_s

    def _cost_s(self, name: str) -> float:
        """Return how long a replay takes: as the ones before did, else as its calls take at most."""
        if name in self._took_s:
            return self._took_s[name]
        done = self._measured[name].threads_ns
        calls = self._contenders[name].traffic.threads
        return _START_S + (max(done[0], default=0) if done else max(int(each.replay_ns.sum()) for each in calls)) / 1e9

    def _round(self, index: int, run_dir: RunDir, switchboard: Switchboard, until_s: float) -> None:
        names = [name for name in self._contenders if not self._measured[name].failure]
        random.Random(f"{self._request.seed}/{index}").shuffle(names)  # noqa: S311 - an order, not a secret
        if not index and any(each.importance > 2 for each in self._contenders.values()):
            names.sort(key=lambda name: self._contenders[name].importance < 2)  # their times tell what else has room
        for name in names:
            contender, measured, begun_s = self._contenders[name], self._measured[name], time.monotonic()
            if not index and not self._has_room(name, until_s - begun_s):
                self._leave_out(name)
                continue
            try:
                clients, _, trips = self._once(contender, run_dir, switchboard)
            except IpcbenchError as error:
                measured.failure = str(error)
                self._say(f"warning: {name} failed: {error}")
                continue
            self._took_s[name] = max(time.monotonic() - begun_s, self._took_s.get(name, 0.0))
            measured.trips_ns.append(trips)
            measured.threads_ns.append(
                [int(client["end_ns"][-1] - client["end_ns"][0] + client["total_ns"][0]) for client in clients]
            )
            measured.method_ns.append(_by_method(contender.traffic, clients))
            where = f"round {index + 1}/{self._request.rounds}"
            self._say(f"{where}  {name}  {max(measured.threads_ns[-1]) / 1e9:.3f} s")

    def _pilot(self, run_dir: RunDir, switchboard: Switchboard) -> None:
        """Replay over the source by time, to learn how many pieces of work the recorded times hold."""
        source = self._request.source
        pilot = self._contenders[source]
        try:
            clients, servers, _ = self._once(pilot, run_dir, switchboard)
        except IpcbenchError as error:
            self._measured[source].failure = str(error)
            self._say(f"warning: {source} failed: {error}")
            return
        lists = [
            by_pieces(columns, client, server, thread.method)
            for thread, columns, client, server in zip(
                pilot.traffic.threads, pilot.lists, clients, servers, strict=True
            )
        ]
        for contender in self._contenders.values():
            contender.lists = lists

    def _once(
        self, contender: Contender, run_dir: RunDir, switchboard: Switchboard
    ) -> tuple[list[Columns], list[Columns], Ints]:
        """Carry the traffic once; return what the clients and servers measured, and the calibration."""
        traffic = contender.traffic
        largest = max(traffic.largest_bytes, int(self._ladder_bytes.max()))
        stall_s = self._request.stall_s + traffic.recorded_ns / 1e9
        with ExitStack() as stack:
            services: list[Service] = []
            for numbers in traffic.services:
                services.append(Service(contender.backend, numbers, run_dir, switchboard, largest, stall_s))
                stack.callback(services[-1].drop)
            for service in services:
                service.open()
            limit_s = 3 * stall_s
            _at_once(services, [warm_up(columns) for columns in contender.lists], limit_s)
            done = _at_once(services, contender.lists, limit_s)
            sizes = self._ladder_bytes if contender.is_calibrated else self._ladder_bytes[:0]
            # Last, since a row of large messages leaves a TCP connection in another state than the calls do.
            calls = back_to_back(sizes), *[back_to_back(sizes[:0])] * len(done)
            trips = _at_once(services[:1], calls, limit_s)[0][0]["transport_ns"]
            for service in services:
                service.close()
        return [client for client, _ in done], [server for _, server in done], trips


def _by_method(traffic: Traffic, clients: Sequence[Columns]) -> Ints:
    sums = np.zeros(len(traffic.methods), dtype=np.int64)
    for thread, client in zip(traffic.threads, clients, strict=True):
        np.add.at(sums, thread.method, client["total_ns"])
    return sums


def _at_once(services: Sequence[Service], lists: Sequence[Columns], limit_s: float) -> list[tuple[Columns, Columns]]:
    """Have the clients carry out their lists at the same time; return what each one and its server measured."""
    with ThreadPoolExecutor(len(services)) as pool:
        try:
            done = dict(chain(*pool.map(lambda service: service.carry_out(lists, limit_s), services)))
        except BaseException:
            for service in services:
                service.kill()  # so that no thread waits for it any longer
            raise
    return [done[number] for number in sorted(done)]
