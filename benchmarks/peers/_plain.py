"""The plainest correct script over each library: what a careful author writes in an afternoon, to set a backend beside.

A script opens one writer and N readers of a stream that loses nothing. None of them has what a channel promises beyond
that: time-outs, the end of the stream, the death of a peer, refusal of a message that is too large or of an endpoint
that is open already, endpoints that open in any order, removal of what a killed process left behind.
"""

from __future__ import annotations

import array
import asyncio
import collections
import ctypes
import functools
import glob
import json
import os
import pickle
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import iceoryx2_pubsub
import lmdb
import zmq
from _common import End

from ipcbench.backends import gloo
from ipcbench.backends.iox2 import held_messages
from ipcbench.backends.lmdb.database import Layout as LmdbLayout
from ipcbench.spec import ChannelSpec
from ipcbench.sync.ring_memory import LINE_BYTES, RING_BYTES, in_lines

_LINE_WORDS = 8
_SPARE_BYTES = 2**24
_LINGER_MS = 10_000
_LARGE_BYTES = 2**20

Write = Callable[[bytes], object]
Read = Callable[[], Any]
Script = tuple[End, list[End]]
"""The writer and the readers."""


@contextmanager
def zmq_script(transport: str, channel: ChannelSpec) -> Iterator[Script]:
    """Stream over XPUB with XPUB_NODROP, which blocks instead of dropping, and a SUB per reader; high-water marks of
    `depth`.
    """
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as folder:
        endpoint = f"ipc://{folder}/s"
        if transport == "tcp":
            with socket.create_server(("127.0.0.1", 0)) as server:
                endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        readers = [(zmq_reader, (endpoint, channel.depth))] * channel.readers
        yield (zmq_writer, (endpoint, channel.depth, channel.readers)), readers


@contextmanager
def zmq_writer(endpoint: str, depth: int, readers: int) -> Iterator[Write]:
    """Open the writer after the readers; return when all have subscribed."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.xpub_nodrop = 1
        publisher.xpub_verbose = 1
        publisher.sndhwm = depth
        publisher.linger = _LINGER_MS
        publisher.bind(endpoint)
        for _ in range(readers):
            publisher.recv()
        yield publisher.send


@contextmanager
def zmq_reader(endpoint: str, depth: int) -> Iterator[Read]:
    """Open a reader."""
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.rcvhwm = depth
        subscriber.linger = 0
        subscriber.connect(endpoint)
        subscriber.subscribe(b"")
        yield subscriber.recv


@contextmanager
def shm_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream through a ring of slots: `[sequence][size][payload]`. Whoever waits polls and yields."""
    memory = get_context("spawn").RawArray("B", _ring_bytes(channel))
    readers = [(shm_reader, (memory, channel, index)) for index in range(channel.readers)]
    yield (shm_writer, (memory, channel)), readers


def _slot_bytes(channel: ChannelSpec) -> int:
    return in_lines(16 + channel.max_message_bytes)


def _ring_bytes(channel: ChannelSpec) -> int:
    """Return the size of a ring of `depth` slots, or of as many as fit in a cache, but four."""
    slots = min(channel.depth, max(4, RING_BYTES // _slot_bytes(channel)))
    return LINE_BYTES * channel.readers + slots * _slot_bytes(channel)


def _ring(memory: Any, channel: ChannelSpec) -> tuple[memoryview, list[tuple[memoryview, int]]]:
    """Return the words of the memory, and the payload and the first word of each slot."""
    total_bytes, view = _ring_bytes(channel), memoryview(memory).cast("B")
    starts = range(LINE_BYTES * channel.readers, total_bytes, _slot_bytes(channel))
    slots = [(view[start + 16 : start + 16 + channel.max_message_bytes], start // 8) for start in starts]
    return view[:total_bytes].cast("Q"), slots


@contextmanager
def shm_writer(memory: Any, channel: ChannelSpec) -> Iterator[Write]:
    """Open the writer; word 8i counts the messages that reader i is done with."""
    words, slots = _ring(memory, channel)
    done, count = [_LINE_WORDS * index for index in range(channel.readers)], len(slots)
    sequence = room = 0

    def write(message: bytes) -> None:
        nonlocal sequence, room
        while sequence >= room:
            room = min([words[word] for word in done]) + count
            if sequence >= room:
                os.sched_yield()
        payload, head = slots[sequence % count]
        payload[: len(message)] = message
        words[head + 1] = len(message)
        sequence += 1
        words[head] = sequence

    yield write


@contextmanager
def shm_reader(memory: Any, channel: ChannelSpec, index: int) -> Iterator[Read]:
    """Open a reader, which returns the slot's own memory and is done with it when it reads again."""
    words, slots = _ring(memory, channel)
    mine, count, sequence = _LINE_WORDS * index, len(slots), 0

    def read() -> memoryview:
        nonlocal sequence
        words[mine] = sequence
        payload, head = slots[sequence % count]
        sequence += 1
        while words[head] != sequence:
            os.sched_yield()
        return payload[: words[head + 1]]

    yield read


@contextmanager
def lmdb_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream through a ring of keys, with a transaction per message and counters in shared memory. Whoever waits polls
    and yields.
    """
    layout = LmdbLayout(channel)
    slots = channel.depth if channel.max_message_bytes <= layout.small_bytes else layout.large_count
    words = get_context("spawn").RawArray("B", 8 * _LINE_WORDS * (channel.readers + 1))
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as path:
        where = path, layout.map_bytes + _SPARE_BYTES, words, slots
        _environment(path, where[1]).close()
        readers = [(lmdb_reader, (*where, index)) for index in range(channel.readers)]
        yield (lmdb_writer, (*where, channel.readers)), readers


def _environment(path: str, map_bytes: int) -> lmdb.Environment:
    return lmdb.open(path, map_size=map_bytes, writemap=True, sync=False, max_spare_txns=1)


@contextmanager
def lmdb_writer(path: str, map_bytes: int, memory: Any, slots: int, readers: int) -> Iterator[Write]:
    """Open the writer; word 0 counts messages written, word 8 + 8i those that reader i is done with."""
    words = memoryview(memory).cast("B").cast("Q")
    keys = [number.to_bytes(4, "big") for number in range(slots)]
    done = [_LINE_WORDS * (index + 1) for index in range(readers)]
    sequence = room = 0
    with _environment(path, map_bytes) as env:

        def write(message: bytes) -> None:
            nonlocal sequence, room
            while sequence >= room:
                room = min([words[word] for word in done]) + slots
                if sequence >= room:
                    os.sched_yield()
            with env.begin(write=True) as txn:
                txn.put(keys[sequence % slots], message)
            sequence += 1
            words[0] = sequence

        yield write


@contextmanager
def lmdb_reader(path: str, map_bytes: int, memory: Any, slots: int, index: int) -> Iterator[Read]:
    """Open a reader, which returns the database's own memory and is done with it when it reads again."""
    words = memoryview(memory).cast("B").cast("Q")
    keys = [number.to_bytes(4, "big") for number in range(slots)]
    mine, sequence, txn = _LINE_WORDS * (index + 1), 0, None
    with _environment(path, map_bytes) as env:

        def read() -> Any:
            nonlocal sequence, txn
            if txn is not None:
                txn.abort()
                words[mine] = sequence
            while words[0] <= sequence:
                os.sched_yield()
            txn = env.begin(buffers=True)
            sequence += 1
            return txn.get(keys[(sequence - 1) % slots])

        yield read
        if txn is not None:
            txn.abort()


@contextmanager
def pipe_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream through a `multiprocessing.Pipe` per reader; the kernel's buffers limit how far a reader may be behind."""
    pairs = [get_context("spawn").Pipe() for _ in range(channel.readers)]
    try:
        yield (
            (pipe_writer, tuple(ours for ours, _ in pairs)),
            [(pipe_reader, (theirs,)) for _, theirs in pairs],
        )
    finally:
        for pair in pairs:
            for connection in pair:
                connection.close()


@contextmanager
def pipe_writer(*connections: Connection) -> Iterator[Write]:
    """Give what sends to each reader in turn."""
    if len(connections) == 1:
        yield connections[0].send_bytes
        return

    def write(message: bytes) -> None:
        for connection in connections:
            connection.send_bytes(message)

    yield write


@contextmanager
def pipe_reader(connection: Connection) -> Iterator[Read]:
    """Give what receives."""
    yield connection.recv_bytes


@contextmanager
def grpc_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream by a call with a streaming response to each reader, over a Unix socket; bytes as they are. HTTP/2's own
    flow control limits how far a reader may be behind what has left a queue of `depth`.
    """
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as folder:
        target = f"unix:{folder}/s"
        yield (grpc_writer, (target, channel.depth, channel.readers)), [(grpc_reader, (target,))] * channel.readers


_GRPC_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


@contextmanager
def grpc_writer(target: str, depth: int, readers: int) -> Iterator[Write]:
    """Open the writer; return when all readers have called."""
    import grpc

    calls: queue.Queue[queue.Queue[bytes | None]] = queue.Queue()

    def stream(_request: bytes, _context: Any) -> Iterator[bytes]:
        messages: queue.Queue[bytes | None] = queue.Queue(depth)
        calls.put(messages)
        yield from iter(messages.get, None)

    handlers = grpc.method_handlers_generic_handler("Plain", {"Read": grpc.unary_stream_rpc_method_handler(stream)})
    server = grpc.server(ThreadPoolExecutor(readers), (handlers,), options=_GRPC_OPTIONS)
    server.add_insecure_port(target)
    server.start()
    queues = [calls.get() for _ in range(readers)]

    def write(message: bytes) -> None:
        for messages in queues:
            messages.put(message)

    yield write
    for messages in queues:
        messages.put(None)
    server.stop(_LINGER_MS / 1000).wait()


@contextmanager
def grpc_reader(target: str) -> Iterator[Read]:
    """Open a reader, before or after the writer."""
    import grpc

    with grpc.insecure_channel(target, options=_GRPC_OPTIONS) as connection:
        call = connection.unary_stream("/Plain/Read")(b"", wait_for_ready=True)
        yield functools.partial(next, call)
        call.cancel()


@contextmanager
def flight_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream by a DoPut to each reader, which serves at a Unix socket: opaque bytes, or a record batch if large. It
    sends a receipt every half `depth`.
    """
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as folder:
        places = [f"grpc+unix://{folder}/{index}" for index in range(channel.readers)]
        how = channel.depth, channel.max_message_bytes >= _LARGE_BYTES
        yield (flight_writer, (places, *how)), [(flight_reader, (place, *how)) for place in places]


@contextmanager
def flight_writer(places: list[str], depth: int, is_large: bool) -> Iterator[Write]:
    """Open the writer, after the readers."""
    import pyarrow
    from pyarrow import flight

    schema = pyarrow.schema([("bytes", pyarrow.uint8())])
    clients = [flight.FlightClient(place) for place in places]
    streams = [client.do_put(flight.FlightDescriptor.for_command(b"write"), schema) for client in clients]
    count = 0

    def write(message: bytes) -> None:
        nonlocal count
        if count >= depth and count % (depth // 2) == 0:
            for _, receipts in streams:
                receipts.read()
        count += 1
        if is_large:
            column = pyarrow.Array.from_buffers(pyarrow.uint8(), len(message), [None, pyarrow.py_buffer(message)])
            batch = pyarrow.RecordBatch.from_arrays([column], schema=schema)
        for stream, _ in streams:
            if is_large:
                stream.write_batch(batch)
            else:
                stream.write_metadata(message)

    yield write
    for stream, _ in streams:
        stream.close()


@contextmanager
def flight_reader(place: str, depth: int, is_large: bool) -> Iterator[Read]:
    """Open a reader, before the writer."""
    from pyarrow import flight

    arrivals: queue.Queue[tuple[Any, Any]] = queue.Queue()
    done = threading.Event()

    class Server(flight.FlightServerBase):  # type: ignore[misc] # whose base is Any
        def do_put(self, _context: Any, _descriptor: Any, stream: Any, receipts: Any) -> None:
            arrivals.put((stream, receipts))
            done.wait()

    with Server(place):
        stream, receipts, count = None, None, 0

        def read() -> Any:
            nonlocal stream, receipts, count
            if stream is None:
                stream, receipts = arrivals.get()
            chunk = stream.read_chunk()
            count += 1
            if count % (depth // 2) == 0:
                receipts.write(b"read")
            return chunk.data.column(0).buffers()[1] if is_large else chunk.app_metadata

        yield read
        done.set()


@contextmanager
def redis_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream through a list per reader of a server of its own. When the writer has pushed as many messages as there was
    room for, it looks how long the lists are.
    """
    lists = [f"reader-{index}" for index in range(channel.readers)]
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as folder:
        path = f"{folder}/s"
        server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
        try:
            while not os.path.exists(path):
                time.sleep(0.01)
            readers = [(redis_reader, (path, each)) for each in lists]
            yield (redis_writer, (path, lists, channel.depth)), readers
        finally:
            server.kill()
            server.wait()


@contextmanager
def redis_writer(path: str, lists: list[str], depth: int) -> Iterator[Write]:
    """Open the writer; while there is no room, it looks every half millisecond."""
    import redis

    room = 0
    with redis.Redis(unix_socket_path=path) as client:

        def push(message: bytes) -> None:
            if len(lists) == 1:
                client.rpush(lists[0], message)
                return
            pushes = client.pipeline()
            for each in lists:
                pushes.rpush(each, message)
            pushes.execute()

        def write(message: bytes) -> None:
            nonlocal room
            while room <= 0:
                room = depth - max(client.llen(each) for each in lists)
                if room <= 0:
                    time.sleep(0.0005)
            push(message)
            room -= 1

        yield write


@contextmanager
def redis_reader(path: str, messages: str) -> Iterator[Read]:
    """Give what receives."""
    import redis

    with redis.Redis(unix_socket_path=path) as client:
        yield lambda: client.blpop(messages)[1]


@contextmanager
def zenoh_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream by a key per reader over a Unix socket. BLOCK alone loses messages of slow readers: each says by a key of
    its own how many it has read.
    """
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as folder:
        place = f"unixsock-stream/{folder}/s"
        readers = [(zenoh_reader, (place, channel.depth, index)) for index in range(channel.readers)]
        yield (zenoh_writer, (place, channel.depth, channel.readers)), readers


def _zenoh_session(**endpoints: list[str]) -> Any:
    import zenoh

    settings: dict[str, Any] = {"listen/endpoints": [], "connect/endpoints": []}
    settings |= {f"{role}/endpoints": places for role, places in endpoints.items()}
    settings |= {"connect/timeout_ms": -1, "connect/exit_on_failure": False}
    settings |= {"scouting/multicast/enabled": False, "scouting/gossip/enabled": False}
    settings |= {"open/return_conditions/connect_scouted": False, "transport/shared_memory/enabled": False}
    config = zenoh.Config()
    for name, value in settings.items():
        config.insert_json5(name, json.dumps(value))
    return zenoh.open(config)


@contextmanager
def zenoh_writer(place: str, depth: int, readers: int) -> Iterator[Write]:
    """Open the writer; return when all readers have subscribed."""
    import zenoh

    sent, read = 0, [0] * readers
    with _zenoh_session(listen=[place]) as session:
        receipts = session.declare_subscriber("read/*", zenoh.handlers.FifoChannel(depth * readers))
        block = zenoh.CongestionControl.BLOCK
        publishers = [session.declare_publisher(f"reader/{each}", congestion_control=block) for each in range(readers)]
        while not all(publisher.matching_status.matching for publisher in publishers):
            time.sleep(0.001)

        def write(message: bytes) -> None:
            nonlocal sent
            while sent - min(read) >= depth:
                index, count = array.array("q", receipts.recv().payload.to_bytes())
                read[index] = count
            payload = zenoh.ZBytes(message)
            for publisher in publishers:
                publisher.put(payload)
            sent += 1

        yield write
        while min(read) < sent:  # what it has not sent goes with its session
            index, count = array.array("q", receipts.recv().payload.to_bytes())
            read[index] = count


@contextmanager
def zenoh_reader(place: str, depth: int, index: int) -> Iterator[Read]:
    """Open a reader; it says after every quarter of `depth` how many it has read."""
    import zenoh

    count, batch = 0, max(1, depth // 4)
    with _zenoh_session(connect=[place]) as session:
        block = zenoh.CongestionControl.BLOCK
        receipts = session.declare_publisher(f"read/{index}", congestion_control=block)
        subscriber = session.declare_subscriber(f"reader/{index}", zenoh.handlers.FifoChannel(depth))

        def read() -> bytes:
            nonlocal count
            message: bytes = subscriber.recv().payload.to_bytes()
            count += 1
            if count % batch == 0:
                receipts.put(array.array("q", [index, count]).tobytes())
            return message

        yield read
        receipts.put(array.array("q", [index, count]).tobytes())


@contextmanager
def nats_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream on a subject of a server of its own. Each reader says on another subject how much it has read, twice per
    `depth`; the server holds what is on its way.
    """
    most = max(2**26, 2 * channel.depth * (channel.max_message_bytes + 4096))
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as folder:
        with open(f"{folder}/conf", "w") as file:
            file.write(f'host: 127.0.0.1\nport: -1\nmax_payload: {2**26}\nmax_pending: {most}\nwrite_deadline: "1h"\n')
            file.write(f'ports_file_dir: "{folder}"\n')
        program = shutil.which("nats-server", path=f"{os.environ['PATH']}:/usr/sbin")
        server = subprocess.Popen([str(program), "-c", f"{folder}/conf"], stderr=subprocess.DEVNULL)
        try:
            while not (ports := glob.glob(f"{folder}/*.ports")) or not os.path.getsize(ports[0]):
                time.sleep(0.01)
            with open(ports[0]) as file:
                url = json.load(file)["nats"][0]
            readers = [(nats_reader, (url, channel.depth, index)) for index in range(channel.readers)]
            yield (nats_writer, (url, channel.depth, channel.readers)), readers
        finally:
            server.kill()
            server.wait()


@contextmanager
def nats_writer(url: str, depth: int, readers: int) -> Iterator[Write]:
    """Open the writer after the readers. Each endpoint has a loop, which runs in its calls."""
    import nats

    loop, done, sent = asyncio.new_event_loop(), dict.fromkeys(range(readers), 0), 0
    client = loop.run_until_complete(nats.connect(url))
    receipts = loop.run_until_complete(client.subscribe("receipts"))

    async def publish(message: bytes) -> None:
        while sent - min(done.values()) >= depth:
            receipt = await receipts.next_msg(None)
            index, count = receipt.data.split()
            done[int(index)] = int(count)
        await client.publish("messages", message)
        await client._flush_pending(force_flush=True)  # or the message is sent by the next call

    def write(message: bytes) -> None:
        nonlocal sent
        loop.run_until_complete(publish(message))
        sent += 1

    yield write
    loop.run_until_complete(client.flush())
    loop.run_until_complete(client.close())
    loop.close()


@contextmanager
def nats_reader(url: str, depth: int, index: int) -> Iterator[Read]:
    """Open a reader; return when the server knows it."""
    import nats

    loop, taken = asyncio.new_event_loop(), 0
    client = loop.run_until_complete(nats.connect(url))
    messages = loop.run_until_complete(client.subscribe("messages", pending_bytes_limit=-1))
    loop.run_until_complete(client.flush())

    async def take() -> bytes:
        nonlocal taken
        message = await messages.next_msg(None)
        taken += 1
        if taken % (depth // 2) == 0:
            await client.publish("receipts", b"%d %d" % (index, taken))
            await client._flush_pending(force_flush=True)
        return message.data

    yield lambda: loop.run_until_complete(take())
    loop.run_until_complete(client.close())
    loop.close()


@contextmanager
def iox2_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream by publish/subscribe of the depth that the backend has; a full subscriber makes the publisher retry, and
    whoever waits for a sample polls and yields.
    """
    domain = f"{channel.name}-plain"
    where = domain, "stream", channel.max_message_bytes, held_messages(channel), channel.readers
    try:
        yield (iox2_writer, where), [(iox2_reader, where)] * channel.readers
    finally:
        iceoryx2_pubsub.clean(domain)


@contextmanager
def iox2_writer(*where: Any) -> Iterator[Write]:
    """Open the writer after the readers."""
    service = iceoryx2_pubsub.Service(*where)
    publisher, memmove = service.publisher(), ctypes.memmove

    def write(message: bytes) -> None:
        sample = publisher.loan_slice_uninit(len(message))
        memmove(sample.payload_ptr, message, len(message))
        sample.assume_init().send()

    yield write


@contextmanager
def iox2_reader(*where: Any) -> Iterator[Read]:
    """Open a reader; what it gives is valid until it gives the next."""
    service = iceoryx2_pubsub.Service(*where)
    receive = service.subscriber().receive
    sample: Any = None  # its memory is valid as long as it is kept

    def read() -> memoryview:
        nonlocal sample
        while (received := receive()) is None:
            os.sched_yield()
        sample = received
        return sample.payload().as_memory_view().cast("B")

    yield read


@contextmanager
def nng_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream through a pair of sockets per reader, which block when their buffers of half of `depth` each are full."""
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as folder:
        urls = [f"ipc://{folder}/{index}" for index in range(channel.readers)]
        yield (nng_writer, (urls, channel.depth)), [(nng_reader, (url, channel.depth)) for url in urls]


@contextmanager
def nng_writer(urls: list[str], depth: int) -> Iterator[Write]:
    """Open the writer; nng tries again until the readers listen."""
    import pynng

    with ExitStack() as held:
        pairs = [held.enter_context(pynng.Pair0(send_buffer_size=depth // 2)) for _ in urls]
        for pair, url in zip(pairs, urls, strict=True):
            pair.dial(url, block=False)

        def write(message: bytes) -> None:
            for pair in pairs:
                pair.send(message)

        yield write


@contextmanager
def nng_reader(url: str, depth: int) -> Iterator[Read]:
    """Open a reader."""
    import pynng

    with pynng.Pair0(listen=url, recv_buffer_size=depth // 2) as pair:
        yield pair.recv


@contextmanager
def gloo_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream by `isend` of length and bytes to each reader; both sides have as many under way as the channel holds."""
    depth = gloo.held_messages(channel)
    with tempfile.TemporaryDirectory(prefix="ipcb-peers-") as folder:
        where = f"file://{folder}/store", channel.readers + 1
        readers = [(gloo_reader, (*where, 1 + i, depth, channel.max_message_bytes)) for i in range(channel.readers)]
        yield (gloo_writer, (*where, depth)), readers


def _gloo(url: str, world: int, rank: int) -> tuple[Any, Any, Callable[[], None]]:
    """Return torch, torch.distributed, and what joins the group of all processes, for which it waits."""
    import torch
    import torch.distributed as dist

    def join() -> None:
        dist.init_process_group("gloo", init_method=url, rank=rank, world_size=world)

    return torch, dist, functools.cache(join)


@contextmanager
def gloo_writer(url: str, world: int, depth: int) -> Iterator[Write]:
    """Open the writer, which joins the readers when it first writes."""
    torch, dist, join = _gloo(url, world, 0)
    sent: collections.deque[list[Any]] = collections.deque()

    def wait(most: int) -> None:
        while len(sent) > most:
            for work in sent.popleft():
                work.wait()

    def write(message: bytes) -> None:
        join()
        tensors = torch.tensor([len(message)]), torch.frombuffer(message, dtype=torch.uint8)
        sent.append([dist.isend(tensor, rank) for rank in range(1, world) for tensor in tensors])
        wait(depth)

    yield write
    wait(0)


@contextmanager
def gloo_reader(url: str, world: int, rank: int, depth: int, most_bytes: int) -> Iterator[Read]:
    """Open a reader, which joins the writer when it first reads, and asks for `depth` messages ahead."""
    torch, dist, join = _gloo(url, world, rank)
    rooms = [(torch.zeros(1, dtype=torch.int64), torch.empty(most_bytes, dtype=torch.uint8)) for _ in range(depth + 1)]
    free, asked = collections.deque(rooms), collections.deque()

    def read() -> memoryview:
        join()
        while len(free) > 1 or not asked:
            room = free.popleft()
            asked.append((room, [dist.irecv(tensor, 0) for tensor in room]))
        (length, message), works = asked.popleft()
        for work in works:
            work.wait()
        free.append((length, message))
        return memoryview(message.numpy())[: int(length)]

    yield read


@contextmanager
def mpi_script(kind: str, channel: ChannelSpec) -> Iterator[Script]:
    """Stream by the call that the backend is named after; MPI's own buffers limit how far a reader may be behind."""
    where = kind, channel.max_message_bytes
    yield (mpi_writer, where), [(mpi_reader, where)] * channel.readers


def _mpi(kind: str) -> tuple[Any, Any]:
    """Return mpi4py's module MPI and a communicator of all processes."""
    from mpi4py import MPI
    from mpi4py.util import pkl5

    comm = MPI.COMM_WORLD.Dup()
    return MPI, pkl5.Intracomm(comm) if kind == "mpi-pkl5" else comm


@contextmanager
def mpi_writer(kind: str, _most_bytes: int) -> Iterator[Write]:
    """Give what sends; `Bcast` does not carry a length, so that goes first."""
    mpi, comm = _mpi(kind)
    length, ranks = array.array("q", [0]), range(1, comm.Get_size())

    def bcast_buffer(message: bytes) -> None:
        length[0] = len(message)
        comm.Bcast(length, 0)
        comm.Bcast(message, 0)

    calls: dict[str, Write] = {
        "mpi": comm.bcast,
        "mpi-pkl5": lambda message: comm.bcast(pickle.PickleBuffer(message)),
        "mpi-buffer": bcast_buffer,
        "mpi-p2p": lambda message: mpi.Request.Waitall([comm.Isend(message, rank) for rank in ranks]),
    }
    yield calls[kind]


@contextmanager
def mpi_reader(kind: str, most_bytes: int) -> Iterator[Read]:
    """Give what receives; a buffer is kept."""
    mpi, comm = _mpi(kind)
    length, view, status = array.array("q", [0]), memoryview(bytearray(most_bytes)), mpi.Status()

    def bcast_buffer() -> memoryview:
        comm.Bcast(length, 0)
        message = view[: length[0]]
        comm.Bcast(message, 0)
        return message

    def receive() -> memoryview:
        comm.Recv(view, 0, status=status)
        return view[: status.Get_count()]

    bcast = functools.partial(comm.bcast, None)
    yield {"mpi": bcast, "mpi-pkl5": bcast, "mpi-buffer": bcast_buffer, "mpi-p2p": receive}[kind]


@contextmanager
def rma_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream through the same ring as beside `shm`, in a window of the writer's memory."""
    yield (rma_writer, (channel,)), [(rma_reader, (channel, index)) for index in range(channel.readers)]


@contextmanager
def _window(channel: ChannelSpec) -> Iterator[tuple[memoryview, list[tuple[memoryview, int]], Callable[[], None]]]:
    """Give the words and the slots of the ring, and what orders loads and stores."""
    mpi, comm = _mpi("mpi-rma")
    is_writer = comm.Get_rank() == 0
    window = mpi.Win.Allocate_shared(_ring_bytes(channel) if is_writer else 0, 1, comm=comm)
    window.Lock_all(mpi.MODE_NOCHECK)
    memory, _ = window.Shared_query(0)
    if is_writer:
        memoryview(memory)[:] = bytes(_ring_bytes(channel))
        window.Sync()
    comm.Barrier()
    yield *_ring(memory, channel), window.Sync
    window.Unlock_all()
    window.Free()


@contextmanager
def rma_writer(channel: ChannelSpec) -> Iterator[Write]:
    """Open the writer; word 8i counts the messages that reader i is done with."""
    with _window(channel) as (words, slots, sync):
        done, count = [_LINE_WORDS * index for index in range(channel.readers)], len(slots)
        sequence = room = 0

        def write(message: bytes) -> None:
            nonlocal sequence, room
            while sequence >= room:
                room = min([words[word] for word in done]) + count
                if sequence >= room:
                    os.sched_yield()
                else:
                    sync()
            payload, head = slots[sequence % count]
            payload[: len(message)] = message
            words[head + 1] = len(message)
            sequence += 1
            sync()
            words[head] = sequence

        yield write


@contextmanager
def rma_reader(channel: ChannelSpec, index: int) -> Iterator[Read]:
    """Open a reader, which returns the slot's own memory and is done with it when it reads again."""
    with _window(channel) as (words, slots, sync):
        mine, count, sequence = _LINE_WORDS * index, len(slots), 0

        def read() -> memoryview:
            nonlocal sequence
            sync()
            words[mine] = sequence
            payload, head = slots[sequence % count]
            sequence += 1
            while words[head] != sequence:
                os.sched_yield()
            sync()
            return payload[: words[head + 1]]

        yield read


@contextmanager
def ray_script(channel: ChannelSpec) -> Iterator[Script]:
    """Stream through a `ray.util.queue.Queue` of `depth` per reader, large messages by reference. The processes are
    connected to the cluster of the channel beside it already, since a process can be in one only.
    """
    names = [f"plain-{channel.name}-{index}" for index in range(channel.readers)]
    yield (ray_writer, (names, channel.depth)), [(ray_reader, (name, channel.depth)) for name in names]


def _ray_queue(name: str, depth: int) -> Any:
    from ray.util.queue import Queue  # type: ignore[import-not-found,unused-ignore]

    options = {"name": name, "get_if_exists": True, "lifetime": "detached", "num_cpus": 0}
    return Queue(maxsize=depth, actor_options=options)


@contextmanager
def ray_writer(names: list[str], depth: int) -> Iterator[Write]:
    """Open the writer, which waits for the answer of each queue."""
    import ray  # type: ignore[import-not-found,unused-ignore]

    queues = [_ray_queue(name, depth) for name in names]

    def write(message: bytes) -> None:
        what = [ray.put(message)] if len(message) >= _LARGE_BYTES else message
        for each in queues:
            each.put(what)

    yield write


@contextmanager
def ray_reader(name: str, depth: int) -> Iterator[Read]:
    """Open a reader."""
    import ray  # type: ignore[import-not-found,unused-ignore]

    source = _ray_queue(name, depth)

    def read() -> Any:
        what = source.get()
        return ray.get(what[0]) if isinstance(what, list) else what

    yield read


@dataclass(frozen=True, slots=True)
class Plain:
    """The plainest script beside a backend."""

    script: Callable[[ChannelSpec], AbstractContextManager[Script]]
    what: str
    """What it is, in a few words."""
    lacks: str
    """What it leaves out besides what all leave out."""


_NO_SLEEP = "sleep: whoever waits polls and yields the core"
_NO_MESSAGES = "a limit in messages: it ends where the kernel's buffers are full"
_NO_TIME_OUT_INSIDE = (
    "agreement before each call: a process that enters a call waits in it for the others, however long"
)
_LIMITS = "a limit that counts the kernel's buffers; a reader may also be behind by what these hold"

_LOOP_IN_CALLS = "life between calls: the client's loop runs in them"
_EACH_ANSWER = "write or read that does not wait for the server's answer"

PLAIN = {
    "shm": Plain(shm_script, "a ring in shared memory, as many slots", _NO_SLEEP),
    "lmdb": Plain(lmdb_script, "a ring of keys, a transaction per message, counters in shared memory", _NO_SLEEP),
    "pipe": Plain(pipe_script, "a `multiprocessing.Pipe` per reader", _NO_MESSAGES),
    "zmq": Plain(functools.partial(zmq_script, "ipc"), "XPUB with XPUB_NODROP, high-water marks = depth", _LIMITS),
    "zmq-tcp-insecure": Plain(functools.partial(zmq_script, "tcp"), "the same over TCP", _LIMITS),
    "grpc": Plain(grpc_script, "a streaming response to each reader, a queue of `depth` before it", _LIMITS),
    "flight": Plain(flight_script, "DoPut to each reader, receipts", _LIMITS),
    "nats": Plain(nats_script, "a subject for all readers, receipts on another", _LOOP_IN_CALLS),
    "redis": Plain(redis_script, "RPUSH to a list per reader, BLPOP", _EACH_ANSWER),
    "zenoh": Plain(zenoh_script, "a key per reader, receipts by another", "nothing more"),
    "iox2": Plain(iox2_script, "a publisher that retries until a sample is delivered", _NO_SLEEP),
    "nng": Plain(nng_script, "a `Pair0` per reader with buffers of half of `depth` on each side", _LIMITS),
    "gloo": Plain(gloo_script, "`isend` of length and bytes to each reader, `irecv` ahead", "nothing more"),
    "ray": Plain(ray_script, "a `ray.util.queue.Queue` per reader, large messages by reference", _EACH_ANSWER),
    "mpi": Plain(functools.partial(mpi_script, "mpi"), "`comm.bcast(message)`", _NO_TIME_OUT_INSIDE),
    "mpi-pkl5": Plain(functools.partial(mpi_script, "mpi-pkl5"), "`pkl5.Intracomm.bcast`", _NO_TIME_OUT_INSIDE),
    "mpi-buffer": Plain(
        functools.partial(mpi_script, "mpi-buffer"),
        "`comm.Bcast` of the length, then of the bytes",
        _NO_TIME_OUT_INSIDE,
    ),
    "mpi-p2p": Plain(functools.partial(mpi_script, "mpi-p2p"), "`Isend` to each reader, `Recv`", _NO_TIME_OUT_INSIDE),
    "mpi-rma": Plain(rma_script, "a ring in a window of shared memory", _NO_SLEEP),
}
