"""Laws C9 to C12 and C17: lifetimes of views, buffers and endpoints; the end of a stream; the order of opening."""

from __future__ import annotations

from ipcbench.spec import Delivery
from ipcbench.testing.failure import LawBroken, require
from ipcbench.testing.fixture import DEADLINE_S, PATIENCE_S, SHORT_S, ChannelUnderTest, Fixture
from ipcbench.testing.laws.limits import expect_failure, fill

_VIEW_BYTES = 50_000
_SMALL_BYTES = 500
"""Messages of this size are small: every channel holds `depth` of them."""


def views_stay(fixture: Fixture) -> None:
    """C9: a view stays as it is until its reader reads again or closes."""
    size = min(_VIEW_BYTES, fixture.can.max_message_bytes)
    for delivery in fixture.deliveries:
        readers = fixture.most_readers
        with (
            fixture.channel(readers=readers, delivery=delivery, depth=4) as channel,
            fixture.channel(readers=readers, delivery=delivery) as other,
        ):
            holds = [reader.start("hold", timeout_s=PATIENCE_S) for reader in channel.readers]
            channel.writer.write(0, size)
            for call in holds:
                call.result(DEADLINE_S)
            _still_whole(channel, size, "right after the read")
            fill(channel, 1, SHORT_S, size, most=12)
            _still_whole(channel, size, "after the writer filled the whole channel")
            other.exchange(0, size)
            _still_whole(channel, size, "after another reader of the process read from another channel")


def _still_whole(channel: ChannelUnderTest, size: int, when: str) -> None:
    for reader in channel.readers:
        whole = reader.play("is_held_whole", seed=channel.seed, sequence=0, size=size)
        require(whole, f"{reader.label}: a view that is still valid has changed {when}")


def buffers_are_free(fixture: Fixture) -> None:
    """C10: when `write` returns, the caller may reuse its buffer."""
    for delivery in fixture.deliveries:
        for readers in fixture.readers:
            with fixture.channel(readers=readers, delivery=delivery, depth=8) as channel:
                is_stream = delivery == "every_message"
                _buffer_is_reused(channel, 7 if is_stream else 1, _SMALL_BYTES, unread=True)
            with fixture.channel(readers=readers, delivery=delivery, depth=8) as channel:
                size = min(_VIEW_BYTES, fixture.can.max_message_bytes)
                _buffer_is_reused(channel, 40 if is_stream else 1, size, unread=False)


def _buffer_is_reused(channel: ChannelUnderTest, count: int, size: int, *, unread: bool) -> None:
    """Write `count` messages from one buffer, overwriting it after each; the readers read meanwhile, or with `unread`
    only afterwards.
    """
    stream = {"seed": channel.seed, "first": 0, "count": count, "timeout_s": PATIENCE_S}
    writing = channel.writer.start("write_reusing", **stream, size=size)
    refused = writing.result(DEADLINE_S) if unread else ""
    reads = [reader.start("read_stream", **stream, sizes=[size], extra_s=0) for reader in channel.readers]
    refused = refused if unread else writing.result(DEADLINE_S)
    require(not refused, f"the writer's buffer is still referred to after write returned: {refused}")
    for reader, call in zip(channel.readers, reads, strict=True):
        counts = call.result(DEADLINE_S)
        damaged = counts["damaged_count"] + counts["foreign_count"]
        require(not damaged, f"{reader.label}: {damaged} messages changed with the writer's buffer")


def closing_is_final(fixture: Fixture) -> None:
    """C11: `close` may be repeated, and use after it raises EndpointClosed."""
    for kind in fixture.kinds:
        for scenario in ("close", "use_in_block"):
            with fixture.channel(**kind) as channel:
                for call in [endpoint.start(scenario) for endpoint in channel.endpoints]:
                    other = call.result(DEADLINE_S)
                    require(not other, f"`with` gave a different object than the endpoint: {other}")
                for call in [endpoint.start("close") for endpoint in channel.endpoints]:
                    call.result(DEADLINE_S)
                _closed_for_good(channel)
    for delivery in fixture.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
            channel.writer.write(0)
            for reader in channel.readers:
                reader.play("hold", timeout_s=PATIENCE_S)
            for call in [channel.writer.start("close"), *(reader.start("close_holding") for reader in channel.readers)]:
                call.result(DEADLINE_S)


def _closed_for_good(channel: ChannelUnderTest) -> None:
    for endpoint in channel.endpoints:
        done = endpoint.play("use_closed", timeout_s=SHORT_S)
        require(not done, f"{endpoint.label}: after close, not EndpointClosed but {', '.join(done)}")


def streams_end(fixture: Fixture) -> None:
    """C12: after the writer has closed, readers get all that was written, then EndOfStream."""
    for delivery in fixture.deliveries:
        for readers in fixture.readers:
            with fixture.channel(readers=readers, delivery=delivery) as channel:
                _drained_to_the_end(channel, delivery, leave=False)
            with fixture.channel(readers=readers, delivery=delivery, settled=False) as channel:
                reads = [reader.start_read(0) for reader in channel.readers]
                closing = channel.writer.start("close")
                for reader, call in zip(channel.readers, reads, strict=True):
                    outcome = call.result(DEADLINE_S)
                    expect_failure(reader, outcome, "EndOfStream", "a read that waited when the writer closed")
                closing.result(DEADLINE_S)
        if fixture.can.launcher != "mpiexec":  # there, processes wait for one another before they exit
            with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
                _drained_to_the_end(channel, delivery, leave=True)
            with fixture.channel(readers=fixture.most_readers, delivery=delivery, opened=False) as channel:
                _closed_before_all_readers_opened(channel)


def _drained_to_the_end(channel: ChannelUnderTest, delivery: Delivery, *, leave: bool) -> None:
    """Write some messages, close, perhaps end the writer's process, then read: they all come, then the end, twice."""
    count = 7
    stream = {"seed": channel.seed, "first": 0, "count": count, "sizes": [_SMALL_BYTES], "timeout_s": PATIENCE_S}
    channel.writer.play("write_stream", **stream, kinds=["bytes"])
    closing = channel.writer.start("close")
    if leave:
        closing.result(DEADLINE_S)
        channel.writer.agent.leave()
    for reader in channel.readers:
        counts = reader.play("read_stream", **stream, extra_s=PATIENCE_S)
        what = f"{reader.label}, {delivery}, after the writer closed{' and its process ended' if leave else ''}"
        if delivery == "every_message":
            require(not counts["gaps"], f"{what}: messages {counts['gaps']} never came")
        require(counts["last_sequence"] == count - 1, f"{what}: the last message never came")
        require(counts["ended"] == "EndOfStream", f"{what}: got {counts['ended'] or 'a time-out'}, not EndOfStream")
        expect_failure(reader, reader.play("read", timeout_s=SHORT_S), "EndOfStream", "a second read after the end")
    if not leave:
        closing.result(DEADLINE_S)


def _closed_before_all_readers_opened(channel: ChannelUnderTest) -> None:
    """Write while one reader is missing, which may time out, and close. To the readers it is an end, and no death."""
    *opened, late = channel.readers
    for endpoint in (channel.writer, *opened):
        endpoint.open()
    outcome = channel.writer.play("write", seed=channel.seed, sequence=0, size=_SMALL_BYTES, timeout_s=SHORT_S)
    if outcome["failure"]:
        expect_failure(channel.writer, outcome, "TransportTimeout", "a write while a reader is missing")
    closing = channel.writer.start("close")
    late.open()
    stream = {"seed": channel.seed, "first": 0, "count": 1, "sizes": [_SMALL_BYTES], "timeout_s": PATIENCE_S}
    for reader in channel.readers:
        ended = reader.play("read_stream", **stream, extra_s=PATIENCE_S)["ended"]
        what = f"{reader.label}, after a writer that {'timed out' if outcome['failure'] else 'wrote'} and closed"
        require(ended == "EndOfStream", f"{what} before all readers opened: got {ended or 'a time-out'}")
    closing.result(DEADLINE_S)


def any_order_opens(fixture: Fixture) -> None:
    """C17: endpoints open in any order, without waiting for the others."""
    for delivery in fixture.deliveries:
        for readers in fixture.readers:
            last = list(range(1, readers + 1))
            for order in ([0, *last], [*last, 0], [*reversed(last), 0], [*last[1:], 0, last[0]]):
                with fixture.channel(readers=readers, delivery=delivery, opened=False) as channel:
                    _open_and_use(channel, order)
    if fixture.can.launcher != "mpiexec":  # there, all endpoints open together
        for delivery in fixture.deliveries:
            with fixture.channel(readers=fixture.most_readers, delivery=delivery, opened=False) as channel:
                _reading_before_the_writer_opens(channel)


def _open_and_use(channel: ChannelUnderTest, order: list[int]) -> None:
    names = ", ".join("writer" if number == 0 else f"reader {number - 1}" for number in order)
    try:
        channel.open(order)
        channel.settle()
    except LawBroken as broken:
        raise LawBroken(f"opened in the order {names}: {broken}") from broken


def _reading_before_the_writer_opens(channel: ChannelUnderTest) -> None:
    for reader in channel.readers:
        reader.open()
    wait = {"seed": channel.seed, "sequence": 1, "timeout_s": PATIENCE_S}
    reads = [(reader.label, reader.start("read_until", **wait)) for reader in channel.readers]
    channel.writer.open()
    channel.writer.write(0)
    channel.writer.write(1)
    for label, call in reads:
        require(call.result(DEADLINE_S), f"{label}, which was reading before the writer opened, got nothing")
