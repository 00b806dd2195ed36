"""Programs that nobody changed, recorded: every message counts once, and the program notices nothing."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from ipcbench import trace
from ipcbench.errors import ConfigError, StoreError
from ipcbench.trace.adapters.correlate import Ids
from ipcbench.trace.adapters.instruments import begin_with_imports, targets
from ipcbench.trace.hook.begin import is_alone, name_of
from ipcbench.trace.readers.batch import Notes
from ipcbench.trace.readers.everything import find
from ipcbench.trace.readers.processes import read_processes
from ipcbench.trace.report.gather import gather
from ipcbench.trace.report.render import as_json, as_text, make_report

LIMIT_S = 120
PORT = """
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
"""


def run(folder: Path, code: str, *options: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    """Run a program under `ipcbench trace run`."""
    program = folder / "program.py"
    program.write_text(code)
    command = [sys.executable, "-m", "ipcbench", "trace", "run", "--out", "trace", *options, "--", sys.executable]
    given = {"cwd": folder, "capture_output": True, "text": True, "timeout": LIMIT_S, **changes}
    return subprocess.run([*command, str(program)], check=False, **given)


def counts(folder: Path) -> Counter[tuple[str, str]]:
    """Return how many calls there are by segment and method, without the ports of endpoints."""
    found: Counter[tuple[str, str]] = Counter()
    for group in gather([folder / "trace"]).sums.groups:
        for name, sums in group.methods.items():
            found[group.segment.name, name.partition(" tcp://")[0]] += sums.calls_count
    return found


def test_a_program_keeps_its_streams_its_exit_code_and_its_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = 42\n")
    code = "import sys\nprint(customized, sys.stdin.read(), sys.modules['sitecustomize'].__file__)\nsys.exit(7)\n"
    done = run(tmp_path, code, input="typed", env={**os.environ, "PYTHONPATH": str(tmp_path / "own")})
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"42 typed {tmp_path}/own/sitecustomize.py\n"


def test_a_signal_ends_the_program_as_without(tmp_path: Path) -> None:
    assert run(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n").returncode == -signal.SIGTERM


def test_what_cannot_be_run_is_said_in_a_line(tmp_path: Path) -> None:
    for arguments, what in (
        (["no-such-program-anywhere"], "no-such-program-anywhere: No such file"),
        (["--instrument", "zmk", "--", "true"], "did you mean 'zmq'"),
        (["--only", "a,b", "--", "true"], "without a comma"),
        (["--sample", "x", "--", "true"], "whole sample="),
    ):
        command = [sys.executable, "-m", "ipcbench", "trace", "run", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 2
        assert what in done.stderr
        assert len(done.stderr.splitlines()) == 1


CHILDREN = """
import multiprocessing, subprocess, sys

def double(number):
    return 2 * number

def echo(queue, connection):
    for _ in range(30):
        connection.send(queue.get())

if __name__ == "__main__":
    inside = "import multiprocessing, zmq; c = zmq.Context(); a, b = c.socket(zmq.PAIR), c.socket(zmq.PAIR); a.bind('inproc://x');"
    inside += "b.connect('inproc://x'); a.send(b'1'); b.recv()"
    for command in (["true"], [sys.executable, "-I", "-c", inside], [sys.executable, "-c", inside]):
        subprocess.run(command, check=True)
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue, (here, there) = context.Queue(), context.Pipe()
        process = context.Process(target=echo, args=(queue, there))
        process.start()
        for number in range(30):
            queue.put(number)
            assert here.recv() == number
        process.join()
        with context.Pool(2) as pool:
            assert sum(pool.map(double, range(100), chunksize=10)) == 9900
            pool.close()
            pool.join()
"""


def test_children_are_recorded_and_those_that_cannot_be_are_counted(tmp_path: Path) -> None:
    done = run(tmp_path, CHILDREN)
    assert (done.returncode, done.stderr) == (0, "")
    found = counts(tmp_path)
    assert found[f"{Path(sys.executable).name} (client)", "PAIR inproc://x"] == 1
    assert {segment.partition(" ")[0] for segment, method in found if "PAIR" not in method} == {"program"}
    passed = Counter({name: sum(found[key] for key in found if key[1] == name) for _, name in found})
    assert passed["Queue put"] == passed["Queue get"] == 2 * 30
    assert passed["Connection"] == 2 * 2 * 30
    assert passed["SimpleQueue put"] >= passed["SimpleQueue get"] >= 2 * (10 + 10), "ten tasks and ten results"
    text = as_text(make_report(gather([tmp_path / "trace"])))
    assert "2 programs were started and not recorded" in text


def test_only_the_chosen_methods_leave_a_trace(tmp_path: Path) -> None:
    code = "from ipcbench import trace\nfor name in ('Matmul', 'Add', 'Mask'):\n    for _ in range(5):\n"
    code += "        with trace.call(name, peer='x'), trace.call(name): pass\n"
    assert run(tmp_path, code, "--only", "M*", "--exclude", "Mask").returncode == 0
    assert counts(tmp_path) == {("program (client)", "Matmul"): 10}


FRAMES = """
import zmq
context = zmq.Context()
a, b = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
a.bind("inproc://x")
b.connect("inproc://x")
for _ in range(20):
    a.send(bytes(100_000), copy=False)
    b.recv(copy=False)
"""


def test_what_pyzmq_sends_to_itself_is_not_recorded(tmp_path: Path) -> None:
    assert run(tmp_path, FRAMES).returncode == 0
    assert {method for _, method in counts(tmp_path)} == {"PAIR inproc://x"}
    assert "pyzmq.gc" not in as_text(make_report(gather([tmp_path / "trace"])))


def test_the_signatures_of_what_is_recorded_are_the_librarys(tmp_path: Path) -> None:
    names = ["send", "recv", "recv_into", "send_multipart", "recv_multipart", "get"]
    code = f"import inspect, zmq\nfor name in {names}:\n"
    code += "    print([*inspect.signature(getattr(zmq.Socket, name)).parameters])\n"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout


ZERORPC = f"""
import gevent, zerorpc
{PORT}
class Service:
    def add(self, a, b):
        return a + b

server = zerorpc.Server(Service())
server.bind(f"tcp://127.0.0.1:{{port}}")
gevent.spawn(server.run)
client = zerorpc.Client()
client.connect(f"tcp://127.0.0.1:{{port}}")
assert [client.add(number, 1) for number in range(206)] == list(range(1, 207))
client.close()
server.stop()
server.close()
"""

AIOZMQ = """
import asyncio, aiozmq, zmq

async def main():
    router = await aiozmq.create_zmq_stream(zmq.ROUTER, bind="tcp://127.0.0.1:*")
    dealer = await aiozmq.create_zmq_stream(zmq.DEALER, connect=list(router.transport.bindings())[0])
    for number in range(100):
        dealer.write([b"%d" % number])
        router.write(await router.read())
        assert await dealer.read() == [b"%d" % number]
    dealer.close()
    router.close()

asyncio.run(main())
"""

GREENLETS = """
import gevent, zmq.green as zmq
context = zmq.Context()
server = context.socket(zmq.REP)
port = server.bind_to_random_port("tcp://127.0.0.1")

def serve():
    for _ in range(200):
        server.send(server.recv())

def ask(number):
    client = context.socket(zmq.REQ)
    client.connect(f"tcp://127.0.0.1:{port}")
    for _ in range(50):
        client.send(b"x" * number)
        assert client.recv() == b"x" * number

gevent.joinall([gevent.spawn(serve), *(gevent.spawn(ask, number) for number in range(4))], raise_error=True)
"""

ASYNCIO = """
import asyncio, zmq, zmq.asyncio

async def main():
    context = zmq.asyncio.Context()
    server, client = context.socket(zmq.REP), context.socket(zmq.REQ)
    client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
    async def serve():
        for _ in range(100):
            await server.send_multipart(await server.recv_multipart())
    task = asyncio.create_task(serve())
    for number in range(100):
        await client.send_multipart([b"a", b"b" * number])
        assert await client.recv_multipart() == [b"a", b"b" * number]
    await task

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (ZERORPC, {("client", "DEALER"): 206, ("server", "ROUTER"): 206, ("receiver", "DEALER"): 206}),
        (AIOZMQ, {("client", "DEALER"): 100, ("client", "ROUTER"): 100, ("receiver", "DEALER"): 100,
                  ("receiver", "ROUTER"): 100}),
        (GREENLETS, {("client", "REQ"): 200, ("server", "REP"): 200}),
        (ASYNCIO, {("client", "REQ"): 100, ("server", "REP"): 100}),
    ],
    ids=["zerorpc", "aiozmq", "gevent", "asyncio"],
)  # fmt: skip
def test_each_message_of_zeromq_counts_once(tmp_path: Path, code: str, wanted: dict[tuple[str, str], int]) -> None:
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert counts(tmp_path) == {(f"program ({side})", name): count for (side, name), count in wanted.items()}


PATCHED = """
from gevent import monkey; monkey.patch_all()
import gevent, zmq.green as zmq
context = zmq.Context()
one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
one.bind("inproc://x")
other.connect("inproc://x")

def ask(number):
    one.send(b"x")
    other.recv()

for number in range(250):
    gevent.spawn(ask, number).join()
"""


def test_greenlets_of_a_patched_program_share_the_files_of_their_thread(tmp_path: Path) -> None:
    """gevent gives each greenlet locals of its own; a server may have a greenlet for each request."""
    done = run(tmp_path, PATCHED)
    assert done.returncode == 0, done.stderr
    assert set(counts(tmp_path).values()) == {250}
    assert len(list((tmp_path / "trace").glob("*"))) < 5


JUPYTER = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
work = "import time; end = time.monotonic() + 0.05\\nwhile time.monotonic() < end: pass"
for _ in range(5):
    reply = client.execute_interactive(work, timeout=60)
    assert reply["content"]["status"] == "ok"
client.stop_channels()
manager.shutdown_kernel(now=False)
"""


def test_a_request_to_a_jupyter_kernel_is_split_into_its_parts(tmp_path: Path) -> None:
    """Five channels are kept apart, and a message's ids join both sides of a request."""
    done = run(tmp_path, JUPYTER)
    assert done.returncode == 0, done.stderr
    report = json.loads(as_json(make_report(gather([tmp_path / "trace"]))))
    methods = [(segment["segment"], method) for segment in report["segments"] for method in segment["methods"]]
    (asked,) = (m for name, m in methods if name == "program (client)" and m["method"].endswith(" execute_request"))
    assert asked["method"].startswith("DEALER tcp://127.0.0.1:")
    assert (asked["calls_count"], asked["joined_count"]) == (5, 5)
    assert asked["total_ns"] > asked["server_ns"] > 0
    # what the kernel does before the client's send returns is no part of the client's wait
    send_ns = next(stage["total_ns"] for stage in asked["stages"] if stage["stage"] == "send")
    assert asked["server_ns"] + send_ns > 0.8 * 5 * 50_000_000
    assert any(name.startswith("ipykernel") and m["method"].startswith("XPUB") for name, m in methods)


@pytest.mark.parametrize("odd", ["", '"more": {"less": "\\\\"}, '], ids=["plain", "parsed"])
def test_messages_of_jupyter_with_one_id_on_two_channels_are_kept_apart(tmp_path: Path, odd: str) -> None:
    """A kernel's manager and its client count their messages independently, under one session."""
    zmq = pytest.importorskip("zmq")
    trace.start(tmp_path / "trace")
    with zmq.Context() as context:
        for name, date in ("shell", "2026-01-01T00:00:00Z"), ("control", "2026-01-01T00:00:05Z"):
            with context.socket(zmq.DEALER) as asks, context.socket(zmq.ROUTER) as answers:
                asks.connect(f"tcp://127.0.0.1:{answers.bind_to_random_port('tcp://127.0.0.1')}")
                trace.wrap(asks, name), trace.wrap(answers, name)
                header = f'{{{odd}"msg_id": "session_1_0", "msg_type": "ask", "date": "{date}"}}'.encode()
                asks.send_multipart([b"<IDS|MSG>", b"", header, b"{}", b"{}", b"{}"])
                identity = answers.recv_multipart()[0]
                answers.send_multipart([identity, b"<IDS|MSG>", b"", b"{}", header, b"{}", b"{}"])
                asks.recv_multipart()
    trace.stop()
    rows = [*find([tmp_path / "trace"]).in_order(joined=True)]
    ids: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        ids.setdefault(row.method, set()).add((row.trace_id, row.span))
    assert [len(rows), *map(len, ids.values())] == [4, 1, 1], "both sides of a message have its ids"
    assert len(set.union(*ids.values())) == 2


REDIS = """
import asyncio, sys, redis, redis.asyncio
client = redis.Redis(unix_socket_path=sys.argv[1])
for number in range(20):
    client.set("key", number)
    assert client.get("key") == b"%d" % number
with client.pipeline() as pipeline:
    for _ in range(3):
        pipeline.watch("key")
        assert pipeline.get("key") == b"19"
        pipeline.multi()
        pipeline.get("key")
        assert pipeline.execute() == [b"19"]
with client.pipeline() as pipeline:
    assert pipeline.execute() == []
with client.pipeline() as pipeline:
    pipeline.incr("count").incr("count")
    assert pipeline.execute() == [1, 2]
try:
    client.execute_command("NONSENSE")
except redis.ResponseError:
    pass

async def more():
    async with redis.asyncio.Redis(unix_socket_path=sys.argv[1]) as client:
        for _ in range(5):
            await client.ping()
        async with client.pipeline() as pipeline:
            await pipeline.watch("key")
            await pipeline.get("key")
            pipeline.multi()
            assert await pipeline.get("key").execute() == [b"19"]

asyncio.run(more())
"""


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[None]:
    """Run a server of Redis."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    command = [program, *options, "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if "eady to accept connections" in line:
                break
        try:
            yield
        finally:
            server.kill()


@pytest.fixture
def redis_socket(tmp_path: Path) -> Iterator[Path]:
    """A server of Redis on a socket of its own."""
    place = tmp_path / "redis.sock"
    with redis_server(tmp_path, "--port", "0", "--unixsocket", str(place)):
        yield place


def test_commands_of_redis(tmp_path: Path, redis_socket: Path) -> None:
    program = tmp_path / "client.py"
    program.write_text(REDIS)
    code = f"import runpy, sys\nsys.argv = ['client', {str(redis_socket)!r}]\nrunpy.run_path({str(program)!r})\n"
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr
    groups = gather([tmp_path / "trace"]).sums.groups
    methods = {name: sums for group in groups for name, sums in group.methods.items()}
    told = {name: (sums.calls_count, sums.failed_count) for name, sums in methods.items()}
    assert told == {"redis SET": (20, 0), "redis GET": (24, 0), "redis PIPELINE": (5, 0), "redis NONSENSE": (1, 1),
                    "redis WATCH": (4, 0), "redis PING": (5, 0)}  # fmt: skip
    assert {group.segment.transport for group in groups} == {"UNIX"}


REDIS_CLUSTER = """
import asyncio, sys, redis, redis.asyncio
host, port = "127.0.0.1", int(sys.argv[1])
node = redis.Redis(host=host, port=port)
node.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
    pass
client = redis.RedisCluster(host=host, port=port)
for number in range(20):
    client.set(f"key{number}", number)
    assert client.get(f"key{number}") == b"%d" % number
client.pipeline().incr("count").execute()
with client.pipeline(transaction=True) as pipeline:
    pipeline.watch("key0")
    assert pipeline.get("key0") == b"0"
    pipeline.multi()
    pipeline.set("key0", 1)
    pipeline.execute()

async def more():
    async with redis.asyncio.RedisCluster(host=host, port=port) as client:
        await client.set("other", 1)
        await client.pipeline().incr("count").execute()

asyncio.run(more())
"""


def test_commands_of_a_cluster_of_redis(tmp_path: Path) -> None:
    with socket.socket() as free, socket.socket() as bus:
        free.bind(("127.0.0.1", 0))
        bus.bind(("127.0.0.1", 0))
        port, bus_port = (str(each.getsockname()[1]) for each in (free, bus))
    with redis_server(tmp_path, "--port", port, "--cluster-enabled", "yes", "--cluster-port", bus_port):
        done = run(tmp_path, REDIS_CLUSTER.replace("sys.argv[1]", port))
    assert done.returncode == 0, done.stderr
    methods = {name: sums for group in gather([tmp_path / "trace"]).sums.groups for name, sums in group.methods.items()}
    told = {name: methods[name].calls_count for name in ("redis SET", "redis GET", "redis PIPELINE")}
    assert told == {"redis SET": 21, "redis GET": 21, "redis PIPELINE": 3}
    assert methods["redis WATCH"].calls_count == 1


@pytest.mark.parametrize(
    ("kwargs", "peer"),
    [({}, "tcp://localhost:6379"), ({"host": "h", "port": 1}, "tcp://h:1"), ({"path": "/a"}, "unix:///a")],
)
def test_a_pool_of_redis_needs_no_address(kwargs: dict[str, Any], peer: str) -> None:
    redis = pytest.importorskip("redis")
    from ipcbench.trace.adapters.redis_ import _peer

    kind = redis.UnixDomainSocketConnection if "path" in kwargs else redis.Connection
    assert _peer(redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kind, **kwargs))) == peer


GRPC = """
import grpc
from concurrent import futures

def fail(request, context):
    raise ValueError("no")

def refuse(request, context):
    context.set_code(grpc.StatusCode.NOT_FOUND)
    return b""

class Passing(grpc.ServerInterceptor):
    def intercept_service(self, continuation, details):
        return continuation(details)

handlers = {
    "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
    "Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Count": grpc.unary_stream_rpc_method_handler(lambda request, context: iter([b"1", b"2"])),
}
server = grpc.server(futures.ThreadPoolExecutor(2), None, [Passing()])
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Service", handlers),))
server.add_insecure_port("unix:grpc.sock")
server.start()
with grpc.insecure_channel("unix:grpc.sock") as channel:
    for _ in range(50):
        assert channel.unary_unary("/Service/Echo")(b"x") == b"x"
    for _ in range(3):
        try:
            channel.unary_unary("/Service/Fail")(b"x")
        except grpc.RpcError:
            pass
    try:
        channel.unary_unary("/Service/Refuse")(b"x")
    except grpc.RpcError:
        pass
    assert list(channel.unary_stream("/Service/Count")(b"")) == [b"1", b"2"]
server.stop(0).wait()
"""


def test_calls_of_grpc(tmp_path: Path) -> None:
    done = run(tmp_path, GRPC)
    assert done.returncode == 0, done.stderr
    groups = gather([tmp_path / "trace"]).sums.groups
    told = {
        (group.segment.role, name): (sums.calls_count, sums.failed_count)
        for group in groups
        for name, sums in group.methods.items()
    }
    assert told == {(1, "Service/Echo"): (50, 0), (1, "Service/Fail"): (3, 3), (1, "Service/Count"): (1, 0),
                    (1, "Service/Refuse"): (1, 1), (2, "Service/Refuse"): (1, 1),
                    (2, "Service/Echo"): (50, 0), (2, "Service/Fail"): (3, 3)}  # fmt: skip
    assert {group.segment.transport for group in groups if group.segment.role == 1} == {"UNIX"}


@pytest.mark.parametrize(
    ("target", "peer"),
    [
        ("host:50051", "tcp://host:50051"),
        ("dns:///host:50051", "tcp://host:50051"),
        ("unix:///a/b", "unix:///a/b"),
        ("[::1]:50051", "tcp://[::1]:50051"),
    ],
)
def test_the_endpoint_of_a_target_of_grpc(target: str, peer: str) -> None:
    pytest.importorskip("grpc")
    from ipcbench.trace.adapters.grpc_ import _peer

    assert _peer(target) == peer


HTTP = """
import asyncio, http.server, threading, httpx, requests

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(2 * len(body)))
        self.end_headers()
        self.wfile.write(2 * body)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}/x?secret=1"
for _ in range(5):
    assert requests.post(url, data=b"12345").content == b"1234512345"
    assert httpx.post(url, content=b"12345").content == b"1234512345"

async def main():
    async with httpx.AsyncClient() as client:
        for _ in range(5):
            await client.post(url, content=b"12345")

asyncio.run(main())
server.shutdown()
"""


def test_requests_over_http(tmp_path: Path) -> None:
    done = run(tmp_path, HTTP)
    assert done.returncode == 0, done.stderr
    (group,) = gather([tmp_path / "trace"]).sums.groups
    ((name, sums),) = group.methods.items()
    assert (name.split(":")[0], "secret" in name) == ("POST 127.0.0.1", False)
    assert (sums.calls_count, sums.sized_sent_bytes, sums.sized_recv_bytes) == (15, 75, 150)


HTTP_BODIES = """
import gzip, http.server, socketserver, sys, threading, httpx, requests

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, body, **heads):
        self.send_response(code)
        for name, value in {**heads, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/token" and not self.headers["Token"]:
            self.answer(401, b"no")
        elif self.path == "/token":
            self.answer(200, b"yes")
        elif self.path == "/old":
            self.answer(302, b"old", Location="/new")
        else:
            self.answer(200, gzip.compress(bytes(100_000), mtime=0), Content_Encoding="gzip")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"")

    def do_PUT(self):
        while size := int(self.rfile.readline(), 16):
            self.rfile.read(size + 2)
        self.rfile.readline()
        self.answer(200, b"")

    def do_HEAD(self):
        self.answer(200, b"")

    def log_message(self, *_):
        pass

    def address_string(self):
        return ""

class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
unix_server = UnixServer("http.sock", Handler)
for each in (server, unix_server):
    threading.Thread(target=each.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}"
assert len(requests.get(url + "/old").content) == 100_000
assert len(httpx.get(url + "/old", follow_redirects=True).content) == 100_000
session = requests.Session()

def look(response, **_):
    if response.request.method == "GET":
        session.head(url + "/new")

def refresh(response, **options):
    if response.status_code == 401:
        assert response.content == b"no"
        response.request.headers["Token"] = "1"
        return refreshing.send(response.request, **options)

session.hooks["response"] = look
refreshing = requests.Session()
refreshing.hooks["response"] = refresh
assert refreshing.get(url + "/token").content == b"yes"
session.get(url.replace("//", "//user:secret@") + "/new")

class Choosing(requests.Session):
    chosen_count = 0

    def get_adapter(self, url):
        self.chosen_count += 1
        return super().get_adapter(url)

choosing = Choosing()
choosing.head(url + "/new")
assert choosing.chosen_count == 1
httpx.put(url, content=iter([b"x" * 1000]))
requests.post(url, data="\u4e2d" * 10)
httpx.post(url, content="\u4e2d" * 10)
with httpx.Client(transport=httpx.HTTPTransport(uds="http.sock")) as client:
    client.post("http://unix/", content=b"x")
"""


def test_bytes_of_http_are_those_on_the_wire_and_redirects_count_once(tmp_path: Path) -> None:
    done = run(tmp_path, HTTP_BODIES)
    assert done.returncode == 0, done.stderr
    told = {
        (group.segment.transport, name.split()[0]): (sums.calls_count, sums.sized_sent_bytes, sums.sized_recv_bytes)
        for group in gather([tmp_path / "trace"]).sums.groups
        for name, sums in group.methods.items()
    }
    assert not any("secret" in name for group in gather([tmp_path / "trace"]).sums.groups for name in group.methods)
    page_bytes = len(gzip.compress(bytes(100_000), mtime=0))
    assert told == {
        ("TCP", "GET"): (5, 0, 2 * (len(b"old") + page_bytes) + page_bytes + len(b"no") + len(b"yes")),
        ("TCP", "HEAD"): (2, 0, 0),
        ("TCP", "PUT"): (1, 0, 0),  # of which none is known
        ("TCP", "POST"): (2, 60, 0),
        ("UNIX", "POST"): (1, 1, 0),
    }


LOOKED_FOR = """
import importlib.util, sys
assert importlib.util.find_spec("zmq")
folders = [folder for folder in sys.path if folder.endswith("site-packages")]
for folder in folders:
    sys.path.remove(folder)
try:
    import zmq
except ImportError:
    sys.path += folders
    import zmq
else:
    raise SystemExit("it was found")
with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
    one.bind("inproc://x")
    other.connect("inproc://x")
    one.send(b"x")
    other.recv()
"""


def test_a_library_that_was_looked_for_before_it_was_imported_is_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, LOOKED_FOR)
    assert done.returncode == 0, done.stderr
    assert sum(counts(tmp_path).values()) == 2


def test_modules_that_share_a_loader_begin_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of one zip file do."""
    place = tmp_path / "modules.zip"
    with ZipFile(place, "w") as modules:
        modules.writestr("first_of_zip.py", "import second_of_zip\nbegun = []\n")
        modules.writestr("second_of_zip.py", "")
        modules.writestr("third_of_zip.py", "")
        modules.writestr("begins_zip.py", "def begin():\n    import first_of_zip\n    first_of_zip.begun.append(1)\n")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    begin_with_imports({"first_of_zip": "begins_zip:begin"})
    assert import_module("first_of_zip").begun == [1]
    import_module("third_of_zip")
    assert import_module("first_of_zip").begun == [1]


ODD_LOADERS = """
import importlib.machinery, sys

class Slotted:
    __slots__ = ()

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.version = 1

class Uncopied(Slotted):
    __slots__ = ("__dict__",)

    def __reduce_ex__(self, protocol):
        raise TypeError("not this one")

class Finder:
    def find_spec(self, name, path=None, target=None):
        kinds = {"requests": Slotted, "httpx": Uncopied}
        return importlib.machinery.ModuleSpec(name, kinds[name]()) if name in kinds else None

sys.path[:] = [folder for folder in sys.path if not folder.endswith("site-packages")]
sys.meta_path.append(Finder())
import httpx, requests
print(httpx.version, requests.version)
"""


def test_a_library_whose_loader_cannot_be_replaced_is_imported_all_the_same(tmp_path: Path) -> None:
    done = run(tmp_path, ODD_LOADERS)
    assert (done.returncode, done.stdout) == (0, "1 1\n"), done.stderr
    assert all(f"{name} is not recorded" in done.stderr for name in ("httpx", "requests"))


INTERPRETERS = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import multiprocessing.connection
one, other = multiprocessing.Pipe()
for turn in range(3):
    one.send(turn)
    other.recv()
    number = interpreters.create()
    interpreters.run_string(number, "import multiprocessing as m, multiprocessing.connection\\na, b = m.Pipe()\\n"
                                    "a.send(1); b.recv()")
    one.send(turn)
    other.recv()
    interpreters.destroy(number)
"""


def test_interpreters_of_one_process_record_apart(tmp_path: Path) -> None:
    done = run(tmp_path, INTERPRETERS)
    assert done.returncode == 0, done.stderr
    assert set(counts(tmp_path).values()) == {9}


SENDING_HANDLER = """
import signal, zmq
context = zmq.Context()
push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
push.sndhwm = pull.rcvhwm = 1
push.bind("inproc://x")
pull.connect("inproc://x")

def handle(*_):  # while the program waits to send: one that does not fit, and, after it has made room, one that does
    try:
        push.send(b"beat", zmq.NOBLOCK)
    except zmq.Again:
        pass
    pull.recv()
    push.send(b"from the handler")
    pull.recv()

signal.signal(signal.SIGALRM, handle)
for _ in range(3):
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        while True:
            push.send(b"x", zmq.NOBLOCK)
    except zmq.Again:
        pass
    push.send(b"main")
print("done")
"""


@pytest.mark.parametrize("pure", ["", "1"])
def test_a_handler_may_send_on_the_socket_on_which_the_program_waits_to_send(tmp_path: Path, pure: str) -> None:
    done = run(tmp_path, SENDING_HANDLER, env={**os.environ, "IPCBENCH_PURE": pure})
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    sent = counts(tmp_path)["program (client)", "PUSH inproc://x"]
    assert sent == 3 + 3 + (counts(tmp_path)["program (receiver)", "PULL inproc://x"] - 6) + 2


THREADS = """
import threading, zmq
context = zmq.Context()
together = threading.Barrier(8)

def work(number):
    a, b = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    a.bind(f"inproc://{number}")
    b.connect(f"inproc://{number}")
    together.wait()
    for _ in range(50):
        a.send(b"x")
        b.recv()

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_begin_together_lose_no_call(tmp_path: Path) -> None:
    """The first call of a process starts its recorder; calls of other threads wait for that."""
    for turn in range(3):
        folder = tmp_path / str(turn)
        folder.mkdir()
        done = run(folder, THREADS)
        assert done.returncode == 0, done.stderr
        assert sum(counts(folder).values()) == 8 * 100


def test_a_green_socket_can_be_wrapped(tmp_path: Path) -> None:
    code = GREENLETS.replace("port = server", 'from ipcbench import trace\ntrace.wrap(server, "served")\nport = server')
    done = run(tmp_path, code.replace("client.connect(", 'trace.wrap(client, "asked")\n    client.connect('),
               "--instrument", "redis")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert counts(tmp_path) == {("program (client)", "asked"): 200, ("program (server)", "served"): 200}


def test_a_function_of_the_users_own_pairs_the_messages_of_a_dealer(tmp_path: Path) -> None:
    zmq = pytest.importorskip("zmq")

    def correlate(frames: Any) -> Ids:
        kind, number = bytes(frames[-1]).split()
        return Ids(own=number) if kind == b"ask" else Ids(answers=number) if kind == b"answer" else Ids()

    trace.start(tmp_path / "trace")
    with zmq.Context() as context, context.socket(zmq.DEALER) as asks, context.socket(zmq.ROUTER) as answers:
        asks.connect(f"tcp://127.0.0.1:{answers.bind_to_random_port('tcp://127.0.0.1')}")
        for socket, name in ((asks, "asks"), (answers, "answers")):
            trace.wrap(socket, name, correlate=correlate)
        for number in range(10):
            asks.send(b"ask %d" % number)
        asks.send(b"tell 1")
        requests = [answers.recv_multipart() for _ in range(11)]
        for identity, text in reversed(requests[:9]):  # the last request gets no reply
            answers.send_multipart([identity, text.replace(b"ask", b"answer")])
        for _ in range(9):
            asks.recv()
    trace.stop()
    found = {
        (name, *group.stages): sums.calls_count
        for group in gather([tmp_path / "trace"]).sums.groups
        for name, sums in group.methods.items()
    }
    assert found == {("asks", "send", "wait"): 9, ("asks", "send"): 2, ("answers", "queue", "work", "reply"): 9,
                     ("answers", "receive"): 2}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/python3", "-u", "/a/app.py", "--secret"], "app"),
        (["python3.11", "-m", "package.tool", "x"], "package.tool"),
        (["python", "-c", "secret()"], "python"),
        ("/bin/ls -l secret", "ls"),
        ([b"/bin/ls", b"x"], "ls"),
        ([], "?"),
    ],
)
def test_a_process_is_named_without_its_arguments(command: Any, name: str) -> None:
    assert name_of(command) == name


@pytest.mark.parametrize(
    ("command", "alone"),
    [
        (["/usr/bin/python3", "-I", "app.py"], True),
        (["python3", "-uS", "-c", "pass"], True),
        (["python3", "-X", "dev", "-E", "-m", "app"], False),  # what follows -X looks like a program
        (["python3", "-Xdev", "-E", "-m", "app"], True),
        (["python3", "-c", "-I"], False),
        (["python3", "-mIS"], False),
        (["python3", "app.py", "-I"], False),
        (["python3", "--help", "-I"], True),
        (["sh", "-S"], False),
        (b"python3", False),
        ([], False),
    ],
)
def test_a_python_that_takes_no_notice_of_its_environment_is_known(command: Any, alone: bool) -> None:
    assert is_alone(command) is alone


def test_a_python_on_its_own_is_not_taken_for_one_below_a_shell(tmp_path: Path) -> None:
    events = [
        {"event": "began", "pid": 1, "ppid": 0},
        {"event": "started", "pid": 1, "ppid": 0, "name": "python", "alone": True},
        {"event": "started", "pid": 1, "ppid": 0, "name": "sh", "alone": False},
        {"event": "began", "pid": 9, "ppid": 8},
    ]
    (tmp_path / "processes.jsonl").write_text("\n".join(map(json.dumps, events)))
    notes = Notes()
    read_processes(tmp_path, notes)
    assert (notes.processes_count, dict(notes.unseen)) == (2, {"python": 1})


def test_arguments_of_send_may_be_passed_by_their_places(tmp_path: Path) -> None:
    code = """
import zmq

class Passing(zmq.Socket):
    def send(self, data, flags=0, copy=True, track=False, routing_id=None, group=None):
        return super().send(data, flags, copy, track, routing_id, group)

context = zmq.Context()
out, plain, back = Passing(context, zmq.PUSH), context.socket(zmq.PUSH), context.socket(zmq.PULL)
back.bind("inproc://x")
for each in (out, plain):
    each.connect("inproc://x")
out.send(b"a")
plain.send(b"b", 0, True, False, None, None)
print(sorted(back.recv() for _ in range(2)))
"""
    done = run(tmp_path, code)
    assert (done.returncode, done.stdout) == (0, "[b'a', b'b']\n"), done.stderr
    assert counts(tmp_path)["program (client)", "PUSH inproc://x"] == 2


CLOSING = """
import os, tempfile, zmq

context = zmq.Context()
a, b = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
a.bind("inproc://x")
b.connect("inproc://x")
for turn in range(3):
    child = os.fork()
    if not child:
        from multiprocessing import Pipe
        old, end = Pipe()
        old.send(0), end.recv()
        os.closerange(3, 1000)  # as daemons do
        mine = [tempfile.TemporaryFile() for _ in range(8)]
        here, there = Pipe()
        for number in range(20_000):  # which fill some segments
            here.send(number), there.recv()
        for file in mine:
            file.write(b"x"), file.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print(len(os.listdir("/proc/self/fd")))
"""


def test_no_descriptor_of_the_program_is_closed_or_kept(tmp_path: Path) -> None:
    plain = subprocess.run([sys.executable, "-c", CLOSING], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    done = run(tmp_path, CLOSING)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", plain.stdout)


def test_a_thread_that_ends_in_a_full_folder_leaves_nothing_that_breaks(tmp_path: Path) -> None:
    """What it recorded into becomes garbage in a cycle, while the collector may come at any moment."""
    code = """
import gc, threading
from multiprocessing import Pipe

here, there = Pipe()

def use(count):
    for number in range(count):
        here.send(number), there.recv()

for _ in range(3):
    thread = threading.Thread(target=use, args=(3000,))
    thread.start()
    thread.join()
    use(1)
    rubbish = [[number] for number in range(100_000)]
    gc.collect()
print("end")
"""
    done = run(tmp_path, code, "--max-bytes", "200KiB")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


REFUSING = {
    "audit": "def hook(event, _):\n    if event == 'open': raise RuntimeError('refused')\nsys.addaudithook(hook)",
    "import": "def refuse(*_, **__): raise RuntimeError('refused')\nbuiltins.__import__ = refuse",
    "finder": "class Finder:\n    def find_spec(*_): raise RuntimeError('refused')\nsys.meta_path.insert(0, Finder())",
    "open": "mock.patch('os.open', side_effect=RuntimeError).start()",
    "odd open": "mock.patch('os.open').start()",
    "host": "mock.patch('socket.gethostname').start()",
    "clock": "mock.patch('time.time_ns', return_value=0).start()",
}


@pytest.mark.parametrize("what", REFUSING)
def test_a_program_that_forbids_or_replaces_what_recording_takes_goes_on(tmp_path: Path, what: str) -> None:
    code = "import builtins, encodings.idna, sys\nfrom multiprocessing import Pipe\nfrom unittest import mock\n"
    code += f"here, there = Pipe()\n{REFUSING[what]}\nfor number in range(3):\n    here.send(number)\n"
    code += "print([there.recv() for _ in range(3)])\n"
    done = run(tmp_path, code)
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2]\n"), done.stderr
    if what == "clock":
        command = [sys.executable, "-m", "ipcbench", "trace", "tail", str(tmp_path / "trace"), "--format", "jsonl"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        assert json.loads(told.stdout.splitlines()[0])["begin_unix_ns"] > 1.6e18


def test_a_finder_of_the_program_is_asked_once(tmp_path: Path) -> None:
    code = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "zmq":
            print("asked")

sys.meta_path.insert(0, Finder())
import zmq
"""
    assert run(tmp_path, code).stdout == "asked\n"


def test_no_finding_promises_more_than_the_traced_time(tmp_path: Path) -> None:
    """Both ends have one name, and calls of a µs: tracing costs as much."""
    code = """
import zmq
context = zmq.Context()
a, b = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
a.bind("inproc://x")
b.connect("inproc://x")
for _ in range(200):
    a.send(b"x")
    b.recv()
"""
    assert run(tmp_path, code).returncode == 0
    report = make_report(gather([tmp_path / "trace"]))
    assert report.total_ns == sum(group.total_ns for group in report.gathered.sums.groups)
    assert report.findings
    assert all((finding.gain_ns or 0.0) <= report.total_ns for finding in report.findings)


def test_a_folder_is_not_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "same").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="given twice"):
        gather([tmp_path, tmp_path / "same"])


def test_damaged_notes_of_processes_are_left_out(tmp_path: Path) -> None:
    lines = [
        '{"event": "began", "pid": 1, "ppid": 0}',
        "{",
        "7",
        '{"event": "began", "pid": "x", "ppid": 1}',
        '{"event": "started", "pid": 1, "ppid": 0, "name": "a\\u001b[31m"}',
        '{"event": "started", "pid": 1',
    ]
    (tmp_path / "processes.jsonl").write_text("\n".join(lines))
    notes = Notes()
    read_processes(tmp_path, notes)
    assert (notes.processes_count, dict(notes.unseen)) == (1, {"a�[31m": 1})


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            ["sh", "-c", "true"],
            "0 Python processes were watched, and no call of theirs is one that is recorded and was chosen (`--only`, "
            "`--exclude`); not seen: sh × 1",
        ),
        ([sys.executable, "-S", "-c", "pass"], "0 Python processes were watched"),
        ([sys.executable, "-c", "pass"], "1 Python processes were watched"),
    ],
)
def test_a_program_that_could_not_be_seen_is_named(tmp_path: Path, command: list[str], told: str) -> None:
    ipcbench = [sys.executable, "-m", "ipcbench", "trace"]
    subprocess.run([*ipcbench, "run", "--out", str(tmp_path / "trace"), "--", *command], check=True, timeout=60)
    report = [*ipcbench, "report", str(tmp_path / "trace")]
    done = subprocess.run(report, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert told in done.stderr


def test_an_instrument_that_fails_is_said_and_the_import_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    name = "wave"  # a module that nothing else here imports
    assert name not in sys.modules
    before = list(sys.meta_path)
    try:
        begin_with_imports({name: "no.such:function"})
        __import__(name)
    finally:
        sys.meta_path[:] = before
    assert "wave is not recorded: ModuleNotFoundError" in caplog.text
    with pytest.raises(ConfigError):
        targets(["nothing"])
