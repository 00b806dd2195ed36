"""Laws C22 to C27: what fits before anybody reads, and the verbs beside `write` and `read`."""

from __future__ import annotations

from typing import Any

from ipcbench.testing.failure import AgentError, Failure, LawSkipped, require
from ipcbench.testing.fixture import DEADLINE_S, PATIENCE_S, SHORT_S, ChannelUnderTest, Fixture
from ipcbench.testing.laws.limits import expect_failure, fill

_LARGE_BYTES = 2**22
_FEW_ROOMS = ((1_000, 999), (200_000, 7))
_ROOMS = (*_FEW_ROOMS, (64, 64), (64, 0), (200_000, 200_000), (200_000, 50_000), (0, 0))
"""Bytes reserved, and committed."""
_CUTS: tuple[list[int], ...] = ([], [0], [1], [5, 5, 70], [100, 30_000], [0, 63_000, 63_000])
"""Where messages are cut into parts."""
_MANY = 40


def holds_one_of_max(fixture: Fixture) -> None:
    """C22: with `holds_one_of_max`, a channel takes one message of maximum size before anybody reads."""
    if not fixture.can.holds_one_of_max:
        raise LawSkipped("capabilities.holds_one_of_max is false")
    size = min(_LARGE_BYTES, fixture.can.max_message_bytes)
    for delivery in fixture.deliveries:
        for readers in fixture.readers:
            with fixture.channel(readers=readers, delivery=delivery, depth=2, max_message_bytes=size) as channel:
                for sequence in range(2):
                    channel.writer.write(sequence, size)
                    for reader in channel.readers:
                        reader.read(sequence, size)


def reserved_is_unseen(fixture: Fixture) -> None:
    """C23: readers see nothing of what is reserved before `commit`, and then only what was committed."""
    for delivery in fixture.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery=delivery, max_message_bytes=200_000) as channel:
            rooms = _FEW_ROOMS if fixture.quick else _ROOMS
            for sequence, (room, size) in enumerate(rooms):
                _reserved(channel, sequence, room, size)
            outcome = channel.writer.play("reserve", size=200_001, timeout_s=PATIENCE_S)
            if not outcome["failure"]:
                outcome = channel.writer.play("commit", size=None, timeout_s=PATIENCE_S)
            expect_failure(channel.writer, outcome, "MessageTooLarge", "reserving more than the channel carries")
            outcome = channel.writer.play("reserve", size=100, timeout_s=PATIENCE_S)
            require(not outcome["failure"], f"reserving 100 bytes after that raised {outcome['failure']}")
            outcome = channel.writer.play("commit", size=101, timeout_s=PATIENCE_S)
            expect_failure(channel.writer, outcome, "ConfigError", "committing 101 bytes of 100 that are reserved")
            channel.exchange(len(rooms), 100)


def _reserved(channel: ChannelUnderTest, sequence: int, room: int, size: int) -> None:
    """Reserve twice, the second time for good; readers find nothing until it is committed."""
    for is_last in (False, True):
        reserved = {"seed": channel.seed, "sequence": sequence, "size": room, "timeout_s": PATIENCE_S, "used": size}
        outcome = channel.writer.play("reserve", **reserved)
        if outcome["failure"]:
            raise AgentError(f"writer, reserving {room} bytes", Failure.from_dict(outcome["failure"]))
        require(outcome["plain"], f"reserve({room}) returned {outcome['kind']}, not a writable view of {room} bytes")
        if not is_last:
            continue
        reads = [reader.start("read", timeout_s=SHORT_S) for reader in channel.readers]
        for reader, call in zip(channel.readers, reads, strict=True):
            what = f"a read while {room} bytes are reserved, and not committed,"
            expect_failure(reader, call.result(DEADLINE_S), "TransportTimeout", what)
    reads = [reader.start_read(sequence, size) for reader in channel.readers]
    outcome = channel.writer.play("commit", size=None if size == room else size, timeout_s=PATIENCE_S)
    if outcome["failure"]:
        raise AgentError(f"writer, committing {size} of {room} bytes", Failure.from_dict(outcome["failure"]))
    for reader, call in zip(channel.readers, reads, strict=True):
        reader.check_read(call, sequence, size)
    outcome = channel.writer.play("commit", size=None, timeout_s=PATIENCE_S)
    expect_failure(channel.writer, outcome, "TransportError", "committing twice what was reserved once")


def parts_are_one_message(fixture: Fixture) -> None:
    """C24: `write_parts` writes one message, of the bytes of all parts."""
    for delivery in fixture.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery=delivery, max_message_bytes=100_000) as channel:
            for sequence, cuts in enumerate(_CUTS):
                size = 64 if max(cuts, default=0) < 100 else 64_000
                reads = [reader.start_read(sequence, size) for reader in channel.readers]
                _write_parts(channel, sequence, size, cuts)
                for reader, call in zip(channel.readers, reads, strict=True):
                    reader.check_read(call, sequence, size)
            parts = {"seed": channel.seed, "sequence": 99, "size": 100_001, "cuts": [50_000], "timeout_s": PATIENCE_S}
            outcome = channel.writer.play("write_parts", **parts)
            expect_failure(channel.writer, outcome, "MessageTooLarge", "parts of 100,001 bytes where 100,000 fit")
            channel.exchange(len(_CUTS))


def _write_parts(channel: ChannelUnderTest, sequence: int, size: int, cuts: list[int]) -> None:
    parts = {"seed": channel.seed, "sequence": sequence, "size": size, "cuts": cuts, "timeout_s": PATIENCE_S}
    outcome = channel.writer.play("write_parts", **parts)
    if outcome["failure"]:
        raise AgentError(f"writer, writing {len(cuts) + 1} parts", Failure.from_dict(outcome["failure"]))


def released_is_free(fixture: Fixture) -> None:
    """C25: after `release`, the last message takes no room in the channel any more."""
    fixture.need("every_message")
    for readers in fixture.readers:
        with fixture.channel(readers=readers, delivery="every_message", depth=4) as channel:
            for reader in channel.readers:
                reader.play("release")  # of the first message, which settled the channel
            for turn in range(3):
                outcome = fill(channel, 4 * turn, PATIENCE_S, size=16, most=4)
                if outcome["failure"]:
                    what = f"writer, after {outcome['taken']} of 4 writes to a channel whose readers released all,"
                    raise AgentError(what, Failure.from_dict(outcome["failure"]))
                for reader in channel.readers:
                    for sequence in range(4 * turn, 4 * turn + 4):
                        reader.read(sequence, 16)
                        if sequence % 4 == 1:
                            reader.play("release")
                    for _ in range(2):
                        reader.play("release")
            for endpoint in channel.readers:
                endpoint.play("release_closed")


def many_are_as_single_ones(fixture: Fixture) -> None:
    """C26: `write_many` and `read_many` do what as many calls of `write` and `read` do."""
    if "every_message" in fixture.can.deliveries:
        for readers in fixture.readers:
            with fixture.channel(readers=readers, delivery="every_message", depth=8) as channel:
                _many(channel)
        if fixture.can.when_full == "block":
            with fixture.channel(readers=fixture.most_readers, delivery="every_message", depth=4) as channel:
                _until_it_is_full(channel)
    with fixture.channel(readers=fixture.most_readers) as channel:
        for reader in channel.readers:
            outcome = reader.play("read_many", seed=channel.seed, first=0, sizes=[16], count=1, timeout_s=SHORT_S)
            expect_failure(reader, outcome, "TransportTimeout", "read_many of an empty channel")


def _many(channel: ChannelUnderTest) -> None:
    stream: dict[str, Any] = {"seed": channel.seed, "first": 0, "count": _MANY, "sizes": [16, 300, 16]}
    reads = [reader.start("read_many", **stream, timeout_s=PATIENCE_S) for reader in channel.readers]
    written = channel.writer.play("write_many", **stream, timeout_s=PATIENCE_S)
    require(written["taken"] == _MANY, f"write_many took {written['taken']} of {_MANY} messages: {written['failure']}")
    for reader, call in zip(channel.readers, reads, strict=True):
        outcome = call.result(DEADLINE_S)
        what = f"{reader.label}: read_many"
        if outcome["failure"]:
            raise AgentError(what, Failure.from_dict(outcome["failure"]))
        require(not outcome["wrong"], f"{what} returned other bytes than message {outcome['wrong']}, or too many")
    channel.exchange(_MANY)


def _until_it_is_full(channel: ChannelUnderTest) -> None:
    """Write more than fit: what `write_many` says it has written has been, and nothing else."""
    size, count = 2**16, 1_000
    stream: dict[str, Any] = {"seed": channel.seed, "first": 0, "count": count, "sizes": [size]}
    written = channel.writer.play("write_many", **stream, timeout_s=SHORT_S)
    taken = written["taken"]
    least = 1 if channel.fixture.can.holds_one_of_max else 0
    require(
        least <= taken < count, f"write_many said that a full channel took {taken} of {count}: {written['failure']}"
    )
    again = channel.writer.play("write_many", **{**stream, "first": taken}, timeout_s=0.0)
    expect_failure(channel.writer, again, "TransportTimeout", "write_many to a full channel")
    for reader in channel.readers:
        read = {"seed": channel.seed, "first": 0, "count": taken, "sizes": [size], "timeout_s": PATIENCE_S}
        counts = reader.play("read_stream", **read, extra_s=SHORT_S)
        is_whole = counts["received_count"] == taken and not counts["gaps"] and not counts["damaged_count"]
        require(is_whole, f"{reader.label}: got {counts['received_count']} of {taken} that write_many said it wrote")


def descriptors_tell(fixture: Fixture) -> None:
    """C27: the descriptor of a reader becomes readable when there is something to read."""
    for delivery in fixture.deliveries:
        with fixture.channel(readers=fixture.most_readers, delivery=delivery) as channel:
            if any(reader.play("has_descriptor") for reader in channel.readers):
                _waited_on(channel)
            elif delivery == fixture.deliveries[-1]:
                raise LawSkipped("fileno() returns None")
    for kind in fixture.kinds if fixture.can.launcher != "mpiexec" else ():  # there, all endpoints open together
        with fixture.channel(**{**kind, "readers": 1}, opened=False) as channel:
            _waited_on_before_the_writer_opens(channel)


def _waited_on(channel: ChannelUnderTest) -> None:
    wait = {"seed": channel.seed, "size": 64, "timeout_s": PATIENCE_S}
    _are_quiet(channel)
    for sequence in range(4):
        reads = [reader.start("await_descriptor", **wait, sequence=sequence) for reader in channel.readers]
        channel.writer.write(sequence)
        for reader, call in zip(channel.readers, reads, strict=True):
            came = call.result(DEADLINE_S)
            require(came == "message", f"{reader.label}: {came or 'its descriptor was never readable'} after a write")
    _are_quiet(channel)
    closing = channel.writer.start("close")
    for reader in channel.readers:
        told = reader.play("is_readable", timeout_s=PATIENCE_S)
        require(told, f"{reader.label}: its descriptor was never readable after the end")
    closing.result(DEADLINE_S)


def _waited_on_before_the_writer_opens(channel: ChannelUnderTest) -> None:
    """Wait on nothing but the descriptor from the time before there is a writer."""
    (reader,) = channel.readers
    reader.open()
    _are_quiet(channel)
    wait = {"seed": channel.seed, "size": 64, "sequence": 0, "timeout_s": PATIENCE_S, "looks_first": False}
    reading = reader.start("await_descriptor", **wait)
    for writer in channel.writers:
        writer.open()
    channel.writer.write(0)
    came = reading.result(DEADLINE_S)
    pattern = channel.address.channel.pattern
    told = f"{came or 'its descriptor was never readable'} after the writer of a {pattern} opened and wrote"
    require(came == "message", f"{reader.label}: {told}")


def _are_quiet(channel: ChannelUnderTest) -> None:
    """Read until nothing more comes, and the descriptors are readable no more."""
    for reader in channel.readers:
        quiet = {"seed": channel.seed, "size": 64, "sequence": 0, "timeout_s": SHORT_S}
        came = reader.play("await_descriptor", **quiet)
        require(not came, f"{reader.label}: {came}, although nothing was written")
