"""The verbs of a worker of the harness: open an endpoint, carry out its part of a trial, report.

A request `{"do": verb, …}` is answered by `{"ok": true, …}` or `{"ok": false, "error", "text"}`.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ipcbench.backend import Address, Backend, Endpoint
from ipcbench.errors import ConfigError, IpcbenchError
from ipcbench.harness.clocks import ClockServer, ask_clock, clock_identity
from ipcbench.harness.floor import own_loop_ns
from ipcbench.harness.patterns.parts import Offering, Taken, Taking
from ipcbench.harness.pingpong import Pinged, PingPart, Ponged, PongPart
from ipcbench.harness.placement import ping_pong_ns
from ipcbench.harness.plan import SILENCE_NS, Plan
from ipcbench.harness.reading import ReaderPart, Received
from ipcbench.harness.writing import WriterPart, Written
from ipcbench.machine.describe import ConditionsProbe
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec, TrialSpec
from ipcbench.util.clock import now_ns
from ipcbench.workload.codec import get_codec
from ipcbench.workload.message import Outgoing, Phase
from ipcbench.workload.payload import build

if TYPE_CHECKING:
    from ipcbench.harness.patterns.calls import Calling, Serving

_KEPT_SIZE = 20_000
"""Largest size, entries or bytes, whose encoded payloads are kept for the next trial."""

AnyEndpoint = TypeVar("AnyEndpoint", bound=Endpoint)


Verb = TypeVar("Verb", bound=Callable[..., dict[str, Any]])


def verb(function: Verb) -> Verb:
    """Let a worker be asked to call this function of a layer above: with the worker and the request."""
    function.is_verb = True  # type: ignore[attr-defined]
    return function


class Worker:
    """Process number `index` of a group: 0 writes, i + 1 is reader i.

    Attributes:
        index: which process of the group this is.
        endpoints: what is open, in the order of opening.
        verbs: what it can be asked, by name.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.endpoints: list[Endpoint] = []
        self._part: WriterPart | ReaderPart | PingPart | PongPart | None = None
        self._conditions = ConditionsProbe()
        self._pattern_part: Offering | Taking | Serving | Calling | None = None
        self.verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "clock": lambda _: {"clock": clock_identity()},
            "clock place": self._clock_place,
            "ask clock": self._ask_clock,
            "echo": lambda _: {"clock_ns": now_ns()},
            "create": self._create,
            "destroy": self._destroy,
            "open": self._open,
            "probe": self._probe,
            "go": self._go,
            "warm up": self._warm_up,
            "ready": self._ready,
            "turn": self._turn,
            "offer": self._offer,
            "alone": self._alone,
            "echo plain": self._echo_plain,
            "finish": self._finish,
            "call": self._call,
            "close": self._close,
            "describe": self._describe,
            "watch": self._watch,
            "watched": self._watched,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request and return its answer."""
        try:
            return {"ok": True, **self.verbs[request["do"]](request)}
        except IpcbenchError as error:
            return {"ok": False, "error": type(error).__name__, "text": str(error)}
        except Exception as error:  # a bug in a backend fails its trial, with the place
            return {"ok": False, "error": type(error).__name__, "text": f"{error} ({_place(error)})"}

    def _clock_place(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let other hosts ask this process's clock."""
        return {"place": ClockServer(request["address"]).place()}

    def _ask_clock(self, request: dict[str, Any]) -> dict[str, Any]:
        offset = ask_clock(request["host"], request["port"], request["secret"])
        return {"offset_ns": offset and offset.offset_ns, "error_ns": offset and offset.error_ns}

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        """Create a channel: of a backend whose channels exist only within one process, or of a variant."""
        backend = get_backend(request["backend"])()
        return {"address": backend.create(ChannelSpec.from_dict(request["channel"])).as_dict()}

    def _destroy(self, request: dict[str, Any]) -> dict[str, Any]:
        get_backend(request["backend"])().destroy(Address.from_dict(request["address"]))
        return {}

    def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open the endpoints and allocate everything, so that `go` allocates nothing."""
        plan = Plan.from_dict(request["plan"])
        trial = plan.trial
        if request["cores"] is not None:
            os.sched_setaffinity(0, {request["cores"][self.index]})
        address = Address.from_dict(request["address"])
        back = [Address.from_dict(values) for values in request["back"]]
        backend, codec = get_backend(trial.registered_name)(), get_codec(trial.codec)
        if trial.pattern != "broadcast":
            self._pattern_part = self._open_pattern(backend, address, plan, request)
            return {}
        if self.index:
            reader = self.hold(backend.open_reader(address, self.index - 1))
            if back:
                self._part = PongPart(reader, self.hold(backend.open_writer(back[self.index - 1])), plan)
            else:
                self._part = ReaderPart(reader, codec, plan)
            return {}
        writer = self.hold(backend.open_writer(address))
        replies = [self.hold(backend.open_reader(channel, 0)) for channel in back]
        messages = [Outgoing(payload) for payload in _payloads(trial, request["contents"])]
        self._part = PingPart(writer, replies, messages, plan) if back else WriterPart(writer, messages, plan)
        return {}

    def _open_pattern(
        self, backend: Backend, address: Address, plan: Plan, request: dict[str, Any]
    ) -> Offering | Taking | Serving | Calling:
        """Open an endpoint of a queue, fan-in or rpc: process 0 is the side that is alone."""
        trial, peer = plan.trial, self.index - 1
        if trial.pattern == "rpc":
            return self._open_calls(backend, address, plan, request)
        if (trial.pattern == "fan_in") == (self.index > 0):
            index = max(0, peer)
            writer = self.hold(backend.open_writer(address, index))
            return Offering(writer, index, _payloads(trial, request["contents"]), plan)
        return Taking(self.hold(backend.open_reader(address, max(0, peer))), plan, None if peer else request["began"])

    def _open_calls(self, backend: Backend, there: Address, plan: Plan, request: dict[str, Any]) -> Serving | Calling:
        """Open the server of an rpc trial, or a client; the first one has a pair of plain channels to the server."""
        from ipcbench.harness.patterns.calls import Calling, Serving  # with NumPy, which no other worker needs

        (back,) = (Address.from_dict(values) for values in request["back"])
        if not self.index:
            ends = self.hold(backend.open_reader(there, 0)), self.hold(backend.open_writer(back))
            return self.hold(Serving(request["server"], *ends, plan))
        plain = None
        if self.index == 1:
            plain = self.hold(backend.open_writer(there)), self.hold(backend.open_reader(back, 0))
        (payload, *_) = _payloads(plan.trial, request["contents"])
        return self.hold(Calling(request["server"], self.index - 1, payload, plain, plan))

    def _offer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Offer messages, or make calls, for one window of a queue, fan-in or rpc."""
        part = self._pattern_part
        _stop_collecting()
        window = request["begin_ns"], request["window_ns"], request["rate_per_s"]
        if isinstance(part, Offering):
            return asdict(part.offer(*window, Phase(request["phase"])))
        return asdict(cast("Calling", part).offer(*window))  # the coordinator knows who calls

    def _alone(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call an rpc server alone, in turns with plain round trips."""
        _stop_collecting()
        return cast("Calling", self._pattern_part).alone(request["window_ns"])

    def _echo_plain(self, _: dict[str, Any]) -> dict[str, Any]:
        cast("Serving", self._pattern_part).echo()
        return {}

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call a verb of a layer above, named as `module:function`, with this worker and the request."""
        module_name, _, name = request["function"].partition(":")
        if not module_name.startswith(f"{__package__.partition('.')[0]}."):  # to import a module is to run it
            raise ConfigError("function", request["function"], "a verb of this package")
        function = getattr(import_module(module_name), name, None)
        if function is None or not getattr(function, "is_verb", False):
            raise ConfigError("function", request["function"], "a function that is marked as a verb")
        answer: dict[str, Any] = function(self, request)
        return answer

    def hold(self, endpoint: AnyEndpoint) -> AnyEndpoint:
        """Remember an endpoint, to close it at the next `close`."""
        self.endpoints.append(endpoint)
        return endpoint

    def _probe(self, request: dict[str, Any]) -> dict[str, Any]:
        half_ns = ping_pong_ns(Path(request["path"]), self.index, request["base"], request["timeout_s"])
        return {"half_ns": half_ns}

    def _go(self, _: dict[str, Any]) -> dict[str, Any]:
        _stop_collecting()
        try:
            if isinstance(self._pattern_part, Taking):
                return _outcome(self._pattern_part.run())
            return _outcome(self._any_part().run())
        finally:
            gc.enable()

    def _warm_up(self, _: dict[str, Any]) -> dict[str, Any]:
        """Carry out the warm-up of a trial that takes turns with others; an error ends the group."""
        _stop_collecting()
        part = self._any_part()
        part.warm_up()
        if isinstance(part, WriterPart | PingPart):
            part.pause()
        return {"message_ns": part.message_ns if isinstance(part, WriterPart) else 0.0}

    def _ready(self, request: dict[str, Any]) -> dict[str, Any]:
        """Prepare for a turn. A reader is told to take it at once, so that it is in `read` soon after this answer."""
        part = self._any_part()
        if isinstance(part, WriterPart | PingPart):
            part.ready(request["window_ns"])
        return {}

    def _turn(self, _: dict[str, Any]) -> dict[str, Any]:
        """Carry out a turn."""
        part = self._any_part()
        part.turn()
        if isinstance(part, WriterPart | PingPart):
            part.pause()
        select((), (), (), SILENCE_NS / 1e9)
        return {}

    def _finish(self, _: dict[str, Any]) -> dict[str, Any]:
        if self._pattern_part is not None and not isinstance(self._pattern_part, Taking):
            gc.enable()
            return self._pattern_part.finish()
        outcome = self._any_part().finish()
        gc.enable()
        return _outcome(outcome)

    def _any_part(self) -> WriterPart | ReaderPart | PingPart | PongPart:
        assert self._part is not None  # noqa: S101 - the coordinator opens first
        return self._part

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say what this host is and which backends it can run."""
        from ipcbench.harness.keeping import describe_host  # with NumPy, which no endpoint needs

        return describe_host(request)

    def _watch(self, request: dict[str, Any]) -> dict[str, Any]:
        self._conditions.start(request["pids"])
        return {}

    def _watched(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"load": list(self._conditions.stop())}

    def _close(self, _: dict[str, Any]) -> dict[str, Any]:
        self._part = self._pattern_part = None
        while self.endpoints:
            self.endpoints.pop().close()
        return {}


def _stop_collecting() -> None:
    """Keep the garbage collector out of what is measured."""
    if not gc.get_freeze_count():  # what was imported stays: it need not be looked at before every trial
        gc.collect()
        gc.freeze()
    gc.collect()
    gc.disable()


def _outcome(outcome: Written | Received | Pinged | Ponged | Taken) -> dict[str, Any]:
    """Return an endpoint's measurements as plain values, with what its loop costs here and now."""
    facts = {name: getattr(outcome, name) for name in outcome.__dataclass_fields__ if name != "columns"}
    for name in ("usage", "integrity"):
        if name in facts:
            facts[name] = asdict(facts[name])
    if isinstance(outcome, Written | Received):
        facts["floor_ns"] = _own_loop_ns(writes=isinstance(outcome, Written), in_runs=outcome.stamp_stride > 1)
    return {"facts": facts, "columns": {name: column.tobytes() for name, column in outcome.columns.items()}}


@cache
def _own_loop_ns(*, writes: bool, in_runs: bool) -> float:
    """Return what a loop costs in this process, which lives for a round."""
    return own_loop_ns(writes=writes, in_runs=in_runs)


def _payloads(trial: TrialSpec, paths: Sequence[str]) -> list[bytes]:
    """Return one or two contents of equal length: those in the files, if there are any."""
    payloads = [Path(path).read_bytes() for path in paths] or _encoded(trial.payload, trial.size, trial.codec)
    return [payload for payload in payloads if len(payload) == len(payloads[0])]


def _encoded(payload: str, size: int, codec: str) -> tuple[bytes, ...]:
    """Return the payloads to send alternately; those that are cheap to keep are made once."""
    return (_encoded_once if size <= _KEPT_SIZE else _encoded_once.__wrapped__)(payload, size, codec)


@cache
def _encoded_once(payload: str, size: int, codec: str) -> tuple[bytes, ...]:
    return tuple(get_codec(codec).encode(build(payload, size, variant)) for variant in (0, 1))


def _place(error: Exception) -> str:
    """Return the file and line that raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
