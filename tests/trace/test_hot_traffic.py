"""The code in C records the messages of sockets and connections as the code in Python does."""

from __future__ import annotations

import asyncio
import gc
import json
import mmap
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.asyncio

from ipcbench import trace
from ipcbench.trace import Ids
from ipcbench.trace.adapters import multiprocessing_all, zmq_
from ipcbench.trace.record.hot import IS_C
from tests.trace.reading import KeepingContext, records

pytestmark = pytest.mark.skipif(not IS_C, reason="there is no C here")

Told = list[tuple[Any, ...]]


def told(folder: Path) -> Told:
    """Stop, and return what the records tell but times."""
    trace.stop()
    calls = records(folder)
    assert all(sum(call.stages.values()) == call.total_ns for call in calls)
    return sorted((call.method, tuple(call.stages), call.sent_bytes, call.recv_bytes, call.failed) for call in calls)


@contextmanager
def recorded(is_in_c: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Record every socket, in C or in Python; yields a context."""
    with monkeypatch.context() as patch:
        if not is_in_c:
            patch.setattr(zmq_, "_HOT_METHODS", {})
        trace.start(folder)
        undo = zmq_.instrument()
        context: Any = KeepingContext()
        try:
            yield context
        finally:
            context.destroy(linger=0)
            undo()


def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Any], None]) -> Told:
    """Return what is told of the same use of sockets, which both must tell."""
    by_code = []
    for is_in_c in (True, False):
        folder = tmp_path / str(is_in_c)
        with recorded(is_in_c, folder, monkeypatch) as context:
            use(context)
        by_code.append(told(folder))
    assert by_code[0] == by_code[1]
    return by_code[0]


def connected(context: Any, first: int, second: int) -> tuple[Any, Any]:
    a, b = context.socket(first), context.socket(second)
    a.bind("inproc://place")
    b.connect("inproc://place")
    return a, b


def a_frame(random: Random, data: bytes) -> Any:
    kind = random.choice((bytes, bytearray, memoryview, zmq.Frame))
    return kind(data)


def send(random: Random, socket: Any, message: list[bytes]) -> None:
    frames = [a_frame(random, data) for data in message]
    way = random.randrange(4)
    if way == 0:
        socket.send_multipart(frames)
    elif way == 1:
        socket.send_multipart(tuple(frames), flags=zmq.NOBLOCK, copy=False)
    else:
        for frame in frames[:-1]:
            socket.send(frame, zmq.SNDMORE, copy=way == 2)
        socket.send(frames[-1], copy=way == 2)


def receive(random: Random, socket: Any) -> list[bytes]:
    way = random.randrange(4)
    if way == 0:
        return list(socket.recv_multipart())
    if way == 1:
        return [frame.bytes for frame in socket.recv_multipart(zmq.NOBLOCK, copy=False)]
    frames = []
    while not frames or socket.getsockopt(zmq.RCVMORE):
        if way == 2:
            room = bytearray(1000)
            frames.append(bytes(room[: socket.recv_into(room)]))
        else:
            frames.append(socket.recv())
    return frames


def jupyter(own: int, parent: int | None) -> list[bytes]:
    """Return the frames of a message of Jupyter."""
    header = json.dumps({"msg_id": f"id-{own}", "msg_type": "ask" if parent is None else "tell", "date": "now"})
    above = "{}" if parent is None else json.dumps({"msg_id": f"id-{parent}", "odd": {"msg_id": "inner"}})
    return [b"<IDS|MSG>", b"signature", header.encode(), above.encode(), b"{}", b"{}"]


@pytest.mark.parametrize("kinds", ["PUSH PULL", "PAIR PAIR", "DEALER DEALER"])
def test_messages_of_any_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: str) -> None:
    first, second = (getattr(zmq, kind) for kind in kinds.split())

    def use(context: Any) -> None:
        random = Random(1)
        a, b = connected(context, first, second)
        for _ in range(60):
            message = [random.randbytes(random.randrange(40)) for _ in range(random.randrange(1, 8))]
            send(random, a, message)
            assert receive(random, b) == message
        with pytest.raises(zmq.Again):
            b.recv(zmq.NOBLOCK)
        with pytest.raises(zmq.Again):
            b.recv_multipart(zmq.NOBLOCK)
        with pytest.raises(TypeError):
            a.send_multipart([b"whole", "a text"])
        with pytest.raises(IndexError):
            a.send_multipart([])
        a.close()
        with pytest.raises(zmq.ZMQError):
            a.send_multipart([b"closed", b"closed"])

    assert sum(not call[-1] for call in both(tmp_path, monkeypatch, use)) == 120


@pytest.mark.parametrize("kinds", ["REQ REP", "REQ ROUTER", "DEALER ROUTER"])
def test_requests_and_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: str) -> None:
    first, second = (getattr(zmq, kind) for kind in kinds.split())

    def use(context: Any) -> None:
        random = Random(2)
        a, b = connected(context, first, second)
        for number in range(60):
            message = [random.randbytes(random.randrange(40)) for _ in range(random.randrange(1, 6))]
            send(random, a, message)
            request = receive(random, b)
            if number % 7:
                send(random, b, request)
                assert receive(random, a) == message
            elif second == zmq.ROUTER:  # other clients' requests come between
                send(random, a, message) if first == zmq.DEALER else None
                send(random, b, [*request[:-1], b"late"])
                assert receive(random, a)[-1] == b"late"
                send(random, b, receive(random, b)) if first == zmq.DEALER else None
                assert receive(random, a) == message if first == zmq.DEALER else True
            else:
                b.send(b"short")
                assert a.recv() == b"short"

    calls = both(tmp_path, monkeypatch, use)
    servers = [stages for _, stages, *_ in calls if "work" in stages]
    assert len(servers) == {"REQ REP": 60, "REQ ROUTER": 60, "DEALER ROUTER": len(servers)}[kinds]


def test_messages_of_jupyter_are_paired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def use(context: Any) -> None:
        random = Random(3)
        dealer, router = connected(context, zmq.DEALER, zmq.ROUTER)
        for number in range(0, 80, 2):
            send(random, dealer, jupyter(number, None))
            identity, *asked = receive(random, router)
            assert asked == jupyter(number, None)
            send(random, router, [identity, *jupyter(number + 1, number if number % 10 else None)])
            receive(random, dealer)
            send(random, dealer, [b"no", b"ids", b"<IDS|MSG>"][: random.randrange(1, 4)])
            receive(random, router)

    calls = both(tmp_path, monkeypatch, use)
    assert sum(name.endswith(" ask") and "work" in stages for name, stages, *_ in calls) == 32
    assert sum(name.endswith(" ask") and "wait" in stages for name, stages, *_ in calls) == 32


def test_a_socket_used_by_threads_and_recorders_in_turn(tmp_path: Path) -> None:
    """The call site of the latest message is not taken for that of another recorder."""
    undo = zmq_.instrument()
    context: Any = KeepingContext()
    try:
        push, pull = connected(context, zmq.PUSH, zmq.PULL)
        for number in range(4):
            trace.start(tmp_path / str(number))
            for _ in range(5):
                push.send(b"x")
                pull.recv()
            trace.stop()
            push.send(b"unrecorded")
            pull.recv()
            assert len(records(tmp_path / str(number))) == 10
    finally:
        context.destroy(linger=0)
        undo()


def test_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_code = []
    for is_in_c in (True, False):
        with monkeypatch.context() as patch:
            if not is_in_c:
                patch.setattr(multiprocessing_all, "HOT_FUNCTIONS", None)
            folder = tmp_path / str(is_in_c)
            trace.start(folder)
            undo = multiprocessing_all.instrument()
            try:
                a, b = Pipe()
                for number in range(30):
                    a.send("x" * number)
                    assert b.recv() == "x" * number
                    b.send_bytes(b"y" * number)
                    assert a.recv_bytes(100) == b"y" * number
                a.close()
                with pytest.raises(EOFError):
                    b.recv()
                with pytest.raises(BrokenPipeError):
                    b.send(1)
            finally:
                undo()
            by_code.append(told(folder))
    assert by_code[0] == by_code[1]
    assert len(by_code[0]) == 121


def test_nothing_is_leaked(tmp_path: Path) -> None:
    trace.start(tmp_path, max_bytes=1)
    undo, undo_connections = zmq_.instrument(), multiprocessing_all.instrument()
    context: Any = KeepingContext()
    try:
        dealer, router = connected(context, zmq.DEALER, zmq.ROUTER)
        a, b = Pipe()

        def use() -> None:
            for number in range(300):
                dealer.send_multipart([b"", b"x" * 1000, b"%d" % number])
                router.send_multipart(router.recv_multipart(copy=number % 2 == 0))
                dealer.recv_multipart()
                dealer.send(b"y" * 1000)
                router.recv(), router.recv(copy=False)
                with pytest.raises(zmq.Again):
                    router.recv(zmq.NOBLOCK)
                with pytest.raises(TypeError):
                    dealer.send("text")
                a.send("x" * number)
                b.recv()

        use()
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(3):
            use()
        gc.collect()
        assert sys.getallocatedblocks() - before < 300  # of 900 rounds
    finally:
        trace.stop()
        context.destroy(linger=0)
        undo()
        undo_connections()


@pytest.mark.parametrize("is_in_c", [True, False])
def test_what_pyzmq_does_with_odd_frames_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_c: bool) -> None:
    with recorded(is_in_c, tmp_path, monkeypatch) as context:
        a, b = connected(context, zmq.DEALER, zmq.DEALER)
        a.send(b"first")
        closed = mmap.mmap(-1, 10)
        closed.close()
        with pytest.raises(TypeError):
            a.send_multipart([b"head", closed])  # nothing of it is sent
        days = np.array(["2026-01-01"], "datetime64[D]")  # a type that buffers cannot tell
        a.send(days)
        head = bytearray(b"head")
        with memoryview(head) as view:
            a.send(view, zmq.SNDMORE)
        a.send(b"tail")
        messages = [b.recv_multipart() for _ in range(3)]
    assert messages == [[b"first"], [days.tobytes()], [b"head", b"tail"]]
    assert [sent for _, stages, sent, *_ in told(tmp_path) if "send" in stages] == [5, 8, 8]


@pytest.mark.parametrize("is_in_c", [True, False])
def test_functions_of_ones_own_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_c: bool) -> None:
    class Narrow(zmq.Socket[bytes]):
        _traffic = _raw = "the program's own"

        def send(self, data: Any, flags: int = 0, **named: Any) -> Any:
            sent.append(data)
            return super().send(data, flags, **named)

    sent: list[Any] = []
    with recorded(is_in_c, tmp_path, monkeypatch) as context:
        push, pull = Narrow(context, zmq.PUSH), context.socket(zmq.PULL)
        pull.bind("inproc://own")
        push.connect("inproc://own")
        push.send_multipart([b"a", b"b"])
        assert pull.recv_multipart() == [b"a", b"b"]
        assert sent == [b"a", b"b"]
        monkeypatch.setattr(pull, "recv", lambda *_, **__: b"fake", raising=False)
        push.send(b"real")
        assert pull.recv_multipart() == [b"fake"]
        push.close()
    assert len(told(tmp_path)) == 3


@pytest.mark.parametrize("is_in_c", [True, False])
def test_what_a_handler_raises_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_c: bool) -> None:
    """A function that looks at ids is interrupted, and one that returns nonsense disturbs nobody."""

    class Deadline(Exception):
        pass

    def handler(*_: object) -> None:
        raise Deadline

    def correlate(frames: Any) -> Any:
        if bytes(frames[-1]) == b"late":
            signal.raise_signal(signal.SIGALRM)
        return [None, "a text", 7, Ids([]), Ids(b"x", is_unique=True), ("x", "y")][len(bytes(frames[-1])) % 6]

    before = signal.signal(signal.SIGALRM, handler)
    with recorded(is_in_c, tmp_path, monkeypatch) as context:
        a, b = connected(context, zmq.DEALER, zmq.DEALER)
        trace.wrap(a, correlate=correlate)
        try:
            with pytest.raises(Deadline):
                a.send(b"late")
            for size in range(12):
                a.send(b"x" * size)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert [b.recv() for _ in range(13)] == [b"late", *(b"x" * size for size in range(12))]
        a.close()
    assert sum("send" in stages for _, stages, *_ in told(tmp_path)) == 12


def test_messages_of_an_asyncio_socket_that_get_no_reply(tmp_path: Path) -> None:
    async def use() -> None:
        context = zmq.asyncio.Context()
        dealer, router = context.socket(zmq.DEALER), context.socket(zmq.ROUTER)
        router.bind("inproc://unanswered")
        dealer.connect("inproc://unanswered")
        for number in range(10):
            await dealer.send_multipart(jupyter(number, None))
            await router.recv_multipart()
        dealer.close()
        router.close()
        context.term()

    trace.start(tmp_path)
    undo = zmq_.instrument()
    try:
        asyncio.run(use())
    finally:
        undo()
    assert [stages for _, stages, *_ in told(tmp_path)] == [("send",)] * 10 + [("receive",)] * 10


@pytest.mark.parametrize("propagate", [False, True])
def test_a_wrapped_socket_of_a_class_of_ones_own_does_as_before(tmp_path: Path, propagate: bool) -> None:
    class Narrow(zmq.Socket[bytes]):
        def send(self, data: Any, *, flags: int = 0) -> Any:  # type: ignore[override]
            said.append("send")
            return super().send(data, flags)

        def recv(self, flags: int = 0) -> Any:  # type: ignore[override]
            said.append("recv")
            return super().recv(flags)

        def recv_into(self, buffer: Any) -> int:  # type: ignore[override]
            said.append("recv_into")
            return super().recv_into(buffer)

        def close(self) -> None:  # type: ignore[override]
            said.append("close")
            super().close()

    said: list[str] = []
    trace.start(tmp_path)
    context: Any = KeepingContext()
    push, pull = Narrow(context, zmq.PUSH), Narrow(context, zmq.PULL)
    pull.bind("inproc://narrow")
    push.connect("inproc://narrow")
    for socket in (push, pull):
        trace.wrap(socket, propagate=propagate)
    push.send(b"message")
    assert pull.recv() == b"message"
    push.send(b"more")
    assert pull.recv_into(bytearray(10)) == 4
    push.close()
    pull.close()
    context.term()
    assert said == ["send", "recv", "send", "recv_into", "close", "close"]
    assert len(told(tmp_path)) == 4


def test_an_asyncio_socket_of_a_class_of_ones_own_keeps_it(tmp_path: Path) -> None:
    class Own(zmq.asyncio.Socket):
        def hello(self) -> str:
            return "hello"

    async def use() -> None:
        context = zmq.asyncio.Context()
        socket = trace.wrap(Own(context, zmq.PUSH))
        assert isinstance(socket, Own)
        assert socket.hello() == "hello"
        socket.close()
        context.term()

    trace.start(tmp_path)
    asyncio.run(use())
    trace.stop()


@pytest.mark.parametrize("is_in_c", [True, False])
def test_what_a_handler_cuts_off_is_no_part_of_the_next_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_c: bool
) -> None:
    """A frame that was taken and did not come back is lost, as it is without a record."""

    class Cut(Exception):
        pass

    raw = zmq_._PLAIN.recv
    cuts = iter([False, False, True, False, False, False])

    def receive(*given: Any, **named: Any) -> Any:
        frame = raw(*given, **named)
        if next(cuts):
            raise Cut
        return frame

    with recorded(is_in_c, tmp_path, monkeypatch) as context:
        a, b = connected(context, zmq.PUSH, zmq.PULL)
        for _ in range(2):
            a.send_multipart([b"x", b"yy", b"zzz"])
        b._ipcbench_recv = receive
        b.__dict__["_ipcbench_raw"] = zmq_._PLAIN._replace(recv=receive)
        with pytest.raises(Cut):
            b.recv_multipart()
        assert b.recv_multipart() == [b"x", b"yy", b"zzz"]
    assert [recv for _, stages, _, recv, _ in told(tmp_path) if "receive" in stages] == [6]
