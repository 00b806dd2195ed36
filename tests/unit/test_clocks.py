"""Clocks as numbers: what exchanges say, when latency is refused, when a trial is impossible."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ipcbench.harness import clocks
from ipcbench.harness.clocks import Clocks, Offset, ask_clock, clock_identity
from ipcbench.harness.digest import Digest
from ipcbench.results.model import Conditions
from ipcbench.results.parse import to_record
from ipcbench.results.store import load_run
from ipcbench.spec import Mode, SweepSpec

HERE, THERE = "here", "there"
SENT_NS = np.arange(10) * 1_000_000


def digest_of(
    latencies_ns: list[int],
    offset: Offset | None = None,
    mode: Mode = "paced",
    *,
    later: Offset | None = None,
    least: tuple[int, int] | None = None,
    back_ns: int = 1_000,
) -> Digest:
    """Return the digest of a trial whose reader's clock may be another than the writer's."""
    trial = SweepSpec(payload="bytes", codec="raw", sizes=(64,), readers=1).trial("shm", 64, 64, mode, 0)
    received = SENT_NS + np.array(latencies_ns)
    writer = {"intended_ns": SENT_NS, "sent_ns": SENT_NS, "heard-0_ns": received + back_ns}
    reader = {"sequence": np.arange(10) + 6, "received_ns": received}
    totals = {"latency": {"least_ns": least[0], "least_sequence": least[1]}} if least else {}
    answers = {
        index: {
            "facts": {"warmup_count": 5, "turns": [(6, 10)], **facts},
            "columns": {name: c.tobytes() for name, c in columns.items()},
        }
        for index, (facts, columns) in enumerate([({}, writer), ({"totals": totals}, reader)])
    }
    names = (HERE, HERE if offset is None else THERE)
    known = Clocks(names, {} if offset is None else {HERE: Offset(), THERE: offset})
    if later is not None:
        known = known.until(Clocks(names, {HERE: Offset(), THERE: later}))
    return Digest(trial, answers, {0: (1, None), 1: (2, None)}, plan_stride=1, clocks=known)


def latencies_of(digest: Digest) -> list[int] | None:
    kept = digest.samples().get("reader-0.latency_ns")
    return None if kept is None else kept.tolist()


def test_an_answer_bounds_the_offset_whenever_the_clock_was_read() -> None:
    for read_after_ns in (0, 400, 1_000):
        offset = Offset.of_exchange(asked_ns=5_000, theirs_ns=5_000 + read_after_ns - 70_000, answered_ns=6_000)
        assert abs(offset.offset_ns - -70_000) <= offset.error_ns == 500.0


def test_two_checks_together_cover_both_and_what_lies_between() -> None:
    assert Offset(100.0, 10.0).until(Offset(100.0, 10.0)) == Offset(100.0, 10.0)
    assert Offset(100.0, 10.0).until(Offset(112.0, 4.0)) == Offset(103.0, 13.0)


def test_a_clock_that_moved_by_more_than_both_errors_is_refused_with_figures() -> None:
    digest = digest_of([900_000] * 10, Offset(0.0, 20_000.0), later=Offset(-500_000.0, 30_000.0))
    assert digest.refusal == "a clock moved by 500 µs during the trial (errors together 50.0 µs)"
    assert latencies_of(digest) is None
    assert digest_of([900_000] * 10, Offset(0.0, 20_000.0), later=Offset(40_000.0, 30_000.0)).refusal == ""


def test_the_offset_is_taken_from_latency_and_from_the_stored_times() -> None:
    digest = digest_of([520_000] * 10, Offset(20_000.0, 40_000.0))
    assert digest.refusal == ""
    assert latencies_of(digest) == [500_000] * 10
    assert (digest.samples()["reader-0.received_ns"] == SENT_NS + 500_000).all()


@pytest.mark.parametrize(("error_ns", "refused"), [(50_000.0, False), (50_001.0, True)])
def test_latency_is_refused_if_the_error_is_more_than_a_tenth_of_the_median(error_ns: float, refused: bool) -> None:
    digest = digest_of([480_000] * 10, Offset(-20_000.0, error_ns))
    assert digest.refusal == ("the clocks' error of 50.0 µs is more than 10% of the median, 500 µs" if refused else "")
    assert (latencies_of(digest) is None) == refused
    assert digest_of([480_000] * 10, Offset(-20_000.0, error_ns), "saturate").refusal == ""


def test_one_clock_has_no_error_however_far_it_is_from_the_coordinators() -> None:
    known = Clocks((HERE, THERE, THERE), {HERE: Offset(5.0, 3.0), THERE: Offset(7.0, 2.0)})
    assert [known.error_ns(reader) for reader in (1, 2)] == [5.0, 5.0]
    assert Clocks((THERE, HERE, THERE), known.offsets).error_ns(2) == 0.0
    assert Clocks((THERE, THERE)).error_ns(1) == Clocks((THERE, THERE)).of(1).offset_ns == 0.0


@pytest.mark.parametrize("mode", ["paced", "saturate", "pingpong"])
def test_on_one_clock_no_message_may_be_received_before_it_was_sent(mode: Mode) -> None:
    assert digest_of([0] * 10, mode=mode).impossible() == ""
    reason = digest_of([1_000] * 8 + [-419_000, 1_000], mode=mode).impossible()
    assert reason.startswith("reader-0: message 14 was received 419 µs before it was sent: the clock of a process is")


def test_a_reply_must_not_be_received_before_it_was_sent_either() -> None:
    reason = digest_of([500_000] * 10, mode="pingpong", back_ns=-3_000).impossible()
    assert reason.startswith("reader-0: its reply to message 6 was received 3.00 µs before it was sent: ")


def test_between_clocks_their_error_is_allowed() -> None:
    assert digest_of([-40_000] * 10, Offset(0.0, 40_000.0)).impossible() == ""
    reason = digest_of([-40_001] * 10, Offset(0.0, 40_000.0)).impossible()
    assert "was received 40.0 µs before it was sent (the clocks' error is 40.0 µs): " in reason


def test_of_a_long_window_every_message_counts_and_not_only_those_kept() -> None:
    assert digest_of([900] * 10, least=(0, 8)).impossible() == ""
    assert (
        digest_of([900] * 10, least=(-1, 8)).impossible().startswith("reader-0: message 8 was received 1.00 ns before")
    )
    assert digest_of([900] * 10, Offset(-50.0, 10.0), least=(-60, 8)).impossible() == ""
    assert "message 8" in digest_of([900] * 10, Offset(-50.0, 10.0), least=(-61, 8)).impossible()


def test_the_identity_of_a_clock_is_the_boot_and_the_time_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    own = clock_identity()
    assert own == clock_identity() != ""
    monkeypatch.setattr(os, "readlink", lambda _: "time:[1]")
    assert clock_identity() != own

    def missing(_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "readlink", missing)
    assert clock_identity().endswith(clocks._INITIAL_NAMESPACE), "as on kernels without time namespaces"
    monkeypatch.setattr(Path, "read_text", missing)
    assert clock_identity() == ""


def test_conditions_of_older_runs_still_load() -> None:
    known = {"load_1min": 0.5, "steal_ratio": 0.0, "throttled_s": 0.0, "probe_before_ns": None, "probe_after_ns": None}
    older = to_record({**known, "clock_offset_ns": 50.0, "clock_delay_ns": 900, "clocks_agree": True}, Conditions)
    assert (older.clock_error_ns, older.clock_offsets_ns) == (0.0, ())
    assert load_run(Path(__file__).parents[2] / "results" / "reference").trials


@contextmanager
def _answering(*, late: bool) -> Iterator[tuple[str, int, list[bytes]]]:
    """Answer each question, or when the next one has come; yields where, and what was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                question, asker = server.recvfrom(100)
                if question == b"end":
                    return
                asked.append(question)
                if len(asked) > late:
                    server.sendto(asked[-1 - late] + clocks._TIMES.pack(0, 0), asker)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield (*server.getsockname(), asked)
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ending:
                ending.sendto(b"end", server.getsockname())
            thread.join()


@pytest.mark.parametrize(("asking_s", "count"), [(0.0, 1), (1e9, clocks.QUESTIONS)])
def test_a_comparison_of_clocks_ends_in_time_on_a_long_way(
    asking_s: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a round trip of 156 ms, 64 questions took longer than a worker has to answer, and each trial failed."""
    monkeypatch.setattr(clocks, "ASKING_S", asking_s)
    with _answering(late=False) as (host, port, asked):
        assert ask_clock(host, port, b"s" * clocks._SECRET_BYTES) is not None
    assert len(asked) == count


def test_an_answer_that_comes_after_the_next_question_counts_for_its_own() -> None:
    before_ns = clocks.now_ns()
    with _answering(late=True) as (host, port, _):
        offset = ask_clock(host, port, b"s" * clocks._SECRET_BYTES)
    assert offset is not None
    assert before_ns < -offset.offset_ns < clocks.now_ns()
