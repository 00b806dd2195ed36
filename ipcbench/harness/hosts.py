"""A run on several hosts: a keeper process on each, the channels between them, and what each machine does meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ipcbench.backend import Address, Launcher
from ipcbench.errors import BackendUnavailable, ConfigError, HostError, TrialError, WorkerCrashed
from ipcbench.harness.group import VERBS, Group
from ipcbench.harness.variants import Contender, Field
from ipcbench.hosts.inventory import Host, place, require_reachable
from ipcbench.hosts.launchers import LAUNCHERS
from ipcbench.hosts.published import Unnamed
from ipcbench.hosts.remote import HostsLaunch, RemoteHost
from ipcbench.hosts.sealed import LinkLost
from ipcbench.machine.describe import MachineLoad, describe_versions
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir
from ipcbench.registry import get_backend
from ipcbench.spec import NAME_PREFIX, ChannelSpec, SweepSpec
from ipcbench.workload.message import message_bytes

_ANSWER_S = 30.0
_DESCRIBE_S = 60.0
_IPV4_ONLY = "MPICH's mpiexec does not start across IPv6 addresses; give the hosts IPv4 ones in an inventory"


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Which hosts take part in a run, and which endpoints run on which."""

    hosts: tuple[Host, ...]
    place: str = "spread"
    """See `hosts.inventory.place`."""
    launcher: str = "ssh"
    """What starts programs there: one of `hosts.launchers.LAUNCHERS`."""

    def __post_init__(self) -> None:
        if self.launcher not in LAUNCHERS:
            raise ConfigError("--launch", self.launcher, LAUNCHERS)

    def without_names(self) -> str:
        """Return the rule of placing as it may be published."""
        names = [host.name for host in self.hosts]
        rule, _, name = self.place.partition("=")
        return f"{rule}=host {names.index(name) + 1}" if name in names else rule


@contextmanager
def started_hosts(plan: HostPlan, sweep: SweepSpec, payload_bytes: Sequence[int]) -> Iterator[Hosts]:
    """Start an agent and a keeper on each host, and end them, with all that they started, when the block is left.

    Raises:
        HostError: a host cannot take part.
        ConfigError: the sweep asks for what there is only on one host.
    """
    _require_simple(sweep)
    place(plan.place, plan.hosts, sweep.most_readers + 1)
    channel = ChannelSpec(
        name=f"{NAME_PREFIX}check",
        readers=sweep.most_readers,
        max_message_bytes=message_bytes(max(payload_bytes)),
        delivery=sweep.delivery,
        depth=sweep.depth,
        wait=sweep.wait,
    )
    with ExitStack() as held:
        run_dir = held.enter_context(RunDir(is_elsewhere=True))
        switchboard = held.enter_context(Switchboard(run_dir.path))
        remote = []
        for number, host in enumerate(plan.hosts, 1):  # all at once
            remote.append(RemoteHost(host, number, plan.launcher))
            held.callback(remote[-1].close)
        for number, each in enumerate(remote):
            each.connect(switchboard, run_dir.channels_token, remote[:number])
        hosts = Hosts(remote, plan, run_dir, switchboard)
        held.callback(hosts.close)
        hosts.start_keepers(
            {"backends": list(sweep.backends), "channel": channel.as_dict(), "sizes": list(payload_bytes)}
        )
        yield hosts


def _require_simple(sweep: SweepSpec) -> None:
    """Refuse what there is only on one host."""
    own = sweep.sample or (sweep.payload if ":" in sweep.payload else "")
    for option, value, allowed in (
        ("--pattern", sweep.pattern, "broadcast"),
        ("--pin", sweep.pin, "none"),
        ("--neighbours", ",".join(map(str, sweep.neighbours)), "0"),
        ("--variant", ",".join(map(str, sweep.variants)), ""),
        ("--sample" if sweep.sample else "--payload", own, ""),  # which lies on the coordinator's host
    ):
        if value != allowed:
            raise ConfigError(option, value, f"{allowed or 'no own one'} with --hosts")


class Hosts:
    """The hosts of a run; `started_hosts` makes one.

    Attributes:
        plan: which they are.
        run_dir: the run's folder on the coordinator's host; all agents have one with the token of its channels.
        switchboard: where workers appear.
        described: what each host's keeper says of its machine, see `harness.keeping`.
    """

    def __init__(self, remote: Sequence[RemoteHost], plan: HostPlan, run_dir: RunDir, switchboard: Switchboard) -> None:
        self._remote = remote
        self.plan, self.run_dir, self.switchboard = plan, run_dir, switchboard
        self._keepers: list[Group] = []
        for host in remote:
            host.on_mirror = self._tell_others
        self.described: list[dict[str, Any]] = []

    def start_keepers(self, question: Mapping[str, Any]) -> None:
        """Start a process on each host that makes channels there and watches the machine, and ask it what there is.

        Args:
            question: see `harness.keeping.describe_host`.

        Raises:
            HostError: a host cannot take part.
            ConfigError: the others cannot reach it by its address.
        """
        for remote in self._remote:
            launch = HostsLaunch([remote], [0], self.switchboard, VERBS)
            self._keepers.append(Group("spawn", 0, self.switchboard, ("ipcbench's process",), on_hosts=launch))
        for remote, keeper in zip(self._remote, self._keepers, strict=True):
            host = remote.host
            about = {"do": "describe", "name": host.name, "address": host.address, **question}
            try:
                answer = keeper.connect().ask_one(0, about, _DESCRIBE_S)
            except TrialError as error:
                raise HostError(host.name, str(error)) from error
            theirs, ours = (versions.get("commit") for versions in (answer["versions"], describe_versions()))
            if theirs != ours:
                raise HostError(host.name, f"has ipcbench of commit {theirs}, this host {ours}: install the same")
            if len(self._remote) > 1:  # its own name may be one of loopback there
                require_reachable(host.name, answer["address"])
            self.described.append(answer)
        for remote in self._remote:
            remote.shown = str(remote.number)  # from now on, what is said of it is stored
        pairs = zip(self.plan.hosts, self.described, strict=True)
        self._unnamed = Unnamed([(host.name, host.address, it["address"], it["name"]) for host, it in pairs])

    def require_all(self) -> None:
        """Raise WorkerCrashed if a host is lost: what a run is to compare would be measured no more."""
        for remote in self._remote:
            if remote.lost:
                raise WorkerCrashed(f"the run is lost with {remote.label}: {remote.lost}")

    def without_names(self, text: str) -> str:
        """Return a text with the number of each host in place of its names and addresses."""
        return self._unnamed(text)

    def settle(self, sweep: SweepSpec) -> Field:
        """Return what a sweep can measure between these hosts.

        Raises:
            BackendUnavailable: no backend is usable on all of them.
        """
        skipped: dict[str, str] = {}
        for number, described in reversed([*enumerate(self.described, 1)]):
            reasons = described["skipped"].items()
            skipped |= {name: f"host {number}: {self.without_names(reason)}" for name, reason in reasons}
        if any(":" in described["address"] for described in self.described):
            skipped |= {name: _IPV4_ONLY for name in sweep.backends if _is_of_mpi(name) and name not in skipped}
        usable = [name for name in sweep.backends if name not in skipped]
        if not usable:
            why = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
            raise BackendUnavailable(",".join(sweep.backends), why, "install one on every host, or choose others")
        contenders = {
            name: Contender(get_backend(name).capabilities.launcher, HostChannels(self, name)) for name in usable
        }
        return Field(contenders, skipped, {}, ())

    def facts(self) -> tuple[dict[str, Any], ...]:
        """Return what a run's record says of each host."""
        return tuple({name: each[name] for name in ("machine", "versions", "floor")} for each in self.described)

    def place_of(self, index: int) -> int:
        """Return on which host an endpoint of a group runs, by its number; of any group with so many endpoints."""
        return place(self.plan.place, self.plan.hosts, index + 1)[index]

    def start_group(self, readers: int, launcher: Launcher) -> Group:
        """Begin to start a writer and so many readers where they belong."""
        places = [*map(self.place_of, range(readers + 1))]
        addresses = tuple(described["address"] for described in self.described)
        ranks = addresses if launcher == "mpiexec" else ()
        launch = HostsLaunch(self._remote, places, self.switchboard, VERBS, ranks)
        at = tuple(addresses[number] for number in places)
        return Group(launcher, readers, self.switchboard, on_hosts=launch, addresses=at)

    def keeper(self, number: int) -> Group:
        """Return the keeper of a host."""
        return self._keepers[number]

    def _tell_others(self, teller: RemoteHost, word: dict[str, Any]) -> None:
        """Pass on what happened in a channel's folder on one host."""
        for host in self._remote:
            if host is not teller:
                with suppress(LinkLost):  # which its own thread notices
                    host.tell(word)

    def share(self, address: Address, made_on: int) -> dict[int, Address]:
        """Let all hosts take part in a channel that was made on one; return its address by the host's number."""
        found = self._remote[made_on].ask({"do": "share", "address": address.as_dict()})
        seen = {made_on: address}
        for number, host in enumerate(self._remote):
            if number != made_on:
                question = {"do": "join", "address": address.as_dict(), "host": self.described[number]["address"],
                            "files": found["files"], "bells": found["bells"]}  # fmt: skip
                seen[number] = Address.from_dict(host.ask(question)["address"])
        return seen

    def leave(self, name: str) -> None:
        """Have no host take part in a channel any longer."""
        for host in self._remote:
            host.ask({"do": "leave", "name": name})

    def watch(self, pids: Sequence[Mapping[int, int]]) -> None:
        """Begin to watch what the machines do.

        Args:
            pids: of each group that is measured, the process ID of each endpoint on its host.
        """
        for number, keeper in enumerate(self._keepers):
            here = [pid for group in pids for index, pid in group.items() if self.place_of(index) == number]
            keeper.ask_one(0, {"do": "watch", "pids": here}, _ANSWER_S)

    def watched(self) -> MachineLoad:
        """Return what the machines did since `watch`: of each figure the largest of any host."""
        loads = [MachineLoad(*keeper.ask_one(0, {"do": "watched"}, _ANSWER_S)["load"]) for keeper in self._keepers]
        others = [load.others_cpu_ratio for load in loads if load.others_cpu_ratio is not None]
        return MachineLoad(
            load_1min=max(load.load_1min for load in loads),
            steal_ratio=max(load.steal_ratio for load in loads),
            throttled_s=max(load.throttled_s for load in loads),
            others_cpu_ratio=max(others, default=None),
        )

    def are_oversubscribed(self, endpoints: int) -> bool:
        """Return whether a host has more endpoints than cores."""
        counts = Counter(map(self.place_of, range(endpoints)))
        return any(count > self.described[number]["machine"]["usable_cores"] for number, count in counts.items())

    def close(self) -> None:
        """End all keepers."""
        for keeper in self._keepers:
            keeper.kill()


def _is_of_mpi(name: str) -> bool:
    return get_backend(name).capabilities.launcher == "mpiexec"


@dataclass(frozen=True, slots=True)
class HostChannels:
    """Makes and removes the channels of one backend between hosts."""

    hosts: Hosts
    backend: str
    _made_on: dict[str, int] = field(default_factory=dict)
    """Channel → number of the host that made it."""
    _seen: dict[str, dict[int, Address]] = field(default_factory=dict)
    """Channel → number of a host → the channel's address there."""

    def create(self, channel: ChannelSpec) -> Address:
        """Make a channel on its writer's host, and let the other hosts take part."""
        on, *places = map(self.hosts.place_of, channel.process_numbers())
        self._made_on[channel.name] = on
        near = tuple(index for index, place in enumerate(places) if place == on)
        there = replace(channel, host=self.hosts.described[on]["address"], near=near)
        question = {"do": "create", "backend": self.backend, "channel": there.as_dict()}
        address = Address.from_dict(self.hosts.keeper(on).ask_one(0, question, _ANSWER_S)["address"])
        try:
            self._seen[channel.name] = self.hosts.share(address, on)
        except HostError:
            self.destroy(address)
            raise
        return address

    def seen_by(self, address: Address, index: int) -> Address:
        """Return a channel's address as an endpoint of a group needs it, by its number."""
        return self._seen[address.channel.name][self.hosts.place_of(index)]

    def destroy(self, address: Address) -> None:
        """Remove a channel everywhere."""
        self._seen.pop(address.channel.name, None)
        self.hosts.leave(address.channel.name)
        question = {"do": "destroy", "backend": self.backend, "address": address.as_dict()}
        self.hosts.keeper(self._made_on.pop(address.channel.name)).ask_one(0, question, _ANSWER_S)
