"""The two sides of a replay, on channels that are lists; the list of calls by time and by pieces; the table."""

from __future__ import annotations

import itertools
import os
import queue
from array import array
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

from ipcbench.backend import Reader, Writer
from ipcbench.errors import IntegrityError
from ipcbench.replay.latency_table import LatencyTable, ladder, make_table
from ipcbench.replay.parts import COLUMNS, ClientPart, ServerPart, Turns, run_all
from ipcbench.replay.service import by_pieces, columns_of, warm_up
from ipcbench.replay.work import BY_TIME, PIECE_BYTES, Work
from ipcbench.util.clock import now_ns
from tests.replay.made import thread, traffic


class _End(Writer, Reader):
    """Both ends of a channel inside a process."""

    def __init__(self) -> None:
        self._messages: queue.Queue[bytes] = queue.Queue()

    def write(self, message, timeout_s=None) -> None:
        self._messages.put(bytes(message))

    def read(self, timeout_s=None) -> memoryview:
        return memoryview(self._messages.get(timeout=timeout_s))

    def close(self) -> None:
        """Nothing is held."""


def plain_columns(columns):
    return {name: array("q", columns[name].astype(np.int64).tobytes()) for name in COLUMNS}


def carry_out(columns):
    """Run both sides in threads; return what they measured."""
    plain = plain_columns(columns)
    there, back = _End(), _End()
    server = ServerPart(back, there, plain, 5.0, Work(), Turns())
    with ThreadPoolExecutor() as pool:
        served = pool.submit(server.run)
        client = ClientPart(there, back, plain, 5.0, Work(), Turns()).run()
    return [{name: np.array(column) for name, column in side.items()} for side in (client, served.result())]


def test_a_replay_by_time_takes_at_least_the_recorded_work():
    calls = thread(count=10, server_ns=300_000, gap_ns=100_000, before_ns=50_000, after_ns=70_000)
    client, server = carry_out(columns_of(calls))
    assert (client["total_ns"] >= 350_000).all()
    assert client["end_ns"][-1] - client["end_ns"][0] + client["total_ns"][0] >= 10 * 420_000 + 9 * 100_000 - 500_000
    assert (server["server_pieces"] > 0).any()
    assert set(server["walked_bytes"][calls.method == 1].tolist()) <= {65536, 100_000}


def test_by_pieces_as_much_is_done_as_at_the_pace_of_the_pilot():
    calls = thread(count=8, server_ns=1000, gap_ns=3000)
    columns = columns_of(calls)
    pilot = {
        "gap_pieces": np.array([0, 3, 3, 0, 3, 3, 3, 3]), "before_pieces": np.full(8, 1), "after_pieces": np.full(8, 0),
        "walked_bytes": calls.recv_bytes,
    }  # fmt: skip
    served = {"server_pieces": np.full(8, 2), "walked_bytes": calls.sent_bytes}
    made = by_pieces(columns, pilot, served, calls.method)
    assert made["gap_pieces"].tolist() == [0, 3, 3, 3, 3, 3, 3, 3]
    for name, pieces_count in (("before_pieces", 1), ("after_pieces", 0), ("server_pieces", 2)):
        assert made[name].tolist() == [pieces_count] * 8
    assert made["request_walk_bytes"].tolist() == calls.sent_bytes.tolist()
    client, server = carry_out(made)
    assert client["gap_pieces"].tolist() == made["gap_pieces"].tolist()
    assert server["server_pieces"].tolist() == made["server_pieces"].tolist()


def test_a_message_of_another_call_ends_the_replay():
    there = _End()
    plain = plain_columns(columns_of(thread(count=2)))
    there.write(b"abcd")
    with pytest.raises(IntegrityError, match="call 0 got a message of another call"):
        ServerPart(_End(), there, plain, 1.0, Work(), Turns()).run()


def test_turns_are_taken_in_the_order_of_asking():
    turns, taken = Turns(), []

    def take(number: int) -> None:
        with turns:
            taken.append(number)

    with ThreadPoolExecutor(4) as pool, turns:
        for number in range(4):
            pool.submit(take, number)
            while len(turns._waiting) <= number:
                os.sched_yield()
        assert taken == []
    assert taken == [0, 1, 2, 3]
    take(4)
    assert taken[-1] == 4


def test_a_server_of_several_clients_handles_one_request_at_a_time():
    plain = plain_columns(columns_of(thread(count=6, server_ns=200_000)))
    work, turns = Work(), Turns()
    channels = [(_End(), _End()) for _ in range(3)]
    servers = [ServerPart(back, there, plain, 5.0, work, turns) for there, back in channels]
    begun, done = [], []
    do = work.do

    def watched(*request) -> int:
        begun.append(now_ns())
        done.append(do(*request))
        return done[-1]

    for server in servers:
        server.work = Mock(wraps=work, do=watched, pieces_count=0)
    with ThreadPoolExecutor(3) as pool:
        clients = [pool.submit(ClientPart(*ends, plain, 5.0, Work(), Turns()).run) for ends in channels]
        assert [len(served["server_pieces"]) for served in run_all(servers)] == [6, 6, 6]
    assert [len(client.result()["total_ns"]) for client in clients] == [6, 6, 6]
    assert len(begun) == 18
    assert all(end <= begin for end, begin in zip(done, begun[1:], strict=False))


def test_the_first_error_of_a_server_of_several_clients_ends_it():
    plain = plain_columns(columns_of(thread(count=2)))
    silent, wrong = _End(), _End()
    wrong.write(b"abcd")
    with pytest.raises(IntegrityError, match="another call"):
        run_all([ServerPart(_End(), end, plain, 3.0, Work(), Turns()) for end in (silent, wrong)])


def test_work_by_time_makes_up_for_what_took_too_long(monkeypatch):
    ticks = itertools.count(0, 1_700)
    monkeypatch.setattr("ipcbench.replay.work.now_ns", lambda: next(ticks))
    work, end = Work(), 0
    for turn in range(1, 201):
        end = work.do(BY_TIME, turn * 5_000, 2**20)
    assert abs(end - 200 * 5_000) <= 2 * 1_700
    work.do(7, 0, PIECE_BYTES)
    assert work.pieces_count == 7


def test_a_warm_up_has_every_pair_of_sizes_and_no_work_between():
    made = warm_up(columns_of(thread(count=30)))
    assert set(zip(made["sent_bytes"].tolist(), made["recv_bytes"].tolist(), strict=True)) == {(0, 3), (100_000, 20)}
    assert not made["gap_ns"].any()
    assert not made["server_ns"].any()


def test_the_table_is_straight_between_sizes_and_goes_on_beyond_them():
    table = make_table(np.array([100, 100, 1100]), [np.array([20, 40, 4060]), np.array([40, 20, 4060])])
    assert table == LatencyTable((100, 1100), (15.0, 2030.0))
    assert table.times_ns(np.array([100, 600, 2100])).tolist() == pytest.approx([15.0, 1022.5, 4045.0])
    assert LatencyTable((8,), (5.0,)).times_ns(np.array([1, 100])).tolist() == [5.0, 5.0]
    calls = thread(count=2)
    flat = LatencyTable((1,), (1000.0,))
    assert flat.thread_ns(calls) == 4 * 1000 + 10_000 + 2 * (5_000 + 5_000 + 50_000)


def test_the_ladder_ends_with_the_largest_message():
    assert set(ladder(100).tolist()) == {16, 100}
    assert set(ladder(2**20 + 100).tolist()) == {16, 1024, 8192, 2**16, 2**18, 2**20 + 100}, "two points at one place"
    assert max(ladder(0).tolist()) == 0


def test_the_beginning_of_the_traffic():
    whole = traffic(thread(count=100), thread(count=3))

    def counts(*limits):
        return [len(thread.method) for thread in whole.limited(*limits).threads]

    assert [counts(limit * 210_000) for limit in (30, 10, 2, 0)] == [[30, 3], [20, 3], [8, 3], [1, 1]]
    assert counts(0, 2) == [2, 2]
    assert whole.largest_bytes == 100_000
