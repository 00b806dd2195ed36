"""A run is killed, interrupted, crowded or starved: it keeps what it measured and leaves nothing on the host."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from ipcbench.processes.cleanup import SHM_FOLDER, find
from ipcbench.processes.run_dir import RunDir
from ipcbench.results.store import Run, load_run
from ipcbench.testing.agents.client import until
from tests.end_to_end.shell import TINY, Shell, interrupt

LIMIT_S = 60
SHORT_RUN = (
    "run", "--backends", "shm,pipe", "--readers", "2", "--sizes", "10,20", "--mode", "saturate", "--rounds", "1",
    "--budget", "600s", "--window", "50ms", "--warmup", "10ms",
)  # fmt: skip
LONG_RUN = (*SHORT_RUN, "--rounds", "200", "--out", "run")
RUN_OF_SIX = (*SHORT_RUN, "--sizes", "10,20,30", "--window", "400ms", "--control", "no", "--out", "run")


def wait_for_trials(shell: Shell, process: subprocess.Popen[str], count: int) -> None:
    """Wait until `count` trials are stored in the folder `run`."""
    stored = shell.folder / "run" / "trials.jsonl"
    while not stored.exists() or stored.read_text(encoding="utf-8").count("\n") < count:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
            pytest.fail(f"the run ended before it had measured that much: {process.stderr.read()}")


def family(process: subprocess.Popen[str]) -> tuple[str, list[psutil.Process]]:
    """Return the token of a run and all its processes but the coordinator."""
    members = psutil.Process(process.pid).children(recursive=True)
    lines = []
    for member in members:
        with suppress(psutil.NoSuchProcess):  # some end while the run goes on
            lines.append(" ".join(member.cmdline()))
    return re.search(r"ipcb-[0-9a-f]{8}", " ".join(lines))[0], members


def assert_gone(token: str, members: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(members, timeout=LIMIT_S)
    assert alive == []
    assert find(token) == []


def ended(shell: Shell, process: subprocess.Popen[str], folder: str = "run") -> Run:
    """Wait for the run to end well, and return it."""
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, stderr
    return load_run(shell.folder / folder)


@pytest.mark.parametrize("backends", ["shm,pipe", "mpi-buffer"])
def test_a_killed_coordinator_leaves_no_process_and_no_file_and_its_trials_can_be_resumed(
    backends: str, shell: Shell
) -> None:
    if "mpi" in backends:
        pytest.importorskip("mpi4py")
    process = shell.start(*LONG_RUN, "--backends", backends)
    wait_for_trials(shell, process, 3)
    token, members = family(process)
    process.kill()
    process.communicate(timeout=LIMIT_S)
    assert_gone(token, members)
    run = load_run(shell.folder / "run")
    assert len(run.trials + run.controls) >= 3
    assert run.info.status == "running"


def test_a_run_in_the_folder_above_a_checkout_takes_the_installed_package(tmp_path: Path) -> None:
    """There, the checkout's folder could be imported as a package without code; so could the folder of its results."""
    (tmp_path / "ipcbench" / "results").mkdir(parents=True)
    command = [str(Path(sys.executable).with_name("ipcbench")), "run", *TINY, "--backends", "pipe,null", "--out", "run"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=100, capture_output=True)
    assert {trial.status for trial in load_run(tmp_path / "run").trials} == {"ok"}


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_is_done_leaves_nothing_and_can_go_on(by: int, shell: Shell) -> None:
    process = shell.start(*RUN_OF_SIX)
    wait_for_trials(shell, process, 2)
    on_disk = (shell.folder / "run" / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["status"] for line in on_disk[:2]] == ["ok"] * 2, "a trial is stored as it ends"
    token, members = family(process)
    _, said = interrupt(process, by)
    assert process.returncode == 130
    assert "ipcbench run --resume run" in said
    assert "Traceback" not in said
    assert_gone(token, members)
    kept = load_run(shell.folder / "run")
    assert 2 <= len(kept.trials) < 6
    assert kept.info.status == "interrupted"

    resumed = shell("run", "--resume", "run", "--format", "json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)
    run = load_run(shell.folder / "run")
    assert run.trials[: len(kept.trials)] == kept.trials, "what was measured is not measured again"
    assert (len(run.trials), run.info.status) == (6, "complete")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "IPCBENCH_CONTROL_HOST",
            "256.1.1.1",
            "IPCBENCH_CONTROL_HOST: '256.1.1.1' is not valid; allowed: the name or the",
        ),
        ("IPCBENCH_CONTROL_HOST", "x" * 70, "is not valid; allowed: the name or the"),
        ("IPCBENCH_MPIEXEC", "'", "IPCBENCH_MPIEXEC is no command line: No closing quotation; mend or unset it"),
        ("IPCBENCH_MPIEXEC", "/no/such/mpiexec", "IPCBENCH_MPIEXEC names '/no/such/mpiexec', which is no program here"),
    ],
)
def test_a_setting_of_the_environment_that_makes_no_sense_is_one_line(
    name: str, value: str, said: str, shell: Shell
) -> None:
    pytest.importorskip("mpi4py")
    process = shell.start("run", *TINY, "--backends", "mpi-buffer", env={**shell.options()["env"], name: value})
    _, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert said in error.splitlines()[-1]
    assert error.splitlines()[-1].startswith("ipcbench: error: ")


def test_a_folder_that_is_gone_is_one_line(shell: Shell) -> None:
    prefix = ("sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh")
    process = shell.start("run", *TINY, "--backends", "shm", "--out", str(shell.folder / "run"), prefix=prefix)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said.splitlines()[-1] == "ipcbench: error: the current folder is gone; change to another one"


@pytest.mark.parametrize("limit", [10, 17])
def test_too_few_open_files_are_one_line(shell: Shell, limit: int) -> None:
    """Also where the run itself starts, and only its workers do not fit."""
    prefix = ("sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh")
    done = shell.start("run", *TINY, "--backends", "shm,pipe,lmdb", "--quiet", "--out", "run", prefix=prefix)
    _, said = done.communicate(timeout=LIMIT_S)
    assert done.returncode == 1
    assert said.startswith("ipcbench: error: Too many open files; raise the limit (`ulimit -n`)")


@pytest.mark.parametrize("closed_or_full", ["2>&-", "2>/dev/full"])
def test_a_run_whose_standard_error_takes_nothing_goes_on(shell: Shell, closed_or_full: str) -> None:
    prefix = ("sh", "-c", f'exec "$@" {closed_or_full}', "sh")
    process = shell.start("run", *TINY, "--backends", "shm", "--out", "run", prefix=prefix)
    assert {trial.status for trial in ended(shell, process).trials} == {"ok"}


def test_a_run_ends_and_leaves_nothing_although_its_janitor_is_stopped(shell: Shell) -> None:
    process = shell.start("run", *TINY, "--backends", "shm", "--out", "run")
    wait_for_trials(shell, process, 1)
    token, members = family(process)
    (janitor,) = (each for each in members if "ipcbench.processes.janitor" in each.cmdline())
    janitor.suspend()
    ended(shell, process)
    assert_gone(token, members)


def test_what_is_interrupted_in_an_import_ends_with_the_exit_code_of_an_interrupt(shell: Shell) -> None:
    """Python itself would end by SIGINT, whatever the signal was."""
    (shell.folder / "odd.py").write_text('exec("raise KeyboardInterrupt")', encoding="utf-8")
    done = shell("check", "odd:Odd")
    assert (done.returncode, done.stderr.strip()) == (130, "ipcbench: error: interrupted")
    done = shell("run", *TINY, "--backends", "odd:Odd")
    assert (done.returncode, done.stderr) == (130, "ipcbench: interrupted before the first trial\n")


@pytest.mark.parametrize("prefix", ["mpich_shm_", "ucx_shm_posix_"])
def test_an_interrupted_run_leaves_no_segment_of_ranks_that_it_had_just_started(prefix: str) -> None:
    segment = SHM_FOLDER / f"{prefix}test{os.getpid()}"
    with suppress(KeyboardInterrupt), RunDir():
        segment.touch()
        raise KeyboardInterrupt
    assert not segment.exists()


def test_two_runs_at_once_do_not_meet(shell: Shell) -> None:
    both = {name: shell.start(*SHORT_RUN, "--out", name) for name in ("a", "b")}
    for name, process in both.items():
        assert [trial.status for trial in ended(shell, process, name).trials] == ["ok"] * 4


def with_small_folder(path: str, size: str) -> tuple[str, ...]:
    """Return what makes the beginning of a command line that has a folder of its own, of this size."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip(f"needs root and unshare(1) to give a process a small {path} of its own")
    prefix = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs {path} && exec "$@"', "sh")
    probe = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no mount namespace here: {probe.stderr.strip()}")
    return prefix


CREATE = """
from ipcbench import ChannelSpec, get_backend
from ipcbench.errors import TransportError
for readers in (1, 3):
    try:
        get_backend("lmdb")().create(ChannelSpec("ipcb-full", readers=readers, max_message_bytes=5000))
    except TransportError:
        continue
    raise SystemExit("there was room")
"""


@pytest.mark.parametrize("size_kib", range(4, 64, 4))
def test_a_temporary_folder_without_room_is_an_error_and_no_bus_error(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, size_kib: int
) -> None:
    """LMDB maps its file of locks before it writes to it; a page that the system cannot give then kills the process."""
    folder = shell.folder / "small"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    process = shell.start_python("-c", CREATE, prefix=with_small_folder(str(folder), f"{size_kib}k"))
    assert process.communicate(timeout=100) == ("", "")
    assert process.returncode == 0


def test_a_full_dev_shm_fails_the_trials_that_need_it_and_no_other(shell: Shell) -> None:
    """It is too small for the larger of two messages."""
    prefix = with_small_folder("/dev/shm", "256k")
    sweep = (*SHORT_RUN, "--readers", "1", "--payload", "bytes", "--codec", "raw", "--sizes", "64,1MiB", "--out", "run")
    run = ended(shell, shell.start(*sweep, prefix=prefix))
    trials = {(trial.spec.backend, trial.spec.size): trial for trial in run.trials}
    full = trials.pop(("shm", 2**20))
    assert [trial.status for trial in trials.values()] == ["ok"] * 3
    assert full.status == "failed"
    assert "/dev/shm" in full.reason


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="no MPI")
def test_mpi_is_not_started_where_its_segments_do_not_fit(shell: Shell) -> None:
    """It would end by a bus error, and not say why."""
    sweep = (*TINY, "--backends", "mpi,pipe", "--out", "run")
    run = ended(shell, shell.start("run", *sweep, prefix=with_small_folder("/dev/shm", "8M")))
    states = {(trial.spec.backend, trial.status) for trial in run.trials}
    assert states == {("mpi", "failed"), ("pipe", "ok")}
    words = r"as they start, 2 MPI ranks take 17\.8 MB of /dev/shm, and 8\.4 MB are free; enlarge it \(`docker run"
    for trial in run.trials:
        assert trial.status == "ok" or re.search(words, trial.reason), trial.reason


@pytest.fixture
def in_memory_cgroup() -> Iterator[Callable[[int], tuple[str, ...]]]:
    """Return what makes the beginning of a command line that may use so much memory."""
    root = Path("/sys/fs/cgroup/memory") if Path("/sys/fs/cgroup/memory").is_dir() else Path("/sys/fs/cgroup")
    group = root / f"ipcbench-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")

    def limited(limit_bytes: int) -> tuple[str, ...]:
        name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
        if not (group / name).exists():
            pytest.skip("no memory cgroup can be made here")
        (group / name).write_text(str(limit_bytes), encoding="ascii")
        return ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")

    yield limited
    assert until(lambda: not (group / "cgroup.procs").read_text(encoding="ascii"), LIMIT_S)
    group.rmdir()


def test_too_little_memory_for_any_backend_is_refused_with_what_it_takes(shell: Shell, in_memory_cgroup) -> None:
    process = shell.start(*SHORT_RUN, "--out", "run", prefix=in_memory_cgroup(150 * 2**20))
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2, said
    assert said == (
        "ipcbench: error: a run with 2 readers takes 248 MiB of memory or more, and the limit of its cgroup is "
        "150 MiB; raise the limit (`docker run --memory`), or take fewer readers\n"
    )
    assert not (shell.folder / "run").exists()


def test_out_of_memory_ends_workers_and_not_the_run(shell: Shell, in_memory_cgroup) -> None:
    """Two large messages in each channel do not fit; small ones do."""
    sizes = ("--payload", "bytes", "--codec", "raw", "--sizes", "64,64MiB")
    options = (*sizes, "--backends", "shm", "--out", "run")
    process = shell.start(*SHORT_RUN, *options, prefix=in_memory_cgroup(400 * 2**20))
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode in {0, 1}, said
    run = load_run(shell.folder / "run")
    assert {trial.status for trial in run.trials if trial.spec.size == 64} == {"ok"}
    failed = [trial.reason for trial in run.trials if trial.status == "failed"]
    assert failed
    assert any("out of memory" in reason or "MiB" in reason for reason in failed), failed


def test_nothing_of_a_run_listens_beyond_this_host(shell: Shell) -> None:
    """Neither ranks nor the MPI launcher; Open MPI's does, and cannot be told otherwise."""
    backends = ",".join(("zmq-tcp", *(("mpi-buffer",) if find_spec("mpi4py") else ())))
    listening = set()
    process = shell.start(*SHORT_RUN, "--backends", backends)
    while process.poll() is None:
        with suppress(psutil.Error):  # some end meanwhile
            for member in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                listening.update(
                    (member.name(), connection.laddr.ip)
                    for connection in member.net_connections("inet")
                    if connection.status == psutil.CONN_LISTEN
                )
    assert process.returncode == 0
    assert listening
    assert all(ip_address(address).is_loopback for _, address in listening), listening


@pytest.mark.parametrize("command", [("run", "--out", "run"), ("check", "shm", "--quick"), ("doctor",)])
def test_without_proc_it_says_so_in_a_line(shell: Shell, command: tuple[str, ...]) -> None:
    """In a user namespace with process IDs of its own."""
    prefix = ("unshare", "-Urpf", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs unshare(1) and user namespaces")
    process = shell.start(*command, prefix=prefix)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode not in {0, None}
    assert stderr.startswith("ipcbench: error: /proc is not mounted")
    assert stderr.count("\n") == 1
    assert list(shell.folder.iterdir()) == []
