"""What is stored is read back equal; what a kill leaves is reported; what somebody tampered with is refused by name."""

from __future__ import annotations

import json
import os
import re
import signal
import zipfile
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipcbench.errors import SchemaMismatch, StoreError
from ipcbench.results import store
from ipcbench.results.model import SCHEMA_VERSION, TrialResult
from ipcbench.results.store import RunWriter, latest_run, load_run, new_run_id
from ipcbench.spec import SweepSpec
from tests.unit.builders import Cell, make_run, run_info, saturate, sweep_of, trial

SWEEP = sweep_of(backends=("shm",), sizes=(10,), readers=1)


def small_trial(trial_id: int) -> TrialResult:
    return saturate(trial(SWEEP, "shm", 10, "saturate", trial_id, trial_id), 1e5)[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A stored run of three trials."""
    with RunWriter.create(tmp_path / "run", run_info(SWEEP)) as writer:
        for trial_id in range(3):
            writer.append(small_trial(trial_id), {"writer.sent_ns": array("q", [1, 2, trial_id])})
    return tmp_path / "run"


def edit_line_2(path: Path, change: Callable[[str], str]) -> None:
    first, second, third = (path / "trials.jsonl").read_text().splitlines()
    (path / "trials.jsonl").write_text(f"{first}\n{change(second)}\n{third}\n")


def cut(path: Path, lost_bytes: int) -> None:
    trials = path / "trials.jsonl"
    trials.write_bytes(trials.read_bytes()[:-lost_bytes])


def test_a_run_is_read_back_equal(path: Path) -> None:
    run = load_run(path)
    assert replace(run.info, sweep={}) == replace(run_info(SWEEP), sweep={})
    assert SweepSpec.from_dict(run.info.sweep) == SWEEP
    assert run.trials == tuple(replace(small_trial(index), has_samples=True) for index in range(3))
    assert run.problems == ()


def test_an_interrupt_while_a_trial_is_stored_comes_after_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def interrupted(fd: int) -> None:
        signal.raise_signal(signal.SIGINT)
        sync(fd)

    with RunWriter.resume(path) as writer:
        monkeypatch.setattr(os, "fsync", interrupted)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
        try:
            with pytest.raises(KeyboardInterrupt):
                writer.append(small_trial(3), {"writer.sent_ns": array("q", [1])})
        finally:
            signal.signal(signal.SIGINT, before)
        monkeypatch.undo()
        writer.append(small_trial(4))
    assert [(trial.trial_id, trial.has_samples) for trial in load_run(path).trials[3:]] == [(3, True), (4, False)]


def test_samples_are_read_back_by_trial_and_by_numpy(path: Path) -> None:
    with np.load(path / "samples" / "2.npz") as arrays:
        for samples in (load_run(path).samples(2), dict(arrays)):
            assert list(samples) == ["writer.sent_ns"]
            assert samples["writer.sent_ns"].dtype == np.int64
            assert samples["writer.sent_ns"].tolist() == [1, 2, 2]


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", run_info(SWEEP)) as writer:
        writer.append(small_trial(0), {f"reader-{index}.{what}_ns": [index] for index in (0, 1) for what in ("a", "b")})
    run = load_run(tmp_path / "run")
    assert set(run.samples(0, (".a_ns",))) == {"reader-0.a_ns", "reader-1.a_ns"}
    assert set(run.samples(0, ("reader-1.a_ns", "reader-1.b_ns"))) == {"reader-1.a_ns", "reader-1.b_ns"}
    assert run.samples(0, ("none",)) == {}
    assert len(run.samples(0)) == 4


def test_samples_of_negative_and_extreme_values_survive(tmp_path: Path) -> None:
    values = np.array([-(2**63), -1, 0, 2**63 - 1])
    with RunWriter.create(tmp_path / "run", run_info(SWEEP)) as writer:
        writer.append(small_trial(0), {"reader-0.latency_ns": values, "reader-0.empty": values[:0]})
    samples = load_run(tmp_path / "run").samples(0)
    assert np.array_equal(samples["reader-0.latency_ns"], values)
    assert samples["reader-0.empty"].shape == (0,)


def test_a_trial_without_samples_says_so_and_has_none(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", run_info(SWEEP)) as writer:
        writer.append(replace(small_trial(0), has_samples=True), {})
    run = load_run(tmp_path / "run")
    assert run.trials[0].has_samples is False
    assert run.samples(0) == {}
    with pytest.raises(StoreError, match="no trial 7"):
        run.samples(7)


def test_a_new_run_refuses_a_folder_that_holds_anything(path: Path) -> None:
    with pytest.raises(StoreError, match="not empty"):
        RunWriter.create(path, run_info(SWEEP))
    assert len(load_run(path).trials) == 3


def test_a_new_run_accepts_an_empty_folder_and_makes_parents(tmp_path: Path) -> None:
    RunWriter.create(tmp_path, run_info(SWEEP)).close()
    RunWriter.create(tmp_path / "a" / "b", run_info(SWEEP)).close()
    assert load_run(tmp_path / "a" / "b").trials == ()


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"\A.*file.*\Z"):
        RunWriter.create(tmp_path / "file" / "run", run_info(SWEEP))


def test_trials_come_in_order_and_once(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", run_info(SWEEP)) as writer:
        writer.append(small_trial(0))
        for wrong in (0, 2):
            with pytest.raises(StoreError, match="not the next one, 1"):
                writer.append(small_trial(wrong))
    assert len(load_run(tmp_path / "run").trials) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_figure_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    with RunWriter.create(tmp_path / "run", run_info(SWEEP)) as writer:
        with pytest.raises(StoreError, match="trial 0"):
            writer.append(replace(small_trial(0), throughput_per_s=value), {"writer.sent_ns": array("q", [1])})
        writer.append(small_trial(0))
    assert len(load_run(tmp_path / "run").trials) == 1


ZEROS = np.zeros((2, 2), dtype=np.int64)


@pytest.mark.parametrize("columns", [{"a": np.zeros(3)}, {"a": ZEROS}, {"../a": ZEROS[0]}, {"a": [object()]}])
def test_a_column_that_is_not_one_of_integers_is_refused(tmp_path: Path, columns) -> None:
    with RunWriter.create(tmp_path / "run", run_info(SWEEP)) as writer, pytest.raises(StoreError, match="column"):
        writer.append(small_trial(0), columns)
    assert list((tmp_path / "run" / "samples").iterdir()) == []


def test_a_disk_that_is_full_leaves_no_half_line(tmp_path: Path, monkeypatch) -> None:
    calls = iter(range(100))

    def write_half_then_fail(fd: int, data: bytes) -> int:
        if next(calls) == 0:
            return write(fd, data[:50])
        raise OSError(28, "No space left on device")

    write = os.write
    with RunWriter.create(tmp_path / "run", run_info(SWEEP)) as writer:
        writer.append(small_trial(0))
        with monkeypatch.context() as patch:
            patch.setattr(store.os, "write", write_half_then_fail)
            with pytest.raises(StoreError, match="No space left on device; free blocks"):
                writer.append(small_trial(1))
        writer.append(small_trial(1))
    run = load_run(tmp_path / "run")
    assert [trial.trial_id for trial in run.trials] == [0, 1]
    assert run.problems == ()


def test_run_json_is_replaced_as_a_whole(path: Path) -> None:
    with RunWriter.resume(path) as writer:
        writer.update(replace(writer.info, status="interrupted", rounds_done=1))
        with pytest.raises(StoreError, match=r"run\.json"):
            writer.update(replace(writer.info, started_unix_s=float("nan")))
    assert load_run(path).info.status == "interrupted"
    assert {entry.name for entry in path.iterdir()} == {"run.json", "trials.jsonl", "samples"}


@pytest.mark.parametrize("lost_bytes", [1, 2, 57])
def test_a_torn_last_line_is_reported_and_resuming_removes_it_and_goes_on(path: Path, lost_bytes: int) -> None:
    cut(path, lost_bytes)
    run = load_run(path)
    assert [trial.trial_id for trial in run.trials] == [0, 1]
    assert run.problems == ("trials.jsonl: line 3 is cut off; 2 whole lines were read",)
    with RunWriter.resume(path) as writer:
        assert writer.next_trial_id == 2
        writer.append(small_trial(2))
        writer.append(small_trial(3))
    run = load_run(path)
    assert [trial.trial_id for trial in run.trials] == [0, 1, 2, 3]
    assert run.problems == ()


def test_reading_changes_nothing(path: Path) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        return {entry: (entry.stat().st_mtime_ns, entry.stat().st_size) for entry in path.rglob("*")}

    cut(path, 20)
    before = state()
    load_run(path).samples(0)
    assert state() == before


def test_two_writers_of_one_run_are_refused(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", run_info(SWEEP)), pytest.raises(StoreError, match="another process"):
        RunWriter.resume(tmp_path / "run")
    RunWriter.resume(tmp_path / "run").close()


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", run_info(SWEEP))
    writer.close()
    writer.close()


def with_field(name: str, value: object) -> Callable[[str], str]:
    return lambda line: json.dumps({**json.loads(line), name: value})


def deep_inside(line: str) -> str:
    values = json.loads(line)
    values["endpoints"][1]["call"]["p50_ns"] = "12"
    return json.dumps(values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((lambda _, text=text: text, "") for text in (
            *("", "{", "[]", "null", "{}", "\0\0\0", '{"trial_id": NaN}', "[" * 100_000),
            '{"trial_id": ' + "9" * 5000 + "}",
        )),
        *((with_field(name, value), "") for name, value in (
            *(("status", "great"), ("throughput_per_s", "fast"), ("trial_id", True), ("trial_id", 0), ("notes", 5)),
            *(("endpoints", [{"role": "writer"}]), ("endpoints", None), ("surprise", 1), ("spec", {"backend": "shm"})),
            ("conditions", {"load_1min": "x"}),
        )),
        (deep_inside, r"endpoints\[1\]\.call\.p50_ns is '12'"),
        (lambda line: re.sub(r'"duration_s": [^,]+', '"duration_s": 1e999', line), ".*1e999 is beyond every number"),
    ],
)  # fmt: skip
def test_a_malformed_line_is_named(path: Path, change: Callable[[str], str], words: str) -> None:
    edit_line_2(path, change)
    with pytest.raises(StoreError, match=rf"trials\.jsonl: line 2 is malformed: {words}") as caught:
        load_run(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_not_a_results_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StoreError, match="not a folder of results"):
            load_run(path)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, "1", None])
def test_another_format_is_refused(path: Path, version: object) -> None:
    values = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**values, "schema_version": version}))
    with pytest.raises(SchemaMismatch, match=f"reads format {SCHEMA_VERSION}"):
        load_run(path)


def test_what_older_runs_did_not_measure_is_unknown(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", {("shm", 10): Cell()}).path
    file = path / "trials.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        del line["conditions"]["others_cpu_ratio"]
        for part in line["endpoints"]:
            del part["usage"]["run_queue_wait_s"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = load_run(path)
    assert not run.problems
    assert {trial.conditions.others_cpu_ratio for trial in run.trials} == {None}
    assert {part.usage.run_queue_wait_s for trial in run.trials for part in trial.endpoints} == {None}


@pytest.mark.parametrize("text", ["", "{}", "[]", "{" * 10, '{"schema_version": 1}'])
def test_a_malformed_run_json_is_named(path: Path, text: str) -> None:
    (path / "run.json").write_text(text)
    with pytest.raises(StoreError, match=r"run\.json: malformed"):
        load_run(path)


@pytest.mark.parametrize("name", ["run.json", "trials.jsonl", "samples/0.npz", "samples"])
def test_a_link_that_leads_out_is_refused(path: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (path / name).rename(outside)
    (path / name).symlink_to(outside)
    with pytest.raises(StoreError, match="leads out"):
        load_run(path).samples(0)


def test_the_folder_itself_may_be_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert len(load_run(tmp_path / "link").samples(0)) == 1


@pytest.mark.parametrize("name", ["run.json", "trials.jsonl"])
def test_an_absurd_size_is_refused_before_reading(path: Path, name: str) -> None:
    with (path / name).open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(StoreError, match="more than"):
        load_run(path)


def test_something_that_is_not_a_file_is_refused(path: Path) -> None:
    (path / "trials.jsonl").unlink()
    for remake in (lambda _: None, os.mkfifo):
        remake(path / "trials.jsonl")
        with pytest.raises(StoreError, match="no such file"):
            load_run(path)


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip at all", b"PK\x05\x06" + bytes(18)])
def test_damaged_samples_are_named(path: Path, data: bytes) -> None:
    (path / "samples" / "1.npz").write_bytes(data)
    run = load_run(path)
    if data.startswith(b"PK\x05"):
        assert run.samples(1) == {}
        return
    with pytest.raises(StoreError, match=r"1\.npz: not a file of samples"):
        run.samples(1)


def npy(kind: str, shape: str, data: bytes) -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


LIES = [("<i8", "(1000000000000000,)", b""), ("|O", "(1,)", b"cos\nsystem\n"), ("<f8", "(1,)", bytes(8))]
LIES += [("<i8", "(1, 1)", bytes(8)), ("<i8", "(-1,)", b"")]


@pytest.mark.parametrize("member", [*(npy(*lie) for lie in LIES), b"\x93NUMPY\x02\x00" + bytes(200), b"garbage", b""])
def test_samples_that_lie_about_themselves_are_refused(path: Path, member: bytes) -> None:
    with zipfile.ZipFile(path / "samples" / "1.npz", "w") as archive:
        archive.writestr("writer.sent_ns.npy", member)
    with pytest.raises(StoreError, match=r"1\.npz: not a file of samples"):
        load_run(path).samples(1)


@pytest.mark.parametrize("limit", ["_MAX_FILE_BYTES", "_MAX_COLUMN_BYTES"])
def test_samples_that_unpack_to_absurd_sizes_are_refused(path: Path, monkeypatch, limit: str) -> None:
    monkeypatch.setattr(f"ipcbench.results.columns.{limit}", 1000)
    with zipfile.ZipFile(path / "samples" / "1.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("writer.sent_ns.npy", bytes(100_000))
    with pytest.raises(StoreError, match="more than samples can have"):
        load_run(path).samples(1)


def test_missing_samples_are_reported(path: Path) -> None:
    for name in ("1.npz", "2.npz"):
        (path / "samples" / name).unlink()
    run = load_run(path)
    assert run.problems == ("samples/: files of 2 trials are missing, the first is 1.npz",)
    with pytest.raises(StoreError, match="no such file"):
        run.samples(1)


def test_run_ids_sort_by_time_and_differ() -> None:
    names = {new_run_id() for _ in range(50)}
    assert len(names) == 50
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{6}", name) for name in names)


def test_the_latest_run_is_found(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run"):
        latest_run(tmp_path)
    for name in ("20260101T000000Z-ffffff", "20260102T000000Z-000000", "reference", "zzz"):
        RunWriter.create(tmp_path / name, run_info(SWEEP)).close()
    (tmp_path / "20270101T000000Z-000000").mkdir()
    assert latest_run(tmp_path).name == "20260102T000000Z-000000"
    with pytest.raises(StoreError, match="absent"):
        latest_run(tmp_path / "absent")


def test_the_builder_makes_sound_runs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {("shm", 10): Cell(), ("zmq", 10): Cell(factors=(1.0, 0.0))})
    assert [trial.status for trial in run.trials].count("failed") == 2
    assert run.problems == ()
