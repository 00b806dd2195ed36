"""Replays between real processes, and what is said of them."""

from __future__ import annotations

import json
from unittest.mock import Mock

import numpy as np
import pytest

from ipcbench.errors import BackendUnavailable, ConfigError, TrialError, UnknownBackend
from ipcbench.processes.cleanup import find
from ipcbench.processes.run_dir import RunDir
from ipcbench.replay import render
from ipcbench.replay.latency_table import ladder
from ipcbench.replay.outcome import BackendOutcome, ReplayOutcome, conclude
from ipcbench.replay.run import Contender, Measured, Replayed, Replays, Request, replay
from ipcbench.replay.service import Service
from ipcbench.replay.traffic import ThreadCalls
from ipcbench.stats.estimates import Interval
from tests.replay.made import thread, traffic


@pytest.fixture
def tokens(monkeypatch) -> list[str]:
    """The names of the runs that were made."""
    made: list[str] = []
    original = RunDir.__init__

    def noting(self: RunDir) -> None:
        original(self)
        made.append(self.token)

    monkeypatch.setattr(RunDir, "__init__", noting)
    return made


def test_two_clients_over_two_backends_leave_nothing_behind(tokens):
    told: list[str] = []
    request = Request(("shm", "pipe"), rounds=2, source="shm", calls_count=10)
    done = replay(traffic(thread(), thread(count=6)), request, told.append)
    assert [len(thread.method) for thread in done.traffic.threads] == [10, 6]
    assert sum(line.startswith("round") for line in told) == 4
    for measured in done.measured.values():
        assert measured.failure == ""
        assert [len(threads) for threads in measured.threads_ns] == [2, 2]
        assert min(measured.threads_ns[0]) > 100_000
    assert done.table("shm").thread_ns(thread()) > thread().recorded_ns / 10
    outcome = conclude(done)
    assert {backend.name for backend in outcome.backends} == {"shm", "pipe"}
    assert any("2 of 2 clients have a server each" in remark for remark in outcome.remarks)
    (source,) = (backend for backend in outcome.backends if backend.name == "shm")
    assert source.gain_ratio == Interval(0.0, 0.0, 0.0)
    assert [resource for token in tokens for resource in find(token)] == []


@pytest.mark.parametrize(
    ("left_s", "rounds", "kept"),
    [(300.0, 9, "abcde"), (100.0, 9, "abde"), (40.0, 9, "abde"), (20.0, 9, "ae"), (1.0, 9, "a"), (40.0, 2, "abcde")],
)
def test_a_budget_is_too_small_for_the_rounds_that_a_claim_needs(left_s: float, rounds: int, kept: str) -> None:
    """Two rounds of everything say nothing; three of what is most promising do. A round took 20 s."""
    times_s = {"a": 7, "b": 2, "c": 4, "d": 1, "e": 1}
    importance = {"a": 2, "b": 1, "c": 0, "d": 1, "e": 1}
    contenders = {name: Contender("shm", traffic(), importance=importance[name]) for name in times_s}
    measured = {name: Measured(threads_ns=[[time_s * 10**9]]) for name, time_s in times_s.items()}
    replays = Replays(contenders, measured, Request(("shm",), rounds=rounds), ladder(100))
    replays._leave_out_some(1, 20.0, left_s)
    assert "".join(replays._contenders) == kept


def test_a_later_round_that_has_no_room_leaves_out_what_matters_less() -> None:
    """The machine became slower: all rounds ended, and what matters most had two."""
    contenders = {"a": Contender("shm", traffic()), "b": Contender("shm", traffic(), importance=1)}
    measured = {name: Measured(threads_ns=[[10**9]] * 2) for name in contenders}
    replays = Replays(contenders, measured, Request(("shm",), rounds=3), ladder(100))
    assert replays._leave_out_some(2, 4.0, 3.0) == pytest.approx(2.0)
    assert list(replays._contenders) == ["a"]


@pytest.mark.parametrize(
    ("left_s", "rounds", "most", "kept"),
    [(100.0, 3, 3, "abcd"), (10.0, 3, 3, "abcd"), (9.9, 3, 3, "ab"), (5.9, 3, 3, "ab"), (1.0, 2, 3, "abcd"),
     (1.0, 3, 2, "abcd")],
)  # fmt: skip
def test_first_rounds_spend_the_budget_for_what_matters_most(left_s: float, rounds: int, most: int, kept: str) -> None:
    """A replay takes 1 s, nearly all of it to start its processes; two matter, in three rounds each."""
    importance = {"a": 2, "b": most, "c": 1, "d": 0}
    nothing = traffic(thread(1, 0, total_ns=0, before_ns=0, after_ns=0, other_ns=0))
    contenders = {name: Contender("shm", nothing, importance=importance[name]) for name in importance}
    measured = {name: Measured() for name in importance}
    replays = Replays(contenders, measured, Request(("shm",), rounds=rounds), ladder(100))
    assert "".join(name for name in contenders if replays._has_room(name, left_s)) == kept
    measured["a"].threads_ns.append([0])
    assert replays._has_room("c", 8.5), "what is done needs no more room"


def test_three_clients_of_one_server_wait_for_one_another(monkeypatch):
    """However far apart a busy machine lets them begin, one server does the work of all of them, one after another."""
    spans_ns: list[int] = []
    original = Service.carry_out

    def noting(self, lists, limit_s):
        done = original(self, lists, limit_s)
        clients = [calls for _, (calls, _) in done if len(calls["end_ns"]) == 10]
        if clients:
            first_ns = min(int(calls["end_ns"][0] - calls["total_ns"][0]) for calls in clients)
            spans_ns.append(max(int(calls["end_ns"][-1]) for calls in clients) - first_ns)
        return done

    monkeypatch.setattr(Service, "carry_out", noting)
    threads = [thread(10, 5_000_000, str(number), server="s") for number in range(3)]
    assert replay(traffic(*threads), Request(("pipe",), rounds=3)).measured["pipe"].failure == ""
    assert len(spans_ns) >= 3
    assert min(spans_ns) > 0.8 * 3 * 10 * 5_000_000


@pytest.mark.usefixtures("broken_on_path")
@pytest.mark.parametrize("server", ["", "s"], ids=["own servers", "one server"])
def test_a_message_of_another_call_is_the_error_with_several_clients(server):
    threads = [thread(20, name=name, server=server) for name in "ab"]
    done = replay(traffic(*threads), Request(("shm", "broken_replay:Mixing"), rounds=1))
    assert "a message of another call" in done.measured["broken_replay:Mixing"].failure


@pytest.mark.usefixtures("broken_on_path")
@pytest.mark.parametrize(("name", "words"), [
    ("Killed", "server was killed by signal 9"), ("Silent", "TransportTimeout"),
    ("Mixing", "a message of another call"),
])  # fmt: skip
def test_a_process_that_breaks_fails_its_backend_in_one_line(name, words, tokens):
    request = Request(("shm", f"broken_replay:{name}"), rounds=1, stall_s=0.5)
    done = replay(traffic(thread(count=20)), request)
    failure = done.measured[f"broken_replay:{name}"].failure
    assert words in failure or (name == "Killed" and "client was killed by signal 9" in failure)
    assert "\n" not in failure
    assert done.measured["shm"].threads_ns
    outcome = conclude(done)
    assert outcome.failed == {f"broken_replay:{name}": failure}
    assert failure in render.as_text(outcome)
    assert [resource for token in tokens for resource in find(token)] == []


@pytest.mark.usefixtures("broken_on_path")
def test_if_no_backend_works_that_is_the_error():
    with pytest.raises(TrialError, match=r"broken_replay:Killed: .*killed by signal 9"):
        replay(traffic(thread(count=20)), Request(("broken_replay:Killed",), rounds=1, stall_s=0.5))


def test_what_cannot_be_replayed_is_refused_before_anything_is_started(tokens, monkeypatch):
    with pytest.raises(UnknownBackend):
        replay(traffic(), Request(("nope",)))
    with pytest.raises(ConfigError, match="between processes"):
        replay(traffic(), Request(("null",)))
    with pytest.raises(ConfigError, match="rounds"):
        Request(("shm",), rounds=0)
    with pytest.raises(ConfigError, match="one or more names"):
        Request(())
    refuse = Mock(side_effect=BackendUnavailable("shm", "no shared memory", "get some"))
    monkeypatch.setattr("ipcbench.backends.shm.backend.Shm.probe", refuse)
    with pytest.raises(BackendUnavailable, match="no shared memory"):
        replay(traffic(), Request(("shm",)))
    assert tokens == []


def made_up(
    *clients: ThreadCalls, source: str = "", think: bool = True, server_ns: int = 50_000, rounds: int = 5
) -> ReplayOutcome:
    """Return the outcome of a replay in which zmq took 3 ms, shm and pipe 2 ms, and everything repeated well."""
    plain = traffic(*clients or [thread(server_ns=server_ns)])
    sizes = ladder(plain.largest_bytes)

    def measured(ms: float, trip_ns: int) -> Measured:
        wobble = [1.0, 1.002, 0.998, 1.001, 0.999][:rounds]
        return Measured(
            threads_ns=[[int(ms * 1e6 * factor)] * len(plain.threads) for factor in wobble],
            method_ns=[np.array([6 * 100_000, 6 * 200_000])] * rounds,
            trips_ns=[np.full(len(sizes), trip_ns)] * rounds,
        )

    all_of_it = {"zmq": measured(3.0, 100_000), "shm": measured(2.0, 10_000), "pipe": measured(2.0, 50_000)}
    request = Request(tuple(all_of_it), source=source, think=think)
    return conclude(Replayed(request, plain, all_of_it, {"mpi-p2p": "no mpiexec found"}, sizes))


def backends_of(outcome: ReplayOutcome) -> tuple[BackendOutcome, ...]:
    """Return what is said of zmq, shm and pipe."""
    by_name = {backend.name: backend for backend in outcome.backends}
    return by_name["zmq"], by_name["shm"], by_name["pipe"]


def test_predictions_ranks_and_ties():
    outcome = made_up()
    zmq, shm, pipe = backends_of(outcome)
    assert outcome.recorded_ns == 12 * 200_000 + 11 * 10_000
    assert shm.predicted_ns.estimate == pytest.approx(2e6)
    assert (shm.rank, pipe.rank, zmq.rank) == (1, 1, 3)
    assert (shm.verdict, zmq.verdict) == ("faster", "slower")
    assert shm.gain_ratio.low <= shm.gain_ratio.estimate <= shm.gain_ratio.high
    assert shm.gain_ratio.estimate == pytest.approx(1 - 2e6 / outcome.recorded_ns)
    assert shm.table_ns == pytest.approx(12 * 60_000 + 11 * 10_000 + 24 * 5_000)
    assert outcome.methods[0].replayed_ns["zmq"] in {100_000.0, 200_000.0}
    assert outcome.left_out == {"mpi-p2p": "no mpiexec found"}


def test_gains_are_against_the_replay_over_the_source():
    outcome = made_up(source="zmq")
    zmq, shm, _ = backends_of(outcome)
    assert (shm.predicted_ns.estimate, zmq.predicted_ns.estimate) == pytest.approx((2e6, 3e6))
    assert zmq.gain_ratio == Interval(0.0, 0.0, 0.0)
    gain = shm.gain_ratio
    assert gain.estimate == pytest.approx(1 / 3, rel=1e-3)
    assert 0.32 < gain.low < gain.estimate < gain.high < 0.35
    assert shm.table_ns == pytest.approx(outcome.recorded_ns - 24 * 45_000)
    assert (zmq.verdict, shm.verdict) == ("no clear difference", "faster")
    assert "against the replay over zmq" in render.as_text(outcome)


def test_of_an_unknown_server_predictions_are_differences():
    outcome = made_up(source="zmq", server_ns=-1)
    zmq, shm, _ = backends_of(outcome)
    assert zmq.predicted_ns.estimate == outcome.recorded_ns
    assert shm.predicted_ns.estimate == pytest.approx(outcome.recorded_ns - 1e6, rel=1e-3)
    assert (shm.at_most_ns, zmq.verdict) == (None, "no clear difference")


def test_without_think_the_recorded_work_is_added():
    _, shm, _ = backends_of(made_up(think=False))
    assert shm.predicted_ns.estimate == pytest.approx(2e6 + 12 * 50_000, rel=1e-3)


def test_an_unknown_server_gives_bounds_and_says_so():
    outcome = made_up(server_ns=-1)
    _, shm, _ = backends_of(outcome)
    assert shm.verdict is None
    assert shm.at_most_ns == pytest.approx(2e6 + 12 * 190_000, rel=1e-3)
    assert any("unknown" in remark for remark in outcome.remarks)
    for words in ("at least", "at most", "unknown"):
        assert words in render.as_text(outcome)


def test_a_part_of_the_servers_work_gives_bounds_too():
    outcome = made_up(thread(server_most_ns=190_000))
    _, shm, _ = backends_of(outcome)
    assert shm.predicted_ns.estimate == pytest.approx(2e6)
    assert shm.at_most_ns == pytest.approx(2e6 + 12 * 140_000, rel=1e-3)
    assert any("only the part in the log's column is known" in remark for remark in outcome.remarks)
    assert [method.server_ns for method in outcome.methods] == [None, None]


def test_a_shared_server_is_as_busy_as_its_clients_together_make_it():
    shared = [thread(name=name, server="s") for name in "abc"]
    _, shm, _ = backends_of(made_up(*shared, think=False))
    assert shm.predicted_ns.estimate == pytest.approx(2e6 + 12 * 50_000, rel=1e-3)
    outcome = made_up(*[thread(server_ns=100_000, name=name, server="s") for name in "abc"], think=False)
    _, shm, _ = backends_of(outcome)
    assert shm.predicted_ns.estimate == 3 * 12 * 100_000
    assert shm.table_ns == 3 * 12 * 100_000
    assert any("3 clients shared a server" in remark for remark in outcome.remarks)
    assert not any("have a server each" in remark for remark in outcome.remarks)


@pytest.mark.parametrize(("changes", "words"), [
    ({"source": "zmq"}, []),
    ({}, ["--recorded-over"]),
    ({"server_ns": -1}, ["record the server too", "--recorded-over"]),
])  # fmt: skip
def test_what_would_make_a_replay_surer(changes, words):
    steps = [remark for remark in made_up(**changes).remarks if remark.startswith("To be surer")]
    assert len(steps) == len(words)
    assert all(word in step for word, step in zip(words, steps, strict=True))


def test_a_single_round_has_no_intervals_and_no_ranks():
    outcome = made_up(rounds=1)
    assert {backend.rank for backend in outcome.backends} == {1}
    assert {backend.verdict for backend in outcome.backends} == {None}
    assert "Fewer than 3 rounds: no intervals and no ranks." in render.as_text(outcome)


@pytest.mark.parametrize("form", list(render.FORMS))
def test_forms(form):
    text = render.FORMS[form](made_up())
    assert "shm" in text
    assert text.endswith("\n")
    if form == "json":
        assert json.loads(text)["backends"][0]["predicted_ns"]["estimate"] > 0
    if form == "csv":
        assert len({line.count(",") for line in text.splitlines()}) == 1
