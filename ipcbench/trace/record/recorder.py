"""The recorder of a process: starting and stopping it, and beginning calls."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from _thread import _local
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from ipcbench.errors import ConfigError
from ipcbench.trace.ids import TraceId, parse_trace_id
from ipcbench.trace.record.budget import Costs
from ipcbench.trace.record.call import NO_OP, Call, call_kind
from ipcbench.trace.record.files import Choice, TraceFiles
from ipcbench.trace.record.histograms import in_memory
from ipcbench.trace.record.hot import HotRecorder
from ipcbench.trace.record.segment import SegmentWriter
from ipcbench.trace.record.thread_recorder import CallSite, ThreadRecorder
from ipcbench.trace.schema import RPC, Schema
from ipcbench.util.clock import now_ns
from ipcbench.util.signals import raised_by_handler
from ipcbench.util.units import parse_bytes

VARIABLE = "IPCBENCH_TRACE"
"""Environment variable that starts tracing at the first traced call: `dir,sample=16,budget=0.01,max_bytes=1GiB`."""

_MAX_BYTES = 2**30
_CALIBRATION_CALLS = 400
_CALIBRATION_ROUNDS = 3

_log = logging.getLogger("ipcbench.trace")


class _ThreadExit:
    """Closes a thread's recorder when the thread ends and this object with it.

    A fork ends all other threads in the child: there their files and locks belong to the parent, and are left alone.
    """

    __slots__ = ("pid", "thread")

    def __init__(self, thread: ThreadRecorder) -> None:
        self.thread = thread
        self.pid = os.getpid()

    def __del__(self) -> None:
        if getattr(self, "pid", 0) == os.getpid():  # it has none if a signal handler cut its making short
            self.thread.close()


class Recorder(HotRecorder[Call]):
    """Records calls. `call` works from every thread and after a fork; nothing in it raises into the application.

    Attributes:
        enabled: False for the recorder that records nothing.
        tells_summary: whether `stop`, or the end of the process that started it, prints `summary` on stderr.
    """

    enabled = True

    def __init__(self, files: TraceFiles) -> None:
        super().__init__(_local(), RPC)  # gevent's own would give each greenlet its files
        self._files = files
        self._pid = os.getpid()
        self.tells_summary = False
        self._threads: weakref.WeakSet[ThreadRecorder] = weakref.WeakSet()
        self._lock = threading.RLock()  # of the set of threads

    @property
    def problem(self) -> str:
        """Why not everything is recorded; empty while it is."""
        return self._files.problem

    def summary(self) -> str:
        """Return what this process recorded so far, in some lines: calls, transport, stages in ms and %, totals."""
        text: str = import_module("ipcbench.trace.report.brief").summary(self._files.folder, os.getpid())
        return text

    def describe(self, text: str) -> None:
        """Keep a text about an endpoint with the calls of this thread."""
        try:
            thread: ThreadRecorder = self._local.thread
        except AttributeError:
            thread = self._new_thread()
        thread.describe(text)

    def tell_summary(self) -> None:
        """Print the summary on stderr if that was asked for; not in a forked child, and whatever goes wrong."""
        if self.tells_summary and self._pid == os.getpid():
            self.tells_summary = False
            try:
                sys.stderr.write(f"{self.summary()}\n")
            except Exception as error:  # nothing raises into the application
                _log.warning("no summary: %s", error)

    def _slow_call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> Call:
        try:
            call: Call = self._call_site(method, schema, peer).begin()
            if trace_id is not None and call is not NO_OP:
                call._trace = parse_trace_id(trace_id)
        except MemoryError as error:  # nothing raises into the application
            thread: ThreadRecorder | None = getattr(self._local, "thread", None)
            if thread is None or raised_by_handler(error):
                raise
            thread.lose(error)
            return NO_OP
        return call

    def _call_site(self, method: str, schema: Schema, peer: str) -> CallSite:
        try:
            thread: ThreadRecorder = self._local.thread
        except AttributeError:
            thread = self._new_thread()
        return thread.call_site(method, schema, peer)

    def _new_thread(self) -> ThreadRecorder:
        thread = ThreadRecorder(self._files, NO_OP, call_kind)
        self._local.exit = _ThreadExit(thread)
        self._local.thread = thread
        self._local.entries = thread.entries
        with self._lock:
            self._threads.add(thread)
        return thread

    def renew(self) -> None:
        """Continue in the child after a fork, with new files."""
        self._files.renew()
        self._lock = threading.RLock()  # another thread may have held the old one, and does not exist here
        for thread in list(self._threads):
            thread.renew()
        thread_exit = self._local.__dict__.get("exit")
        if thread_exit is not None:
            thread_exit.pid = os.getpid()

    def close(self) -> None:
        """End recording and truncate the files to their used part. Calls under way and later ones are not recorded."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.count_untimed()  # may have to make files
        self._files.closed = True
        for thread in threads:
            thread.close()


class _Disabled(Recorder):
    """Records nothing."""

    enabled = False

    def __init__(self) -> None:
        """Hold nothing."""

    def call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> Call:
        return NO_OP

    def describe(self, text: str) -> None:
        """Do nothing."""

    def summary(self) -> str:
        """Return that there is nothing."""
        return "ipcbench trace: nothing is recorded"

    def tell_summary(self) -> None:
        """Do nothing."""

    def renew(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _Unresolved(_Disabled):
    """Placeholder until the first call, when the environment variable decides."""

    enabled = True

    def call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> Call:
        return resolve().call(method, schema, peer, trace_id)

    def describe(self, text: str) -> None:
        resolve().describe(text)


DISABLED = _Disabled()


class _State:
    """The recorder of this process, and the name of the process if nobody gives it one."""

    __slots__ = ("is_resolving", "recorder", "service")

    def __init__(self) -> None:
        self.recorder: Recorder = _Unresolved()
        self.service = ""
        self.is_resolving = False


STATE = _State()
_RESOLVING = threading.RLock()


def resolve() -> Recorder:
    """Return the recorder of this process, started now if the environment asks for it and nobody has started one.

    Threads that make their first calls together wait for the one that starts it.
    """
    with _RESOLVING:
        if not isinstance(STATE.recorder, _Unresolved):
            return STATE.recorder
        if STATE.is_resolving:  # this is a signal handler's call
            return DISABLED
        STATE.is_resolving = True
        try:
            text = os.environ.get(VARIABLE, "")
            recorder: Recorder = DISABLED
            if text:
                recorder = start_from(text)
        except ConfigError as error:
            _log.warning("%s is ignored: %s", VARIABLE, error)
        except Exception as error:  # of whatever the program has put into the way
            if raised_by_handler(error):
                raise
            _log.warning("nothing is recorded: %s: %s", type(error).__name__, error)
        finally:
            STATE.is_resolving = False
        STATE.recorder = recorder
        return recorder


def start_from(text: str) -> Recorder:
    """Start as `dir,sample=16,…` says.

    Raises:
        ConfigError: an unknown option, or a value that is not allowed.
    """
    folder, *options = text.split(",")
    values = dict(option.partition("=")[::2] for option in options)
    sample, budget, limit = checked(values, text)
    only, exclude = (tuple(filter(None, values.get(name, "").split("|"))) for name in ("only", "exclude"))
    return start(folder, sample, budget, limit, values.get("service", ""), "summary" in values, only, exclude)


def checked(values: Mapping[str, str], text: str = "") -> tuple[int, float, int]:
    """Return sample, budget and max_bytes of options that are texts.

    Raises:
        ConfigError: an unknown option, or a value that is not allowed; `text` is what they stand in.
    """
    text = text or ",".join(f"{name}={value}" for name, value in values.items())
    unknown = set(values) - {"sample", "budget", "max_bytes", "service", "summary", "only", "exclude"}
    if unknown or values.get("summary"):
        allowed = "a folder, then sample=, budget=, max_bytes=, service=, only=, exclude= or summary"
        raise ConfigError(VARIABLE, text, allowed)
    try:
        sample, budget = int(values.get("sample", "1")), float(values.get("budget", "0"))
    except ValueError as error:
        raise ConfigError(VARIABLE, text, "a whole sample= and a budget= such as 0.01") from error
    _check(sample, budget)
    return sample, budget, parse_bytes(values["max_bytes"], "max_bytes") if "max_bytes" in values else _MAX_BYTES


def _check(sample: int, budget: float) -> None:
    if not isinstance(sample, int) or not 1 <= sample <= 1_000_000:
        raise ConfigError("sample", sample, "a whole number, 1 to 1,000,000")
    if not 0.0 <= budget < 1.0:
        raise ConfigError("budget", budget, "a share of time: at least 0, less than 1, such as 0.01")


def start(
    folder: str | Path,
    sample: int = 1,
    budget: float = 0.0,
    max_bytes: int | str = _MAX_BYTES,
    service: str = "",
    summary: bool = False,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Recorder:
    """Begin to record this process's calls into a folder, made at the first one. An earlier recorder is closed.

    A folder that cannot be made or written is not an error: calls are counted in memory, and the log says so once.

    Args:
        folder: where the files go; several processes may share it.
        sample: one in `sample` calls has a record, on average; all others are timed and put into histograms.
        budget: the share of each thread's time that tracing may cost, such as 0.01; 0 for no limit. With a budget, the
            calls between records are timed, or only counted, as the time between calls allows.
        max_bytes: size at which the folder takes no more segments, such as `1GiB`; later calls go into histograms.
        service: the name of this process in reports.
        summary: print `Recorder.summary` on stderr at the end.
        only, exclude: patterns of methods, such as `Mat*`; calls of other ones, and of excluded ones, leave no trace.

    Raises:
        ConfigError: a value is not allowed.
    """
    limit = parse_bytes(max_bytes, "max_bytes") if isinstance(max_bytes, str) else max_bytes
    _check(sample, budget)
    if not str(folder):
        raise ConfigError("folder", folder, "the path of a folder")
    STATE.recorder.close()
    chosen = Choice(tuple(only), tuple(exclude))
    service = (service or STATE.service)[:100]
    files = TraceFiles(Path(folder).absolute(), service, sample, budget, limit, calibrate(), chosen)
    STATE.recorder = Recorder(files)
    STATE.recorder.tells_summary = summary
    return STATE.recorder


def stop() -> None:
    """End recording; the environment variable does not start it again."""
    recorder, STATE.recorder = STATE.recorder, DISABLED
    recorder.close()
    recorder.tell_summary()


def _renew() -> None:
    global _RESOLVING  # another thread may have held it, and does not exist here
    _RESOLVING, STATE.is_resolving = threading.RLock(), False
    STATE.recorder.renew()
    _stop_with_worker()


def _stop_with_worker() -> None:
    """Have the recorder stopped at the end of this process if `multiprocessing` forked it: that ends by `os._exit`,
    after it has called its own finalizers, of which it forgets those that were there before it has begun.
    """
    util = sys.modules.get("multiprocessing.util")
    after_fork, finalize = getattr(util, "register_after_fork", None), getattr(util, "Finalize", None)
    if callable(after_fork) and callable(finalize):
        after_fork(stop, lambda stopped: finalize(None, stopped, exitpriority=-1000))


# Registered at import, so that what other modules do after a fork, or at the end, is recorded where it belongs.
os.register_at_fork(after_in_child=_renew)
atexit.register(stop)


def calibrate() -> Costs:
    """Measure what a four-stage call costs here, in about 2 ms; 6 in Python."""
    best = [float("inf")] * 3
    for _ in range(_CALIBRATION_ROUNDS):
        recorder = Recorder(TraceFiles(Path(), "", 1, 0.0, 0, Costs(1000.0, 1000.0, 100.0)))  # no file is made
        thread = recorder._new_thread()
        thread.segment = SegmentWriter(Path(), bytearray(2**17))
        best[0] = min(best[0], _cost_ns(recorder))
        call_site = thread.entries["calibration"]
        call_site.always = False
        call_site.plan(2**50, False, call_site.look_ns)
        call_site.histograms = in_memory()
        best[1] = min(best[1], _cost_ns(recorder))
        call_site.plan(2**50, True, call_site.look_ns)
        best[2] = min(best[2], _cost_ns(recorder))
    return Costs(*(round(cost_ns, 1) for cost_ns in best))


def _cost_ns(recorder: Recorder) -> float:
    begin_ns = now_ns()
    for _ in range(_CALIBRATION_CALLS):
        with recorder.call("calibration") as call:
            call.serialized(1)
            call.sent()
            call.received(1)
    return (now_ns() - begin_ns) / _CALIBRATION_CALLS
