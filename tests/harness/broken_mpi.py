"""MPI backends in which a process of the launch is killed; see broken.py."""

from __future__ import annotations

import os
import signal
import sys

import psutil
from broken import reads, writes

from ipcbench.backend import Address, Writer
from ipcbench.backends.mpi.backend import MpiBuffer, start_mpi


def _parent(named: str) -> psutil.Process:
    return next(parent for parent in psutil.Process().parents() if named in " ".join(parent.cmdline()))


def _kill_itself(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KilledInStart(MpiBuffer):
    """Its writer is killed when it has started MPI, and readers perhaps not yet."""

    name = "KilledInStart"

    def open_writer(self, address: Address) -> Writer:
        start_mpi(self.name)
        sys.stderr.flush()
        _kill_itself(address)
        return super().open_writer(address)


KillsMpiexec = writes("KillsMpiexec", lambda message: [message, _parent("mpiexec").kill()][:1], MpiBuffer)
KillsProxy = writes("KillsProxy", lambda message: [message, _parent("hydra_pmi_proxy").kill()][:1], MpiBuffer)
KilledRank = reads("KilledRank", _kill_itself, MpiBuffer)
