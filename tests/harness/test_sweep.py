"""A run on real processes: what it stores, in which order, and that it reports what it leaves out."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from ipcbench.errors import BackendUnavailable, ConfigError, StoreError, UnknownBackend
from ipcbench.harness import floor
from ipcbench.harness.loops import HASH_EVERY, RUN
from ipcbench.harness.sweep import run_sweep
from ipcbench.results.store import RunWriter, load_run
from ipcbench.spec import LOOK_WINDOW_S
from ipcbench.stats.histogram import bin_index
from tests.harness.small_runs import measure, raw, single, sound, tiny


def test_every_cell_is_measured_once_a_round_and_every_reader_validates_every_message(tmp_path):
    sweep = tiny(backends=("shm", "pipe"), sizes=(0, 10), modes=("paced", "saturate"), rounds=2)
    run, told = measure(sweep, tmp_path)
    assert [trial.status for trial in run.trials] == ["ok"] * 24, "eight of them for the tail"
    cells = [(trial.spec.round_index, *trial.spec.cell) for trial in run.trials]
    assert len(set(cells)) == 24
    for trial in run.trials:
        sent = trial.writer.messages_count
        assert len(trial.readers) == 2
        for reader in trial.readers:
            assert reader.integrity.errors_count == 0
            assert reader.integrity.received_count == reader.integrity.expected_count
            assert reader.messages_count == sent
            assert reader.integrity.hashed_count >= reader.warmup_count
    assert (told[-1].done, told[-1].left_s) == (24, 0.0)


@pytest.mark.parametrize(
    ("moment", "error"), [("before", KeyboardInterrupt), ("after", KeyboardInterrupt), ("before", StoreError)]
)
def test_what_comes_between_a_trial_and_its_storing_costs_no_trial(tmp_path, monkeypatch, moment: str, error: type):
    append, interrupted = RunWriter.append, []

    def interrupted_once(self, result, samples=None) -> None:
        def interrupt(now: str) -> None:
            if result.trial_id == 2 and now == moment and not interrupted:
                interrupted.append(True)
                raise error("of the moment")

        interrupt("before")
        append(self, result, samples)
        interrupt("after")

    monkeypatch.setattr(RunWriter, "append", interrupted_once)
    with pytest.raises(error, match="of the moment"):
        measure(tiny(backends=("shm", "null"), sizes=(1, 2), rounds=2, readers=1, window_s=0.01), tmp_path)
    (folder,) = tmp_path.iterdir()
    trials = load_run(folder).trials
    assert len(trials) > 2
    assert [trial.trial_id for trial in trials] == list(range(len(trials)))


def test_each_round_has_its_own_order_which_the_seed_repeats(tmp_path):
    sweep = tiny(backends=("shm", "null"), sizes=(1, 2), rounds=2, readers=1, window_s=0.01)
    orders = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        run, _ = measure(tiny(**{**sweep.as_dict(), "seed": seed}), tmp_path / name)
        orders.append([(trial.spec.round_index, trial.spec.backend, trial.spec.size) for trial in run.trials])
    assert orders[0] == orders[1] != orders[2]
    rounds = [[cell[1:] for cell in orders[0] if cell[0] == index] for index in (0, 1)]
    assert sorted(rounds[0]) == sorted(rounds[1])
    assert rounds[0] != rounds[1]


def test_paced_and_saturated_trials_yield_their_figures_in_plausible_units(tmp_path):
    run, _ = measure(tiny(modes=("paced", "saturate"), rate_per_s=500.0, window_s=0.2), tmp_path)
    trials = {trial.spec.mode: trial for trial in run.trials}
    paced, saturated = trials["paced"], trials["saturate"]
    assert paced.throughput_per_s is None
    assert paced.achieved_rate_per_s == pytest.approx(500.0, rel=0.2)
    for reader in paced.readers:
        assert 100 < reader.latency.p50_ns < 1e9
        assert reader.decode.count >= 5
    assert saturated.throughput_per_s > 0
    assert saturated.achieved_rate_per_s is None
    for part in saturated.endpoints:
        assert part.stamp_stride in (1, RUN)
        assert part.call.count == sum(saturated.turn_counts)
        runs, turns = part.stamp_stride * part.call.count, len(saturated.turn_counts)
        assert runs - turns * (part.stamp_stride - 1) == part.messages_count, "each turn ends with a stamp"
        assert part.sample_stride % part.stamp_stride == 0


def test_a_long_window_keeps_every_nth_message_and_a_histogram_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr("ipcbench.harness.plan.MAX_COLUMN", 100)
    monkeypatch.setattr("ipcbench.harness.plan._LONG_COLUMN", 90)
    run = sound(tiny(modes=("paced",), rate_per_s=2000.0, window_s=0.5, sizes=(10, 20)), tmp_path)
    for trial in run.trials:
        assert trial.achieved_rate_per_s == pytest.approx(2000.0, rel=0.1)
        columns = run.samples(trial.trial_id)
        assert len(columns["writer.sent_ns"]) == 84  # every 12th of 1,000
        for reader in trial.readers:
            assert reader.messages_count == reader.latency.count == reader.call.count == 1000
            assert reader.sample_stride == 12
            kept = columns[f"{reader.role}.latency_ns"]
            assert (kept == columns[f"{reader.role}.received_ns"] - columns["writer.intended_ns"]).all()
            bins = columns[f"{reader.role}.latency_bins"]
            assert bins.sum() == 1000
            assert (bins[bin_index(kept)] > 0).all()
            assert 0 < reader.latency.p50_ns <= reader.latency.p99_ns <= reader.latency.max_ns


def test_the_control_is_a_cell_measured_twice_by_other_processes(tmp_path):
    run, told = measure(tiny(backends=("null", "pipe"), sizes=(1, 10, 100), control=True), tmp_path)
    (control,) = run.controls
    assert (control.spec.backend, control.spec.size, control.status) == ("pipe", 10, "ok")
    single = next(trial for trial in run.trials if trial.spec == replace(control.spec, twin=False))
    assert {end.process_id for end in single.endpoints}.isdisjoint(end.process_id for end in control.endpoints)
    assert len(run.trials) == 6
    assert (told[-1].done, told[-1].left_s) == (7, 0.0)


def test_rounds_go_on_until_precise_or_out_of_budget(tmp_path):
    easy = sound(tiny(backends=("null",), rounds=2, precision_ratio=1.0, budget_s=60.0), tmp_path)
    never = sound(tiny(backends=("null",), rounds=2, precision_ratio=1e-9, budget_s=4.0), tmp_path)
    assert (easy.info.status, easy.info.rounds_done >= 2) == ("complete", True)
    assert never.info.status == "out of budget"
    assert never.info.rounds_done > 2


@pytest.mark.parametrize("touch", ["none", "header", "pages", "all"])
def test_readers_touch_as_much_as_they_are_told_to(touch, tmp_path):
    _, trial = single(raw(65_536, touch=touch), tmp_path)
    for reader in trial.readers:
        assert reader.integrity.errors_count == 0
        regular = reader.messages_count // HASH_EVERY
        assert regular > 2
        hashed = reader.integrity.hashed_count - reader.warmup_count  # every message of the warm-up is hashed
        assert (hashed < regular / 2) == (touch == "none")


def test_endpoints_of_an_inline_backend_share_one_process(tmp_path):
    _, trial = single(tiny(backends=("null",)), tmp_path)
    assert len({endpoint.process_id for endpoint in trial.endpoints}) == 1
    assert trial.conditions.probe_before_ns is None


def test_more_processes_than_cores_are_stamped_oversubscribed(tmp_path, monkeypatch):
    monkeypatch.setattr("ipcbench.harness.sweep.usable_cores", lambda: 2.0)
    run, _ = measure(tiny(readers=3), tmp_path / "many")
    assert "oversubscribed" in run.trials[0].notes
    run, _ = measure(tiny(readers=1), tmp_path / "few")
    assert "oversubscribed" not in run.trials[0].notes


def test_the_budget_ends_a_run_after_a_whole_round(tmp_path):
    run, _ = measure(tiny(rounds=1000, budget_s=1.0), tmp_path)
    assert run.info.status == "out of budget"
    assert 1 <= run.info.rounds_done < 1000
    assert len(run.trials) == run.info.rounds_done


def test_a_resumed_run_measures_only_what_is_missing(tmp_path):
    path = run_sweep(tiny(sizes=(10, 20, 30)), tmp_path)
    lines = (path / "trials.jsonl").read_text().splitlines(keepends=True)
    (path / "trials.jsonl").write_text("".join(lines[:2]) + lines[2][:40])
    told = []
    run_sweep(tiny(), tmp_path, resume=path, on_progress=told.append)
    run = load_run(path)
    assert {each.done for each in told} == {3}
    assert sorted(trial.spec.size for trial in run.trials) == [10, 20, 30]
    assert len({trial.trial_id for trial in run.trials}) == 3


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"machine": {"cpu_model": "another"}}, "cpu_model: another / "),
        ({"versions": {"msgpack": "0.1"}}, "msgpack: 0.1 / "),
        ({"variant_versions": {"base": {"python": "3.0"}}}, "base: python: 3.0 / unknown"),
    ],
    ids=["machine", "version", "variant"],
)
def test_a_run_is_not_continued_under_other_conditions(tmp_path, change, difference):
    path = run_sweep(tiny(), tmp_path)
    info = json.loads((path / "run.json").read_text())
    for name, values in change.items():
        info[name].update(values)
    (path / "run.json").write_text(json.dumps(info))
    before = (path / "trials.jsonl").read_bytes()
    with pytest.raises(StoreError, match=f"begun under other conditions, begin a new run instead .{difference}"):
        run_sweep(tiny(), tmp_path, resume=path)
    assert (path / "trials.jsonl").read_bytes() == before
    assert json.loads((path / "run.json").read_text()) == info


def test_a_run_goes_on_where_another_library_is_loaded_by_chance(tmp_path):
    path = run_sweep(tiny(), tmp_path)
    info = json.loads((path / "run.json").read_text())
    if info["versions"].pop("libzmq", None) is None:  # it is known of a process that has looked at all backends
        info["versions"]["libzmq"] = "4.0"
    (path / "run.json").write_text(json.dumps(info))
    run_sweep(tiny(), tmp_path, resume=path)


def test_a_skipped_backend_is_stored_with_its_reason_and_nothing_else_is_left_out(tmp_path):
    run, told = measure(tiny(backends=("shm", "zmq"), wait="spin"), tmp_path)
    assert {trial.spec.backend for trial in run.trials} == {"shm"}
    assert run.info.skipped == {"zmq": "backend 'zmq' does not offer wait strategy spin"}
    assert any("zmq" in progress.warning for progress in told)


def test_unknown_and_unusable_backends_end_the_run_before_it_begins(tmp_path):
    with pytest.raises(UnknownBackend, match="zmq-tcp"):
        run_sweep(tiny(backends=("shm", "smoke")), tmp_path)
    with pytest.raises(BackendUnavailable, match="wait strategy spin"):
        run_sweep(tiny(backends=("zmq",), wait="spin"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_stores_payload_bytes_seed_versions_floor_and_the_conditions_of_trials(tmp_path):
    run, trial = single(tiny(sizes=(1000,)), tmp_path)
    described = json.loads((run.path / "run.json").read_text())
    (payload,) = described["payloads"]
    assert payload == {"size": 1000, "payload_bytes": 55_039, "encode_ns": payload["encode_ns"]}
    assert described["sweep"]["seed"] == 1
    assert described["versions"]["ipcbench"]
    assert described["floor"]["writer_ns"] > 0
    conditions = trial.conditions
    for probe_ns in (conditions.probe_before_ns, conditions.probe_after_ns):
        assert probe_ns is None or 10 < probe_ns < 1e6  # None if a neighbour had one of two cores
    assert conditions.clocks_agree
    assert (conditions.clock_offset_ns, conditions.clock_error_ns, conditions.clock_offsets_ns) == (0.0, 0.0, ())


@pytest.mark.parametrize(
    "echo", ["import os; os.kill(os.getpid(), 19)", "import os; os.kill(os.getpid(), 9)"], ids=["stopped", "killed"]
)
def test_a_floor_that_cannot_be_measured_is_unknown(echo: str, monkeypatch):
    monkeypatch.setattr(floor, "_ECHO", echo)
    monkeypatch.setattr(floor, "_ECHO_S", 0.2)
    assert floor.measure_floor().wakeup_ns is None


def test_the_floor_is_above_the_clock_and_copies_have_a_bandwidth():
    found = floor.measure_floor([4096])
    assert min(found.writer_ns, found.reader_ns, found.wakeup_ns) > found.clock_ns > 0
    assert 0 < found.saturated_writer_ns < 10 * found.writer_ns, "loose: other tests may take the core meanwhile"
    assert 0 < found.saturated_reader_ns < 10 * found.reader_ns
    assert min(found.memcpy_bytes_per_s["4096"], found.memcpy_cold_bytes_per_s["4096"]) > 1e8


def test_each_endpoint_measures_what_its_own_loop_costs(tmp_path):
    run = sound(tiny(modes=("paced", "saturate", "pingpong")), tmp_path)
    parts = [(trial.spec.mode, part.floor_ns) for trial in run.trials for part in trial.endpoints]
    assert {floor_ns for mode, floor_ns in parts if mode == "pingpong"} == {None}
    measured = [floor_ns for mode, floor_ns in parts if mode != "pingpong"]
    assert all(floor_ns > 0 for floor_ns in measured)
    assert len(set(measured)) > 1, "each measures its own"


@pytest.mark.parametrize("backend", ["shm", "null"])
def test_the_two_ways_of_a_round_trip_add_up_to_it(backend, tmp_path):
    run, trial = single(tiny(backends=(backend,), modes=("pingpong",), readers=1), tmp_path)
    columns = run.samples(trial.trial_id)
    there = columns["reader-0.received_ns"] - columns["writer.sent_ns"]
    back = columns["writer.heard-0_ns"] - columns["reader-0.received_ns"]
    assert (there > 0).all()
    assert (back > 0).all()
    assert (there + back == columns["writer.round_trip_ns"]).all()
    assert trial.writer.round_trip.count == trial.writer.messages_count


@pytest.mark.parametrize("backend", ["shm", "null", "mpi", "mp-queue"])
@pytest.mark.parametrize("readers", [1, 2])
def test_a_paced_round_trip_counts_from_when_its_message_was_due(backend, readers, tmp_path):
    if backend == "null" and readers == 2:
        pytest.skip("it has one reader")
    sweep = tiny(backends=(backend,), modes=("pingpong",), readers=readers, rate_per_s=500.0, window_s=0.2)
    run, trial = single(replace(sweep, trips="paced"), tmp_path)
    columns = run.samples(trial.trial_id)
    due = columns["writer.intended_ns"]
    last = max((columns[f"writer.heard-{index}_ns"] for index in range(readers)), key=lambda column: column[0])
    assert (last - due == columns["writer.round_trip_ns"]).all()
    assert (columns["writer.sent_ns"] >= due).all()
    assert set(np.diff(due)) == {2_000_000}
    assert trial.writer.round_trip.count == len(due) == round(500.0 * trial.spec.window_s)


def test_paced_round_trips_hold_a_rate_over_a_channel_that_is_not_deep(tmp_path):
    """After a stall, the writer waited a millisecond for room where it should have taken a reply: 1,500 a second."""
    sweep = tiny(backends=("shm",), modes=("pingpong",), readers=1, rate_per_s=3000.0, window_s=0.3, depth=2)
    _, trial = single(replace(sweep, trips="paced"), tmp_path)
    assert trial.status == "ok", trial.reason


def test_a_round_trip_of_many_readers_ends_with_the_last_reply(tmp_path):
    run, trial = single(tiny(modes=("pingpong",), readers=3), tmp_path)
    columns = run.samples(trial.trial_id)
    last = max((columns[f"writer.heard-{index}_ns"] for index in range(3)), key=lambda column: column[0])
    assert (last - columns["writer.sent_ns"])[0] == columns["writer.round_trip_ns"][0]
    assert all(reader.integrity.errors_count == 0 for reader in trial.readers)


def test_round_trips_need_every_message():
    with pytest.raises(ConfigError, match="pingpong"):
        tiny(modes=("pingpong",), delivery="latest_value")


def test_progress_foresees_the_rounds_that_fit_into_the_budget(tmp_path):
    run, told = measure(tiny(rounds=200, budget_s=2.0), tmp_path)
    assert run.info.status == "out of budget"
    assert run.info.rounds_done <= told[-1].rounds < 200
    assert all(progress.left_s <= max(0.0, 2.0 - progress.elapsed_s) for progress in told)


def test_the_first_of_several_rounds_is_a_short_look(tmp_path):
    run = sound(tiny(rounds=2, look=True, control=True, modes=("paced", "saturate"), window_s=0.1), tmp_path)
    look = [trial for trial in run.trials + run.controls if trial.spec.look]
    assert {trial.spec.round_index for trial in look} == {0}
    assert {trial.spec.mode for trial in look} == {"paced", "saturate"}
    assert {trial.spec.round_index for trial in run.trials + run.controls if not trial.spec.look} == {1}
    assert not any(trial.spec.twin or trial.spec.tail for trial in look)
    assert all(trial.spec.window_s <= LOOK_WINDOW_S for trial in look)
    assert all(trial.conditions.probe_before_ns is None for trial in look)


def test_the_budget_ends_a_round_before_its_end(tmp_path):
    sizes = tuple(range(10, 40))
    run = load_run(run_sweep(tiny(sizes=sizes, window_s=0.3, budget_s=3.0, rounds=1), tmp_path))
    assert (run.info.status, run.info.rounds_done) == ("out of budget", 0)
    assert 0 < len(run.trials) < len(sizes)
