"""Calls: a server and its clients."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipcbench.rpc.client
from ipcbench import rpc, trace
from ipcbench.errors import (
    ConfigError,
    EncodeError,
    EndpointClosed,
    MessageTooLarge,
    PeerLost,
    RemoteError,
    TransportError,
    TransportTimeout,
    UnknownMethod,
)
from ipcbench.rpc import aio
from ipcbench.testing.agents.client import until
from ipcbench.util.files import temporary_folder

BACKENDS = ("shm", "zmq", "zmq-tcp", "tcp", "pipe", "lmdb")
LONG_S = 30.0


@pytest.fixture
def name(channel_name: str) -> str:
    return channel_name.removeprefix("ipcb-")[-24:]


def echo(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


def total(array: Any) -> float:
    assert not array.flags.writeable
    return float(array.sum())


KEPT: list[Any] = []


def filled(count: int, value: float, out: Any) -> Any:
    made = out(count, "f8")
    made[:] = value
    return made


def fail(text: str) -> None:
    raise LookupError(text)


def wait_for(path: str) -> str:
    while not os.path.exists(path):
        threading.Event().wait(0.001)
    return path


def serving(name: str, backend: str = "shm", **options: Any) -> rpc.Server:
    """Return a server whose methods do what their names say."""
    server = rpc.Server(backend, name, **{"max_bytes": "1MiB", **options})
    for function in (echo, wait_for):
        server.method(function)
    server.method(total, copy=False)
    server.method(KEPT.append, name="keep", copy=False)
    server.method(filled, out=True)
    server.method(fail, name="raise")
    server.method(lambda: sys.exit(3), name="leave")
    server.method(lambda: {"result": {1, 2}}, name="bad")
    server.method(lambda: bytes(2**21), name="large")
    server.method(os.getpid, name="pid")
    return server


@contextmanager
def process(name: str, backend: str = "shm", **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a server in a process of its own."""
    code = f"from tests.rpc.test_rpc import serving\nserving({name!r}, {backend!r}, **{options!r}).serve()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2], text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_over_each_transport(name: str, backend: str) -> None:
    with process(name, backend) as running:
        with rpc.connect(name, timeout_s=LONG_S) as client:
            assert client.pid() == running.pid
            sent = {"a": np.arange(6.0).reshape(2, 3), "b": [1, (2, None)], "c": b"x" * 50_000}
            (args, kwargs) = client.echo(1, sent, more="text")
            assert repr(args) == repr([1, sent])
            assert kwargs == {"more": "text"}
            assert client.total(np.arange(1000.0)) == 499500
            assert (client.filled(1000, value=2.5) == np.full(1000, 2.5)).all()
            futures = [client.submit("echo", number) for number in range(100)]
            assert [future.result(LONG_S)[0] for future in futures] == [[number] for number in range(100)]
        running.send_signal(signal.SIGINT)
        assert running.wait(LONG_S) == 0
    assert not files_of(name)


def test_errors_are_one_line_and_the_connection_stays(name: str) -> None:
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        with pytest.raises(RemoteError, match=r"^LookupError: no such thing") as raised:
            client.call("raise", "no such thing")
        assert raised.value.type_name == "LookupError"
        assert "raise LookupError(text)" in raised.value.traceback
        assert any("raise LookupError(text)" in note for note in raised.value.__notes__)
        with pytest.raises(RemoteError, match=r"^SystemExit: 3"):
            client.leave()
        with pytest.raises(RemoteError, match=r"EncodeError: the result\['result'\] \(set\)"):
            client.bad()
        with pytest.raises(RemoteError, match="MessageTooLarge"):
            client.large()
        with pytest.raises(UnknownMethod, match="did you mean 'total'"):
            client.totl(1)
        with pytest.raises(EncodeError, match=r"args\[1\]\['x'\]\[2\] \(set\)"):
            client.echo(1, {"x": [1, 2, {3}]})
        with pytest.raises(EncodeError, match=r"kwargs\['array'\].*contiguous"):
            client.total(array=np.zeros((4, 4))[:, ::2])
        with pytest.raises(MessageTooLarge):
            client.echo(bytes(2**21))
        with pytest.raises(RemoteError, match="TypeError"):
            client.total()
        assert client.echo(1) == [[1], {}]
        with pytest.raises(AttributeError):
            client._private()


def test_a_reply_that_comes_late_is_given_to_nobody(name: str, tmp_path: Path) -> None:
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        with pytest.raises(TransportTimeout, match="may still come"):
            client.call("wait_for", str(tmp_path / "a"), timeout_s=0.01)
        (tmp_path / "a").touch()
        assert client.echo("after") == [["after"], {}]


@pytest.mark.parametrize("backend", ["shm", "pipe"])
def test_a_killed_server_is_an_error_for_each_call_and_its_successor_is_found(
    name: str, backend: str, tmp_path: Path
) -> None:
    with rpc_client(name, backend) as (client, first):
        waiting = [client.submit("wait_for", str(tmp_path / "never")) for _ in range(3)]
        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(client.call, "wait_for", str(tmp_path / "never"))
            while len(client._session.waiting) < 4:  # type: ignore[union-attr]
                threading.Event().wait(0.001)
            first.kill()
            for future in [*waiting, blocked]:
                with pytest.raises(PeerLost, match="whether calls in flight were made is not known"):
                    future.result(LONG_S)
        with process(name, backend) as second:
            assert client.pid() == second.pid
    leave_clean(name)
    assert not files_of(name)


@contextmanager
def rpc_client(name: str, backend: str) -> Iterator[tuple[rpc.Client, subprocess.Popen[str]]]:
    with process(name, backend) as running, rpc.connect(name, timeout_s=LONG_S) as client:
        yield client, running


AT_EXIT = {
    "a server": "server = serving(name).start()",
    "both": "server = serving(name).start(); client = rpc.connect(name, timeout_s=30); client.echo(1)",
    "a future": "server = serving(name).start(); client = rpc.connect(name, 30); client.submit('pid').result()",
    "a thread": "threading.Thread(target=serving(name).serve, daemon=True).start(); client = rpc.connect(name, 30)",
    "threads": "server = serving(name, threads=2).start(); client = rpc.connect(name, 30); client.echo(1)",
    "a dropped client": "server = serving(name).start(); rpc.connect(name, timeout_s=30).echo(1)",
    "an exception": "server = serving(name).start(); client = rpc.connect(name, timeout_s=30); sys.exit(0)",
    "asyncio": """
async def main():
    global task, client
    task = asyncio.create_task(aio.Server("shm", name).serve())
    await asyncio.sleep(0)
    client = aio.connect(name, timeout_s=30)
    await client._connected(None)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
""",
}


@pytest.mark.parametrize("what", AT_EXIT)
def test_what_is_not_closed_at_exit_leaves_nothing(name: str, what: str) -> None:
    head = f"import asyncio, sys, threading\nfrom tests.rpc.test_rpc import *\nname = {name!r}\n"
    command = [sys.executable, "-c", head + AT_EXIT[what]]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=False, capture_output=True, timeout=LONG_S)
    assert done.returncode == 0, done.stderr.decode()
    assert what == "asyncio" or done.stderr == b"", "asyncio complains of its pending task"
    assert not files_of(name)


def test_a_client_at_whose_exit_the_server_is_there_leaves_nothing(name: str) -> None:
    code = f"from ipcbench import rpc\nclient = rpc.connect({name!r}, 30)\nclient.submit('echo', 1).result()"
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        before = files_of(name)
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=LONG_S)
        assert (done.returncode, done.stderr) == (0, b"")
        assert files_of(name) == before, "without the help of the server"
        assert client.echo(1) == [[1], {}]


def test_a_dead_client_is_forgotten(name: str) -> None:
    code = f"""
import os
import re
from ipcbench import rpc
client = rpc.connect({name!r}, timeout_s=30)
client.submit("echo", 1)
os.kill(os.getpid(), 9)
"""
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        before = files_of(name)
        for _ in range(3):
            subprocess.run([sys.executable, "-c", code], check=False)
        while files_of(name) != before:
            assert client.echo(1) == [[1], {}]


def files_of(name: str) -> set[Path]:
    """Return what lies on the host under a name, and what the server knows of its clients."""
    folder = temporary_folder()
    return {*folder.glob(f"ipcb-{name}*"), *folder.glob(f"ipcb-{name}.rpc/*")}


def test_threads_share_a_client(name: str) -> None:
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client, ThreadPoolExecutor(6) as pool:

        def work(number: int) -> bool:
            return all(client.echo(number, each)[0] == [number, each] for each in range(60))

        assert all(pool.map(work, range(6)))
        futures = [client.submit("echo", number) for number in range(40)]
        assert [future.result(LONG_S)[0][0] for future in futures] == list(range(40))


def test_who_has_a_reply_does_not_read_for_another(name: str) -> None:
    """A thread may see that its reply is not there, and take its turn to read after another has read the last one."""
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        session = client._session
        assert session is not None
        client._read_one(session, None, "", session.has_room)
        assert client.echo(1) == [[1], {}]


def test_a_future_may_call_when_it_is_done(name: str) -> None:
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        results: list[Any] = []
        done = threading.Event()

        def again(_: Any) -> None:
            results.append(client.echo("again"))
            done.set()

        client.submit("echo", 1).add_done_callback(again)
        assert done.wait(LONG_S)
        assert results == [[["again"], {}]]


def test_a_future_may_call_when_another_call_reads_its_reply(name: str) -> None:
    """With as many calls in flight as may be, the thread that makes the next one reads replies."""
    with serving(name, depth=2), rpc.connect(name, timeout_s=LONG_S) as client:
        results: list[Any] = []

        def again(_: Any) -> None:
            results.append(client.call("echo", "again"))

        for number in range(50):
            client.submit("echo", number).add_done_callback(again)
        while len(results) < 50:
            threading.Event().wait(0.001)
        assert results == [[["again"], {}]] * 50


@pytest.mark.parametrize("backend", ["shm", "pipe"])
def test_a_client_with_calls_in_flight_starves_no_other(name: str, backend: str) -> None:
    """While the server is at a call, one client makes 60 and then another makes 5: they are served in turns."""
    served: list[str] = []
    gate = threading.Event()
    server = rpc.Server(backend, name, max_bytes="64KiB", depth=64)
    server.method(served.append, name="note")
    server.method(lambda: gate.wait(LONG_S), name="wait")
    with server, rpc.connect(name, timeout_s=LONG_S) as greedy, rpc.connect(name, timeout_s=LONG_S) as modest:
        calls = [greedy.submit("wait"), *(greedy.submit("note", "greedy") for _ in range(60))]
        calls += [modest.submit("note", "modest") for _ in range(5)]
        gate.set()
        for call in calls:
            call.result(LONG_S)
    assert served.count("greedy") == 60
    assert served[:20].count("modest") == 5, "after the turns that one gets at once, one by one"


def test_threads_of_the_server_run_calls_at_the_same_time(name: str, tmp_path: Path) -> None:
    with serving(name, threads=2), rpc.connect(name, timeout_s=LONG_S) as client:
        blocked = client.submit("wait_for", str(tmp_path / "a"))
        assert client.echo(1) == [[1], {}], "while the other one runs"
        (tmp_path / "a").touch()
        assert blocked.result(LONG_S)


def test_a_client_that_does_not_read_stops_no_other(name: str) -> None:
    """Its replies wait; those of others come."""
    with serving(name, "pipe", depth=64) as server, rpc.connect(name, timeout_s=LONG_S) as client:
        code = f"""
import os, signal
from ipcbench import rpc
client = rpc.connect({name!r}, timeout_s=30)
session = client._session
from ipcbench.rpc.session import packed_call
from ipcbench.trace.record.call import NO_OP
for number in range(60):
    session.line.sender.write(packed_call(session, "echo", number, (bytes(500_000),), {{}}, NO_OP), 30)
    if number == 5: print("ready", flush=True)
print("done", flush=True)
signal.pause()
"""
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as stuck:
            assert stuck.stdout is not None
            assert stuck.stdout.readline() == "ready\n"
            for number in range(50):
                assert client.echo(number) == [[number], {}]
            stuck.kill()
        assert client.echo(1) == [[1], {}]
        assert server is not None


def test_keeping_what_is_shared_is_said(name: str) -> None:
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        with pytest.warns(RuntimeWarning, match="method 'keep' keeps an array"):
            assert [client.keep(np.arange(1000.0)), client.echo(1)] == [None, [[1], {}]]
        KEPT.clear()
        assert client.total(np.ones(10)) == 10


def test_tensors(name: str) -> None:
    torch = pytest.importorskip("torch")
    server = serving(name)
    server.method(lambda tensor: tensor * 2, name="double", copy=False)
    server.method(lambda size: torch.ones(size, requires_grad=True) * 3, name="weights")
    with server, rpc.connect(name, timeout_s=LONG_S) as client:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            sent = torch.arange(6, dtype=dtype).reshape(2, 3)
            (received, parts), _ = client.echo(sent, {"parts": [sent, None]})
            doubled = client.double(sent)
            assert received.dtype == doubled.dtype == dtype
            assert torch.equal(received, sent)
            assert torch.equal(parts["parts"][0], sent)
            assert torch.equal(doubled, sent * 2)
        weights = client.weights(10_000)
        assert torch.equal(weights, torch.full((10_000,), 3.0))
        assert not weights.requires_grad
        with pytest.raises(EncodeError, match=r"args\[0\]\['w'\] \(Tensor\).*contiguous"):
            client.echo({"w": torch.zeros(3, 4).T})


def test_in_place_on_both_sides(name: str) -> None:
    with serving(name), rpc.connect(name, timeout_s=LONG_S, copy=False) as client:
        for size in (1, 1000, 50_000):
            made = client.empty(size, "f8")
            made[:] = 2
            assert client.total(made) == 2 * size
            assert (client.filled(size, 3.0) == 3).all()


def test_large_maximum_falls_back_and_says_so(name: str) -> None:
    with serving(name, max_bytes=2**40):
        with pytest.warns(RuntimeWarning, match="go over pipe, since"):
            client = rpc.connect(name, timeout_s=LONG_S)
        with client:
            assert (client.filled(100_000, 1.0) == 1).all()


@pytest.mark.parametrize("wrong", ["add", 5])
def test_what_is_no_function_is_no_method(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="a function; to choose its name"):
        rpc.Server("shm", name).method(wrong)


def test_a_name_is_served_once(name: str) -> None:
    with serving(name):
        with pytest.raises(TransportError, match=rf"running already \(process {os.getpid()}\)"):
            serving(name).serve()
        with rpc.connect(name, timeout_s=LONG_S) as client:
            assert client.pid() == os.getpid()
    with pytest.raises(TransportTimeout, match="there is no server"):
        rpc.connect(name, timeout_s=0.01)
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        assert client.pid() == os.getpid()
    with pytest.raises(EndpointClosed):
        client.pid()


def test_another_version_is_refused(name: str) -> None:
    from ipcbench.rpc.protocol import meeting_of

    with serving(name):
        meeting = meeting_of(name)
        note = meeting.read("server")
        assert note is not None
        meeting.write("server", {**note, "version": 99})
        with pytest.raises(TransportError, match="speaks version 99"):
            rpc.connect(name, timeout_s=LONG_S)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_bytes": "much"}, "max_bytes"),
        ({"depth": 1}, "depth"),
        ({"threads": 0}, "threads"),
        ({"wait": "hard"}, "wait"),
        ({"backend": "null"}, "backend"),
    ],
)
def test_wrong_options(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        rpc.Server(**{"backend": "shm", "name": "x", **options})


def test_methods_have_names_of_their_own() -> None:
    server = rpc.Server("shm", "x")
    server.method(len)
    with pytest.raises(ConfigError, match=r"^method: 'len'"):
        server.method(len)
    with pytest.raises(ConfigError, match=r"^method: '_x'"):
        server.method(len, name="_x")


def test_calls_are_traced_on_both_sides(name: str, tmp_path: Path) -> None:
    from tests.trace.reading import records

    with serving(name):
        trace.start(tmp_path)
        with rpc.connect(name, timeout_s=LONG_S) as client:
            for _ in range(5):
                client.echo(np.zeros(1000))
        trace.stop()
    calls = [(call.method, call.sent_bytes > 8000, call.recv_bytes > 8000) for call in records(tmp_path)]
    assert calls.count(("echo", True, True)) == 5, "the client's"
    assert len(calls) == 10


def leave_clean(name: str) -> None:
    """Remove what a killed server has left whom nobody succeeded."""
    with serving(name):
        pass


def test_results_in_place_with_asyncio(name: str) -> None:
    async def main() -> None:
        server = aio.Server("shm", name, max_bytes="1MiB")
        server.method(filled, out=True)
        serving = asyncio.create_task(server.serve())
        async with aio.connect(name, timeout_s=LONG_S) as client:
            results = await asyncio.gather(*(client.filled(1000, value=float(each)) for each in range(10)))
        assert [set(result) for result in results] == [{float(each)} for each in range(10)]
        server.stop()
        await serving

    asyncio.run(main())


def test_asyncio(name: str) -> None:
    async def main() -> None:
        server = aio.Server("shm", name, max_bytes="1MiB")
        running = asyncio.Event()
        count = 0

        @server.method
        async def meet(number: int) -> int:
            nonlocal count
            count += 1
            if count == 10:
                running.set()
            await running.wait()
            return number

        @server.method
        def echo(obj: Any) -> Any:
            return obj

        @server.method(name="raise")
        async def fail() -> None:
            raise LookupError("x")

        serving = asyncio.create_task(server.serve())
        async with aio.connect(name, timeout_s=LONG_S) as client:
            assert await asyncio.gather(*(client.meet(number) for number in range(10))) == list(range(10))
            big = np.ones(60_000)
            assert all((each == big).all() for each in await asyncio.gather(*(client.echo(big) for _ in range(40))))
            with pytest.raises(RemoteError, match="LookupError"):
                await client.call("raise")
            with pytest.raises(UnknownMethod):
                await client.nothing()
            running.clear()
            with pytest.raises(TransportTimeout):
                await client.call("meet", 1, timeout_s=0.01)
            late = asyncio.create_task(client.meet(2))
            while count < 12:
                await asyncio.sleep(0)
            server.stop()
            with pytest.raises(PeerLost):
                await late
            await serving
        with pytest.raises(EndpointClosed):
            await client.echo(1)

    asyncio.run(main())
    assert not files_of(name)


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Odd:
    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("odd")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "long": (lambda: ValueError("é€😀" * 50_000), "ValueError: é€😀"),
    "mute": (_Mute, "_Mute"),
    "surrogate": (lambda: ValueError("\ud800"), r"ValueError: \ud800"),
    "interrupt": (lambda: KeyboardInterrupt("own"), "KeyboardInterrupt: own"),
    "cancelled": (lambda: asyncio.CancelledError("own"), "CancelledError: own"),
    "exit": (GeneratorExit, "GeneratorExit"),
}


def _raise(name: str) -> None:
    raise RAISED[name][0]()


@pytest.mark.parametrize("threads", [1, 2])
def test_whatever_a_method_raises_arrives(name: str, threads: int) -> None:
    server = serving(name, max_bytes=1024, threads=threads)
    server.method(_raise, name="fails")
    server.method(_Odd, name="odd")
    with server, rpc.connect(name, timeout_s=LONG_S) as client:
        for each, (_, text) in RAISED.items():
            with pytest.raises(RemoteError, match=f"^{re.escape(text)}"):
                client.fails(each)
        with pytest.raises(RemoteError, match=r"the result \(_Odd\) cannot be sent: odd"):
            client.odd()
        with pytest.raises(EncodeError, match=r"args\[0\] \(_Odd\) cannot be sent: odd"):
            client.echo(_Odd())
        assert client.echo(1) == [[1], {}]


def test_what_a_coroutine_raises_arrives(name: str) -> None:
    async def main() -> None:
        server = aio.Server("shm", name, max_bytes=1024)

        @server.method
        async def fails(each: str) -> None:
            _raise(each)

        serving = asyncio.create_task(server.serve())
        async with aio.connect(name, timeout_s=LONG_S) as client:
            for each in set(RAISED) - {"interrupt"}:  # which ends the loop
                with pytest.raises(RemoteError, match=f"^{re.escape(RAISED[each][1])}"):
                    await client.fails(each)
        server.stop()
        await serving

    asyncio.run(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_that_closes_ends_its_calls(name: str, tmp_path: Path, backend: str) -> None:
    path = tmp_path / "go"
    with serving(name, backend), rpc.connect(name, timeout_s=LONG_S) as client:
        futures = [client.submit("wait_for", str(path)) for _ in range(5)]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.call, "wait_for", str(path))
            client.close()
            for future in (*futures, waiting):
                with pytest.raises(EndpointClosed):
                    future.result(LONG_S)
        path.touch()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ipcbench-rpc")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_idle_client_calls_the_next_server(name: str, backend: str) -> None:
    with process(name, backend) as first, rpc.connect(name, timeout_s=LONG_S) as client:
        assert client.pid() == first.pid
        first.kill()
        first.wait()
        with process(name, backend) as second:
            with rpc.connect(name, timeout_s=LONG_S) as other:  # until the second one serves
                while other.pid() != second.pid:
                    pass
            client._session._look_ns = 0  # type: ignore[union-attr] # as after the interval of looks
            assert client.pid() == second.pid
            second.send_signal(signal.SIGINT)
            assert second.wait(LONG_S) == 0


def test_a_future_is_done_without_delay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads for futures looks rarely by itself: here, after an hour."""
    monkeypatch.setattr(ipcbench.rpc.client, "_LOOK_S", 3600.0)
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        for number in range(100):
            assert client.submit("echo", number).result(LONG_S) == [[number], {}]
        monkeypatch.undo()
        with client._turn:
            client._turn.notify_all()


@pytest.mark.parametrize("named", ["call", "close", "empty", "methods", "submit", "_x", ""])
def test_a_method_has_a_name_that_a_client_can_call(named: str) -> None:
    server = rpc.Server("shm", "x")
    with pytest.raises(ConfigError, match="method"):
        server.method(echo, name=named or "_")


def test_a_coroutine_is_for_the_server_of_asyncio() -> None:
    async def wait() -> None: ...

    with pytest.raises(ConfigError, match=r"ipcbench\.rpc\.aio"):
        rpc.Server("shm", "x").method(wait)
    rpc.aio.Server("shm", "x").method(wait)


def test_a_client_of_a_forked_parent_says_so(name: str) -> None:
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client:
        client.echo()
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            try:
                client._session._look_ns = 0  # type: ignore[union-attr]
                client.echo()
            except EndpointClosed as error:
                os.write(theirs, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert b"was connected by the process that forked this one; connect in this one" in os.read(ours, 4096)
        os.close(ours)
        os.close(theirs)
        assert client.echo(1) == [[1], {}]


def test_connects_that_were_given_up_hold_up_no_others(name: str) -> None:
    async def main() -> None:
        waiting = [asyncio.create_task(_echo_with_asyncio(f"{name[:20]}-no")) for _ in range(100)]
        with serving(name):
            assert await _echo_with_asyncio(name) == [[1], {}]
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert await _echo_with_asyncio(name) == [[1], {}]

    asyncio.run(main())


async def _echo_with_asyncio(name: str) -> Any:
    async with aio.connect(name) as client:
        return await client.echo(1)


def test_a_server_of_asyncio_outlives_clients_that_close_in_a_call(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server, begun, go = aio.Server("shm", name), asyncio.Event(), asyncio.Event()

        @server.method
        async def meet() -> None:
            begun.set()
            await go.wait()

        serving = asyncio.create_task(server.serve())
        client = aio.connect(name, timeout_s=LONG_S)
        calling = [asyncio.create_task(client.meet()) for _ in range(5)]
        await begun.wait()
        await client.close()
        with pytest.raises(EndpointClosed):
            await calling[0]
        await asyncio.gather(*calling, return_exceptions=True)
        go.set()
        async with aio.connect(name, timeout_s=LONG_S) as other:
            await other.meet()
        server.stop()
        await serving

    asyncio.run(main())
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_that_is_dropped_is_closed(name: str, tmp_path: Path, backend: str) -> None:
    """After its last call: `nothing_is_left` looks for its thread, descriptors and files."""
    path = tmp_path / "go"

    def is_gone() -> bool:
        gc.collect()
        return not any(thread.name == "ipcbench-rpc" for thread in threading.enumerate())

    with serving(name, backend, threads=2):
        client = rpc.connect(name, timeout_s=LONG_S)
        assert client.echo(1) == [[1], {}]
        client.submit("wait_for", str(path))
        del client
        path.touch()
        assert until(is_gone, LONG_S)


def test_futures_outlive_the_clients_variable(name: str) -> None:
    with serving(name):
        futures = [rpc.connect(name, timeout_s=LONG_S).submit("echo", number) for number in range(5)]
        gc.collect()
        assert [future.result(LONG_S) for future in futures] == [[[number], {}] for number in range(5)]


def test_a_forked_child_ends_while_its_parent_calls_and_serves(name: str) -> None:
    with serving(name), rpc.connect(name, timeout_s=LONG_S) as client, ThreadPoolExecutor(1) as pool:
        stop = threading.Event()

        def call() -> None:
            while not stop.is_set():
                client.echo(1)

        calling = pool.submit(call)
        for _ in range(5):
            child = os.fork()
            if not child:
                try:
                    with pytest.raises(EndpointClosed):
                        client.echo(1)
                    client.close()
                    atexit._run_exitfuncs()  # as at the end of a program
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        calling.result(LONG_S)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cancelled_call_that_waits_for_room_disturbs_no_other(name: str, backend: str) -> None:
    async def main(running: subprocess.Popen[str]) -> None:
        async with aio.connect(name, timeout_s=LONG_S) as client:
            assert await client.pid() == running.pid
            running.send_signal(signal.SIGSTOP)
            arrays = [np.full(2**17 - 100, float(number)) for number in range(12)]
            calling = [asyncio.create_task(client.echo(array)) for array in arrays]
            while client._writing is None and len(client._session.waiting) < 12:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            for each in calling[::2]:
                each.cancel()
            await asyncio.sleep(0)
            small = [np.full(100, float(number)) for number in range(20, 24)]
            calling += [asyncio.create_task(client.echo(array)) for array in small]
            running.send_signal(signal.SIGCONT)
            replies = await asyncio.gather(*calling, return_exceptions=True)
            for index, array in enumerate((*arrays, *small)):
                if index % 2 or index >= len(arrays):
                    assert (replies[index][0][0] == array).all()  # type: ignore[index]

    with process(name, backend, depth=16) as running:
        asyncio.run(main(running))
        running.send_signal(signal.SIGINT)
        assert running.wait(LONG_S) == 0
