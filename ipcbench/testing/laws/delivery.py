"""Laws C1 to C6: messages arrive whole, once, in order, at every reader, from the first one on.

C2, C3 and C4 check the same kind of stream, but each looks only at what its own law says, so that a verdict names the
law that is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from ipcbench.testing.agents.pattern import KINDS
from ipcbench.testing.failure import AgentError, LawSkipped, require
from ipcbench.testing.fixture import DEADLINE_S, PATIENCE_S, SHORT_S, ChannelUnderTest, Fixture

_MIXED_SIZES = [64, 16, 1_000, 200, 3_000, 17]
_LARGEST_BYTES = 2**26
_ENDLESS = 2**40
"""Length of a stream whose end the readers do not know."""

_ENOUGH_READS = 300

_UNREAD_COUNT, _FEW_READS, _ATTEMPTS = 100, 10, 5


def _edge_sizes(most: int) -> list[int]:
    """Return 0, 1 and 2^k − 1, 2^k, 2^k + 1 up to `most`, and `most` itself."""
    powers = [2**k for k in range(most.bit_length() + 1)]
    sizes = {p + d for p in powers for d in (-1, 0, 1)} | {most}
    return sorted(size for size in sizes if size <= most)


def _stream(
    channel: ChannelUnderTest, count: int, sizes: list[int], extra_s: float = SHORT_S
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Send `count` messages as fast as the channel takes them; yield each reader's name and counts."""
    reads = [
        r.start(
            "read_stream", seed=channel.seed, first=0, count=count, sizes=sizes, timeout_s=PATIENCE_S, extra_s=extra_s
        )
        for r in channel.readers
    ]
    writing = channel.writer.start(
        "write_stream", seed=channel.seed, first=0, count=count, sizes=sizes, kinds=["bytes"], timeout_s=PATIENCE_S
    )
    writing.result(DEADLINE_S)
    for reader, call in zip(channel.readers, reads, strict=True):
        yield reader.label, call.result(DEADLINE_S)


def _streams(fixture: Fixture, reader_counts: list[int]) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """For each number of readers, yield a label and the counts of all readers of one stream."""
    fixture.need("every_message")
    for readers in reader_counts:
        with fixture.channel(readers=readers, delivery="every_message") as channel:
            yield f"{readers} readers", list(_stream(channel, 800 if fixture.quick else 3_000, _MIXED_SIZES))


def bytes_arrive_unchanged(fixture: Fixture) -> None:
    """C1: bytes read equal bytes written, for any size and type of message."""
    for delivery in fixture.deliveries:
        for readers in fixture.readers:
            most = min(2**14 + 1 if fixture.quick else 2**20 + 1, fixture.can.max_message_bytes)
            with fixture.channel(readers=readers, delivery=delivery, max_message_bytes=most) as channel:
                _one_by_one(channel, _edge_sizes(most), KINDS)
    if "every_message" not in fixture.can.deliveries:
        return
    with fixture.channel(readers=fixture.most_readers, delivery="every_message") as channel:
        for label, counts in _stream(channel, 200 if fixture.quick else 2_000, [16, 5_000, 17, 65_536, 300]):
            damaged, foreign = counts["damaged_count"], counts["foreign_count"]
            require(not damaged + foreign, f"{label}: {damaged} messages changed, {foreign} were never written")
    largest = min(_LARGEST_BYTES, fixture.can.max_message_bytes)
    if not fixture.quick:
        with fixture.channel(delivery="every_message", max_message_bytes=largest, depth=2) as channel:
            sizes = [size for size in (2**22 - 1, 2**22 + 1, 2**24) if size < largest]
            for kind, size in zip(cycle(KINDS), [*sizes, largest], strict=False):
                _one_by_one(channel, [size], [kind])


def _one_by_one(channel: ChannelUnderTest, sizes: list[int], kinds: Sequence[str]) -> None:
    """Send one message of each size and kind; read each before the next is written."""
    sequence = 0
    for size in sizes:
        for kind in kinds:
            channel.exchange(sequence, size, kind)
            sequence += 1


def order_is_kept(fixture: Fixture) -> None:
    """C2: each reader gets messages in the order of writing."""
    for case, results in _streams(fixture, fixture.readers):
        for label, counts in results:
            late = counts["disordered"]
            require(not late, f"{case}, {label}: messages {late} came after later ones")


def each_comes_once(fixture: Fixture) -> None:
    """C3: each message comes once; with latest_value, always a newer one, and the latest at last."""
    if "every_message" in fixture.can.deliveries:
        for case, results in _streams(fixture, fixture.readers):
            for label, counts in results:
                require(not counts["repeated"], f"{case}, {label}: messages {counts['repeated']} came more than once")
                require(not counts["foreign_count"], f"{case}, {label}: got messages that were never written")
            common = [gap for gap in results[0][1]["gaps"] if all(gap in t["gaps"] for _, t in results) and gap[0]]
            require(not common, f"{case}: messages {common} came to no reader")
    if "latest_value" in fixture.can.deliveries:
        for readers in fixture.readers:
            with fixture.channel(readers=readers, delivery="latest_value") as channel:
                _values_get_newer(channel, 0.05 if fixture.quick else 0.2)


def _values_get_newer(channel: ChannelUnderTest, duration_s: float) -> None:
    """Overwrite a value at full speed: every read must give a newer value, and the last one must arrive. Then overwrite
    it many times unread: the last must arrive within a few reads. A queue needs as many reads as there were values,
    every time; on a busy machine a few attempts may fail, because a value is still on its way at the next read.
    """
    for label, counts in _overwrite(channel, duration_s, 64):
        require(not counts["disordered"], f"{label}: values {counts['disordered']} came after newer ones")
        require(not counts["repeated"], f"{label}: values {counts['repeated']} came more than once")
        require(not counts["foreign_count"], f"{label}: got values that were never written")
        require(not counts["ended"], f"{label}: the latest value never came ({counts['ended']})")
    fewest = dict.fromkeys((reader.label for reader in channel.readers), _UNREAD_COUNT)
    for attempt in range(_ATTEMPTS):
        first = _ENDLESS + attempt * _UNREAD_COUNT
        unread = {"seed": channel.seed, "first": first, "count": _UNREAD_COUNT, "sizes": [64], "timeout_s": PATIENCE_S}
        channel.writer.play("write_stream", **unread, kinds=["bytes"])
        for reader in channel.readers:
            counts = reader.play("read_stream", **unread, extra_s=0)
            require(not counts["ended"], f"{reader.label}: the latest value never came ({counts['ended']})")
            fewest[reader.label] = min(fewest[reader.label], counts["received_count"])
        if max(fewest.values()) < _FEW_READS:
            break
    for label, reads in fewest.items():
        what = f"{label}: {reads} reads to get the latest of {_UNREAD_COUNT} values, all written before"
        require(reads < _FEW_READS, what)


def _overwrite(
    channel: ChannelUnderTest, duration_s: float, size: int, first: int = 0
) -> list[tuple[str, dict[str, Any]]]:
    """Write values as fast as possible while all readers read; number the last one `first + _ENDLESS - 1`. Return each
    reader's name and counts.
    """
    stream = {"seed": channel.seed, "first": first, "count": _ENDLESS, "sizes": [size], "timeout_s": PATIENCE_S}
    reads = [(reader.label, reader.start("read_stream", **stream, extra_s=0)) for reader in channel.readers]
    channel.writer.play(
        "write_for", seed=channel.seed, first=first, size=size, duration_s=duration_s, timeout_s=PATIENCE_S
    )
    channel.writer.write(first + _ENDLESS - 1, size)
    return [(f"{label}, latest_value of {size} bytes", call.result(DEADLINE_S)) for label, call in reads]


def every_reader_gets_it(fixture: Fixture) -> None:
    """C4: a message that one reader gets, all readers get."""
    if fixture.can.max_readers == 1:
        raise LawSkipped("capabilities.max_readers is 1: there is no other reader")
    for case, results in _streams(fixture, [max(2, fixture.most_readers)]):
        for label, counts in results:
            missed = [gap for gap in counts["gaps"] if gap[0] and any(gap not in other["gaps"] for _, other in results)]
            require(not missed, f"{case}, {label}: did not get messages {missed}, which others got")


def nothing_is_missed_at_the_start(fixture: Fixture) -> None:
    """C5: once all endpoints are open, the first message reaches every reader."""
    for delivery in fixture.deliveries:
        for readers in fixture.readers:
            for turn in range(2 if fixture.quick else 4):
                with fixture.channel(readers=readers, delivery=delivery, opened=False) as channel:
                    if not _opens(channel, writer_first=turn % 2 == 0):
                        continue
                    channel.writer.write(0)
                    if delivery == "every_message":
                        channel.writer.write(1)  # so that a lost first message shows at once, not by a time-out
                    _first_is_read(channel)
    if "every_message" in fixture.can.deliveries and fixture.can.launcher != "mpiexec":
        _writing_before_all_are_open(fixture)


def _opens(channel: ChannelUnderTest, *, writer_first: bool) -> bool:
    """Open all endpoints; return whether the backend allows that order, which law C17 checks."""
    try:
        channel.open(None if writer_first else [*range(1, len(channel.endpoints)), 0])
    except AgentError:
        if writer_first:
            raise
        return False
    return True


def _writing_before_all_are_open(fixture: Fixture) -> None:
    """Begin to write before any reader is open: no reader may miss the message; the call may wait for the readers."""
    with fixture.channel(readers=fixture.most_readers, delivery="every_message", opened=False) as channel:
        channel.writer.open()
        writing = channel.writer.start("write", seed=channel.seed, sequence=0, size=64, timeout_s=PATIENCE_S)
        for reader in channel.readers:
            reader.open()
        failure = writing.result(DEADLINE_S)["failure"]
        require(failure is None, f"a write that began before the readers opened failed: {failure}")
        _first_is_read(channel)


def _first_is_read(channel: ChannelUnderTest) -> None:
    for reader in channel.readers:
        outcome = reader.start_read(0).result(DEADLINE_S)
        require(outcome["same"], f"{reader.label} missed the first message ({channel.address.channel.delivery})")


def values_are_never_torn(fixture: Fixture) -> None:
    """C6: a value is never torn, however fast the writer overwrites it."""
    fixture.need("latest_value")
    for readers in fixture.readers:
        for wanted in (4_096, 2**18):
            size = min(wanted, fixture.can.max_message_bytes)
            with fixture.channel(readers=readers, delivery="latest_value", max_message_bytes=size) as channel:
                _race(
                    channel,
                    size,
                    rounds=1 if fixture.quick else 4,
                    round_s=0.06 if fixture.quick else 0.1 if fixture.inline else 0.25,
                )


def _race(channel: ChannelUnderTest, size: int, rounds: int, round_s: float) -> None:
    """Let the writer overwrite while the readers read, until every reader has read often enough or the rounds are over:
    on a busy machine, writer and readers may hardly run at the same time in a single round.
    """
    fewest = 0
    for number in range(rounds):
        results = _overwrite(channel, round_s, size, first=number * _ENDLESS)
        for label, counts in results:
            torn = counts["damaged_count"] + counts["foreign_count"]
            require(not torn, f"{label}: {torn} of {counts['received_count']} reads gave a torn value")
        fewest += min(counts["received_count"] for _, counts in results)
        if fewest >= _ENOUGH_READS:
            return
