"""Measures the ladder: rounds in which every stage has a turn, in shuffled order, each in fresh processes."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from operator import add
from typing import Any

from ipcbench.backend import Address
from ipcbench.diagnose.ladder import side
from ipcbench.diagnose.ladder.links import framed_bytes, socket_place
from ipcbench.diagnose.ladder.result import LadderResult, Rounds, conclude
from ipcbench.diagnose.ladder.scale import TURN_S, WARM_S, Pilot, Scale, choose_scale
from ipcbench.diagnose.ladder.stages import STAGES, Stage, Traffic, traffic_of
from ipcbench.errors import IpcbenchError, TrialError
from ipcbench.harness.group import Group
from ipcbench.models import Model
from ipcbench.models.shapes import MOST_TOKENS
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir, require_room_for_sockets
from ipcbench.registry import get_backend, status
from ipcbench.spec import ChannelSpec, require_range
from ipcbench.spec.checks import whole_number
from ipcbench.util.units import format_significant

STALL_S = 60.0
"""Longest wait for a single message."""

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux keeps it
_OPEN_S = 60.0
_DEPTH = 2
"""Of the channels: there is never more than one message under way."""
_MOST_PASSES = 64
"""Of a turn."""
_PILOT_BYTES = 2**26
"""The pilots' sequence is so short that no request or reply of theirs is larger."""

Say = Callable[[str], None]


def measure_ladder(
    model: Model,
    tokens: int,
    rounds: int = 5,
    budget_s: float = 60.0,
    full: bool = False,
    say: Say = lambda _: None,
) -> LadderResult:
    """Measure what each stage brings for the traffic of a forward pass. A stage that fails has its reason instead.

    Args:
        model: whose layers they are.
        tokens: of the sequence.
        rounds: how often each stage has a turn, at most.
        budget_s: no further round begins if it would probably end after this. Unless `full`, the pass is scaled down
            (see `Scale`) until three rounds probably fit.
        full: whether all layers are carried out, at the whole length; the first round then takes as long as it takes.
        say: called with a line after every turn, and for everything that is left out.

    Raises:
        ConfigError: a value is not allowed.
        TrialError: no stage finished a round.
    """
    tokens = whole_number("tokens", tokens, 1, MOST_TOKENS)
    rounds = whole_number("rounds", rounds, 1, 10_000)
    require_range("budget", budget_s, 1, 7 * 24 * 3600)
    require_room_for_sockets()
    began_s = time.monotonic()
    with RunDir() as run_dir, Switchboard(run_dir.path) as switchboard:
        ladder = _Ladder(model, run_dir, switchboard, say)
        scale = Scale(tokens, model.num_hidden_layers, rounds)
        if not full:
            pilots = ladder.pilots(tokens)
            left_s = budget_s - (time.monotonic() - began_s)
            scale = choose_scale(model, tokens, rounds, left_s, ladder.remaining(pilots), pilots)
        ladder.carry_out(scale, rounds, began_s, budget_s)
    if not any(measured.times_s for measured in ladder.measured):
        raise TrialError("; ".join(f"{each.stage.name}: {each.left_out}" for each in ladder.measured))
    return conclude(model, tokens, scale, ladder.measured, time.monotonic() - began_s)


@dataclass(slots=True)
class _Ladder:
    """The stages as they are measured."""

    model: Model
    run_dir: RunDir
    switchboard: Switchboard
    say: Say
    measured: list[Rounds] = field(init=False)

    def __post_init__(self) -> None:
        self.measured = [Rounds(stage) for stage in STAGES]
        for each in self.measured:
            if not (found := status(each.stage.backend)).available:
                self._leave_out(each, f"{found.reason}; {found.hint}")

    def _leave_out(self, measured: Rounds, reason: str) -> None:
        measured.left_out = reason
        self.say(f"warning: {measured.stage.name}: left out: {reason}")

    def remaining(self, backends: Mapping[str, object]) -> list[Stage]:
        """Return the stages that are not left out, of these backends."""
        return [each.stage for each in self.measured if not each.left_out and each.stage.backend in backends]

    def pilots(self, tokens: int) -> dict[str, Pilot]:
        """Try the first stage of each backend, its slowest; one that fails will do so again, with its reason."""
        pilots: dict[str, Pilot] = {}
        for stage in [each.stage for each in self.measured if not each.left_out]:
            if stage.backend in pilots:
                continue
            count = tokens
            while max((traffic := traffic_of(self.model, count, stage)).largest_bytes) > _PILOT_BYTES and count > 1:
                count //= 2
            began_s = time.monotonic()
            try:
                with _Turn(stage, traffic, self.run_dir, self.switchboard) as turn:
                    per_byte_s = turn.warm_up()
                    moved_s = per_byte_s * turn.warmed_bytes
            except IpcbenchError:
                continue
            pilots[stage.backend] = Pilot(max(0.0, time.monotonic() - began_s - moved_s), per_byte_s)
        return pilots

    def carry_out(self, scale: Scale, rounds: int, began_s: float, budget_s: float) -> None:
        """Measure round after round while the budget lasts; the first round always runs."""
        traffics = {stage: traffic_of(self.model, scale.tokens_count, stage) for stage in STAGES}
        for measured in self.measured:
            if not measured.left_out and (reason := _lack_of_room(measured.stage, traffics[measured.stage])):
                self._leave_out(measured, reason)
        started_s = time.monotonic()
        for index in range(rounds):
            now_s = time.monotonic()
            if index and now_s + (now_s - started_s) / index > began_s + budget_s:
                self.say(f"the budget is spent after {index} of {rounds} rounds")
                return
            order = [measured for measured in self.measured if not measured.left_out]
            random.Random(index).shuffle(order)  # noqa: S311 - an order, not a secret
            for measured in order:
                try:
                    time_s = self._once(measured.stage, traffics[measured.stage], scale.layers_count)
                except IpcbenchError as error:
                    self._leave_out(measured, str(error))
                    continue
                measured.times_s[index], measured.touched_s[index] = time_s
                text = format_significant(time_s[0])
                self.say(f"round {index + 1}/{rounds}  {measured.stage.name}  {text} s a pass")

    def _once(self, stage: Stage, traffic: Traffic, layers_count: int) -> tuple[float, float]:
        """Return the time of a forward pass in one turn, s, with the time in layers as that of all of them; and for how
        long of it tensors were filled and read.
        """
        with _Turn(stage, traffic, self.run_dir, self.switchboard) as turn:
            pass_s = turn.warm_up() * traffic.moved_bytes(layers_count)
            passes = min(_MOST_PASSES, max(1, math.ceil(TURN_S / pass_s)))
            clients = turn.carry_out(layers_count, passes)
        ratio, within = self.model.num_hidden_layers / layers_count, {*traffic.order(1)[1]}
        return pass_time_s(clients, passes, ratio), touched_time_s(clients, passes, ratio, within)


def pass_time_s(clients: Sequence[Mapping[str, Any]], passes: int, layers_ratio: float) -> float:
    """Return the time of a forward pass: from the first client's begin to the last one's end, divided by all passes.

    Args:
        clients: what each has answered, see `side.ClientSide.passes`.
        passes: of each client.
        layers_ratio: all layers / those that were carried out, by which the time in layers is multiplied.
    """
    whole_ns = max(client["end_ns"] for client in clients) - min(client["begin_ns"] for client in clients)
    own_ns = sum(client["end_ns"] - client["begin_ns"] for client in clients)
    layers_ns = sum(client["layers_ns"] for client in clients)
    scaled_ratio = (own_ns - layers_ns + layers_ns * layers_ratio) / own_ns
    return float(scaled_ratio * whole_ns / (1e9 * passes * len(clients)))


def touched_time_s(
    clients: Sequence[Mapping[str, Any]], passes: int, layers_ratio: float, within: Collection[int]
) -> float:
    """Return for how long of `pass_time_s` tensors were filled and read, s; of several streams, by their mean share.

    Args:
        clients, passes, layers_ratio: as of `pass_time_s`.
        within: the places of the calls in layers.
    """
    scaled_ns = [
        ns * (layers_ratio if place in within else 1.0)
        for client in clients
        for place, ns in enumerate(client["touched_ns"])
    ]
    return float(sum(scaled_ns) / (1e9 * passes * len(clients) ** 2))


def _lack_of_room(stage: Stage, traffic: Traffic) -> str:
    """Return why shared memory cannot hold the stage's largest messages; empty if it can, or if that is not known."""
    if stage.backend != "shm":
        return ""
    try:
        state = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return ""
    free_bytes, needed_bytes = state.f_bavail * state.f_frsize, stage.streams_count * sum(_most_bytes(traffic))
    if free_bytes >= needed_bytes:
        return ""
    free, needed = (format_significant(count / 2**20) for count in (free_bytes, needed_bytes))
    help_words = "free or enlarge it (`docker run --shm-size`), or take fewer tokens"
    return f"{_SHARED_MEMORY} has {free} MiB left, and its messages need at least {needed} MiB; {help_words}"


def _most_bytes(traffic: Traffic) -> tuple[int, int]:
    """Return the size of the largest request in shared memory, and of the largest reply."""
    return (
        max(framed_bytes(call.sent_bytes) for call in traffic.calls),
        max(framed_bytes(call.received_bytes) for call in traffic.calls),
    )


class _Turn:
    """The processes of one turn of a stage; a context manager.

    Attributes:
        warmed_bytes: what the warm-up moved.

    Raises:
        TransportError: a channel cannot be made.
        WorkerCrashed, WorkerTimeout, TrialError: a process ended, hung, or reports an error.
    """

    warmed_bytes = 0

    def __init__(self, stage: Stage, traffic: Traffic, run_dir: RunDir, switchboard: Switchboard) -> None:
        self._stage = stage
        self._traffic = traffic
        self._run_dir = run_dir
        self._switchboard = switchboard
        self._clients = range(stage.streams_count)
        self._undo = ExitStack()

    def __enter__(self) -> _Turn:
        streams = self._stage.streams_count
        with ExitStack() as undo:
            places = [self._place(undo) for _ in self._clients]
            names = [f"client {number + 1}" for number in self._clients] if streams > 1 else ["client"]
            self._group = Group("spawn", streams, self._switchboard, roles=(*names, "server"))
            undo.callback(self._group.kill)
            self._group.connect()
            request = {
                "link": self._stage.link,
                "stall_s": STALL_S,
                "calls": [[call.sent_bytes, call.received_bytes] for call in self._traffic.calls],
            }
            served = self._group.ask_one(streams, _call("open_server", request, places=places), _OPEN_S)
            question = _call("open_client", request, places=served["places"])
            self._group.ask(dict.fromkeys(self._clients, question), _OPEN_S)
            self._undo = undo.pop_all()
        return self

    def _place(self, undo: ExitStack) -> Any:
        """Return where a client and the server find each other."""
        if self._stage.scheme:
            return socket_place(self._stage.scheme, self._run_dir.path, self._run_dir.channel_name())
        backend = get_backend(self._stage.backend)()
        addresses: list[Address] = []
        for most_bytes in _most_bytes(self._traffic):
            channel = ChannelSpec(self._run_dir.channel_name(), max_message_bytes=most_bytes, depth=_DEPTH)
            addresses.append(backend.create(channel))
            undo.callback(backend.destroy, addresses[-1])
        return [address.as_dict() for address in addresses]

    def warm_up(self) -> float:
        """Carry out the calls of a pass with one layer, or as many of them as there is time for; return the time of a
        byte, s.
        """
        order = [*chain(*self._traffic.order(1))]
        answers, _ = self._ask(_call("warm_up", order=order, limit_ns=int(1e9 * WARM_S)), len(order))
        sizes = [call.moved_bytes for call in self._traffic.calls]
        per_client = [sum(sizes[place] for place in order[: answer["count"]]) for answer in answers]
        self.warmed_bytes = sum(per_client)
        return float(max(answer["time_ns"] / 1e9 / moved for answer, moved in zip(answers, per_client, strict=True)))

    def carry_out(self, layers_count: int, passes: int) -> list[dict[str, Any]]:
        """Carry out passes; return what each client answers, with the server's share in its `touched_ns`."""
        calls_count = passes * self._traffic.calls_count(layers_count)
        order = self._traffic.order(layers_count)
        answers, served = self._ask(_call("carry_out", order=order, passes=passes), calls_count)
        return [
            {**answer, "touched_ns": [*map(add, answer["touched_ns"], touched_ns)]}
            for answer, touched_ns in zip(answers, served["touched_ns"], strict=True)
        ]

    def _ask(self, question: dict[str, Any], calls_count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Have the clients do something while the server serves, and return what they answer, and what it does; no call
        may take longer than `STALL_S`.
        """
        questions = {**dict.fromkeys(self._clients, question), len(self._clients): _call("serve")}
        answers = self._group.ask(questions, STALL_S * (calls_count + 1))
        return [answers[index] for index in self._clients], answers[len(self._clients)]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._undo:
            if kind is None:
                self._group.ask_all({"do": "close"}, _OPEN_S)
                self._group.end()


def _call(function: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"do": "call", "function": f"{side.__name__}:{function}", **dict(chain(*map(dict.items, requests))), **more}
