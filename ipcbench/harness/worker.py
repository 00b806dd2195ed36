"""A worker: one process of a group. Connects back, opens an endpoint when told, runs its part of a trial, reports.

The protocol is question and answer: `{"do": verb, …}` is answered by `{"ok": true, …}` or `{"ok": false, "error",
"text"}`. When the coordinator is gone, however it went, the worker ends at once.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ipcbench.backend import Address, Endpoint
from ipcbench.errors import IpcbenchError, TrialError
from ipcbench.harness.pingpong import Pinged, PingPart, Ponged, PongPart
from ipcbench.harness.placement import ping_pong_ns
from ipcbench.harness.plan import Plan
from ipcbench.harness.reading import ReaderPart, Received
from ipcbench.harness.writing import WriterPart, Written
from ipcbench.processes.control import Channel, connect
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.util.clock import now_ns
from ipcbench.workload.codec import get_codec
from ipcbench.workload.message import Outgoing
from ipcbench.workload.payload import build

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "MPI_RANKID")
"""Where MPI launchers say which process of the group this is."""

AnyEndpoint = TypeVar("AnyEndpoint", bound=Endpoint)

_PR_SET_PDEATHSIG = 1
_ORPHANED = 3


class Worker:
    """Serves one coordinator as process number `index` of its group: 0 writes, i + 1 is reader i.

    Attributes:
        index: which process of the group this is.
        endpoints: what is open, in the order of opening.
    """

    def __init__(self, channel: Channel, index: int) -> None:
        self._channel = channel
        self.index = index
        self.endpoints: list[Endpoint] = []
        self._part: WriterPart | ReaderPart | PingPart | PongPart | None = None
        self._verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "echo": lambda _: {"clock_ns": now_ns()},
            "create": self._create,
            "destroy": self._destroy,
            "open": self._open,
            "probe": self._probe,
            "go": self._go,
            "warm up": self._warm_up,
            "measure": self._measure,
            "finish": self._finish,
            "call": self._call,
            "close": self._close,
        }

    def serve(self) -> None:
        """Answer until told to exit or until the coordinator is gone."""
        self._channel.send({"index": self.index, "pid": os.getpid()})
        while True:
            try:
                request = self._channel.receive(None)
            except TrialError:
                return
            if request["do"] == "exit":
                return
            try:
                answer = {"ok": True, **self._verbs[request["do"]](request)}
            except IpcbenchError as error:
                answer = {"ok": False, "error": type(error).__name__, "text": str(error)}
            except Exception as error:  # whatever a backend raises fails its trial, and says where
                answer = {"ok": False, "error": type(error).__name__, "text": f"{error} ({_place(error)})"}
            self._channel.send(answer)

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make a channel of a backend whose channels exist in one process only."""
        backend = get_backend(request["backend"])()
        return {"address": backend.create(ChannelSpec.from_dict(request["channel"])).as_dict()}

    def _destroy(self, request: dict[str, Any]) -> dict[str, Any]:
        get_backend(request["backend"])().destroy(Address.from_dict(request["address"]))
        return {}

    def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open the endpoints and get everything ready, so that `go` finds nothing left to allocate."""
        plan = Plan.from_dict(request["plan"])
        trial = plan.trial
        if request["cores"] is not None:
            os.sched_setaffinity(0, {request["cores"][self.index]})
        address = Address.from_dict(request["address"])
        back = [Address.from_dict(one) for one in request["back"]]
        backend, codec = get_backend(trial.backend)(), get_codec(trial.codec)
        if self.index:
            reader = self.hold(backend.open_reader(address, self.index - 1))
            if back:
                self._part = PongPart(reader, self.hold(backend.open_writer(back[self.index - 1])), plan)
            else:
                self._part = ReaderPart(reader, codec, plan)
            return {}
        writer = self.hold(backend.open_writer(address))
        replies = [self.hold(backend.open_reader(one, 0)) for one in back]
        payloads = [codec.encode(build(trial.payload, trial.size, variant)) for variant in (0, 1)]
        messages = [Outgoing(one) for one in payloads if len(one) == len(payloads[0])]
        self._part = PingPart(writer, replies, messages, plan) if back else WriterPart(writer, messages, plan)
        return {}

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Hand the request to a function of a layer above, named as `module:function`; it gets this worker, too."""
        module_name, _, name = request["function"].partition(":")
        answer: dict[str, Any] = getattr(import_module(module_name), name)(self, request)
        return answer

    def hold(self, endpoint: AnyEndpoint) -> AnyEndpoint:
        """Remember an endpoint, to close it at the next `close`."""
        self.endpoints.append(endpoint)
        return endpoint

    def _probe(self, request: dict[str, Any]) -> dict[str, Any]:
        half_ns = ping_pong_ns(Path(request["path"]), self.index, request["base"], request["timeout_s"])
        return {"half_ns": half_ns}

    def _go(self, _: dict[str, Any]) -> dict[str, Any]:
        assert self._part is not None  # noqa: S101 - the coordinator opens before it says go
        _stop_collecting()
        try:
            return _outcome(self._part.run())
        finally:
            _collect_again()

    def _warm_up(self, _: dict[str, Any]) -> dict[str, Any]:
        """Do the first third of a trial that is measured in turns with others; what fails ends the process."""
        _stop_collecting()
        self._turns().warm_up()
        return {}

    def _measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do the second third: the window, in turns whose times the coordinator has set."""
        self._turns().measure(request["starts_ns"])
        return {}

    def _finish(self, _: dict[str, Any]) -> dict[str, Any]:
        outcome = self._turns().finish()
        _collect_again()
        return _outcome(outcome)

    def _turns(self) -> WriterPart | ReaderPart:
        assert isinstance(self._part, WriterPart | ReaderPart)  # noqa: S101 - only one-way trials are measured in turns
        return self._part

    def _close(self, _: dict[str, Any]) -> dict[str, Any]:
        self._part = None
        while self.endpoints:
            self.endpoints.pop().close()
        return {}


def _stop_collecting() -> None:
    """Keep the garbage collector out of what is measured."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _collect_again() -> None:
    gc.enable()
    gc.unfreeze()


def _outcome(outcome: Written | Received | Pinged | Ponged) -> dict[str, Any]:
    """Return what an endpoint has measured as plain values."""
    facts = {name: getattr(outcome, name) for name in outcome.__dataclass_fields__ if name != "columns"}
    for name in ("usage", "integrity"):
        if name in facts:
            facts[name] = asdict(facts[name])
    return {"facts": facts, "columns": {name: column.tobytes() for name, column in outcome.columns.items()}}


def _place(error: Exception) -> str:
    """Return the file and line that raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it ends (Linux; elsewhere the lifeline does)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch_lifeline(descriptor: int) -> None:
    """End this process when the coordinator's end of the control channel goes; costs nothing while it waits."""

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLHUP | select.POLLRDHUP if sys.platform.startswith("linux") else 0)
        poll.poll()
        os._exit(_ORPHANED)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def _rank() -> int:
    for name in RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    raise SystemExit(f"no rank: none of {', '.join(RANK_VARIABLES)} is set by the launcher")


def main(arguments: list[str] | None = None) -> None:
    """Run the process's endpoints: one, or with `--together N` all N in threads of this process."""
    parser = argparse.ArgumentParser(prog="ipcbench.harness.worker")
    parser.add_argument("--control", required=True)
    parser.add_argument("--index", type=int, help="number in the group; without it, the MPI launcher's rank")
    parser.add_argument("--together", type=int, default=0)
    options = parser.parse_args(arguments)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _die_with_parent()
    if options.together:
        _serve_together(options.control, options.together)
        return
    channel = connect(options.control)
    _watch_lifeline(channel.fileno())
    Worker(channel, _rank() if options.index is None else options.index).serve()


def _serve_together(control: str, count: int) -> None:
    """Serve as `count` workers; each is a thread with a connection of its own, served as soon as it is made."""
    threads = []
    for index in range(count):
        channel = connect(control)
        if not index:
            _watch_lifeline(channel.fileno())
        worker = Worker(channel, index)
        threads.append(threading.Thread(target=worker.serve, name=f"endpoint-{index}", daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
