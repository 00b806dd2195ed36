"""A host as the coordinator sees it: its agent, and the workers there, which appear at the coordinator's switchboard
as if they were here.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import IO, Any

from ipcbench import __version__
from ipcbench.backend import Launcher
from ipcbench.errors import HostError, TrialError, WorkerCrashed
from ipcbench.hosts.inventory import Host
from ipcbench.hosts.launchers import UNENCRYPTED, start_of
from ipcbench.hosts.link import AGENT, Link
from ipcbench.hosts.sealed import Bare, LinkLost, Sealed, new_identity
from ipcbench.processes.control_channel import ControlConnection, Switchboard, connected_pair
from ipcbench.util.clock import deadline_ns, remaining_s
from ipcbench.util.files import temporary_folder

_START_S = 60.0
_ANSWER_S = 30.0
_END_S = 5.0
_LOOK_S = 0.05
_LAST_BYTES = 4_000
_SHARED_VARIABLES = ("IPCBENCH_REDIS_URL",)
"""What the coordinator's environment says of transports counts on all hosts."""
_NOISE = ("[mpiexec@", "[proxy:")
"""What lines begin with that say only that a launcher has failed, after the reason."""
_NO_START = "execvp error"
"""What is in the one of these lines that is the reason: Hydra cannot run the program."""
_REFUSED_BY_SSH = "Permission denied ("
"""Behind which stand the ways to log in that there are; what else is denied is no matter of ssh."""
_MAY_NOT_RUN = 126
"""Exit code of a shell."""


class RemoteHost:
    """A host with a running agent.

    Args:
        host: what the inventory says.
        number: its place there, from 1: a run's record says "host 2", never a name.
        launcher: what starts the agent: ssh, hydra or srun.

    Attributes:
        number: its place.
        label: what the record of a run calls it.
        shown: what errors call it, behind "host": its name, until these may be stored.
        lost: why the agent is gone; empty while it is there.
        place: what only agents of the same host have in common; empty if not known.
        on_mirror: is told what happens in the folders of channels there.
    """

    def __init__(self, host: Host, number: int, launcher: str = "ssh") -> None:
        """Begin to start the agent; `connect` waits for it.

        Raises:
            HostError: its launcher cannot be started.
            ConfigError: there is no such launcher here.
        """
        self.host, self.number, self.label, self.shown = host, number, f"host {number}", host.name
        self.lost = self.place = ""
        self._link: Link
        self._undo = ExitStack()
        self.on_mirror: Callable[[RemoteHost, dict[str, Any]], None] = lambda *_: None
        self._said: IO[bytes] = self._undo.enter_context(
            tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115 - closed by `close`
        )
        self._answers: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._numbers = 0
        self._deaths: dict[str, int] = {}
        self._streams: dict[int, ControlConnection] = {}
        self._guard = threading.Lock()
        self._identity = new_identity() if launcher in UNENCRYPTED else None
        known = [self._identity.fingerprint] if self._identity else []
        start = start_of(launcher, host, [host.python, "-P", "-m", "ipcbench.hosts.agent", *known])
        try:
            self._process = subprocess.Popen(
                start.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,
                env={**os.environ, **start.variables},
            )
        except OSError as error:
            self._undo.close()
            raise HostError(host.name, f"{start.command[0]}: {error.strerror}") from error
        self._undo.callback(self._end_process)

    def connect(self, switchboard: Switchboard, token: str, others: Sequence[RemoteHost] = ()) -> None:
        """Wait until the agent is there, and let its workers in at the switchboard from now on.

        Args:
            switchboard: where workers appear.
            token: the run's.
            others: those that are connected already.

        Raises:
            HostError: it does not start, with the reason; or it is one of the others by another name.
        """
        self._switchboard = switchboard
        try:
            self._link = Link(self._carrier(), "the agent")
            self._undo.callback(self._link.close)
            _, hello = self._link.receive(_START_S)
        except LinkLost as error:
            raise HostError(self.host.name, self._why_not(error)) from error
        self.place = str(hello.get("place", ""))
        same = next((other for other in others if self.place and self.place == other.place), None)
        if same is not None:
            raise HostError(self.host.name, f"is the same host as {same.host.name}; name each host once")
        if hello["version"] != __version__:
            raise HostError(
                self.host.name, f"has ipcbench {hello['version']}, this host {__version__}: install the same"
            )
        known = {name: os.environ[name] for name in _SHARED_VARIABLES if name in os.environ}
        begin = {"token": token, "folder": os.getcwd(), "key": secrets.token_hex(32)}
        self._link.send(AGENT, {**begin, "variables": known})
        threading.Thread(target=self._receive, name=f"host {self.host.name}", daemon=True).start()

    def _carrier(self) -> Bare:
        """Return what the launcher carries, sealed where it does not encrypt."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018 - pipes
        with self._process.stdin as outgoing, self._process.stdout as incoming:
            descriptors = os.dup(incoming.fileno()), os.dup(outgoing.fileno())
        carrier = Bare(*descriptors) if self._identity is None else Sealed(*descriptors)
        try:
            if isinstance(carrier, Sealed) and self._identity is not None:
                carrier.seal_as_coordinator(self._identity, deadline_ns(_START_S))
            else:
                carrier.begin_as_coordinator(deadline_ns(_START_S))
        except LinkLost:
            carrier.close()
            raise
        return carrier

    def _why_not(self, error: LinkLost) -> str:
        """Return why there is no agent, from what the remote shell said."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return why_no_agent(self._last_words(), self._process.returncode, self.host.python) or str(error)

    def _last_words(self) -> str:
        size = os.fstat(self._said.fileno()).st_size
        lines = os.pread(self._said.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace")
        said = [line.strip() for line in lines.splitlines() if line.strip()]
        said = [line for line in said if not line.startswith(_NOISE) or _NO_START in line]
        return " | ".join(said[-3:])

    def ask(self, request: dict[str, Any], timeout_s: float = _ANSWER_S) -> dict[str, Any]:
        """Have the agent do something, and return its answer.

        Raises:
            HostError: it cannot, or is gone, or does not answer in time.
        """
        with self._guard:
            self._numbers += 1
            number, answers = self._numbers, SimpleQueue[dict[str, Any]]()
            self._answers[number] = answers
        try:
            if not self.lost:
                self._link.send(AGENT, {**request, "number": number})
            answer = self._awaited(answers, deadline_ns(timeout_s))
        except LinkLost as error:
            raise HostError(self.shown, str(error)) from error
        except Empty:
            raise HostError(self.shown, f"did not {request['do']} within {timeout_s:.0f} s") from None
        finally:
            with self._guard:
                del self._answers[number]
        if not answer["ok"]:
            raise HostError(self.shown, f"cannot {request['do']}: {answer['text']}")
        return answer

    def _awaited(self, answers: SimpleQueue[dict[str, Any]], deadline: int | None) -> dict[str, Any]:
        while not self.lost:
            with suppress(Empty):
                return answers.get(timeout=min(_LOOK_S, remaining_s(deadline) or 0.0))
            if not remaining_s(deadline):
                raise Empty
        raise LinkLost(self.lost)

    def tell(self, word: dict[str, Any]) -> None:
        """Tell the agent something that it does not answer.

        Raises:
            LinkLost: it is gone.
        """
        self._link.send(AGENT, word)

    def death(self, token: str) -> int | None:
        """Return the number of a worker of that launch that died before it connected."""
        return self._deaths.get(token)

    def _receive(self) -> None:
        """Carry what the host's workers say to whoever talks to them here."""
        try:
            while True:
                stream, word = self._link.receive()
                if stream != AGENT:
                    self._pass_on(stream, word)
                elif "mirror" in word:
                    self.on_mirror(self, word)
                elif "died" in word:
                    self._deaths[word["died"]] = word["index"]
                elif (answers := self._answers.get(word["number"])) is not None:
                    answers.put(word)
        except LinkLost as error:
            self.lost = str(error)
        for worker in list(self._streams.values()):
            worker.hang_up()

    def _pass_on(self, stream: int, message: bytes | None) -> None:
        worker = self._streams.get(stream)
        if worker is None:
            here, worker = connected_pair()
            self._streams[stream] = worker
            threading.Thread(target=self._relay, args=(stream, worker), name="relay", daemon=True).start()
            self._switchboard.admit(here)
        with suppress(TrialError):  # nobody talks to it any more
            worker.hang_up() if message is None else worker.send_packed(message)

    def _relay(self, stream: int, worker: ControlConnection) -> None:
        """Carry what is said to a worker, until that ends."""
        with suppress(LinkLost):
            with suppress(TrialError):
                while True:
                    self._link.send(stream, worker.receive_packed())
            self._link.send(stream, None)
        self._streams.pop(stream, None)
        worker.close()

    def close(self) -> None:
        """End the agent, and with it all that it started; twice is fine."""
        self._undo.close()

    def _end_process(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None  # noqa: S101
            pipe.close()  # for whoever has not connected
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()


def why_no_agent(words: str, code: int | None, python: str) -> str:
    """Return why a host has no agent, as the end of the sentence "host a …"; empty if that is not known.

    Args:
        words: what its launcher said last.
        code: with which that ended, if it has.
        python: the host's, as the inventory has it.
    """
    if "Host key verification failed" in words:
        return "its key is not known here: connect once by hand, `ssh HOST`, and look at the key"
    if code == _MAY_NOT_RUN or any(f"{python}{mark}Permission denied" in words for mark in (": ", " (")):
        return f"cannot run its Python {python!r} ({words}); name one that this user can run there in the inventory"
    if _REFUSED_BY_SSH in words:
        return f"refuses to let this user in without a password: {words}"
    if code == 127:
        return f"has no program {python!r} ({words}); name its Python in the inventory"
    if "No module named" in words:
        return f"lacks ipcbench for {python}: pip install ipcbench=={__version__} there ({words})"
    return words


class HostsLaunch:
    """The processes of one launch on several hosts; what a group of workers needs of `processes.launch.Launch`.

    Args:
        hosts: all that take part.
        places: on which of them each worker runs, by its number.
        verbs: what the workers can do.
        addresses: by which the hosts reach each other, if the workers are to be ranks of MPI.
    """

    started: Sequence[subprocess.Popen[bytes]] = ()

    def __init__(
        self,
        hosts: Sequence[RemoteHost],
        places: Sequence[int],
        switchboard: Switchboard,
        verbs: str,
        addresses: Sequence[str] = (),
    ) -> None:
        self.launcher: Launcher = "mpiexec" if addresses else "spawn"
        self.indices = range(len(places))
        self.token = secrets.token_hex(8)
        self._places = [hosts[number] for number in places]
        self._used = list(dict.fromkeys(self._places))
        proxies = self._begin_mpi([addresses[hosts.index(host)] for host in self._used], verbs) if addresses else {}
        switchboard.expect(self.token)
        try:
            for host in self._used:
                indices = [index for index in self.indices if self._places[index] is host]
                host.ask({"do": "launch", "launcher": self.launcher, "indices": indices, "verbs": verbs,
                          "forked": True, "token": self.token, "proxy": proxies.get(host)})  # fmt: skip
        except HostError:
            self.kill()
            raise

    def _begin_mpi(self, addresses: Sequence[str], verbs: str) -> dict[RemoteHost, list[str]]:
        """Start mpiexec on the first worker's host; return what starts the ranks of each host."""
        places = [self._used.index(host) for host in self._places]
        pythons = [host.host.python for host in self._used]
        question = {"do": "begin MPI", "token": self.token, "verbs": verbs, "places": places}
        answer = self._used[0].ask({**question, "addresses": addresses, "pythons": pythons})
        return dict(zip(self._used, answer["proxies"], strict=True))

    def first_dead(self) -> int | None:
        """Return the number of a worker that has died before it connected, or whose host is gone; else None."""
        for index in self.indices:
            host = self._places[index]
            if host.lost or host.death(self.token) == index:
                return index
        return None

    def crashed(self, index: int, name: str) -> WorkerCrashed:
        """Return the error that says how a worker ended."""
        host = self._places[index]
        try:
            how = host.ask({"do": "how it ended", "token": self.token, "index": index})["text"]
        except HostError as error:
            return WorkerCrashed(f"{name} is lost with {host.label}: {error.reason}")
        subject = f"an MPI rank or mpiexec is gone: what started {name}" if self.launcher == "mpiexec" else name
        return WorkerCrashed(f"{subject} on {host.label} {how}")

    def last_words(self) -> str:
        """Return nothing: the hosts keep what their workers wrote until one is asked for."""
        return ""

    def end(self) -> None:
        """Wait for workers that were told to exit; kill those that do not."""
        self._do("end")

    def kill(self) -> None:
        """Kill all workers; twice is fine."""
        self._do("kill")

    def _do(self, verb: str) -> None:
        for host in self._used:
            with suppress(HostError):  # then its agent ends them by itself
                host.ask({"do": verb, "token": self.token})
        self._used.clear()
