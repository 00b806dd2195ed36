"""One replayed server with its clients over one backend: processes, channels, and the lists of calls they carry out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipcbench.backend import Address
from ipcbench.harness.group import Group
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir
from ipcbench.registry import get_backend
from ipcbench.replay.parts import COLUMNS
from ipcbench.replay.traffic import ThreadCalls
from ipcbench.replay.work import BY_TIME
from ipcbench.spec import ChannelSpec
from ipcbench.trace.readers.batch import UNKNOWN, Ints

DEPTH = 2
"""Of the channels: in a round trip there is never more than one message under way."""

_OPEN_S = 30.0
_WARM_KINDS, _WARM_TURNS = 20, 3

Columns = dict[str, Ints]


class Service:
    """The processes of a server and its clients.

    Args:
        backend: the transport's registered name, or `module:Class`.
        numbers: of its clients.
        run_dir: the run's folder and the prefix of its names.
        switchboard: where the processes connect to.
        largest_bytes: of the messages.
        stall_s: longest wait of a single read or write.

    Raises:
        WorkerCrashed, WorkerTimeout: a process did not start.
        BackendUnavailable: its launcher is missing.
    """

    def __init__(
        self,
        backend: str,
        numbers: Sequence[int],
        run_dir: RunDir,
        switchboard: Switchboard,
        largest_bytes: int,
        stall_s: float,
    ) -> None:
        self._name = backend
        self._backend = get_backend(backend)()
        self._numbers = numbers
        self._run_dir = run_dir
        self._largest_bytes = largest_bytes
        self._stall_s = stall_s
        self._addresses: list[Address] = []
        names = [f"client {number}" if len(numbers) > 1 else "client" for number in numbers]
        launcher = self._backend.capabilities.launcher
        self._group = Group(launcher, len(numbers), switchboard, roles=(*names, "server")).connect()

    def open(self) -> None:
        """Make two channels for each client, and open their ends.

        Raises:
            TransportError, TrialError: it cannot be done.
        """
        server = len(self._numbers)
        channels = [[self._channel((client, server)), self._channel((server, client))] for client in range(server)]
        self._group.ask_all(_call("open_part", {"backend": self._name, "channels": channels}), _OPEN_S)

    def _channel(self, processes: tuple[int, int]) -> dict[str, Any]:
        channel = ChannelSpec(
            name=self._run_dir.channel_name(),
            max_message_bytes=self._largest_bytes,
            depth=DEPTH,
            processes=processes,
        )
        self._addresses.append(self._backend.create(channel))
        return self._addresses[-1].as_dict()

    def carry_out(self, lists: Sequence[Columns], limit_s: float) -> list[tuple[int, tuple[Columns, Columns]]]:
        """Carry out the clients' lists of calls, all at the same time.

        Args:
            lists: by the clients' numbers; there may be further ones.
            limit_s: how long it may take.

        Returns:
            The number of each client, and what it and the server measured.

        Raises:
            WorkerCrashed, WorkerTimeout, TrialError: a process ended, hung, or reports an error.
        """
        packed = [
            {name: column.astype(np.int64).tobytes() for name, column in lists[number].items()}
            for number in self._numbers
        ]
        requests = [*({"lists": [columns], "serves": False} for columns in packed), {"lists": packed, "serves": True}]
        questions = [_call("run_part", {**request, "stall_s": self._stall_s}) for request in requests]
        answers = self._group.ask(dict(enumerate(questions)), limit_s)
        served = answers[len(packed)]["lists"]
        both = [(_unpacked(answers[index]["lists"][0]), _unpacked(one)) for index, one in enumerate(served)]
        return list(zip(self._numbers, both, strict=True))

    def close(self) -> None:
        """Close the ends and let the processes go; they are killed if they do not.

        Raises:
            TrialError: an end cannot be closed.
        """
        try:
            self._group.ask_all({"do": "close"}, _OPEN_S)
            self._group.end()
        finally:
            self.drop()

    def kill(self) -> None:
        """End the processes at once."""
        self._group.kill()

    def drop(self) -> None:
        """Kill what is left of the processes, and remove the channels."""
        self._group.kill()
        while self._addresses:
            self._backend.destroy(self._addresses.pop())


def _unpacked(packed: dict[str, bytes]) -> Columns:
    return {name: np.frombuffer(data, dtype=np.int64) for name, data in packed.items()}


def _call(function: str, request: dict[str, Any]) -> dict[str, Any]:
    return {"do": "call", "function": f"ipcbench.replay.parts:{function}", **request}


def columns_of(thread: ThreadCalls) -> Columns:
    """Return a thread's calls as the list that the processes carry out, all work by its time."""
    by_time = np.full(len(thread.method), BY_TIME, dtype=np.int64)
    server = np.where(thread.server_ns == UNKNOWN, 0, thread.server_ns)
    values = (
        thread.gap_ns,
        thread.before_ns,
        thread.after_ns,
        server,
        thread.sent_bytes,
        thread.recv_bytes,
        *[by_time] * 6,
    )
    return dict(zip(COLUMNS, values, strict=True))


def back_to_back(sizes: Ints) -> Columns:
    """Return a list of calls without any work, with requests and replies of the same size."""
    none = np.zeros(len(sizes), dtype=np.int64)
    return dict(zip(COLUMNS, (none, none, none, none, sizes, sizes, *[none] * 6), strict=True))


def warm_up(columns: Columns) -> Columns:
    """Return a few calls of each pair of sizes, without work between them, so that memory and connections are there."""
    sizes = np.stack((columns["sent_bytes"], columns["recv_bytes"]), axis=1)
    first = np.unique(sizes, axis=0, return_index=True)[1][:_WARM_KINDS]
    chosen = np.tile(np.sort(first), _WARM_TURNS)
    calls = {name: column[chosen] for name, column in columns.items()}
    none = np.zeros(len(chosen), dtype=np.int64)
    return {**calls, **dict.fromkeys(("gap_ns", "gap_pieces", "server_ns", "server_pieces"), none)}


def by_pieces(columns: Columns, client: Columns, server: Columns, method: Ints) -> Columns:
    """Return the list with all work by its pieces, at the pace of a replay in which it was by its time.

    The pace is that of a method's usual call, so that a process that once did not run makes no difference. Fractions
    of a piece go to a later call of the method.
    """
    result = dict(columns)
    for work, done in (("gap", client), ("before", client), ("after", client), ("server", server)):
        result[f"{work}_pieces"] = _pieces(columns[f"{work}_ns"], done[f"{work}_pieces"], method)
    for walk, size, done in (("request_walk_bytes", "sent_bytes", server), ("reply_walk_bytes", "recv_bytes", client)):
        result[walk] = _usual_share(columns[size], done["walked_bytes"], method)
    return result


def _pieces(work_ns: Ints, pieces: Ints, method: Ints) -> Ints:
    result = np.zeros(len(method), dtype=np.int64)
    for index in np.unique(method):
        chosen = np.flatnonzero(method == index)
        asked = work_ns[chosen]
        if (asked > 0).any():
            pace = float(np.median(pieces[chosen][asked > 0] / asked[asked > 0]))
            result[chosen] = np.diff(np.floor(np.cumsum(asked * pace)), prepend=0.0).astype(np.int64)
    return result


def _usual_share(sizes: Ints, walked: Ints, method: Ints) -> Ints:
    result = np.zeros(len(method), dtype=np.int64)
    for index in np.unique(method):
        chosen = method == index
        share = float(np.median(walked[chosen] / np.maximum(sizes[chosen], 1)))
        result[chosen] = (sizes[chosen] * share).astype(np.int64)
    return result
