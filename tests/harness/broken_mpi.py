"""An MPI backend whose writer kills the MPI launcher in the middle of the window; see broken.py."""

from __future__ import annotations

import psutil
from broken import writes

from ipcbench.backend import Message
from ipcbench.backends.mpi.backend import MpiBuffer


def _kill_launcher(message: Message) -> list[Message]:
    next(parent for parent in psutil.Process().parents() if "mpiexec" in " ".join(parent.cmdline())).kill()
    return [message]


KillsMpiexec = writes("KillsMpiexec", _kill_launcher, MpiBuffer)
