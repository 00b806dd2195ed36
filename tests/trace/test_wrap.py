"""What is wrapped works as before, and has one record a message."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from ipcbench import trace
from ipcbench.backend import Backend
from ipcbench.errors import ConfigError, TransportError, TransportTimeout
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from tests.trace.reading import ROOT, KeepingContext, batches, records


@pytest.fixture
def zmq_context() -> Iterator[Any]:
    """A context that closes what it made."""
    with KeepingContext() as context:
        yield context
        context.destroy(linger=0)


def pair(context: Any, kind: int, other: int, propagate: bool | None = None) -> tuple[Any, Any]:
    """Return two connected sockets, wrapped unless `propagate` is None."""
    sockets = context.socket(kind), context.socket(other)
    sockets[0].bind(f"inproc://{kind}")
    sockets[1].connect(f"inproc://{kind}")
    if propagate is not None:
        for socket in sockets:
            assert trace.wrap(socket, propagate=propagate) is socket
    return sockets


def ended(folder: Path) -> Counter[str]:
    """Stop, and return how many records there are by the stages of their schema."""
    trace.stop()
    return Counter("+".join(call.stages) for call in records(folder))


def joined_count(folder: Path) -> int:
    """Return how many calls were joined to the other side's record."""
    return sum(int((batch.request_ns >= 0).sum()) for batch in batches(folder) if batch.request_ns is not None)


# ------------------------------------------------------------------------------------------------ ZeroMQ


@pytest.mark.parametrize("propagate", [False, True])
def test_a_message_of_many_frames_is_one_record(tmp_path: Path, zmq_context: Any, propagate: bool) -> None:
    trace.start(tmp_path)
    push, pull = pair(zmq_context, zmq.PUSH, zmq.PULL, propagate)
    push.send(b"one")
    push.send_multipart([b"a", b"bb", b"ccc"])
    push.send(b"x", zmq.SNDMORE)
    push.send(b"y")
    push.send_string("text")
    push.send_json({"a": 1})
    push.send_pyobj([1, 2])
    assert pull.recv() == b"one"
    assert pull.recv_multipart() == [b"a", b"bb", b"ccc"]
    assert pull.recv() == b"x"
    assert pull.rcvmore
    assert pull.get(zmq.RCVMORE)
    assert pull.recv(copy=False).bytes == b"y"
    assert not pull.getsockopt(zmq.RCVMORE)
    assert (pull.recv_string(), pull.recv_json(), pull.recv_pyobj()) == ("text", {"a": 1}, [1, 2])
    assert ended(tmp_path) == {"send": 6, "receive": 6}
    calls = records(tmp_path)
    assert sum(call.sent_bytes for call in calls) == sum(call.recv_bytes for call in calls)
    assert {6, 3, 2} <= {call.sent_bytes for call in calls}
    assert {call.method.split(" inproc://")[0] for call in calls} == {"PUSH", "PULL"}
    assert joined_count(tmp_path) == 6 * propagate


def test_without_propagate_the_bytes_are_the_same(tmp_path: Path, zmq_context: Any) -> None:
    trace.start(tmp_path)
    push, pull = pair(zmq_context, zmq.PUSH, zmq.PULL)
    trace.wrap(push)
    push.send_multipart([b"a", b"b"])
    assert pull.recv_multipart() == [b"a", b"b"]
    trace.wrap(push, propagate=True)  # it is wrapped already
    push.send(b"c")
    assert pull.recv_multipart() == [b"c"]


def test_topics_are_untouched(tmp_path: Path, zmq_context: Any) -> None:
    trace.start(tmp_path)
    pub, sub = zmq_context.socket(zmq.XPUB), zmq_context.socket(zmq.SUB)
    plain = zmq_context.socket(zmq.SUB)
    pub.xpub_verbose = True
    pub.bind("inproc://here")
    for socket in (sub, plain):
        socket.connect("inproc://here")
        socket.subscribe(b"weather")
        assert pub.recv() == b"\x01weather"  # now it is subscribed
    for socket in (pub, sub):
        trace.wrap(socket, propagate=True)
    pub.send(b"news no")
    pub.send_multipart([b"weather", b"rain"])
    pub.send(b"weather sun")
    assert sub.recv_multipart() == [b"weather", b"rain"]
    assert sub.recv() == b"weather sun"
    first, second, context = plain.recv_multipart()
    assert (first, second, len(context)) == (b"weather", b"rain", 40)
    assert ended(tmp_path) == {"send": 3, "receive": 2}
    assert joined_count(tmp_path) == 2


@pytest.mark.parametrize("propagate", [False, True])
def test_a_request_and_its_reply_are_one_call(tmp_path: Path, zmq_context: Any, propagate: bool) -> None:
    trace.start(tmp_path)
    rep, req = pair(zmq_context, zmq.REP, zmq.REQ, propagate)
    for _ in range(5):
        req.send_multipart([b"question", b"?"])
        assert rep.recv_multipart() == [b"question", b"?"]
        rep.send(b"answer")
        with pytest.raises(zmq.ZMQError):
            rep.send(b"once more")
        assert req.recv() == b"answer"
    req.send(b"never answered")
    req.close()
    assert ended(tmp_path) == {"send+wait": 6, "queue+work+reply": 5}
    calls = [call for call in records(tmp_path) if "wait" in call.stages]
    assert [(call.sent_bytes, call.recv_bytes, call.failed) for call in calls] == [(9, 6, False)] * 5 + [(14, 0, True)]
    assert joined_count(tmp_path) == 5 * propagate


def test_a_receive_that_finds_nothing_is_no_call(tmp_path: Path, zmq_context: Any) -> None:
    trace.start(tmp_path)
    push, pull = pair(zmq_context, zmq.PUSH, zmq.PULL, propagate=True)
    alone = trace.wrap(zmq_context.socket(zmq.PUSH), propagate=True)
    pull.rcvtimeo = 1
    for flags in (zmq.NOBLOCK, 0):
        with pytest.raises(zmq.Again):
            pull.recv(flags)
    with pytest.raises(zmq.Again):
        alone.send(b"x", zmq.NOBLOCK)
    poller = zmq.Poller()
    poller.register(pull, zmq.POLLIN)
    assert poller.poll(0) == []
    push.send(b"x")
    assert poller.poll(1000) == [(pull, zmq.POLLIN)]
    assert pull.recv(zmq.NOBLOCK) == b"x"
    room = bytearray(10)
    push.send_multipart([b"abc", b"defg"])
    assert pull.recv_into(room) == 3
    assert pull.recv_into(room) == 4
    assert room[:4] == b"defg"
    assert ended(tmp_path) == {"send": 2, "receive": 2}


def test_a_dealer_and_a_router_carry_calls(tmp_path: Path, zmq_context: Any) -> None:
    trace.start(tmp_path)
    router, dealer = pair(zmq_context, zmq.ROUTER, zmq.DEALER, propagate=True)
    for _ in range(5):
        with trace.call("Matmul") as call:
            call.serialized(3)
            dealer.carry(call).send(b"abc")
            call.sent()
            who, what = router.recv_multipart()
            with trace.serve(router, "Matmul"):
                router.send_multipart([who, what * 2])
            assert dealer.recv() == b"abcabc"
            call.received(6)
    stages = ended(tmp_path)
    assert stages["serialize+send+wait+deserialize"] == stages["queue+work+reply"] == 5
    assert joined_count(tmp_path) == 10  # the calls, and the replies as messages


def test_sockets_of_asyncio(tmp_path: Path) -> None:
    trace.start(tmp_path)

    async def talk() -> None:
        with zmq.asyncio.Context() as context:
            rep, req = pair(context, zmq.REP, zmq.REQ, propagate=True)
            push, pull = pair(context, zmq.PUSH, zmq.PULL, propagate=True)
            waiting = asyncio.ensure_future(rep.recv())
            await asyncio.sleep(0)
            await req.send(b"question")
            assert await waiting == b"question"
            await rep.send_multipart([b"an", b"swer"])
            assert await req.recv_multipart() == [b"an", b"swer"]
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(pull.recv(), 0.001)
            await push.send_multipart([b"a", b"b", b"c"])
            assert await pull.recv() == b"a"
            assert pull.get(zmq.RCVMORE)
            assert [await pull.recv(), await pull.recv()] == [b"b", b"c"]
            assert not pull.get(zmq.RCVMORE)
            await push.send_string("text")
            assert await pull.recv_string() == "text"
            context.destroy(linger=0)

    asyncio.run(talk())
    assert ended(tmp_path) == {"send+wait": 1, "queue+work+reply": 1, "send": 2, "receive": 2}
    assert joined_count(tmp_path) == 3


def test_every_socket_made_later(tmp_path: Path) -> None:
    trace.start(tmp_path)
    undo = trace.instrument_zmq(propagate=True)
    try:
        with zmq.Context() as context:
            push, pull = pair(context, zmq.PUSH, zmq.PULL)
            push.send(b"x")
            assert pull.recv() == b"x"
            context.destroy()

        async def talk() -> None:
            with zmq.asyncio.Context() as context:
                push, pull = pair(context, zmq.PUSH, zmq.PULL)
                await push.send(b"x")
                assert await pull.recv() == b"x"
                context.destroy()

        asyncio.run(talk())
    finally:
        undo()
    with zmq.Context() as context, context.socket(zmq.PUSH) as plain:
        assert type(plain) is zmq.Socket
    assert ended(tmp_path) == {"send": 2, "receive": 2}
    assert joined_count(tmp_path) == 2


# ------------------------------------------------------------------------------------------------ multiprocessing


@pytest.mark.parametrize("propagate", [False, True])
def test_connections(tmp_path: Path, propagate: bool) -> None:
    trace.start(tmp_path)
    here, there = multiprocessing.Pipe()
    with here, there:
        for connection in (here, there):
            assert trace.wrap(connection, "pipe", propagate) is connection
        here.send({"a": [1, 2]})
        assert there.recv() == {"a": [1, 2]}
        there.send_bytes(b"0123456789", 2, 5)
        assert here.recv_bytes(5) == b"23456"
        there.send_bytes(b"abc")
        room = bytearray(3)
        assert here.recv_bytes_into(room) == 3
        assert bytes(room) == b"abc"
        with pytest.raises(ValueError, match="size"):
            there.send_bytes(b"abc", 0, 9)
    assert ended(tmp_path) == {"send": 4, "receive": 3}
    calls = records(tmp_path)
    assert sum(call.recv_bytes for call in calls) == sum(call.sent_bytes for call in calls if not call.failed)
    assert joined_count(tmp_path) == 3 * propagate


def test_an_unwrapped_end_reads_objects_all_the_same() -> None:
    here, there = multiprocessing.Pipe()
    with here, there:
        trace.wrap(here, propagate=True)
        here.send([1, 2, 3])
        assert there.recv() == [1, 2, 3]


@pytest.mark.parametrize("propagate", [False, True])
@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue"])
def test_queues(tmp_path: Path, kind: str, propagate: bool) -> None:
    trace.start(tmp_path)
    made: Any = getattr(multiprocessing.get_context("fork"), kind)()
    assert trace.wrap(made, propagate=propagate) is made
    made.put({"a": 1})
    assert made.get() == {"a": 1}
    if kind != "SimpleQueue":
        with pytest.raises(queue.Empty):
            made.get(block=False)
        made.close()
        made.join_thread()
    else:
        made.close()
    assert ended(tmp_path) == {"put": 1, "get": 1}
    assert {call.sent_bytes for call in records(tmp_path)} == {-1}, "nobody knows them"
    assert {call.method for call in records(tmp_path)} == {kind}
    assert joined_count(tmp_path) == propagate


def test_a_queue_between_processes(tmp_path: Path) -> None:
    code = """
import multiprocessing, sys
from ipcbench import trace
def child(queue, back, connection):
    trace.start(sys.argv[1])
    back.put(queue.get() * 2)
    connection.send(connection.recv())
    trace.stop()
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    trace.start(sys.argv[1])
    queue, back = (trace.wrap(context.Queue(), name, propagate=True) for name in ("there", "back"))
    here, there = context.Pipe()
    trace.wrap(here), trace.wrap(there)
    process = context.Process(target=child, args=(queue, back, there))
    process.start()
    queue.put(21)
    assert back.get() == 42
    here.send("x")
    assert here.recv() == "x"
    process.join()
    assert process.exitcode == 0
"""
    program, folder = tmp_path / "program.py", tmp_path / "trace"
    program.write_text(code)
    subprocess.run([sys.executable, str(program), str(folder)], check=True, timeout=60, env={"PYTHONPATH": str(ROOT)})
    methods = Counter((call.method, "+".join(call.stages)) for call in records(folder))
    assert methods[("there", "put")] == methods[("there", "get")] == methods[("back", "put")] == 1
    assert joined_count(folder) == 2


# ------------------------------------------------------------------------------------------------ backends


@pytest.fixture
def channel() -> ChannelSpec:
    return ChannelSpec("ipcb-wrapped", max_message_bytes=10_000)


def test_a_backend_carries_the_context(tmp_path: Path, channel: ChannelSpec) -> None:
    trace.start(tmp_path)
    backend = trace.wrap(get_backend("null")())
    assert isinstance(backend, Backend)
    assert (backend.name, backend.summary) == ("null", get_backend("null")().summary)
    assert backend.capabilities.max_message_bytes == get_backend("null")().capabilities.max_message_bytes - 40
    assert pickle.loads(pickle.dumps(backend)).name == "null"
    assert trace.wrap(backend) is backend
    backend.probe()
    address = backend.create(channel)
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        for payload in (b"", b"x", bytearray(b"yy"), memoryview(b"z" * 10_000)):
            writer.write(payload)
            assert reader.read(1.0) == payload
        with pytest.raises(TransportTimeout):
            reader.read(0.0)
        writer.reserve(5)[:] = b"12345"
        writer.commit()
        assert bytes(reader.read(1.0)) == b"12345"
        with trace.call("Matmul") as call:
            call.serialized(3)
            writer.carry(call).write(b"abc")  # type: ignore[attr-defined]
            call.sent()
            assert bytes(reader.read(1.0)) == b"abc"
            with trace.serve(reader, "Matmul"):
                pass
            call.received(0)
    backend.destroy(address)
    stages = ended(tmp_path)
    assert stages == {"send": 5, "receive": 6, "serialize+send+wait+deserialize": 1, "queue+work+reply": 1}
    assert joined_count(tmp_path) == 6


def test_one_end_can_be_wrapped_by_itself(tmp_path: Path, channel: ChannelSpec) -> None:
    trace.start(tmp_path)
    backend = get_backend("null")()
    address = backend.create(channel)
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        trace.wrap(reader, "plain").read  # noqa: B018 # wrapping changes nothing of it
        writer.write(b"plain")
        assert bytes(trace.wrap(reader, "plain").read(1.0)) == b"plain"
        trace.wrap(writer, "ours").write(b"x")
        assert bytes(reader.read(1.0))[40:] == b"x"
    backend.destroy(address)
    assert ended(tmp_path) == {"send": 1, "receive": 1}


# ------------------------------------------------------------------------------------------------ the rest


@pytest.mark.parametrize("thing", [None, 1, "text", object(), queue.Queue(), threading.Lock()])
def test_other_things_are_refused(thing: object) -> None:
    with pytest.raises(TypeError, match=r"trace\.wrap takes an ipcbench Backend") as caught:
        trace.wrap(thing)
    assert "\n" not in str(caught.value)


def test_sockets_of_single_frames_do_not_propagate(zmq_context: Any) -> None:
    with zmq_context.socket(zmq.STREAM) as socket:
        with pytest.raises(ConfigError, match="propagate"):
            trace.wrap(socket, propagate=True)
        trace.wrap(socket)


def test_without_a_recorder_messages_go_on(zmq_context: Any) -> None:
    trace.stop()
    rep, req = pair(zmq_context, zmq.REP, zmq.REQ, propagate=True)
    req.send(b"a")
    assert rep.recv() == b"a"
    rep.send(b"b")
    assert req.recv() == b"b"


@pytest.mark.usefixtures("no_space")
def test_on_a_full_disk_messages_go_on(tmp_path: Path, zmq_context: Any) -> None:
    recorder = trace.start(tmp_path)
    rep, req = pair(zmq_context, zmq.REP, zmq.REQ, propagate=True)
    for number in range(10):
        req.send(b"%d" % number)
        request = rep.recv()
        with trace.serve(rep, "more"):
            rep.send(request * 2)
        assert req.recv() == b"%d%d" % (number, number)
    assert "No space left" in recorder.problem


def test_records_have_their_method(tmp_path: Path, zmq_context: Any) -> None:
    trace.start(tmp_path)
    push, _ = pair(zmq_context, zmq.PUSH, zmq.PULL)
    trace.wrap(push, "work items").send(b"x")
    trace.stop()
    assert [call.method for call in records(tmp_path)] == ["work items"]


@pytest.mark.parametrize("name", ["null", "shm", "pipe"])
def test_messages_of_all_verbs_of_a_backend_are_recorded_and_joined(
    name: str, tmp_path: Path, channel: ChannelSpec
) -> None:
    """And what is not sent is none: a reservation that a write has given up, a message for which there was no room."""
    trace.start(tmp_path)
    backend = trace.wrap(get_backend(name)())
    address = backend.create(replace(channel, depth=2))
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        for number in range(5):
            writer.reserve(100)[:1] = b"a"
            writer.write_parts([b"b", b"c"], 30.0)
            assert reader.read(30.0) == b"bc"
            with pytest.raises(TransportError):
                writer.commit()
            writer.reserve(100)[:1] = b"d"
            writer.commit(1, 30.0)
            assert reader.read(30.0) == b"d"
            reader.release()
            assert writer.write_many([b"e", b"f"], 30.0) == 2
            assert [bytes(view) for view in (reader.read(30.0), reader.read(30.0))] == [b"e", b"f"]
            with trace.call("Matmul") as call:
                call.serialized(1)
                if number == 4 and name != "pipe":  # whose channel takes more than two
                    reader.release()
                    assert writer.write_many([b"g", b"h"], 30.0) == 2
                    with pytest.raises(TransportTimeout):
                        writer.carry(call).write(b"i", 0.01)  # type: ignore[attr-defined]
                    assert [bytes(view) for view in (reader.read(30.0), reader.read(30.0))] == [b"g", b"h"]
                    reader.release()
                else:
                    writer.carry(call)  # type: ignore[attr-defined]
                writer.write(b"i", 30.0)
                call.sent()
                assert reader.read(30.0) == b"i"
                with trace.serve(reader, "Matmul"):
                    pass
                call.received(0)
    backend.destroy(address)
    trace.stop()
    assert not any(call.failed for call in records(tmp_path) if call.method == "Matmul")
    assert joined_count(tmp_path) == 5 * 5 + 2 * (name != "pipe")
