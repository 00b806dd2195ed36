"""Starting worker processes, directly or by an MPI launcher; waiting until they have connected; ending them."""

from __future__ import annotations

import os
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Protocol

from ipcbench.backend import Launcher
from ipcbench.errors import BackendUnavailable, TrialError, WorkerCrashed, WorkerTimeout
from ipcbench.processes.cleanup import kill_launched, remove_mpi_segments
from ipcbench.processes.control_channel import ControlConnection, Switchboard
from ipcbench.processes.worker import LAUNCH_VARIABLE
from ipcbench.util.clock import deadline_ns, remaining_s
from ipcbench.util.files import temporary_folder

MPIEXEC_VARIABLE = "IPCBENCH_MPIEXEC"
"""The user's own launcher command, such as `srun` or `mpiexec -hosts a,b`; `-n COUNT PROGRAM` is appended."""

LAUNCH_S = 60.0
"""How long workers may take to connect; an MPI launch on a busy machine takes seconds."""

_PACKAGE = Path(__file__).parents[1]
_LAST_LINES = 4
_LAST_BYTES = 20_000
_LOOK_S = 0.05
_FORKS_SUFFIX = ".gforker"
_DEATH_NOTICE_S = 5.0
"""How long a launcher may take to end after a rank has; that of MPICH takes two seconds to end the others."""
_END_S = 5.0


def find_mpiexec(python: str | None = None) -> list[str]:
    """Return the MPI launcher as the beginning of a command line.

    The one beside the Python interpreter is preferred to PATH: the launcher must belong to the MPI that mpi4py uses.
    Of MPICH's launchers, the one that only forks is preferred: Hydra listens on all interfaces of the host.
    For another interpreter than this process's, `python`, PATH is not searched: what is there is probably ours.

    Raises:
        BackendUnavailable: there is none.
    """
    if os.environ.get(MPIEXEC_VARIABLE, "").strip():
        return _own_launcher(os.environ[MPIEXEC_VARIABLE])
    beside = Path(python or sys.executable).parent / "mpiexec"
    path = str(beside) if beside.exists() else None if python else shutil.which("mpiexec")
    if path is None:
        where = f"beside {python}" if python else "found"
        hint = f"; or name one in {MPIEXEC_VARIABLE}" if python else ""
        raise BackendUnavailable("mpi", f"no mpiexec {where}", f"pip install 'ipcbench[mpi]'{hint}")
    if _is_open_mpi(path):
        return [path, "--oversubscribe"]
    forks = Path(f"{path}{_FORKS_SUFFIX}")
    return [str(forks) if forks.exists() else path]


def _own_launcher(text: str) -> list[str]:
    """Return the user's own launcher command.

    Raises:
        BackendUnavailable: it is no command line, or its program is not there.
    """
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise BackendUnavailable(
            "mpi", f"{MPIEXEC_VARIABLE} is no command line: {error}", "mend or unset it"
        ) from error
    if shutil.which(command[0]) is None:
        reason = f"{MPIEXEC_VARIABLE} names {command[0]!r}, which is no program here"
        raise BackendUnavailable("mpi", reason, "mend or unset it")
    return command


@cache
def _is_open_mpi(mpiexec: str) -> bool:
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    return "Open MPI" in version or "OpenRTE" in version


def _mpi_environment() -> dict[str, str]:
    """Return the variables for MPI: Open MPI refuses to run as root unless told twice; and without a launcher of the
    user's own, which may start ranks on other hosts, no rank listens beyond this host.
    """
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    if os.environ.get(MPIEXEC_VARIABLE) or sys.platform != "linux":
        return root
    local = {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo", "OMPI_MCA_btl": "^tcp"}
    return root | {name: os.environ.get(name, value) for name, value in local.items()}


def import_path() -> str:
    """Return what this process can import, as PYTHONPATH.

    It names this package's own folder, too, which an editable installation finds last: in the folder above a checkout,
    the checkout would be taken for the package.
    """
    entries = dict.fromkeys(str(Path(entry).absolute()) for entry in (*sys.path, str(_PACKAGE.parent)))
    return os.pathsep.join(entries)


def own_environment() -> dict[str, str]:
    """Return the variables for a process that runs a module of this package: the current folder hides nothing."""
    return {**os.environ, "PYTHONPATH": import_path(), "PYTHONSAFEPATH": "1"}


def other_environment() -> dict[str, str]:
    """Return the variables for another interpreter than this process's: it imports what is its own and nothing else.

    The current folder is not its own: it may be a checkout of another ipcbench.
    """
    ours = ("PYTHONPATH", "PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")
    return {**{name: value for name, value in os.environ.items() if name not in ours}, "PYTHONSAFEPATH": "1"}


@dataclass(slots=True)
class Launch:
    """The processes of one launch, and the unnamed file that holds what they wrote to stdout and stderr."""

    launcher: Launcher
    indices: Sequence[int]
    """Numbers of its workers, in the order of `started` if each is a process that we started."""
    started: list[subprocess.Popen[bytes]]
    output: IO[bytes]
    control: str
    """Address of the switchboard, which stands in the workers' command lines."""
    token: str
    """By which its workers say whose they are: one that reports late must not join another launch."""
    ended: IO[bytes] | None = None
    """Where a process that forks the workers writes how each ended."""
    codes: dict[int, int] = field(default_factory=dict)
    """Exit codes that it has written, by the number of the worker."""
    began_s: float = field(default_factory=time.time)
    """Unix time."""

    def first_dead(self) -> int | None:
        """Return the number of a worker whose process has ended, or of the first if its launcher has; else None."""
        self._read_codes(0.0)
        if self.codes:
            return next(iter(self.codes))
        dead = (self.indices[i] for i, process in enumerate(self.started) if process.poll() is not None)
        return next(dead, None)

    def crashed(self, index: int, name: str) -> WorkerCrashed:
        """Return the error that says how a worker's process ended, and its last words.

        All processes of an MPI launch end with the first or with mpiexec, whose end is the only one that is known.
        """
        ending = self.how_it_ended(index)
        subject = "an MPI rank is gone: mpiexec" if self.launcher == "mpiexec" else name
        if self.ended is not None and index not in self.codes and self.started[0].returncode:
            subject = "the parent of the endpoints' processes"
        return WorkerCrashed(f"{subject} {ending}{self.last_words()}")

    def how_it_ended(self, index: int) -> str:
        """Return how a worker's process ended; waits a moment for its exit status."""
        deadline = deadline_ns(_DEATH_NOTICE_S)
        while index not in self.codes and self._read_codes(remaining_s(deadline) or 0.0):
            pass
        if index in self.codes:
            return _ending(self.codes[index])
        process = self.started[min(self.indices.index(index), len(self.started) - 1)]
        with suppress(subprocess.TimeoutExpired):
            process.wait(_DEATH_NOTICE_S)
        return "ended" if process.returncode is None else _ending(process.returncode)

    def _read_codes(self, timeout_s: float) -> bool:
        """Read how further workers ended; return whether there was anything within `timeout_s`."""
        if self.ended is None or self.ended.closed or not select.select([self.ended], [], [], timeout_s)[0]:
            return False
        lines = os.read(self.ended.fileno(), _LAST_BYTES).decode().splitlines()
        self.codes |= {int(index): int(code) for index, code in map(str.split, lines)}
        return bool(lines)

    def output_size(self) -> int:
        """Return how many bytes the processes have written so far."""
        return os.fstat(self.output.fileno()).st_size

    def tail(self, max_bytes: int, offset: int = 0) -> str:
        """Return the last bytes that the processes wrote after `offset`."""
        start = max(offset, self.output_size() - max_bytes)
        return os.pread(self.output.fileno(), max_bytes, start).decode(errors="replace").strip()

    def last_words(self) -> str:
        """Return the last lines that the processes wrote, as the end of an error's line; empty if there are none."""
        lines = [] if self.output.closed else [line.strip() for line in self.tail(_LAST_BYTES).splitlines()]
        text = " | ".join([line for line in lines if line][-_LAST_LINES:])
        return f"; last words: {text}" if text else ""

    def end(self, timeout_s: float = _END_S) -> None:
        """Wait for processes that were told to exit; kill those that have not by then."""
        deadline = deadline_ns(timeout_s)
        for process in self.started:
            while remaining_s(deadline) and not (self._only_forks and _is_childless(process.pid)):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
                    break
        self.kill()

    @property
    def _only_forks(self) -> bool:
        """Whether the launcher is MPICH's that forks, which may spin for two seconds after its last rank has ended."""
        return str(self.started[0].args[0]).endswith(_FORKS_SUFFIX)  # type: ignore[index]

    def kill(self) -> None:
        """Kill and reap every process of the launch, with what they started; twice is fine."""
        if self.ended is not None:
            for process in self.started:  # it kills its workers, and reaps them
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
            self.ended.close()
        for process in self.started:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self.started:
            process.wait()
        if self.launcher == "mpiexec" and not self.output.closed:  # its ranks may outlive it
            kill_launched(self.token)
            remove_mpi_segments(self.began_s)
        self.output.close()


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _is_childless(pid: int) -> bool:
    import psutil

    try:
        return not psutil.Process(pid).children()
    except psutil.Error:
        return True


def _commands(
    launcher: Launcher, indices: Sequence[int], python: str | None, worker: Sequence[str], *, forked: bool
) -> list[list[str]]:
    """Return the command lines that start the workers, of which each runs the interpreter's arguments `worker`."""
    program = [python or sys.executable, *worker]
    if launcher == "mpiexec":
        return [[*find_mpiexec(python), "-n", str(len(indices)), *program]]
    if launcher == "inline":
        return [[*program, "--together", str(len(indices))]]
    return [program] if forked else [[*program, "--index", str(index)] for index in indices]


def worker_arguments(verbs: str) -> list[str]:
    """Return what an interpreter is given to run a worker."""
    return ["-m", "ipcbench.processes.worker", "--verbs", verbs]


def launch(
    launcher: Launcher,
    indices: Sequence[int],
    switchboard: Switchboard,
    verbs: str,
    *,
    bound: bool = True,
    environment: Mapping[str, str] | None = None,
    python: str | None = None,
    forked: bool = False,
    token: str = "",
    proxy: Sequence[str] = (),
) -> Launch:
    """Start workers that will connect to the switchboard; they can import what this process can import.

    Args:
        launcher: how; `mpiexec` and `inline` number the workers themselves, from 0.
        indices: numbers of the workers.
        switchboard: where they connect to.
        verbs: `module:factory` of what they can do; see ipcbench/processes/worker.py.
        bound: whether they also end with the thread that calls this.
        environment: variables besides our own.
        python: another interpreter that runs them, by its own code; see `other_environment`.
        forked: whether those that are spawned are forks of one process, which has imported everything before: twelve
            processes then take 0.6 s of CPU time to start and end in place of 1.5 s. Linux only, else it is ignored.
            Those of the launcher `fork` always are; that process makes their channels (ipcbench/sync/parent.py).
        token: by which its workers say whose they are, if others of this launch are on other hosts; else a new one.
        proxy: the command that starts those on this host, if others of this launch are on other hosts.

    Raises:
        BackendUnavailable: the launcher is missing.
    """
    forked = launcher == "fork" or (forked and launcher == "spawn" and sys.platform == "linux")
    ended, ending = map(os.fdopen, os.pipe(), ("rb", "wb")) if forked else (None, None)
    worker = [*worker_arguments(verbs), "--control", switchboard.address, *(["--bound"] if bound else [])]
    worker += ["--fork", ",".join(map(str, indices)), "--ended", str(ending.fileno())] if ending else []
    worker += ["--parent"] if launcher == "fork" else []
    commands = [list(proxy)] if proxy else _commands(launcher, indices, python, worker, forked=forked)
    variables = other_environment() if python else own_environment()
    variables |= {**switchboard.environment(), **(environment or {})}
    variables |= _mpi_environment() if launcher == "mpiexec" and not proxy else {}
    variables[LAUNCH_VARIABLE] = token = token or secrets.token_hex(8)
    output: IO[bytes] = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115 - closed by `kill`
    started = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables,
            start_new_session=True,
            pass_fds=[ending.fileno()] if ending else (),
        )
        for command in commands
    ]
    if ending:
        ending.close()  # so that reading ends with the last process that holds it
    switchboard.expect(token)
    return Launch(launcher, indices, started, output, switchboard.address, token, ended)


class Launched(Protocol):
    """The processes of one launch, here or on other hosts; see `Launch`."""

    launcher: Launcher
    token: str

    @property
    def indices(self) -> Sequence[int]:
        """Numbers of its workers."""

    def first_dead(self) -> int | None: ...
    def crashed(self, index: int, name: str) -> WorkerCrashed: ...
    def last_words(self) -> str: ...
    def kill(self) -> None: ...


def gather(
    switchboard: Switchboard, launches: Sequence[Launched], names: Mapping[int, str], timeout_s: float = LAUNCH_S
) -> dict[int, tuple[int, ControlConnection]]:
    """Wait until all workers of the launches have connected; kill them all if they do not. Meanwhile, the switchboard
    keeps those of other launches.

    Args:
        switchboard: where they connect to.
        launches: all that was started for these workers.
        names: what each worker is called if something goes wrong.
        timeout_s: how long they may take.

    Returns:
        Process ID and control channel of each worker, by its index.

    Raises:
        WorkerCrashed: one ended before it connected.
        WorkerTimeout: not all have connected in time.
    """
    workers: dict[int, tuple[int, ControlConnection]] = {}
    deadline = deadline_ns(timeout_s)
    with ExitStack() as on_failure:
        for group in launches:
            on_failure.callback(group.kill)
            for hello, early in switchboard.kept(group.token):
                on_failure.callback(early.close)
                workers[hello["index"]] = (hello["pid"], early)
        while len(workers) < len(names):
            channel = switchboard.accept(min(_LOOK_S, remaining_s(deadline) or 0.0))
            if channel is not None:
                with suppress(TrialError):  # a worker that has died since shows below
                    hello = channel.receive(remaining_s(deadline))
                    index, token = hello["index"], hello.get("launch")  # an older ipcbench of another Python tells none
                    if any(index in group.indices and token in {None, group.token} for group in launches):
                        on_failure.callback(channel.close)
                        workers[index] = (hello["pid"], channel)
                    elif not switchboard.keep(token, hello, channel):
                        channel.close()  # and it ends
                continue
            for group in launches:
                if (dead := group.first_dead()) is not None:
                    absent = [names[index] for index in group.indices if index not in workers] or [names[dead]]
                    raise group.crashed(dead, " or ".join(absent) if group.launcher == "mpiexec" else names[dead])
            if not remaining_s(deadline):
                missing = ", ".join(name for index, name in names.items() if index not in workers)
                words = "".join(group.last_words() for group in launches)
                raise WorkerTimeout(f"{missing} did not start within {timeout_s:.0f} s{words}")
        _require_launchers(launches, names)
        on_failure.pop_all()
    return workers


def _require_launchers(launches: Sequence[Launched], names: Mapping[int, str]) -> None:
    """Raise WorkerCrashed if an MPI launcher has ended: its ranks outlive it, and nobody would wait for their end."""
    for group in launches:
        if group.launcher == "mpiexec" and (dead := group.first_dead()) is not None:
            raise group.crashed(dead, names[dead])
