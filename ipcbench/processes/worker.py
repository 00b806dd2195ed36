"""The worker shell: a process that connects to its coordinator and answers requests until it is told to exit.

    python -m ipcbench.processes.worker --verbs MODULE:FACTORY [--control ADDRESS]
        [--index N | --together N | --fork N,N… --ended FD [--parent]] [--bound]

The layer above brings the verbs: `FACTORY(index)` returns the `Dispatcher` of one worker. When the coordinator is gone,
however it went, the process ends at once, whatever its main thread is busy with. SIGUSR1 makes it write the stacks of
all its threads to stderr.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol

from ipcbench.errors import TrialError
from ipcbench.processes.control_channel import EXIT, ControlConnection, connect
from ipcbench.sync.parent import Parent

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "MPI_RANKID")
"""Where MPI launchers say which process of the group this is, in the order of looking."""

LAUNCH_VARIABLE = "IPCBENCH_LAUNCH"
"""Whose launch a worker is of."""

CONTROL_VARIABLE = "IPCBENCH_CONTROL"
"""Where the coordinator is, for workers whose command line cannot say it, as it is the same on several hosts."""

ORPHANED = 3
"""Exit code of a worker whose coordinator is gone."""

_PR_SET_PDEATHSIG = 1
_MEMORY_VICTIM = "500"
"""Of 1000: as if it used half of all memory more than it does."""


class Dispatcher(Protocol):
    """The verbs of one worker."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request, `{"do": verb, …}`, and return what to send back; errors are part of that."""


def main(arguments: list[str] | None = None) -> None:
    """Serve as one worker; with `--together N` as N workers, each a thread with its own connection; with `--fork 0,1`
    as the parent of these workers.
    """
    parser = argparse.ArgumentParser(prog="ipcbench.processes.worker")
    parser.add_argument("--verbs", required=True, help="MODULE:FACTORY of the dispatcher")
    parser.add_argument("--control", help=f"the coordinator's address; else {CONTROL_VARIABLE} says it")
    parser.add_argument("--index", type=int, help="number in the group; without it, the MPI launcher's rank")
    parser.add_argument("--together", type=int, default=0, help="how many workers share this process")
    parser.add_argument("--fork", type=_numbers, help="numbers of the workers to fork when all is imported: 0,1,2")
    parser.add_argument("--parent", action="store_true", help="make the channels of these, which have no address")
    parser.add_argument("--ended", type=int, help="descriptor of a pipe to which to write how each of these ended")
    parser.add_argument("--bound", action="store_true", help="end also when the thread that started this process ends")
    options = parser.parse_args(arguments)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an MPI launcher ends ranks by it: no traceback as last words
    _die_first()
    if options.bound:
        _die_with_parent()
    module, _, name = options.verbs.partition(":")
    make: Callable[[int], Dispatcher] = getattr(import_module(module), name)
    if options.fork:
        index = _fork(options.fork, options.ended, Parent() if options.parent else None)
        if options.bound:
            _die_with_parent()
    else:
        index = 0 if options.together else _rank() if options.index is None else options.index
    try:
        control = options.control or os.environ[CONTROL_VARIABLE]
        channel = connect(control)
        _watch_lifeline(channel)
        if options.together:
            _serve_together(control, options.together, channel, make)
        else:
            _serve(channel, index, make(index))
    except TrialError as error:
        raise SystemExit(str(error)) from error


def _serve(channel: ControlConnection, index: int, dispatcher: Dispatcher) -> None:
    """Report to the coordinator, then answer its requests in order until it says exit."""
    channel.send({"index": index, "pid": os.getpid(), "launch": os.environ.get(LAUNCH_VARIABLE)})
    while True:
        try:
            request = channel.receive(None)
        except TrialError:
            os._exit(ORPHANED)
        if request == EXIT:
            return
        channel.send(dispatcher.answer(request))


def _serve_together(address: str, count: int, first: ControlConnection, make: Callable[[int], Dispatcher]) -> None:
    """Serve as `count` workers; each begins as soon as it is connected."""
    threads = []
    for index in range(count):
        channel = connect(address) if index else first
        name = f"endpoint-{index}"
        threads.append(threading.Thread(target=_serve, args=(channel, index, make(index)), name=name, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _fork(indices: list[int], ended: int, parent: Parent | None) -> int:
    """Fork workers and return its number in each. The parent only waits for them; SIGTERM makes it kill them,
    so that no orphan is left that nobody reaps. As a `parent` it also makes and hands over what they ask for.
    """
    gc.freeze()  # nothing of what they share is looked through, and thereby copied
    children: dict[int, int] = {}
    for index in indices:
        child = parent.fork() if parent else os.fork()
        if not child:
            os.close(ended)
            return index
        children[child] = index

    told = False

    def kill(*_: object) -> None:
        nonlocal told
        told = True  # how they end now says nothing of them
        for child in children:
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, kill)
    while children:
        child = parent.serve(children) if parent else _next_ended()
        index = children.pop(child)  # before its number may be another process's
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not told:
            with suppress(OSError):  # nobody listens any more
                os.write(ended, f"{index} {code}\n".encode())
    if told:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    os._exit(0)


def _next_ended() -> int:
    """Wait until a child ends and return which; it is still to be reaped."""
    gone = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    return gone.si_pid if gone is not None else 0


def _rank() -> int:
    for name in RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    raise SystemExit(f"no rank: the launcher sets none of {', '.join(RANK_VARIABLES)}; pass --index without a launcher")


def _die_first() -> None:
    """Have the kernel kill this process rather than the coordinator when it is out of memory (Linux)."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(_MEMORY_VICTIM)


def _die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, even while a library hangs (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch_lifeline(channel: ControlConnection) -> None:
    """End this process when the coordinator's end of the channel closes; costs nothing while it waits."""

    def watch() -> None:
        poll = select.poll()
        hung_up = select.POLLHUP | select.POLLRDHUP if sys.platform.startswith("linux") else 0
        poll.register(channel.fileno(), hung_up)  # the thread keeps the channel open until the process has ended
        poll.poll()
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    main()
