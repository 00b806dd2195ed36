"""The recorder of a process: starting and stopping it, and beginning calls. Standard library only."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from pathlib import Path

from ipcbench.errors import ConfigError
from ipcbench.trace.record.budget import Costs
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.counts import in_memory
from ipcbench.trace.record.files import Store
from ipcbench.trace.record.hot import HotRecorder
from ipcbench.trace.record.ids import TraceId, parse_trace_id
from ipcbench.trace.record.no_op import NOTHING
from ipcbench.trace.record.thread_recorder import Lane, Site
from ipcbench.trace.schema import RPC, Schema
from ipcbench.util.clock import now_ns
from ipcbench.util.units import parse_bytes

VARIABLE = "IPCBENCH_TRACE"
"""Environment variable that starts tracing at the first traced call: `dir,sample=16,budget=0.01,max_bytes=1GiB`."""

_MAX_BYTES = 2**30
_CALIBRATION_CALLS = 400
_CALIBRATION_ROUNDS = 3

_log = logging.getLogger("ipcbench.trace")


class _Seat:
    """Holds a thread's lane; when the thread ends, the lane is closed.

    A fork ends all other threads in the child: there their lanes' files and locks are the parent's, and left alone.
    """

    __slots__ = ("lane", "pid")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.pid = os.getpid()

    def __del__(self) -> None:
        if self.pid == os.getpid():
            self.lane.close()


class Recorder(HotRecorder):
    """Records calls. `call` may be used from every thread and after a fork; nothing of it raises into the application.

    Attributes:
        enabled: False for the one that records nothing.
    """

    enabled = True

    def __init__(self, store: Store) -> None:
        super().__init__(threading.local(), RPC)
        self._store = store
        self._lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._lock = threading.RLock()  # of the set of lanes

    @property
    def problem(self) -> str:
        """Why not everything is recorded; empty while it is."""
        return self._store.problem

    def _slow_call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> Call:
        call: Call = self._site(method, schema, peer).begin()
        if trace_id is not None and call is not NOTHING:
            call._trace = parse_trace_id(trace_id)
        return call

    def _site(self, method: str, schema: Schema, peer: str) -> Site:
        try:
            lane: Lane = self._local.lane
        except AttributeError:
            lane = self._new_lane()
        return lane.site(method, schema, peer)

    def _new_lane(self) -> Lane:
        lane = Lane(self._store)
        self._local.seat = _Seat(lane)
        self._local.lane = lane
        self._local.entries = lane.entries
        with self._lock:
            self._lanes.add(lane)
        return lane

    def renew(self) -> None:
        """Go on in the child after a fork, with files of its own."""
        self._lock = threading.RLock()  # another thread may have held the old one, and is not here
        for lane in list(self._lanes):
            lane.renew()
        seat = self._local.__dict__.get("seat")
        if seat is not None:
            seat.pid = os.getpid()

    def close(self) -> None:
        """End recording: files are cut to what was used. Calls under way, and later ones, are not recorded."""
        with self._lock:
            lanes = list(self._lanes)
        for lane in lanes:
            lane.tell()  # what was counted, into files that may have to be made for it
        self._store.closed = True
        for lane in lanes:
            lane.close()


class _Disabled(Recorder):
    """Records nothing."""

    enabled = False

    def __init__(self) -> None:
        """Hold nothing."""

    def call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> Call:
        return NOTHING

    def renew(self) -> None:
        """Nothing to renew."""

    def close(self) -> None:
        """Nothing to close."""


class _Unresolved(_Disabled):
    """Stands until the first call: then the environment variable decides."""

    enabled = True

    def call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> Call:
        return resolve().call(method, schema, peer, trace_id)


DISABLED = _Disabled()


class _State:
    """The recorder of this process."""

    __slots__ = ("recorder",)

    def __init__(self) -> None:
        self.recorder: Recorder = _Unresolved()


STATE = _State()


def resolve() -> Recorder:
    """Return the recorder of this process, started now if the environment asks for it and nobody has started one."""
    if isinstance(STATE.recorder, _Unresolved):
        STATE.recorder = DISABLED
        text = os.environ.get(VARIABLE, "")
        if text:
            try:
                start_from(text)
            except ConfigError as error:
                _log.warning("%s is ignored: %s", VARIABLE, error)
    return STATE.recorder


def start_from(text: str) -> Recorder:
    """Start as `dir,sample=16,…` says.

    Raises:
        ConfigError: it names something else, or a value is not allowed.
    """
    folder, *options = text.split(",")
    values = dict(option.partition("=")[::2] for option in options)
    unknown = set(values) - {"sample", "budget", "max_bytes", "service"}
    if unknown:
        raise ConfigError(VARIABLE, text, "a folder, then sample=, budget=, max_bytes= or service=")
    try:
        sample, budget = int(values.get("sample", "1")), float(values.get("budget", "0"))
    except ValueError as error:
        raise ConfigError(VARIABLE, text, "a whole sample= and a budget= such as 0.01") from error
    return start(folder, sample, budget, values.get("max_bytes", _MAX_BYTES), values.get("service", ""))


def start(
    folder: str | Path, sample: int = 1, budget: float = 0.0, max_bytes: int | str = _MAX_BYTES, service: str = ""
) -> Recorder:
    """Begin to record this process's calls into a folder, made at the first one. An earlier recorder is closed.

    A folder that cannot be made or written is not an error: calls are counted in memory, and the log says so once.

    Args:
        folder: where the files go; several processes may share it.
        sample: of so many calls one has a record, on average; all others are timed and tallied.
        budget: the share of each thread's time that tracing may cost, such as 0.01; 0 for no limit. With a budget, the
            calls between records are tallied, or only counted, as the time between calls allows.
        max_bytes: size at which the folder takes no more segments, such as `1GiB`; later calls are tallied.
        service: what this process is called in reports.

    Raises:
        ConfigError: a value is not allowed.
    """
    limit = parse_bytes(max_bytes, "max_bytes") if isinstance(max_bytes, str) else max_bytes
    if not isinstance(sample, int) or not 1 <= sample <= 1_000_000:
        raise ConfigError("sample", sample, "a whole number, 1 to 1,000,000")
    if not 0.0 <= budget < 1.0:
        raise ConfigError("budget", budget, "a share of time: 0 to 1, such as 0.01")
    if not str(folder):
        raise ConfigError("folder", folder, "the path of a folder")
    STATE.recorder.close()
    store = Store(Path(folder).absolute(), service[:100], sample, budget, limit, calibrate())
    STATE.recorder = Recorder(store)
    return STATE.recorder


def stop() -> None:
    """End recording; the environment variable does not start it again."""
    recorder, STATE.recorder = STATE.recorder, DISABLED
    recorder.close()


def _renew() -> None:
    STATE.recorder.renew()


# At once, so that what other modules do after a fork, or at the end, is recorded where it belongs.
os.register_at_fork(after_in_child=_renew)
atexit.register(stop)


class _Scratch(Store):
    """A store without files, to try out what a call costs."""

    def __init__(self, budget_ratio: float = 0.0) -> None:
        super().__init__(Path(), "", 1, budget_ratio, 0, Costs(1000.0, 1000.0, 100.0))


def calibrate() -> Costs:
    """Measure what a four-stage call costs here, in about 2 ms; 6 in Python."""
    from ipcbench.trace.record.segment import Segment

    best = [float("inf")] * 3
    for _ in range(_CALIBRATION_ROUNDS):
        recorder = Recorder(_Scratch())
        lane = recorder._new_lane()
        lane.segment = Segment(Path(), bytearray(2**17), 0)
        best[0] = min(best[0], _cost_ns(recorder))
        site = lane.entries["calibration"]
        site.always = False
        site.plan(2**50, False, 0)
        site.tally = in_memory()
        best[1] = min(best[1], _cost_ns(recorder))
        site.plan(2**50, True, 0)
        best[2] = min(best[2], _cost_ns(recorder))
    return Costs(*(round(one, 1) for one in best))


def _cost_ns(recorder: Recorder) -> float:
    begin_ns = now_ns()
    for _ in range(_CALIBRATION_CALLS):
        with recorder.call("calibration") as call:
            call.serialized(1)
            call.sent()
            call.received(1)
    return (now_ns() - begin_ns) / _CALIBRATION_CALLS
