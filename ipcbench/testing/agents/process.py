"""An endpoint process of the conformance suite: `python -m ipcbench.testing.agents.process`.

Arguments: path of the suite's socket; number of the agent, or `-` under an MPI launcher, where the rank is the number;
and `bound` if the agent shall also be killed when the thread that started it ends. The key of the control channel is in
the environment. The process ends when the control channel does, whatever its main thread is busy with; SIGUSR1 makes it
write the stacks of all its threads to stderr.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from multiprocessing.connection import Client, Connection
from queue import SimpleQueue
from typing import Any

import msgpack

from ipcbench.testing.agents.verbs import Desk

KEY_VARIABLE = "IPCBENCH_AGENT_KEY"
"""Environment variable with the control channel's key, in hexadecimal."""

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Environment variables in which MPI launchers tell a process its rank, in the order in which they are asked."""

BOUND = "bound"
"""The third argument, if there is one."""

ORPHANED = 3
"""Exit code of an agent whose suite is gone."""

LEAVE = "leave"
"""The verb that ends an agent the way a program ends, with all its clean-up."""

_PR_SET_PDEATHSIG = 1


def _number(argument: str) -> int:
    if argument != "-":
        return int(argument)
    return next(int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends: works even while a library hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _listen(connection: Connection[Any, Any], requests: SimpleQueue[list[Any]]) -> None:
    """Pass requests on until the suite is gone; then end the process at once."""
    try:
        while True:
            requests.put(msgpack.unpackb(connection.recv_bytes()))
    except (EOFError, OSError):
        os._exit(ORPHANED)


def main() -> None:
    """Connect to the suite and serve it until it says `leave` or goes away."""
    path, number = sys.argv[1], _number(sys.argv[2])
    if BOUND in sys.argv[3:]:
        _die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection = Client(path, family="AF_UNIX", authkey=bytes.fromhex(os.environ[KEY_VARIABLE]))
    connection.send_bytes(msgpack.packb([number, os.getpid()]))
    requests: SimpleQueue[list[Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, requests), name="control", daemon=True).start()
    desk = Desk()
    while True:
        request, verb, arguments = requests.get()
        if verb == LEAVE:
            connection.send_bytes(msgpack.packb([request, True, None]))
            return
        done, value = desk.answer(verb, arguments)
        connection.send_bytes(msgpack.packb([request, done, value]))


if __name__ == "__main__":
    main()
