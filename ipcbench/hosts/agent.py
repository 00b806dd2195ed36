"""python -m ipcbench.hosts.agent: what a coordinator on another host has here: it starts and ends workers, carries what
they and the coordinator say to each other, and ends them all when the coordinator is gone or silent.

It speaks over its standard input and output: in clear with a launcher that encrypts, and else under TLS with the
coordinator whose fingerprint is its argument. Workers connect to it as they would to a coordinator on this host; so no
port is open for them, and process IDs never leave the host.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

from ipcbench import __version__
from ipcbench.backend import Address
from ipcbench.errors import IpcbenchError, TrialError
from ipcbench.hosts.link import AGENT, Link
from ipcbench.hosts.mirror import Mirror, contents, join, leave
from ipcbench.hosts.ranks import Ranks, proxy_here
from ipcbench.hosts.sealed import Bare, LinkLost, Sealed, new_identity
from ipcbench.processes.control_channel import ControlConnection, Switchboard
from ipcbench.processes.launch import Launch, launch
from ipcbench.processes.run_dir import RunDir
from ipcbench.processes.worker import CONTROL_VARIABLE
from ipcbench.util.clock import deadline_ns
from ipcbench.util.files import temporary_folder

_LOOK_S = 0.1
_ENDS = (signal.SIGHUP, signal.SIGTERM)
"""How launchers end what they have started, if they do not kill it."""
_START_S = 60.0
"""How long the coordinator may wait for other hosts before it begins."""
_OF_LAUNCHERS = ("PMI", "PMIX_", "MPI_", "HYDI_", "HYDRA_", "SLURM_")
"""What the names of variables begin with by which a worker would take itself for a rank of its agent's launcher."""


class Agent:
    """Serves one coordinator."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = count(AGENT + 1)
        self._streams: dict[int, ControlConnection] = {}
        self._launches: dict[str, Launch] = {}
        self._ranks: dict[str, Ranks] = {}
        self._told: set[str] = set()
        """Launches of which it was said that a worker died before it connected."""
        self._guard = threading.Lock()
        self._joined: dict[str, Address] = {}
        self._mirror = Mirror(self._tell)
        self._switchboard: Switchboard | None = None
        self._verbs: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "launch": self._launch,
            "begin MPI": self._begin_mpi,
            "end": self._end,
            "kill": self._kill,
            "how it ended": self._how_it_ended,
            "share": self._share,
            "join": self._join,
            "leave": self._leave,
        }

    def serve(self) -> None:
        """Serve until the coordinator is gone, then end everything."""
        self._link.send(AGENT, {"version": __version__, "python": sys.version.split()[0], "place": _place()})
        with ExitStack() as held, suppress(LinkLost):
            begin = self._link.receive(_START_S)[1]
            with suppress(OSError):  # a host without the coordinator's files has no such folder
                os.chdir(begin["folder"])
            os.environ.update(begin["variables"])
            run_dir = held.enter_context(RunDir(begin["token"]))
            held.callback(self._kill_all)
            self._switchboard = held.enter_context(Switchboard(run_dir.path, key=bytes.fromhex(begin["key"])))
            threading.Thread(target=self._admit, name="admission", daemon=True).start()
            while True:
                stream, word = self._link.receive()
                if stream == AGENT and "mirror" in word:
                    self._mirror.hear(word)
                elif stream == AGENT:
                    threading.Thread(target=self._answer, args=(word,), name=word["do"], daemon=True).start()
                else:
                    self._pass_on(stream, word)

    def _pass_on(self, stream: int, message: bytes | None) -> None:
        """Hand a worker what the coordinator says; None is the end of that."""
        worker = self._streams.get(stream)
        if worker is not None:
            with suppress(TrialError):  # whoever reads from it tells its end
                worker.hang_up() if message is None else worker.send_packed(message)

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = {"ok": True, **self._verbs[request["do"]](request)}
        except (IpcbenchError, OSError) as error:
            answer = {"ok": False, "error": type(error).__name__, "text": str(error)}
        self._tell({**answer, "number": request["number"]})

    def _admit(self) -> None:
        """Let workers in, and say which died before they came."""
        assert self._switchboard is not None  # noqa: S101 - set before
        while True:
            worker = self._switchboard.accept(_LOOK_S)
            if worker is not None:
                threading.Thread(target=self._relay, args=(worker,), name="relay", daemon=True).start()
            with self._guard:
                looked_at = [(token, each) for token, each in self._launches.items() if token not in self._told]
            for token, each in looked_at:
                if (dead := each.first_dead()) is not None:
                    self._told.add(token)
                    self._tell({"died": token, "index": dead})

    def _relay(self, worker: ControlConnection) -> None:
        """Carry what a worker says to the coordinator, until it ends."""
        with self._guard:
            stream = next(self._numbers)
            self._streams[stream] = worker
        try:
            while True:
                self._link.send(stream, worker.receive_packed())
        except TrialError:
            with suppress(LinkLost):
                self._link.send(stream, None)
        finally:
            with self._guard:
                del self._streams[stream]
            worker.close()

    def _launch(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._switchboard is not None  # noqa: S101 - set before
        started = launch(
            request["launcher"],
            request["indices"],
            self._switchboard,
            request["verbs"],
            bound=False,  # to the thread that answers
            forked=request["forked"],
            token=request["token"],
            environment={CONTROL_VARIABLE: self._switchboard.address},
            proxy=proxy_here(request["proxy"]) if request["proxy"] else (),
        )
        with self._guard:
            self._launches[started.token] = started
        return {}

    def _begin_mpi(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start the mpiexec of a launch; return what starts the ranks of each host."""
        ranks = Ranks(request["places"], request["addresses"], request["pythons"], request["verbs"])
        with self._guard:
            self._ranks[request["token"]] = ranks
        return {"proxies": ranks.proxies}

    def _end(self, request: dict[str, Any]) -> dict[str, Any]:
        self._forget(request["token"], Launch.end)
        return {}

    def _kill(self, request: dict[str, Any]) -> dict[str, Any]:
        self._forget(request["token"], Launch.kill)
        return {}

    def _share(self, request: dict[str, Any]) -> dict[str, Any]:
        """Mirror a channel that was made here; return what other hosts need to join it."""
        address = Address.from_dict(request["address"])
        found = contents(address)
        self._mirror.add(address)
        return found

    def _join(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take part in a channel of another host; return its address here."""
        address = join(Address.from_dict(request["address"]), request["files"], request["bells"], request["host"])
        self._joined[address.channel.name] = address
        self._mirror.add(address)
        return {"address": address.as_dict()}

    def _leave(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take part in a channel no longer, whoever made it."""
        self._mirror.remove(request["name"])
        if (address := self._joined.pop(request["name"], None)) is not None:
            leave(address)
        return {}

    def _tell(self, word: dict[str, Any]) -> None:
        with suppress(LinkLost):  # whoever receives notices it, too
            self._link.send(AGENT, word)

    def _forget(self, token: str, end: Callable[[Launch], None]) -> None:
        with self._guard:
            started, ranks = self._launches.pop(token, None), self._ranks.pop(token, None)
        if started is not None:
            end(started)
        if ranks is not None:
            ranks.kill()

    def _how_it_ended(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._guard:
            started = self._launches.get(request["token"])
        if started is None:
            return {"text": "ended"}
        return {"text": f"{started.how_it_ended(request['index'])}{started.last_words()}"}

    def _kill_all(self) -> None:
        for token in {*self._launches, *self._ranks}:
            self._forget(token, Launch.kill)


def _carrier(incoming: int, outgoing: int, fingerprint: Sequence[str]) -> Bare:
    if not fingerprint:
        bare = Bare(incoming, outgoing)
        bare.begin_as_agent()
        return bare
    carrier = Sealed(incoming, outgoing)
    carrier.seal_as_agent(new_identity(), fingerprint[0], deadline_ns(_START_S))
    return carrier


def _place() -> str:
    """Return what only agents with the same kernel and the same temporary folder have in common; empty if not known."""
    try:
        boot, folder = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), temporary_folder().stat()
    except (OSError, IpcbenchError):
        return ""
    return f"{boot} {folder.st_dev} {folder.st_ino}"


def _end(*_: object) -> None:
    """End, and with this everything; whoever asks for that twice waits."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit


def main() -> None:
    """Serve over standard input and output."""
    for number in _ENDS:
        signal.signal(number, _end)
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get into the link
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for name in [name for name in os.environ if name.startswith(_OF_LAUNCHERS)]:
        del os.environ[name]
    try:
        Agent(Link(_carrier(incoming, outgoing, sys.argv[1:]), "the coordinator")).serve()
    except IpcbenchError as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(0)  # whatever other threads still wait for


if __name__ == "__main__":
    main()
