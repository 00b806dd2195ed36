"""What the processes of an rpc trial do: one serves, the others call it when they are told."""

from __future__ import annotations

import threading
from array import array
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from select import select
from typing import Any

import numpy as np

from ipcbench import rpc
from ipcbench.backend import Endpoint, Reader, Writer
from ipcbench.errors import IntegrityError
from ipcbench.harness.loops import SPIN_NS
from ipcbench.harness.patterns.parts import Offered
from ipcbench.harness.plan import Plan
from ipcbench.machine.usage import UsageMeter
from ipcbench.util.clock import now_ns
from ipcbench.workload.message import unpack_word

NUMBER_BYTES = 8
"""Of its number, at the begin of a plain message."""

_METHOD = "work"
_END = -1
_LEAST_BYTES, _OVERHEAD_BYTES = 1024, 4096
_BLOCK_NS = 5_000_000
_LEAST_TRIPS, _COLD_TRIPS = 8, 2
"""Of plain round trips, and of calls, before the others have their turn: at least; and those that wake the server."""


def _work(service_ns: int) -> None:
    """Be busy for so long."""
    end_ns = now_ns() + service_ns
    while service_ns and now_ns() < end_ns:
        pass


class Serving(Endpoint):
    """The server of an rpc trial. On a pair of channels beside, it sends plain replies to plain messages.

    Args:
        name: of the server.
        there, back: ends of the plain channels.
        trial: what is measured.
    """

    def __init__(self, name: str, there: Reader, back: Writer, plan: Plan) -> None:
        trial = plan.trial
        self._there, self._back, self._stall_s = there, back, plan.stall_s
        self._reply = bytearray(NUMBER_BYTES + trial.reply_bytes)
        self._service_ns = trial.service_ns
        self._meter = UsageMeter([])
        self._trips_count = 0
        result = np.zeros(trial.reply_bytes, np.uint8)
        self._server = rpc.Server(
            trial.registered_name,
            name,
            max_bytes=max(_LEAST_BYTES, max(trial.payload_bytes, trial.reply_bytes) + _OVERHEAD_BYTES),
            depth=trial.depth,
            wait=trial.wait,
        )

        def work(number: int, request: Any) -> Any:
            _work(trial.service_ns)
            return number, result

        self._server.method(work, name=_METHOD)
        self._server.start()
        self._meter.start()
        self._started_ns = now_ns()

    def echo(self) -> None:
        """Send plain replies until the client says that it has no more messages."""
        while True:
            message = self._there.read(self._stall_s)
            if unpack_word(message)[0] == _END:
                return
            self._reply[:NUMBER_BYTES] = message[:NUMBER_BYTES]
            self._trips_count += 1
            _work(self._service_ns)
            self._back.write(self._reply, self._stall_s)

    def finish(self) -> dict[str, Any]:
        """Return what it did."""
        self._meter.stop()
        usage, collections = self._meter.total()
        times = {"first_ns": self._started_ns, "last_ns": now_ns()}
        return {"facts": {"count": self._trips_count, "usage": asdict(usage), "gc_count": collections, **times}}

    def close(self) -> None:
        """Stop."""
        self._server.stop()


class Calling(Endpoint):
    """A client of an rpc trial. Its calls are numbered index, index + clients, index + 2 · clients …

    Args:
        name: of the server.
        index: its number among the clients.
        request: what each call sends.
        plain: ends of the plain channels, of the first client.
        plan: the trial.
    """

    def __init__(self, name: str, index: int, request: bytes, plain: tuple[Writer, Reader] | None, plan: Plan) -> None:
        trial = plan.trial
        self._client = rpc.connect(name, timeout_s=plan.stall_s)
        self._index, self._step, self._in_flight = index, trial.writers, trial.in_flight
        self._request = np.frombuffer(request, np.uint8)
        self._message = bytearray(NUMBER_BYTES) + request
        self._plain, self._stall_s = plain, plan.stall_s
        self._reply_bytes = trial.reply_bytes
        self._intended, self._done = array("q"), array("q")
        self._room = threading.Semaphore(trial.in_flight)
        self._failure: Exception | None = None
        self._meter = UsageMeter([])

    def offer(self, begin_ns: int, window_ns: int, rate_per_s: float) -> Offered:
        """Call for `window_ns`, at this client's rate, or one call after another in each of those in flight if it is 0.

        Args:
            begin_ns: when the window begins, on the clock that all clients share; one that learns of it later begins at
                once.
            window_ns: for how long; flat out, who begins later ends with the others.
            rate_per_s: calls per second of this client.

        Raises:
            TransportError, RemoteError: as of a call.
            IntegrityError: a result is that of another call.
        """
        if not rate_per_s:
            self._flat_out(begin_ns)
        first, before, own_begin_ns = self._next_number, len(self._intended), max(begin_ns, now_ns())
        self._meter.start()
        if rate_per_s:
            self._paced(own_begin_ns, window_ns, 1e9 / rate_per_s)
        else:
            self._flat_out(begin_ns + window_ns)
        end_ns = now_ns()
        self._await_all()
        self._meter.stop()
        return Offered(first, len(self._intended) - before, own_begin_ns, end_ns)

    @property
    def _next_number(self) -> int:
        return self._index + self._step * len(self._intended)

    def _flat_out(self, stop_ns: int) -> None:
        if self._in_flight > 1:
            while self._room.acquire() and (begin_ns := now_ns()) < stop_ns:
                self._submit(begin_ns)
            self._room.release()
            return
        while (begin_ns := now_ns()) < stop_ns:
            self._call(begin_ns)

    def _paced(self, begin_ns: int, window_ns: int, interval_ns: float) -> None:
        """Make the calls that are due within the window, those of the clients in turns; the schedule never moves."""
        first_ns = begin_ns + int(interval_ns * (1 + self._index / self._step))
        for number in range(int(window_ns / interval_ns)):
            due_ns = first_ns + int(number * interval_ns)
            left_ns = due_ns - now_ns()
            while left_ns > 0:  # the thread that reads replies needs the interpreter meanwhile
                select((), (), (), max(0, left_ns - SPIN_NS) / 1e9)
                left_ns = due_ns - now_ns()
            if self._in_flight == 1:
                self._call(due_ns)
            else:
                self._room.acquire()
                self._submit(due_ns)

    def _call(self, intended_ns: int) -> None:
        number = self._next_number
        self._check(number, self._client.call(_METHOD, number, self._request))
        self._intended.append(intended_ns)
        self._done.append(now_ns())

    def _submit(self, intended_ns: int) -> None:
        number, place = self._next_number, len(self._intended)
        self._intended.append(intended_ns)
        self._done.append(0)
        future = self._client.submit(_METHOD, number, self._request)
        future.add_done_callback(partial(self._note, place, number))

    def _note(self, place: int, number: int, future: Future[Any]) -> None:
        self._done[place] = now_ns()
        try:
            self._check(number, future.result())
        except Exception as error:  # it is raised at the end of the window
            self._failure = self._failure or error
        self._room.release()

    def _await_all(self) -> None:
        """Wait for the calls in flight; raise what one has met."""
        for _ in range(self._in_flight):
            self._room.acquire()
        self._room.release(self._in_flight)
        if self._failure is not None:
            raise self._failure

    def _check(self, number: int, result: Any) -> None:
        of_call, reply = result
        if of_call != number or len(reply) != self._reply_bytes:
            raise IntegrityError(f"the result of call {number} is that of call {of_call}, with {len(reply):,} bytes")

    def alone(self, window_ns: int) -> dict[str, Any]:
        """Make plain round trips and calls in turns, one at a time, for `window_ns` together; return their times."""
        assert self._plain is not None  # noqa: S101 - the coordinator asks the first client
        columns = {"plain": array("q"), "call": array("q")}
        stop_ns = now_ns() + window_ns
        while now_ns() < stop_ns:
            for name, trip in (("plain", self._trip), ("call", self._one_call)):
                end_ns, count = now_ns() + _BLOCK_NS, 0
                while count < _LEAST_TRIPS or now_ns() < end_ns:
                    begin_ns = now_ns()
                    trip()
                    took_ns = now_ns() - begin_ns
                    count += 1
                    if count > _COLD_TRIPS:
                        columns[name].append(took_ns)
        self._send(_END)
        return {name: column.tobytes() for name, column in columns.items()}

    def _one_call(self) -> None:
        self._check(0, self._client.call(_METHOD, 0, self._request))

    def _trip(self) -> None:
        """Make a plain round trip."""
        assert self._plain is not None  # noqa: S101 - `alone` has checked
        self._send(len(self._done))
        reply = self._plain[1].read(self._stall_s)
        if unpack_word(reply)[0] != len(self._done) or len(reply) != NUMBER_BYTES + self._reply_bytes:
            raise IntegrityError(f"the plain reply to message {len(self._done)} is a different message")

    def _send(self, number: int) -> None:
        assert self._plain is not None  # noqa: S101 - as above
        self._message[:NUMBER_BYTES] = number.to_bytes(NUMBER_BYTES, "little", signed=True)
        self._plain[0].write(self._message, self._stall_s)

    def finish(self) -> dict[str, Any]:
        """Return what it did, and the times of all calls."""
        usage, collections = self._meter.total()
        facts = {"total_count": len(self._done), "usage": asdict(usage), "gc_count": collections}
        columns = {"intended_ns": self._intended.tobytes(), "received_ns": self._done.tobytes()}
        return {"facts": facts, "columns": columns}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
