"""The ring of shared memory: in C and in Python, in any combination, every message arrives as it was written."""

from __future__ import annotations

import os
import select
import signal
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import numpy as np
import pytest

from ipcbench.backends.shm.backend import Shm
from ipcbench.backends.shm.mapping import Mapping
from ipcbench.errors import (
    ConfigError,
    EndOfStream,
    EndpointClosed,
    MessageTooLarge,
    PayloadTypeError,
    TransportError,
    TransportTimeout,
)
from ipcbench.spec import ChannelSpec
from ipcbench.sync import native_ring as ring
from ipcbench.sync.cursors import ON_FUTEX, READER_SLEEPS
from ipcbench.sync.futex import HAS_FUTEX
from ipcbench.sync.ring_memory import RING_BYTES, Layout
from ipcbench.testing.agents.client import until

KINDS = ["pure", "native"]
SIZES = [0, 1, 100, 104, 105, 5_000, 300_000, 2_000_000]
LIMIT_S = 60.0


def kind_of(kind: str, role: str) -> Any:
    if kind == "native" and ring.NATIVE is None:
        pytest.skip("the ring was not built in C here")
    return getattr(ring, f"{kind.capitalize()}Ring{role}")


@contextmanager
def opened(
    kinds: tuple[str, str], most_bytes: int, depth: int, readers: int = 1, **others: Any
) -> Iterator[tuple[Any, list[Any]]]:
    writer_kind, reader_kind = kind_of(kinds[0], "Writer"), kind_of(kinds[1], "Reader")
    channel = ChannelSpec(
        f"ipcb-ring-{os.getpid()}", readers=readers, max_message_bytes=most_bytes, depth=depth, **others
    )
    backend = Shm()
    address = backend.create(channel)
    writer = writer_kind(address, Mapping(address))
    ends = [reader_kind(address, Mapping(address), index) for index in range(readers)]
    try:
        yield writer, ends
    finally:
        for end in (writer, *ends):
            end.close()
        backend.destroy(address)


def written(end: Any, messages: list[bytes], most_bytes: int, random: Random) -> int:
    """Write some messages, or the first of them, by any verb; return how many of them were sent."""
    message, way = messages[0], random.randrange(5)
    if way == 0:
        end.write(message, 0)
    elif way == 1:
        cut = random.randint(0, len(message))
        end.write_parts([message[:cut], memoryview(message)[cut:], b""], 0)
    elif way == 2:
        return int(end.write_many(messages, 0))
    else:
        room = end.reserve(random.randint(len(message), most_bytes), 0)
        room[: len(message)] = message
        if way == 4:
            return 0  # and forget about it
        end.commit(len(message))
    return 1


@pytest.mark.parametrize("writer", KINDS)
@pytest.mark.parametrize("reader", KINDS)
def test_messages_of_any_size_arrive_in_order_and_views_stay(writer: str, reader: str) -> None:
    random = Random(f"{writer} {reader}")
    for most_bytes in SIZES:
        depth, readers = random.choice([2, 3, 16, 64, 1000]), random.choice([1, 2, 3])
        with opened((writer, reader), most_bytes, depth, readers) as (end, ends):
            sent: list[bytes] = []
            views: list[list[memoryview]] = [[] for _ in ends]
            counts = [0] * readers
            for _ in range(200):
                sizes = [
                    int(most_bytes * random.random() ** random.choice([1, 6])) for _ in range(random.randint(1, 3))
                ]
                messages = [random.randbytes(size) for size in sizes]
                try:
                    sent += messages[: written(end, messages, most_bytes, random)]
                except TransportTimeout:
                    assert len(sent) > min(count - len(held) for count, held in zip(counts, views, strict=True))
                for index, each in enumerate(ends):
                    while random.random() < 0.55 and counts[index] < len(sent):
                        held = views[index]
                        assert held == sent[counts[index] - len(held) : counts[index]]  # though the writer has gone on
                        if random.random() < 0.2:
                            held.clear()
                            each.release()
                        views[index] = (
                            each.read_many(random.randint(1, 5), 0) if random.random() < 0.5 else [each.read(0)]
                        )
                        counts[index] += len(views[index])
                        assert views[index] == sent[counts[index] - len(views[index]) : counts[index]]
            views.clear()


@pytest.mark.parametrize("writer", KINDS)
@pytest.mark.parametrize("ends", [False, True])
def test_a_reader_that_sleeps_on_a_word_is_woken(writer: str, ends: bool) -> None:
    """A ring that is lost would not be missed for 0.1 s, and then not count as a doze that ended well."""
    if ring.NATIVE is None or not HAS_FUTEX:
        pytest.skip("no reader sleeps on a word here")
    with opened((writer, "native"), 100, 8, wait="block") as (end, (reader,)):
        results: list[bytes] = []

        def read() -> None:
            try:
                results.append(bytes(reader.read(LIMIT_S)))
            except EndOfStream:
                results.append(b"")

        for number in range(20):
            reading = threading.Thread(target=read)
            reading.start()
            flags = end._map.memory[8 * READER_SLEEPS : 8 * READER_SLEEPS + 1]
            assert until(lambda: flags[0] == ON_FUTEX or bool(results), LIMIT_S)  # noqa: B023 # called at once
            flags.release()
            if ends and number == 19:
                end.close()
            else:
                end.write(b"%d" % number)
            reading.join()
        assert results == [b"%d" % number for number in range(20 - ends)] + [b""] * ends
        assert reader._dozes_count
        assert reader.waits.slept_count >= reader._dozes_count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("most_bytes", "depth"), [(8, 5), (100_000, 64), (5_000_000, 64)])
def test_as_many_messages_as_fit_are_held(kind: str, most_bytes: int, depth: int) -> None:
    with opened((kind, kind), most_bytes, depth) as (writer, (reader,)):
        layout = Layout(writer._cursors.channel)
        most = layout.arena_bytes // most_bytes if layout.arena_bytes else depth
        for _ in range(most):
            writer.write(bytes(most_bytes), 0)
        for _ in range(3 * most):
            with pytest.raises(TransportTimeout, match="full"):
                writer.write(bytes(most_bytes), 0)
            reader.read(0)
            with pytest.raises(TransportTimeout, match="full"):  # a view of it may still be in use
                writer.write(bytes(most_bytes), 0)
            reader._cursors.done_with(reader._cursors.words[reader._consumed_word] + 1)
            writer.write(bytes(most_bytes), 0)


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("most_bytes", [2**20, 2**22, 2**26, 2**30])
def test_a_large_channel_takes_little_more_than_one_message(most_bytes: int, readers: int) -> None:
    layout = Layout(ChannelSpec("ipcb-ring", readers=readers, max_message_bytes=most_bytes, depth=64))
    assert layout.total_bytes <= most_bytes + 4 * RING_BYTES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("message", [
    bytearray(b"12345678"), memoryview(b"12345678"), array("d", [1.0]), np.arange(2, dtype=np.int32), np.float64(1.0),
    np.zeros(1, np.complex64), np.zeros(1, [("a", "i4"), ("b", "f4")]), np.arange(8, dtype=np.uint8)[::1],
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_the_bytes_of_a_buffer_are_the_message(kind: str, message: Any) -> None:
    with opened((kind, kind), 8, 2) as (writer, (reader,)):
        writer.write(message)
        assert reader.read(0) == memoryview(message).tobytes()
        writer.write(message=message, timeout_s=0)
        assert len(reader.read(timeout_s=0)) == 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "message",
    ["text", 5, None, np.arange(8)[::2], np.array([object()])],
    ids=["text", "number", "none", "strided", "objects"],
)
def test_what_is_no_buffer_is_refused(kind: str, message: Any) -> None:
    with opened((kind, kind), 800, 2) as (writer, (reader,)):
        with pytest.raises(PayloadTypeError):
            writer.write(message)
        writer.write(b"next")
        assert reader.read(0) == b"next"


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_calls_are_errors_and_change_nothing(kind: str) -> None:
    with opened((kind, kind), 8, 2) as (writer, (reader,)):
        for call in (
            writer.write,
            lambda: writer.write(b"", 0, 0),
            lambda: writer.write(b"", other=1),
            lambda: reader.read(0, 0),
            lambda: reader.read(other=1),
        ):
            with pytest.raises(TypeError):
                call()
        with pytest.raises(MessageTooLarge):
            writer.write(bytes(9))
        writer.write(b"next")
        assert reader.read(0) == b"next"
        writer.close()
        reader.close()
        with pytest.raises(EndpointClosed):
            writer.write(b"x")
        with pytest.raises(EndpointClosed):
            reader.read(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_that_was_released_is_not_returned_again(kind: str) -> None:
    with opened((kind, kind), 8, 2) as (writer, (reader,)):
        for number in range(10):
            writer.write(b"%d" % number)
            view = reader.read(LIMIT_S)
            assert view == b"%d" % number
            view.release()


def test_an_endpoint_that_was_not_opened_is_an_error() -> None:
    if ring.NATIVE is None:
        pytest.skip("the ring was not built in C here")
    with pytest.raises(RuntimeError):
        ring.NATIVE.RingWriter().write(b"x")
    with pytest.raises(RuntimeError):
        ring.NATIVE.RingReader().read()


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_reserved_and_not_sent_takes_no_room_from_others(kind: str) -> None:
    """A defect: the arena was taken for larger than it is, and a message was overwritten before it was read."""
    large = 400_000
    with opened((kind, kind), 2**20, 64) as (writer, (reader,)):
        for given_up in (lambda: writer.commit(5), lambda: writer.reserve(2**20), lambda: writer.write(b"small")):
            for _ in range(9):
                writer.write(bytes(large))
                assert len(reader.read(0)) == large
            reader.release()
            writer.reserve(2**20)
            given_up()
            with suppress(TransportTimeout):
                reader.read(0)
            reader.release()
            sent = []
            with suppress(TransportTimeout):
                while len(sent) < 100:
                    writer.write(bytes([len(sent)]) * large, 0)
                    sent.append(len(sent))
            assert 0 < len(sent) < 100
            for number in sent:
                assert reader.read(0) == bytes([number]) * large
            reader.release()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wait", ["block", "auto"])
def test_a_handler_that_raises_loses_no_message(kind: str, wait: str) -> None:
    """Signals come while the reader sleeps, and just when a message comes."""

    is_reading = False

    def refuse(*_: object) -> None:
        if is_reading:
            raise InterruptedError

    before = signal.signal(signal.SIGUSR1, refuse)
    count, main = 200, threading.main_thread().ident
    with opened((kind, kind), 100, 8, wait=wait) as (writer, (reader,)):

        def write() -> None:
            for number in range(count):
                writer.write(b"%d" % number, LIMIT_S)
                signal.pthread_kill(main or 0, signal.SIGUSR1)

        thread = threading.Thread(target=write)
        got: list[bytes] = []
        thread.start()
        while True:
            was_alive, view = thread.is_alive(), None
            try:
                is_reading = True
                view = reader.read(0.05)
                is_reading = False
            except InterruptedError:
                is_reading = False
            except TransportTimeout:
                is_reading = False
                if not was_alive:
                    break
            if view is not None:
                got.append(bytes(view))
        thread.join()
    signal.signal(signal.SIGUSR1, before)
    lost = set(range(count)) - {int(message) for message in got}
    assert len(lost) <= count // 20  # a handler that runs just after the return of `read` loses what it returned
    assert got == sorted(got, key=int)


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_is_no_int_may_run_any_code(kind: str) -> None:
    with opened((kind, kind), 100, 8) as (writer, (reader,)):

        class Size:
            def __init__(self, act: Callable[[], object]) -> None:
                self.act = act

            def __lt__(self, other: object) -> bool:
                self.act()
                return False

            def __gt__(self, other: object) -> bool:
                return False

            def __index__(self) -> int:
                return 3

        for act in (lambda: writer.write(b"other"), lambda: writer.reserve(2), writer.close):
            writer.reserve(5)
            with suppress(TransportError, ConfigError, ValueError):  # nothing is reserved any more, or not as much
                writer.commit(Size(act))
        assert reader.read(0) == b"other"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["write", "write_parts", "reserve"])
def test_a_handler_cannot_close_a_writer_that_waits_for_room(kind: str, call: str) -> None:
    """A defect: what was reserved then lay in memory that was given back."""
    said: list[str] = []

    def close(*_: object) -> None:
        try:
            writer.close()
        except TransportError as error:
            said.append(str(error))

    before = signal.signal(signal.SIGALRM, close)
    with opened((kind, kind), 100, 2) as (writer, _):
        for _ in range(2):
            writer.write(b"full")
        argument = {"write": b"a", "write_parts": [b"a"], "reserve": 10}[call]
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TransportTimeout):
            getattr(writer, call)(argument, 0.5)
    signal.signal(signal.SIGALRM, before)
    assert len(said) == 1
    assert "cannot close an endpoint" in said[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size_bytes", "places_count"), [(2**20, 1), (2**18, 4)])
def test_a_ring_whose_messages_are_finished_stays_in_little_memory(
    kind: str, size_bytes: int, places_count: int
) -> None:
    with opened((kind, kind), 2**25, depth=8) as (writer, (reader,)):
        places = set()
        for number in range(64):
            writer.write(bytes([number]) * size_bytes)
            view = reader.read(LIMIT_S)
            assert view[0] == view[-1] == number
            places.add(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
            reader.release()
        assert len(places) == places_count


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_is_not_written_over(kind: str) -> None:
    with opened((kind, kind), 2**22, depth=8) as (writer, (reader,)):
        random = Random(18)
        for number in range(200):
            writer.write(bytes([number]) * random.randint(2**18, 2**20))
            view = reader.read(LIMIT_S)
            writer.write(bytes([255]) * 2**20)  # while the first one is held
            assert view[0] == view[-1] == number
            assert reader.read(LIMIT_S)[0] == 255
            if random.random() < 0.5:
                reader.release()


@pytest.mark.skipif(ring.NATIVE is None, reason="the ring was not built in C here")
def test_a_look_in_vain_wakes_who_waits_on_the_descriptor() -> None:
    with opened(("native", "native"), 4096, depth=8) as (writer, (reader,)):
        descriptor = reader.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        for number in range(1000):
            with pytest.raises(TransportTimeout):
                reader.read(0.0)
            assert not poll.poll(0)
            writer.write(bytes([number % 256]))
            assert poll.poll(1000 * LIMIT_S)
            assert reader.read(0.0)[0] == number % 256
        writer.close()
        assert poll.poll(1000 * LIMIT_S)
        with pytest.raises(EndOfStream):
            reader.read(0.0)


@pytest.mark.skipif(ring.NATIVE is None, reason="the ring was not built in C here")
def test_a_closed_reader_reads_no_descriptor_that_is_another_files() -> None:
    with opened(("native", "native"), 4096, depth=8) as (_, (reader,)):
        descriptor = reader.fileno()
        with pytest.raises(TransportTimeout):
            reader.read(0.0)
        reader.close()
        ours, theirs = os.pipe()
        try:
            os.dup2(ours, descriptor)
            os.write(theirs, b"ours")
            with pytest.raises(EndpointClosed):
                reader.read(0.0)
            assert os.read(descriptor, 10) == b"ours"
        finally:
            for each in {ours, theirs, descriptor}:
                os.close(each)
