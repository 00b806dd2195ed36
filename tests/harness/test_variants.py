"""Interpreters measured in turns: each runs its own code, and what cannot be measured is refused before it starts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ipcbench.analysis.compare.compare import compare_variants
from ipcbench.errors import BackendUnavailable, ConfigError
from ipcbench.harness.prepare import prepare_payload
from ipcbench.harness.sweep import run_sweep
from ipcbench.harness.variants import protocol, settle
from ipcbench.processes.launch import find_mpiexec
from ipcbench.results.store import load_run
from ipcbench.spec import SweepSpec, Variant
from tests.harness.interpreters import MARKED, copied_package, interpreter, two
from tests.harness.small_runs import measure, raw, sound

WITHOUT_ZMQ = 'raise ModuleNotFoundError("No module named \'zmq\'", name="zmq")'


def notes(folder: Path) -> list[list[str]]:
    """Return what a marked backend wrote down: (what, process, where ipcbench is)."""
    return [line.split() for line in (folder / "notes").read_text().splitlines()]


def refusal(sweep: SweepSpec, folder: Path, kind: type[Exception] = ConfigError) -> str:
    """Return why the sweep is refused, in one line, before anything is stored."""
    with pytest.raises(kind) as caught:
        run_sweep(sweep, folder / "results")
    assert not (folder / "results").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder and PYTHONPATH hold another package of our name, which no interpreter must import."""
    folder = tmp_path / "elsewhere"
    (folder / "ipcbench").mkdir(parents=True)
    (folder / "ipcbench/__init__.py").write_text('raise SystemExit("imported from where the user is")')
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def test_each_variant_runs_its_own_code(tmp_path: Path, elsewhere: Path) -> None:
    other = copied_package(tmp_path / "copy", "__init__.py", '__version__ = "', '__version__ = "9.9+')
    variants = two(tmp_path, first=other)
    for variant in variants:
        (Path(variant.python).parent / "marked.py").write_text(MARKED)
    sweep = raw(64, 128, backends=("marked:Marked",), modes=("paced", "pingpong", "saturate"), variants=variants)
    run = sound(replace(sweep, tail=False), tmp_path / "results")

    assert {trial.spec.backend for trial in run.trials} == {"marked:Marked@base", "marked:Marked@head"}
    assert len(run.trials) == 2 * 2 * 3
    assert all(trial.spec.turns > 1 for trial in run.trials if trial.spec.mode != "saturate")  # fewer if it is slow
    assert run.info.variant_versions["head"]["ipcbench"].startswith("9.9+")
    assert run.info.variant_versions["base"]["ipcbench"] == run.info.versions["ipcbench"]
    for variant in variants:
        wrote = notes(Path(variant.python).parent)
        home = other if variant.name == "head" else Path(__file__).parents[2]
        assert {place for _, _, place in wrote} == {str(home)}
        made = {process for what, process, _ in wrote if what in {"create", "destroy"}}
        read = {process for what, process, _ in wrote if what == "read"}
        assert len(made) == 1, "one process makes and removes all channels"
        assert not made & read
        assert str(os.getpid()) not in made | read


def test_variants_follow_one_another_in_an_order_that_changes(tmp_path: Path) -> None:
    given = {"delivery": "latest_value"}  # which takes no turns
    in_one_piece = raw(64, backends=("shm", "pipe"), rounds=3, window_s=0.05, variants=two(tmp_path), **given)
    run = sound(in_one_piece, tmp_path / "results")
    pairs = [run.trials[index : index + 2] for index in range(0, len(run.trials), 2)]
    assert all(first.spec.registered_name == second.spec.registered_name for first, second in pairs)
    assert {first.spec.backend.partition("@")[2] for first, _ in pairs} == {"base", "head"}
    comparison = compare_variants(run)
    assert [change.cell.backend for change in comparison.changes] == ["pipe@head", "shm@head"]
    assert comparison.version_differences == ()


def test_an_interrupted_run_goes_on_with_its_variants(tmp_path: Path) -> None:
    path = run_sweep(raw(64, rounds=2, variants=two(tmp_path)), tmp_path / "results")
    lines = (path / "trials.jsonl").read_text().splitlines(keepends=True)
    (path / "trials.jsonl").write_text("".join(lines[:3]))
    run_sweep(raw(64), tmp_path, resume=path)
    again = load_run(path)
    assert [trial.status for trial in again.trials] == ["ok"] * 4
    assert len({(trial.spec.backend, trial.spec.round_index) for trial in again.trials}) == 4


def test_a_failure_of_one_variant_leaves_the_other_alone(tmp_path: Path) -> None:
    fails = "from broken import KilledReader as Transport"
    works = "from ipcbench.backends.shm.backend import Shm as Transport"
    variants = (
        Variant("base", interpreter(tmp_path / "base", here=works)),
        Variant(
            "head", interpreter(tmp_path / "head", here=fails, broken=(Path(__file__).parent / "broken.py").read_text())
        ),
    )
    run, _ = measure(raw(64, backends=("here:Transport",), rounds=2, variants=variants), tmp_path / "results")
    by_name = {name: [t for t in run.trials if t.spec.backend.endswith(name)] for name in ("base", "head")}
    assert [trial.status for trial in by_name["base"]] == ["ok", "ok"]
    assert [trial.status for trial in by_name["head"]] == ["failed", "failed"]
    assert all("killed by signal 9" in trial.reason for trial in by_name["head"])


def test_threads_of_one_process_can_be_variants(tmp_path: Path) -> None:
    run = sound(raw(64, backends=("null",), variants=two(tmp_path)), tmp_path / "results")
    assert {trial.spec.backend for trial in run.trials} == {"null@base", "null@head"}


# What is refused


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nowhere/python", "No such file or directory"),
        ("/bin/true", "it answered something else"),
        ("/", "Permission denied"),
    ],
)
def test_what_is_not_an_interpreter_is_refused(tmp_path: Path, python: str, words: str) -> None:
    sweep = raw(64, variants=(Variant("base", interpreter(tmp_path / "base")), Variant("head", python)))
    text = refusal(sweep, tmp_path)
    assert text.startswith(f"--variant: 'head={python}' is not valid")
    assert words in text


def test_an_interpreter_without_ipcbench_is_refused(tmp_path: Path) -> None:
    text = refusal(raw(64, variants=two(tmp_path, options="-I -S")), tmp_path)
    assert "No module named 'ipcbench'" in text


def test_an_ipcbench_that_cannot_name_its_protocol_is_refused(tmp_path: Path) -> None:
    other = copied_package(tmp_path / "copy", "harness/variants.py", "_PROTOCOL_NUMBER = 2\n", "_PROTOCOL_NUMBER = 3\n")
    text = refusal(raw(64, variants=two(tmp_path, first=other)), tmp_path)
    assert "'head=" in text
    assert f"speaks protocol 3-{protocol().partition('-')[2]} with its workers, this one {protocol()}" in text


def test_a_new_field_is_another_protocol(tmp_path: Path) -> None:
    line = "    turns: int = 1\n"
    other = copied_package(tmp_path / "copy", "spec/trial.py", line, f"{line}    mood: str = ''\n")
    assert "speaks protocol" in refusal(raw(64, variants=two(tmp_path, first=other)), tmp_path)


def test_a_library_that_one_variant_lacks_is_named(tmp_path: Path) -> None:
    sweep = raw(64, backends=("shm", "zmq"), variants=two(tmp_path, zmq=WITHOUT_ZMQ))
    text = refusal(sweep, tmp_path, BackendUnavailable)
    assert text.startswith("backend 'zmq@head' is not available: Python package 'zmq' is not installed")


def test_a_backend_that_no_variant_can_run_is_left_out(tmp_path: Path) -> None:
    variants = tuple(Variant(name, interpreter(tmp_path / name, zmq=WITHOUT_ZMQ)) for name in ("base", "head"))
    run, _ = measure(raw(64, backends=("shm", "zmq"), variants=variants), tmp_path / "others")
    assert set(run.info.skipped) == {"zmq@base", "zmq@head"}
    assert {trial.spec.backend for trial in run.trials} == {"shm@base", "shm@head"}
    assert "zmq@base" in refusal(raw(64, backends=("zmq",), variants=variants), tmp_path, BackendUnavailable)


def test_an_error_in_a_variant_is_passed_on(tmp_path: Path) -> None:
    assert "unknown backend 'smoke'" in refusal(raw(64, backends=("smoke",), variants=two(tmp_path)), tmp_path)


def test_payloads_of_different_length_are_refused(tmp_path: Path) -> None:
    sweep = raw(64, variants=two(tmp_path))
    longer = replace(prepare_payload(sweep, 64), payload_bytes=65)
    with pytest.raises(ConfigError, match="it encodes size 64 in 64 B, this interpreter in 65 B"):
        settle(sweep, [longer])


def test_a_backend_with_the_mark_in_its_name_is_refused(tmp_path: Path) -> None:
    assert "a name without '@'" in refusal(raw(64, backends=("shm@base",)), tmp_path)


def test_another_interpreter_has_its_own_mpi_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IPCBENCH_MPIEXEC", raising=False)
    python = interpreter(tmp_path / "head")
    with pytest.raises(BackendUnavailable, match=f"no mpiexec beside {python}"):
        find_mpiexec(python)
    beside = tmp_path / "head/mpiexec"
    beside.write_text("#!/bin/sh\necho HYDRA\n")
    beside.chmod(0o755)
    assert find_mpiexec(python) == [str(beside)]


def test_variants_of_mpi_are_launched_by_their_own_launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = " ".join(find_mpiexec())
    pytest.importorskip("mpi4py")
    monkeypatch.delenv("IPCBENCH_MPIEXEC", raising=False)
    variants = two(tmp_path)
    for variant in variants:
        beside = Path(variant.python).parent / "mpiexec"
        beside.write_text(f'#!/bin/sh\necho launched >> {beside.parent}/launches\nexec {launcher} "$@"\n')
        beside.chmod(0o755)
    run = sound(raw(64, backends=("mpi-buffer",), variants=variants), tmp_path / "results")
    assert {trial.spec.backend for trial in run.trials} == {"mpi-buffer@base", "mpi-buffer@head"}
    for variant in variants:
        assert (Path(variant.python).parent / "launches").read_text().count("launched") >= 1
