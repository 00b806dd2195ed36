"""Laws C7, C8 and C16: an empty channel, a full channel, and a message that is too large."""

from __future__ import annotations

import math
from typing import Any

from ipcbench.testing.failure import AgentError, Failure, require
from ipcbench.testing.fixture import DEADLINE_S, PATIENCE_S, SHORT_S, ChannelUnderTest, EndpointUnderTest, Fixture

SLACK_BYTES = 2**24
"""What a transport may buffer in the operating system, beyond `depth`, before it must block the writer."""

BULKY_BYTES = 2**16
"""Size of the messages that fill a channel: large, so that few of them exceed `SLACK_BYTES`."""

_WAITS_S = (0.0, 0.0015, 0.0305, 0.1203)
_FEW_WAITS_S = (0.0, 0.0205)
_PATIENT_S = (PATIENCE_S, None, math.inf, 1e30, PATIENCE_S)

_TOO_LARGE = (
    (1_001, "bytes"),
    (1_002, "bytearray"),
    (5_000, "view"),
    (1_008, "array"),
    (1_008, "matrix"),
    (2**20, "bytes"),
)
"""Sizes and kinds of messages for a channel of at most 1,000 bytes; the arrays have fewer items than that."""


def expect_failure(endpoint: EndpointUnderTest, outcome: dict[str, Any], kind: str, what: str) -> Failure:
    """Return the failure in a scenario's outcome; it must be of that kind.

    Raises:
        LawBroken: there is no failure, or one of another kind.
    """
    require(outcome["failure"] is not None, f"{endpoint.label}: {what} raised nothing, but must raise {kind}")
    failure = Failure.from_dict(outcome["failure"])
    if not failure.is_a(kind):
        raise AgentError(f"{endpoint.label}: {what}, which must raise {kind},", failure)
    return failure


def fill(
    channel: ChannelUnderTest, first: int, timeout_s: float, size: int = BULKY_BYTES, most: int | None = None
) -> dict[str, Any]:
    """Write until a write fails, or until the channel has taken more than any channel may hold unread."""
    limit = most or 2 * channel.address.channel.depth + SLACK_BYTES // size
    play = {"seed": channel.seed, "first": first, "size": size, "most": limit, "timeout_s": timeout_s}
    outcome: dict[str, Any] = channel.writer.play("fill", **play)
    return outcome


def reading_waits(fixture: Fixture) -> None:
    """C7: `read` waits for its whole time-out, then raises TransportTimeout."""
    for delivery in fixture.deliveries:
        with fixture.channel(delivery=delivery) as channel:
            _empty_channel(channel, _FEW_WAITS_S if fixture.quick else _WAITS_S)
    for wait in sorted(fixture.can.waits):
        with fixture.channel(wait=wait) as channel:
            _empty_channel(channel, _FEW_WAITS_S)


def _empty_channel(channel: ChannelUnderTest, waits_s: tuple[float, ...]) -> None:
    """Read from an empty channel: no read ends early; then messages reach a read that waits and one that only looks."""
    reader = channel.readers[0]
    for timeout_s in waits_s:
        outcome = reader.play("read", timeout_s=timeout_s)
        if outcome["failure"] is None:
            require(outcome["plain"], f"read({timeout_s}) of an empty channel returned {outcome['kind']}")
        expect_failure(reader, outcome, "TransportTimeout", f"read({timeout_s}) of an empty channel")
        early_ns = int(timeout_s * 1e9) - outcome["took_ns"]
        require(early_ns <= 0, f"read({timeout_s}) of an empty channel gave up {early_ns} ns early")
    if not channel.fixture.inline:  # signals reach the main thread
        for timeout_s in (0.0205, 0.1203):
            outcome = reader.play("read_under_signals", timeout_s=timeout_s)
            expect_failure(reader, outcome, "TransportTimeout", f"read({timeout_s}) interrupted by signals")
            early_ns = int(timeout_s * 1e9) - outcome["took_ns"]
            require(early_ns <= 0, f"read({timeout_s}) interrupted by signals gave up {early_ns} ns early")
    for sequence, patience_s in enumerate(_PATIENT_S):
        call = reader.start_read(sequence, timeout_s=patience_s)
        channel.writer.write(sequence, timeout_s=patience_s)
        reader.check_read(call, sequence)
    channel.writer.write(len(_PATIENT_S))
    looks = reader.play("look_until", seed=channel.seed, sequence=len(_PATIENT_S), size=64, timeout_s=PATIENCE_S)
    require(looks > 0, "read(0) never returned a message that was written")


def full_channel(fixture: Fixture) -> None:
    """C8: a full channel blocks, drops or overwrites, as `when_full` says."""
    if "every_message" in fixture.can.deliveries:
        for readers in fixture.readers:
            if fixture.can.when_full == "block":
                _holds_depth_messages(fixture, readers)
                _blocks_the_writer(fixture, readers)
                if readers > 1:
                    _waits_for_the_slowest(fixture, readers)
            else:
                _never_blocks_the_writer(fixture, readers)
    if "latest_value" in fixture.can.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery="latest_value") as channel:
            outcome = fill(channel, 0, PATIENCE_S, size=64, most=1_000)
            if outcome["failure"]:
                raise AgentError("writer of an unread latest_value channel", Failure.from_dict(outcome["failure"]))


def _holds_depth_messages(fixture: Fixture, readers: int) -> None:
    """Small messages: the channel takes `depth` of them without a read; the last message read counts, since its view is
    still valid.
    """
    with fixture.channel(readers=readers, delivery="every_message", depth=5) as channel:
        outcome = fill(channel, 0, PATIENCE_S, size=16, most=4)
        if outcome["failure"]:
            what = f"writer, blocked after {outcome['taken']} unread messages of 16 bytes in a channel of depth 5,"
            raise AgentError(what, Failure.from_dict(outcome["failure"]))
        _all_arrive(channel, 4, 16, {})


def _blocks_the_writer(fixture: Fixture, readers: int) -> None:
    """Bulky messages: the writer blocks after a bounded number of them; a refused message can be written again; nothing
    is lost or repeated.
    """
    size = min(BULKY_BYTES, fixture.can.max_message_bytes)
    with fixture.channel(readers=readers, delivery="every_message", depth=4) as channel:
        taken = 0
        for timeout_s in (SHORT_S, 0.0305, 0.0):
            outcome = fill(channel, taken, timeout_s, size)
            taken += outcome["taken"]
            require(
                outcome["failure"] is not None,
                f"a channel of depth 4 took {taken} unread messages of {size} bytes and would take more",
            )
            expect_failure(channel.writer, outcome, "TransportTimeout", f"write({timeout_s}) to a full channel")
            early_ns = int(timeout_s * 1e9) - outcome["took_ns"]
            require(early_ns <= 0, f"write({timeout_s}) to a full channel gave up {early_ns} ns early")
        _all_arrive(channel, taken + 3, size, {"first": taken, "count": 3})


def _waits_for_the_slowest(fixture: Fixture, readers: int) -> None:
    """All readers but one read as fast as they can; that one blocks the writer, and no reader loses anything."""
    size = min(BULKY_BYTES, fixture.can.max_message_bytes)
    with fixture.channel(readers=readers, delivery="every_message", depth=4) as channel:
        stream = {"seed": channel.seed, "first": 0, "sizes": [size], "timeout_s": PATIENCE_S, "extra_s": 0}
        reads = [(r, r.start("read_stream", **stream, count=2**40)) for r in channel.readers[1:]]
        outcome = fill(channel, 0, SHORT_S, size)
        expect_failure(
            channel.writer, outcome, "TransportTimeout", f"{outcome['taken'] + 1} writes past a reader that is stuck"
        )
        closing = channel.writer.start("close")
        reads.append((channel.readers[0], channel.readers[0].start("read_stream", **stream, count=2**40)))
        for reader, call in reads:
            counts = call.result(DEADLINE_S)
            whole = counts["received_count"] == outcome["taken"] == counts["last_sequence"] + 1
            last = counts["last_sequence"]
            got = f"{counts['received_count']} of {outcome['taken']} messages, the last of them {last}"
            require(whole, f"{reader.label}: got {got}, after reader 0 was stuck for a while")
        closing.result(DEADLINE_S)


def _all_arrive(channel: ChannelUnderTest, count: int, size: int, rest: dict[str, int]) -> None:
    """Read messages 0 to `count` − 1 while the writer writes the `rest` of them; each must come once, in order."""
    stream = {"seed": channel.seed, "sizes": [size], "timeout_s": PATIENCE_S}
    reads = [r.start("read_stream", **stream, first=0, count=count, extra_s=SHORT_S) for r in channel.readers]
    if rest:
        channel.writer.play("write_stream", **stream, **rest, kinds=["bytes"])
    for reader, call in zip(channel.readers, reads, strict=True):
        counts = call.result(DEADLINE_S)
        what = f"{reader.label}, after the channel was full"
        require(not counts["gaps"], f"{what}: messages {counts['gaps']} were accepted but never came")
        require(not counts["repeated"], f"{what}: messages {counts['repeated']} came more than once")
        require(not counts["disordered"], f"{what}: messages {counts['disordered']} came out of order")


def _never_blocks_the_writer(fixture: Fixture, readers: int) -> None:
    """Fill a channel that drops new messages or overwrites old ones: no write fails; what remains is in order; the
    oldest message survives dropping, the latest survives overwriting.
    """
    count, size = 2_000, min(BULKY_BYTES, fixture.can.max_message_bytes)
    with fixture.channel(readers=readers, delivery="every_message", depth=4) as channel:
        outcome = fill(channel, 0, PATIENCE_S, size, most=count)
        rule = f"although when_full is {fixture.can.when_full}"
        if outcome["failure"]:
            raise AgentError(f"writer, {rule},", Failure.from_dict(outcome["failure"]))
        stream = {"seed": channel.seed, "first": 0, "count": count, "sizes": [size]}
        for reader in channel.readers:
            counts = reader.play("read_stream", **stream, timeout_s=1.0, extra_s=SHORT_S)
            broken = counts["repeated"] or counts["disordered"] or not counts["received_count"]
            require(not broken, f"{reader.label}: what remains is not an ordered part of what was written")
            survivor = 0 if fixture.can.when_full == "drop" else count - 1
            lost = any(start <= survivor <= end for start, end in counts["gaps"])
            require(not lost, f"{reader.label}: message {survivor} is gone, {rule}")


def too_large_is_refused(fixture: Fixture) -> None:
    """C16: a message above `max_message_bytes` raises MessageTooLarge, and nothing of it is sent."""
    for delivery in fixture.deliveries:
        with fixture.channel(delivery=delivery, readers=fixture.most_readers, max_message_bytes=1_000) as channel:
            for sequence, (size, kind) in enumerate(_TOO_LARGE):
                message = {"seed": channel.seed, "sequence": 99, "size": size, "kind": kind}
                outcome = channel.writer.play("write", **message, timeout_s=PATIENCE_S)
                what = f"writing {size} bytes to a channel of at most 1,000 bytes"
                expect_failure(channel.writer, outcome, "MessageTooLarge", what)
                channel.exchange(sequence, 1_000)
