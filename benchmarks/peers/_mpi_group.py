"""A group of roles as the processes of one MPI launch; as a program, one of those processes."""

from __future__ import annotations

import base64
import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import _native
from _rounds import GroupFailed

from ipcbench.hosts.simulated.namespaces import die_with_parent
from ipcbench.processes.launch import find_mpiexec, import_path

_MARK = "figures: "
_ERROR_LINES = 20


def run_mpi_group(roles: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], timeout_s: float) -> list[Any]:
    """Run each role as a rank of one launch, in order, as `_common.run_group` does; return their figures.

    Raises:
        BackendUnavailable: there is no MPI launcher.
        GroupFailed: a process failed, or they had not ended after `timeout_s`.
    """
    work = base64.b64encode(pickle.dumps(list(roles))).decode()
    command = [*find_mpiexec(), "-n", str(len(roles)), sys.executable, __file__, work]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": import_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise GroupFailed(f"the MPI processes did not end within {timeout_s:g} s") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    for line in output.splitlines():
        if line.startswith(_MARK):
            return list(pickle.loads(base64.b64decode(line.removeprefix(_MARK))))
    raise GroupFailed("\n".join(output.splitlines()[-_ERROR_LINES:]))


def main() -> None:
    """Run the role of this rank; rank 0 prints the figures of all."""
    die_with_parent()  # the launcher's proxy, which puts its ranks in a group of their own
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    roles, rank = pickle.loads(base64.b64decode(sys.argv[1])), comm.Get_rank()
    role, arguments = roles[rank]
    work = role(*arguments)
    next(work)
    cores = _native.cores(len(roles))
    if cores:
        os.sched_setaffinity(0, {cores[rank]})
    gc.collect()
    gc.freeze()
    gc.disable()
    comm.Barrier()
    figures = comm.gather(next(work))
    comm.Barrier()
    next(work, None)
    if not rank:
        print(_MARK + base64.b64encode(pickle.dumps(figures)).decode(), flush=True)


if __name__ == "__main__":
    main()
