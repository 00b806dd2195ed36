"""Laws C7, C8 and C16: what a channel does when it is empty, when it is full, and when a message is too large."""

from __future__ import annotations

from typing import Any

from ipcbench.testing.failure import AgentError, Failure, require
from ipcbench.testing.fixture import DEADLINE_S, PATIENCE_S, SHORT_S, ChannelUnderTest, End, Fixture

SLACK_BYTES = 2**24
"""What a transport may hold beyond `depth`, in buffers of the operating system, before it must hold the writer."""

BULKY_BYTES = 2**16
"""Size of the messages that channels are filled with, so that few of them exceed `SLACK_BYTES`."""

_WAITS_S = (0.0, 0.0015, 0.0305, 0.1203)
_FEW_WAITS_S = (0.0, 0.0205)


def expect_failure(end: End, found: dict[str, Any], kind: str, what: str) -> Failure:
    """Return the failure in what a scenario found; it must be that error.

    Raises:
        LawBroken: it is another one, or there is none.
    """
    require(found["failure"] is not None, f"{end.label}: {what} raised nothing, not {kind}")
    failure = Failure.from_dict(found["failure"])
    if not failure.is_a(kind):
        raise AgentError(f"{end.label}: {what}, where {kind} is due,", failure)
    return failure


def fill(
    channel: ChannelUnderTest, first: int, timeout_s: float, size: int = BULKY_BYTES, most: int | None = None
) -> dict[str, Any]:
    """Write until a write fails, or until more was taken than any channel may hold unread."""
    limit = most or 2 * channel.address.channel.depth + SLACK_BYTES // size
    found: dict[str, Any] = channel.writer.play(
        "fill", seed=channel.seed, first=first, size=size, most=limit, timeout_s=timeout_s
    )
    return found


def reading_waits(fixture: Fixture) -> None:
    """C7."""
    for delivery in fixture.deliveries:
        with fixture.channel(delivery=delivery) as channel:
            _empty_channel(channel, _FEW_WAITS_S if fixture.quick else _WAITS_S)
    for wait in sorted(fixture.can.waits):
        with fixture.channel(wait=wait) as channel:
            _empty_channel(channel, _FEW_WAITS_S)


def _empty_channel(channel: ChannelUnderTest, waits_s: tuple[float, ...]) -> None:
    """Read from an empty channel: each time-out is kept; then messages come, to one who waits and to one who looks."""
    reader = channel.readers[0]
    for timeout_s in waits_s:
        found = reader.play("read", timeout_s=timeout_s)
        if found["failure"] is None:
            require(found["plain"], f"read({timeout_s}) of an empty channel returned {found['kind']}")
        expect_failure(reader, found, "TransportTimeout", f"read({timeout_s}) of an empty channel")
        early_ns = int(timeout_s * 1e9) - found["took_ns"]
        require(early_ns <= 0, f"read({timeout_s}) of an empty channel gave up {early_ns} ns early")
    for sequence, patience_s in enumerate((PATIENCE_S, None, PATIENCE_S)):
        call = reader.start_read(sequence, timeout_s=patience_s)
        channel.writer.write(sequence, timeout_s=patience_s)
        reader.check_read(call, sequence)
    channel.writer.write(3)
    looks = reader.play("look_until", seed=channel.seed, sequence=3, size=64, timeout_s=PATIENCE_S)
    require(looks > 0, "read(0) never returned a message that was written")


def full_channel(fixture: Fixture) -> None:
    """C8."""
    if "every_message" in fixture.can.deliveries:
        for readers in fixture.readers:
            if fixture.can.when_full == "block":
                _holds_depth_messages(fixture, readers)
                _holds_the_writer(fixture, readers)
                if readers > 1:
                    _waits_for_the_slowest(fixture, readers)
            else:
                _never_holds_the_writer(fixture, readers)
    if "latest_value" in fixture.can.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery="latest_value") as channel:
            found = fill(channel, 0, PATIENCE_S, size=64, most=1_000)
            if found["failure"]:
                raise AgentError("writer of a latest_value that nobody reads", Failure.from_dict(found["failure"]))


def _holds_depth_messages(fixture: Fixture, readers: int) -> None:
    """Small messages: together with the one that was read last, whose view is still valid, `depth` of them are taken
    although nobody reads on.
    """
    with fixture.channel(readers=readers, delivery="every_message", depth=5) as channel:
        found = fill(channel, 0, PATIENCE_S, size=16, most=4)
        if found["failure"]:
            taken = f"writer, held after {found['taken']} unread messages of 16 bytes in a channel of depth 5,"
            raise AgentError(taken, Failure.from_dict(found["failure"]))
        _all_arrive(channel, 4, 16, {})


def _holds_the_writer(fixture: Fixture, readers: int) -> None:
    """Bulky messages: after a bounded number the writer is held; what was refused can be written again; nothing is
    lost, nothing comes twice.
    """
    size = min(BULKY_BYTES, fixture.can.max_message_bytes)
    with fixture.channel(readers=readers, delivery="every_message", depth=4) as channel:
        taken = 0
        for timeout_s in (SHORT_S, 0.0305, 0.0):
            found = fill(channel, taken, timeout_s, size)
            taken += found["taken"]
            require(
                found["failure"] is not None,
                f"{taken} unread messages of {size} bytes were taken in a channel of depth 4, and more would be",
            )
            expect_failure(channel.writer, found, "TransportTimeout", f"write({timeout_s}) to a full channel")
            early_ns = int(timeout_s * 1e9) - found["took_ns"]
            require(early_ns <= 0, f"write({timeout_s}) to a full channel gave up {early_ns} ns early")
        _all_arrive(channel, taken + 3, size, {"first": taken, "count": 3})


def _waits_for_the_slowest(fixture: Fixture, readers: int) -> None:
    """All readers but one read as fast as they can; the writer is held by that one, and nobody loses anything."""
    size = min(BULKY_BYTES, fixture.can.max_message_bytes)
    with fixture.channel(readers=readers, delivery="every_message", depth=4) as channel:
        stream = {"seed": channel.seed, "first": 0, "sizes": [size], "timeout_s": PATIENCE_S, "extra_s": 0}
        reads = [(r, r.start("read_stream", **stream, count=2**40)) for r in channel.readers[1:]]
        found = fill(channel, 0, SHORT_S, size)
        expect_failure(
            channel.writer, found, "TransportTimeout", f"{found['taken'] + 1} writes past a reader that is stuck"
        )
        closing = channel.writer.start("close")
        reads.append((channel.readers[0], channel.readers[0].start("read_stream", **stream, count=2**40)))
        for reader, call in reads:
            tally = call.result(DEADLINE_S)
            whole = tally["received_count"] == found["taken"] == tally["newest"] + 1
            got = f"{tally['received_count']} of {found['taken']} messages, the last of them {tally['newest']}"
            require(whole, f"{reader.label}: got {got}, after reader 0 was stuck for a while")
        closing.result(DEADLINE_S)


def _all_arrive(channel: ChannelUnderTest, count: int, size: int, rest: dict[str, int]) -> None:
    """Read messages 0 … `count` − 1 while the writer writes the `rest` of them; each must come once, in order."""
    stream = {"seed": channel.seed, "sizes": [size], "timeout_s": PATIENCE_S}
    reads = [r.start("read_stream", **stream, first=0, count=count, extra_s=SHORT_S) for r in channel.readers]
    if rest:
        channel.writer.play("write_stream", **stream, **rest, kinds=["bytes"])
    for reader, call in zip(channel.readers, reads, strict=True):
        tally = call.result(DEADLINE_S)
        what = f"{reader.label}, after the channel was full"
        require(not tally["gaps"], f"{what}: messages {tally['gaps']} were taken but never came")
        require(not tally["repeated"], f"{what}: messages {tally['repeated']} came more than once")
        require(not tally["disordered"], f"{what}: messages {tally['disordered']} came out of order")


def _never_holds_the_writer(fixture: Fixture, readers: int) -> None:
    """Channels that drop new messages or overwrite old ones: no write fails; what is left is in order; the oldest
    message survives dropping, the newest survives overwriting.
    """
    count, size = 2_000, min(BULKY_BYTES, fixture.can.max_message_bytes)
    with fixture.channel(readers=readers, delivery="every_message", depth=4) as channel:
        found = fill(channel, 0, PATIENCE_S, size, most=count)
        rule = f"although when_full is {fixture.can.when_full}"
        if found["failure"]:
            raise AgentError(f"writer, {rule},", Failure.from_dict(found["failure"]))
        stream = {"seed": channel.seed, "first": 0, "count": count, "sizes": [size]}
        for reader in channel.readers:
            tally = reader.play("read_stream", **stream, timeout_s=1.0, extra_s=SHORT_S)
            broken = tally["repeated"] or tally["disordered"] or not tally["received_count"]
            require(not broken, f"{reader.label}: what is left is not an ordered part of what was written")
            survivor = 0 if fixture.can.when_full == "drop" else count - 1
            lost = any(start <= survivor <= end for start, end in tally["gaps"])
            require(not lost, f"{reader.label}: message {survivor} is gone, {rule}")


def too_large_is_refused(fixture: Fixture) -> None:
    """C16."""
    for delivery in fixture.deliveries:
        with fixture.channel(delivery=delivery, readers=fixture.most_readers, max_message_bytes=1_000) as channel:
            for sequence, (size, kind) in enumerate(
                [(1_001, "bytes"), (1_002, "bytearray"), (5_000, "view"), (2**20, "bytes")]
            ):
                found = channel.writer.play(
                    "write", seed=channel.seed, sequence=99, size=size, timeout_s=PATIENCE_S, kind=kind
                )
                what = f"writing {size} bytes to a channel of at most 1,000 bytes"
                expect_failure(channel.writer, found, "MessageTooLarge", what)
                channel.exchange(sequence, 1_000)
