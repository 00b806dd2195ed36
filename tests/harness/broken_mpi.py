"""An MPI backend that breaks in the middle of a trial; see broken.py."""

from __future__ import annotations

import psutil
from broken import PassingWriter

from ipcbench.backend import Address, Message, Writer
from ipcbench.backends.mpi.backend import MpiBuffer


class KillsMpiexec(MpiBuffer):
    """Its writer kills the MPI launcher in the middle of the window."""

    name = "KillsMpiexec"

    def open_writer(self, address: Address) -> Writer:
        class Killing(PassingWriter):
            def trouble(self, message: Message, timeout_s: float | None) -> None:
                parents = psutil.Process().parents()
                next(parent for parent in parents if "mpiexec" in " ".join(parent.cmdline())).kill()
                self._inner.write(message, timeout_s)

        return Killing(super().open_writer(address))
