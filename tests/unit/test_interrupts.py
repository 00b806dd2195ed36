"""Calls that signal handlers interrupt, or in which they close the endpoint; and a process that may start no thread."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from types import FrameType
from uuid import uuid4
from weakref import ref

import pytest

from ipcbench import Address, Backend, ChannelSpec, get_backend
from ipcbench.errors import PeerLost, TransportError, TransportTimeout
from ipcbench.sync.interrupts import uninterrupted, whole
from ipcbench.testing.agents.client import until

PATIENCE_S = 20.0
MOMENT_S = 0.01


class Interrupt(Exception):
    """What a handler raises."""


def raise_interrupt(*_: object) -> None:
    raise Interrupt


@pytest.fixture
def on_alarm():
    """Return a function that sets what happens at SIGALRM."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["shm", "lmdb", "pipe", "tcp", "zmq"])
def backend(request) -> Backend:
    return get_backend(request.param)()


@pytest.fixture(params=["every_message", "latest_value"])
def address(request, backend: Backend):
    made = backend.create(ChannelSpec(f"ipcb-{os.getpid()}-{uuid4().hex[:8]}", 1, 100, request.param, depth=4))
    yield made
    backend.destroy(made)


def test_work_ends_before_the_interrupt_leaves_it(on_alarm):
    begun, ended = threading.Event(), []

    def work() -> int:
        begun.set()
        signal.raise_signal(signal.SIGALRM)
        ended.append(True)
        return 7

    on_alarm(raise_interrupt)
    with pytest.raises(Interrupt):
        uninterrupted(work, ended.append)
    assert ended == [True, 7], "the result that nobody could take is handed to `undo`"


def test_an_error_of_the_work_is_raised_unless_there_was_an_interrupt(on_alarm):
    def fail(*, interrupted: bool) -> None:
        if interrupted:
            signal.raise_signal(signal.SIGALRM)
        raise LookupError

    on_alarm(raise_interrupt)
    with pytest.raises(LookupError):
        uninterrupted(lambda: fail(interrupted=False))
    with pytest.raises(Interrupt):
        uninterrupted(lambda: fail(interrupted=True))


def test_work_whose_thread_dies_before_it_begins_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory a thread may die in its first step, and it tells nobody."""
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    monkeypatch.setattr("ipcbench.sync.interrupts._LOOK_S", MOMENT_S)
    monkeypatch.setattr("ipcbench.sync.interrupts._Task._do", lambda self: None)  # it takes one argument too few
    assert uninterrupted(lambda: 7) == 7
    assert told


def test_a_failed_call_leaves_nothing_to_the_garbage_collector() -> None:
    class Held:
        pass

    def fail() -> None:
        held = Held()
        kept.append(ref(held))
        raise TransportError("no")

    kept: list[ref[Held]] = []
    gc.disable()
    try:
        with pytest.raises(TransportError):
            uninterrupted(fail)
        assert kept[0]() is None
    finally:
        gc.enable()


def test_an_address_that_nobody_could_take_is_destroyed(on_alarm):
    class Interrupted:
        made = 0

        @whole
        def create(self) -> str:
            self.made += 1
            signal.raise_signal(signal.SIGALRM)
            return "address"

        def destroy(self, address: str) -> None:
            assert address == "address"
            self.made -= 1

    on_alarm(raise_interrupt)
    maker = Interrupted()
    with pytest.raises(Interrupt):
        maker.create()
    assert maker.made == 0


def test_what_is_interrupted_often_is_undone(on_alarm):
    for count in range(1, 6):
        made, ready = [], threading.Event()

        def work(ready=ready, made=made, count=count) -> int:
            for _ in range(count):
                signal.raise_signal(signal.SIGALRM)
            made.append(7)
            ready.set()
            return 7

        on_alarm(raise_interrupt)
        with pytest.raises(Interrupt):
            uninterrupted(work, made.remove)
        assert (ready.is_set(), made) == (True, [])


def test_a_handlers_error_of_our_class_in_a_message_breaks_the_stream(on_alarm):
    """A caller's own time-out may have our class; nobody knows what of the message was sent."""

    def expire(_: int, frame: FrameType | None) -> None:
        if frame is None or "ipcbench/backends" not in frame.f_code.co_filename:
            signal.setitimer(signal.ITIMER_REAL, MOMENT_S)
            return
        raise TransportTimeout("the request took too long")

    pipe = get_backend("pipe")()
    made = pipe.create(ChannelSpec(f"ipcb-{os.getpid()}-{uuid4().hex[:8]}", 1, 2**24, depth=2))
    with pipe.open_writer(made) as writer, pipe.open_reader(made, 0) as reader:
        first = threading.Thread(target=reader.read, args=(PATIENCE_S,))
        first.start()
        writer.write(b"", PATIENCE_S)
        first.join()
        on_alarm(expire)
        signal.setitimer(signal.ITIMER_REAL, MOMENT_S)
        with pytest.raises(TransportTimeout, match="the request took too long"):
            writer.write(bytes(2**24), PATIENCE_S)
        with pytest.raises(TransportError, match="was interrupted by TransportTimeout"):
            writer.write(b"next", PATIENCE_S)
    pipe.destroy(made)


def test_a_handler_cannot_close_the_endpoint_whose_call_it_interrupts(on_alarm, backend: Backend, address: Address):
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        on_alarm(lambda *_: reader.close())
        signal.setitimer(signal.ITIMER_REAL, MOMENT_S)
        with pytest.raises(TransportError, match="cannot close an endpoint whose `read` it interrupts"):
            reader.read(PATIENCE_S)
        writer.write(b"full", PATIENCE_S)  # or the first call of a slow machine may be the one that is interrupted
        on_alarm(lambda *_: writer.close())
        if address.channel.delivery == "every_message" and backend.name != "zmq":
            with pytest.raises(TransportError, match="cannot close an endpoint whose `write` it interrupts"):
                fill(writer)
        else:
            writer.write(b"next", PATIENCE_S)
        if backend.name not in {"zmq", "pipe"}:
            assert bytes(reader.read(PATIENCE_S))[:4] in {b"full", b"next"}, "the channel goes on"


def fill(writer) -> None:
    signal.setitimer(signal.ITIMER_REAL, MOMENT_S)
    while True:
        writer.write(b"full", PATIENCE_S)


_THREADLESS = """
import json, os, resource, sys, tempfile
from ipcbench import ChannelSpec, get_backend
from ipcbench.errors import TransportError

PATIENCE_S = 20.0

def outcome(name, delivery):
    address = backend.create(ChannelSpec(f"{name}-{delivery}", 1, 100, delivery, depth=4))
    opened, texts = [], []
    for open_one in (backend.open_writer, lambda address: backend.open_reader(address, 0)):
        try:
            opened.append(open_one(address))
        except TransportError as error:
            texts.append(str(error))
    if not texts:
        opened[0].write(b"sent", PATIENCE_S)
        texts.append(bytes(opened[1].read(PATIENCE_S)).decode())
    for endpoint in opened:
        endpoint.close()
    backend.destroy(address)
    return texts

deliveries = "every_message", "latest_value"
backend = get_backend(sys.argv[1])()
with tempfile.TemporaryDirectory(prefix="ipcb-threadless-") as tempfile.tempdir:
    os.environ["TMPDIR"] = tempfile.tempdir
    os.chmod(tempfile.tempdir, 0o777)
    for delivery in deliveries:
        outcome("before", delivery)  # imports what it needs, which the other user may not read
    os.setgroups([])
    os.setgid(65534)
    os.seteuid(65534)
    os.setresuid(65534, 65534, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    outcomes = {delivery: outcome("after", delivery) for delivery in deliveries}
    os.seteuid(0)
print(json.dumps(outcomes))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the rights to become another user")
@pytest.mark.parametrize(
    ("backend_name", "writers", "latest_readers"),
    [("shm", True, True), ("lmdb", True, True), ("pipe", True, False), ("zmq", False, False)],
)
def test_a_process_that_may_start_no_thread_goes_on_or_is_told(
    backend_name: str, writers: bool, latest_readers: bool
) -> None:
    command = [sys.executable, "-c", _THREADLESS, backend_name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    outcomes = json.loads(done.stdout)
    told = "can't start new thread; raise the limit of processes"
    assert ("sent" in outcomes["every_message"]) == writers, outcomes
    assert ("sent" in outcomes["latest_value"]) == latest_readers, outcomes
    assert all(text == "sent" or told in text for texts in outcomes.values() for text in texts), outcomes
    assert not done.stderr


def test_readers_of_a_broken_pipe_lose_it_one_by_one():
    """The rest for one that does not read must not keep the others waiting."""
    backend = get_backend("pipe")()
    address = backend.create(ChannelSpec(f"ipcb-{os.getpid()}-{uuid4().hex[:8]}", 2, 2**22, depth=4))
    try:
        with backend.open_reader(address, 0) as first, backend.open_reader(address, 1) as second:
            writer = backend.open_writer(address)
            writer.write(bytes(2**22), PATIENCE_S)
            writer._break(Interrupt())  # as an interrupt in the middle of the next message
            writer.close()
            for reader in (first, second):
                assert len(reader.read(PATIENCE_S)) == 2**22
                with pytest.raises(PeerLost):
                    reader.read(PATIENCE_S)
    finally:
        backend.destroy(address)


def test_a_fork_beside_the_opening_of_a_segment_leaves_the_child_free() -> None:
    """What the opening holds would be held for ever in the child, where nobody opens."""
    backend = get_backend("shm")()
    stop = threading.Event()

    def open_and_close() -> None:
        while not stop.is_set():
            made = backend.create(ChannelSpec(f"ipcb-{os.getpid()}-{uuid4().hex[:8]}", 1, 100))
            backend.destroy(made)

    opening = threading.Thread(target=open_and_close)
    opening.start()
    try:
        for number in range(20):
            child = os.fork()
            if not child:
                backend.destroy(backend.create(ChannelSpec(f"ipcb-{os.getpid()}-{uuid4().hex[:8]}-{number}", 1, 100)))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        opening.join()


@pytest.mark.parametrize("delivery", ["every_message", "latest_value"])
@pytest.mark.parametrize("backend_name", ["shm", "lmdb", "pipe", "tcp", "zmq"])
def test_the_last_collection_of_the_interpreter_may_close_an_endpoint(backend_name: str, delivery: str) -> None:
    program = f"""
from ipcbench import ChannelSpec, get_backend
backend = get_backend("{backend_name}")()
address = backend.create(ChannelSpec("ipcb-{os.getpid()}-{uuid4().hex[:8]}", 1, 100, "{delivery}"))

class Keeper:
    def __init__(self):
        self.reader, self.writer = backend.open_reader(address, 0), backend.open_writer(address)
        self.writer.write(b"sent", 20.0)
        self.me = self
    def __del__(self):
        self.writer.close()
        self.reader.close()
        backend.destroy(address)
        print("closed", flush=True)

keeper = Keeper()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "closed\n", done.stderr


@pytest.mark.parametrize("backend_name", ["shm", "lmdb", "pipe", "tcp", "zmq"])
def test_calls_that_only_look_learn_that_the_peer_was_killed(backend_name: str) -> None:
    backend = get_backend(backend_name)()
    address = backend.create(ChannelSpec(f"ipcb-{os.getpid()}-{uuid4().hex[:8]}", 1, 100, depth=4))
    try:
        with backend.open_reader(address, 0) as reader:
            program = (
                "import os, sys, json; from ipcbench import Address, get_backend; "
                "address = Address.from_dict(json.loads(sys.argv[1])); "
                "get_backend(address.backend)().open_writer(address).write(b'sent', 20.0); os.kill(os.getpid(), 9)"
            )
            writer = subprocess.Popen([sys.executable, "-c", program, json.dumps(address.as_dict())])
            assert bytes(reader.read(PATIENCE_S)) == b"sent"
            writer.wait(PATIENCE_S)

            def is_lost() -> bool:
                try:
                    reader.read(0.0)
                except PeerLost:
                    return True
                except TransportTimeout:
                    return False
                return False

            assert until(is_lost, PATIENCE_S)
    finally:
        backend.destroy(address)


def test_an_error_of_a_library_that_a_handler_raises_is_the_handler_s(on_alarm) -> None:
    """The handler's own use of the library, of which the transport knows nothing."""
    zmq = pytest.importorskip("zmq")
    backend = get_backend("zmq")()
    address = backend.create(ChannelSpec(f"ipcb-{os.getpid()}-{uuid4().hex[:8]}", 1, 100))
    context = zmq.Context()
    other = context.socket(zmq.PULL)
    try:
        with backend.open_writer(address), backend.open_reader(address, 0) as reader:
            on_alarm(lambda *_: other.recv(zmq.NOBLOCK))
            signal.setitimer(signal.ITIMER_REAL, MOMENT_S)
            with pytest.raises(zmq.Again):
                reader.read(PATIENCE_S)
    finally:
        context.destroy(0)
        backend.destroy(address)
