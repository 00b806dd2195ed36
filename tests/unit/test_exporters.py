"""The formats of other tools, read back by the tools where they can be, by their schemas where they cannot."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pyperf
import pytest

from ipcbench.analysis.exporters import EXPORTERS
from ipcbench.errors import StoreError
from ipcbench.results.model import Integrity, TrialResult
from ipcbench.results.store import Run, RunWriter, load_run
from ipcbench.spec import SweepSpec
from tests.unit.builders import CELLS, Cell, make_run, parts, run_info

ALL_MODES = SweepSpec(backends=("shm", "zmq"), sizes=(10, 1000), readers=2, modes=("paced", "pingpong", "saturate"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", CELLS, ALL_MODES)


@pytest.fixture
def broken(tmp_path: Path) -> Run:
    """A run in which each of zmq's trials of round 1 failed and each of shm's of round 2 lost a message."""
    lose = parts(role="reader-0", integrity=Integrity(lost_count=1))
    shm = Cell(change=lambda trial: lose(trial) if trial.spec.round_index == 2 else trial)
    cells = {("shm", 10): shm, ("zmq", 10): Cell(factors=(1.0, 0.0, 1.0))}
    return make_run(tmp_path / "run", cells, ALL_MODES, sizes=(10,), skipped={"mpi": "no mpi4py; install it"})


def text_of(run: Run, form: str) -> str:
    return EXPORTERS[form](run).text


def series(*metrics: str) -> set[str]:
    """Return the names that these metrics of the cells have."""
    cells = [f"{backend}/dict-{size}/r2" for backend in ("shm", "zmq") for size in ("10-521B", "1000-55039B")]
    return {f"{cell}/{metric}" for cell in cells for metric in metrics}


def store(path: Path, *trials: tuple[TrialResult, dict[str, Any]]) -> Run:
    with RunWriter.create(path, run_info(ALL_MODES)) as writer:
        for result, columns in trials:
            writer.append(replace(result, trial_id=writer.next_trial_id), columns)
    return load_run(path)


# every format


@pytest.mark.parametrize("form", EXPORTERS)
def test_it_is_ascii_and_the_same_every_time(run: Run, form: str) -> None:
    first = text_of(run, form)
    assert first.isascii()
    assert first.endswith("\n")
    assert first == text_of(run, form)


@pytest.mark.parametrize("form", EXPORTERS)
def test_what_failed_is_left_out_and_named(broken: Run, form: str) -> None:
    exported = EXPORTERS[form](broken)
    said = "\n".join(exported.left_out)
    assert "mpi: no mpi4py; install it" in said
    assert re.search(r"trial \d+ \(zmq, dict of 10 entries, \w+, round 1\): failed: reader-0 ended", said)
    assert re.search(r"trial \d+ \(shm, .*, round 2\): failed: 1 messages were not delivered as promised", said)


@pytest.mark.parametrize("form", EXPORTERS)
def test_a_run_without_usable_trials_is_one_clear_error(tmp_path: Path, form: str) -> None:
    failed = make_run(tmp_path / "run", {("zmq", 10): Cell(factors=(0.0, 0.0))}, ALL_MODES)
    with pytest.raises(StoreError, match=rf"holds no trial for {form}.* is ok: trial \d+ .*exit code 1") as caught:
        text_of(failed, form)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("form", "mode"), [("github-latency", "saturate"), ("github-throughput", "paced"), ("perfetto", "pingpong")]
)
def test_a_run_of_other_modes_says_which_are_needed(tmp_path: Path, form: str, mode: Any) -> None:
    other = make_run(tmp_path / "run", {("zmq", 10): Cell()}, modes=(mode,))
    with pytest.raises(StoreError, match="it takes one of mode"):
        text_of(other, form)


@pytest.mark.parametrize("form", ["pyperf", "github-latency", "hlog", "osu", "perfetto"])
def test_samples_that_cannot_be_read_are_named(run: Run, form: str) -> None:
    (run.path / "samples" / "0.npz").write_bytes(b"PK but no archive")
    assert any("trial 0 (shm" in line and "0.npz" in line for line in EXPORTERS[form](run).left_out)


def test_names_tell_what_is_unusual_and_nothing_of_host_time_or_version(tmp_path: Path) -> None:
    settings = {"codec": "msgpack", "wait": "spin", "pin": "0,1", "touch": "all", "rate_per_s": 500.0}
    unusual = make_run(tmp_path / "run", {("zmq", 10): Cell()}, ALL_MODES, **settings)
    names = {entry["name"] for entry in json.loads(text_of(unusual, "github-latency"))}
    common = "zmq/dict-10-521B/r2/codec-msgpack/wait-spin/pin-0,1/touch-all"
    assert {f"{common}/rate-500/one-way-p50", f"{common}/round-trip-p50"} <= names
    tag = common.replace("/", ".").replace(",", "_")
    assert f"Tag={tag}.rate-500.reader-1.response," in text_of(unusual, "hlog")


# pyperf


def pyperf_suite(run: Run) -> dict[str, pyperf.Benchmark]:
    return {benchmark.get_name(): benchmark for benchmark in pyperf.BenchmarkSuite.loads(text_of(run, "pyperf"))}


def test_pyperf_has_a_run_per_round_with_the_rounds_own_figure_in_seconds(run: Run) -> None:
    benchmarks = pyperf_suite(run)
    assert set(benchmarks) == series("one-way-p50", "round-trip-p50", "message-time")
    shapes = {(each.get_nrun(), each.get_nvalue(), each.get_unit()) for each in benchmarks.values()}
    assert shapes == {(3, 3, "second")}
    values = benchmarks["zmq/dict-10-521B/r2/message-time"].get_values()
    assert values == pytest.approx([1e-5, 1e-5 / 1.01, 1e-5 / 0.99])
    for metric in ("one-way", "round-trip"):
        assert benchmarks[f"zmq/dict-10-521B/r2/{metric}-p50"].median() == pytest.approx(30e-6, rel=0.02)


def test_pyperf_gets_a_p99_where_a_round_has_a_thousand_samples(tmp_path: Path) -> None:
    many = make_run(tmp_path / "run", {("shm", 10): Cell()}, readers=3, modes=("paced",))
    values = pyperf_suite(many)["shm/dict-10-521B/r3/one-way-p99"].get_values()
    assert len(values) == 3
    assert all(value > 12e-6 for value in values)


def test_pyperf_metadata_is_an_allow_list(tmp_path: Path) -> None:
    machine = {"cpu_model": "Example\nCPU", "logical_cores": 8, "python": "CPython 3.11.7", "governor": None}
    facts = {"machine": machine | {"hostname": "secret"}, "versions": {"ipcbench": "0.1.0", "env": "secret"}}
    told = make_run(tmp_path / "run", {("shm", 10): Cell(notes=("noisy: 5% steal",))}, ALL_MODES, **facts)
    assert "secret" not in text_of(told, "pyperf")
    metadata = pyperf_suite(told)["shm/dict-10-521B/r2/one-way-p50"].get_metadata()
    expected = {"cpu_model_name": "Example CPU", "cpu_count": 8, "python_implementation": "cpython"}
    expected |= {"python_version": "3.11.7", "ipcbench_version": "0.1.0", "notes": "noisy: 5% steal"}
    assert {name: metadata[name] for name in expected} == expected
    assert "cpu_governor" not in metadata


def test_pyperf_says_which_benchmark_has_fewer_rounds(broken: Run) -> None:
    benchmarks = pyperf_suite(broken)
    assert {benchmark.get_nrun() for benchmark in benchmarks.values()} == {2}
    kept = (trial for trial in broken.trials if trial.spec.round_index or trial.spec.backend == "zmq")
    said = EXPORTERS["pyperf"](replace(broken, trials=tuple(kept)))
    few = [line for line in said.fewer_rounds if line.startswith("shm/dict-10-521B/r2/one-way-p50: ")]
    assert [line.partition(";")[0] for line in few] == ["shm/dict-10-521B/r2/one-way-p50: 1 of 2 rounds are missing"]
    assert set(few).isdisjoint(said.left_out), "the series is in the file"


# github-action-benchmark

WORD = {"type": "string", "minLength": 1}
POINT = {
    "name": WORD,
    "unit": WORD,
    "value": {"type": "number", "exclusiveMinimum": 0},
    "range": {"type": "string", "pattern": r"^± \d+(\.\d+)?$"},
    "extra": {"type": "string"},
}
REQUIRED = ["name", "unit", "value"]
ITEMS = {"type": "object", "required": REQUIRED, "additionalProperties": False, "properties": POINT}
GITHUB_SCHEMA = {"type": "array", "minItems": 1, "items": ITEMS}


@pytest.mark.parametrize(
    ("form", "unit", "metrics"),
    [
        ("github-latency", "us", ["one-way-p50", "round-trip-p50", "round-trip-p99", "one-way-p99"]),
        ("github-throughput", "messages/s", ["throughput"]),
    ],
)
def test_github_has_a_point_per_series(run: Run, form: str, unit: str, metrics: list[str]) -> None:
    points = json.loads(text_of(run, form))
    jsonschema.validate(points, GITHUB_SCHEMA)
    assert {point["unit"] for point in points} == {unit}
    names = [point["name"] for point in points]
    assert len(set(names)) == len(names)
    assert set(names) == series(*metrics)


def test_github_values_and_ranges_are_those_of_the_tables(run: Run) -> None:
    points = [*json.loads(text_of(run, "github-latency")), *json.loads(text_of(run, "github-throughput"))]
    of_name = {point["name"]: point for point in points}
    latency, rate = of_name["zmq/dict-10-521B/r2/one-way-p50"], of_name["zmq/dict-10-521B/r2/throughput"]
    assert latency["value"] == pytest.approx(30.0, rel=0.02)
    assert 0 < float(latency["range"].removeprefix("± ")) < 3
    assert rate["value"] == 100_000.0
    assert "52.1 MB/s of payload to each reader" in rate["extra"].splitlines()
    assert "3 rounds, pickle, every_message" in latency["extra"].splitlines()


# OSU


def test_osu_tables(tmp_path: Path) -> None:
    large, small = (Cell(*figures, 0.0, (1.0,) * 3) for figures in ((90_000.0, 20_000.0, 180_000.0), (3e4, 1e5, 6e4)))
    exact = make_run(tmp_path / "run", {("zmq", 1000): large, ("zmq", 10): small}, ALL_MODES, backends=("zmq",))
    assert text_of(exact, "osu") == OSU


OSU = """\
# ipcbench zmq: one-way latency, median, from the intended send time
# Payload: dict, pickle, 2 readers, every_message.
# Size            Latency (us)
521                      30.00
55039                    90.00

# ipcbench zmq: half round trip, median, to the last reader's reply
# Payload: dict, pickle, 2 readers, every_message.
# Size            Latency (us)
521                      30.00
55039                    90.00

# ipcbench zmq: bandwidth to each reader, MB = 10^6 bytes of payload
# Payload: dict, pickle, 2 readers, every_message.
# Size        Bandwidth (MB/s)
521                      52.10
55039                  1100.78
"""


def test_osu_rows_and_columns_are_where_osu_has_them(run: Run) -> None:
    for line in text_of(run, "osu").splitlines():
        if line.startswith("# Size"):
            assert line in (f"{'# Size':<10}{'Latency (us)':>20}", f"{'# Size':<10}{'Bandwidth (MB/s)':>20}")
        elif line and not line.startswith("#"):
            assert re.fullmatch(r"\d+ +\d+\.\d\d", line)
            assert len(line) == 30
