"""MPI ranks on several hosts: MPICH's mpiexec on one of them says what starts the ranks of each host, and the agents
there start that. So MPI needs no way of its own from host to host, and its ranks belong to their agents as all workers.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from ipcbench.errors import BackendUnavailable
from ipcbench.hosts.launchers import hydra_here
from ipcbench.processes.launch import worker_arguments
from ipcbench.util.clock import deadline_ns, remaining_s
from ipcbench.util.files import temporary_folder

_SAYS, _SAYS_NO_MORE = "HYDRA_LAUNCH:", "HYDRA_LAUNCH_END"
_START_S, _LOOK_S = 30.0, 0.01
_PROXY = "hydra_pmi_proxy"


class Ranks:
    """A running mpiexec, which waits for its proxies.

    Args:
        places: on which of the hosts each rank runs.
        addresses: by which the hosts reach each other; the first is this one's.
        pythons: the interpreter of each host.
        verbs: what the workers can do.

    Attributes:
        proxies: the command line that starts the ranks of each host.

    Raises:
        ConfigError: there is no mpiexec of MPICH here.
        BackendUnavailable: it does not start; with what it says.
    """

    def __init__(self, places: Sequence[int], addresses: Sequence[str], pythons: Sequence[str], verbs: str) -> None:
        ranks: list[str] = []
        for place in places:
            ranks += [":"] if ranks else []
            ranks += ["-n", "1", pythons[place], "-P", *worker_arguments(verbs)]
        options = ["-launcher", "manual", "-localhost", addresses[0], "-hosts", ",".join(addresses)]
        options += ["-rankmap", ",".join(map(str, places)), "-wdir", "/", "-genvnone"]
        self._hosts_count = len(addresses)
        self._said: IO[bytes] = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115 - closed by `kill`
        self._process = subprocess.Popen(
            [hydra_here(), *options, *ranks],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
        )
        try:
            self.proxies = self._commands()
        except BackendUnavailable:
            self.kill()
            raise

    def _commands(self) -> list[list[str]]:
        deadline = deadline_ns(_START_S)
        while True:
            lines = self._lines()
            if _SAYS_NO_MORE in lines:
                commands = [line.split()[1:] for line in lines if line.startswith(_SAYS)]
                if len(commands) == self._hosts_count:
                    return commands
            if self._process.poll() is not None or not remaining_s(deadline):
                said = " | ".join(lines[-3:]) or "it says nothing"
                raise BackendUnavailable("mpi", f"mpiexec does not start: {said}", "look at its first words")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_S)

    def _lines(self) -> list[str]:
        size = os.fstat(self._said.fileno()).st_size
        return os.pread(self._said.fileno(), size, 0).decode(errors="replace").splitlines()  # moves nobody's offset

    def kill(self) -> None:
        """End mpiexec, and with it its proxies; twice is fine."""
        self._process.kill()
        self._process.wait()
        self._said.close()


def proxy_here(command: Sequence[str]) -> list[str]:
    """Return a proxy's command line with the path that the program has on this host."""
    return [str(Path(hydra_here()).with_name(_PROXY)), *command[1:]]
