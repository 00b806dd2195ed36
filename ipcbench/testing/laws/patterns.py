"""Laws C21 and C28 to C30: queues and fan-in."""

from __future__ import annotations

from typing import Any

from ipcbench.spec import Pattern
from ipcbench.testing.failure import LawSkipped, require
from ipcbench.testing.fixture import DEADLINE_S, PATIENCE_S, ChannelUnderTest, Fixture

_COUNT, _BYTES = 60, 64
_LITTLE_S = 0.2


def stalled_workers_hold_little(fixture: Fixture) -> None:
    """C21: a worker that takes nothing holds at most `depth` messages of a queue; the others get the rest."""
    _need(fixture, "queue")
    for depth in (2, 3):
        with _opened(fixture, pattern="queue", readers=2, depth=depth) as channel:
            channel.readers[0].play("read", timeout_s=_LITTLE_S)  # from then on the writer knows that it is there
            reading = channel.readers[1].start("read_all", timeout_s=PATIENCE_S, least=_COUNT - depth)
            _write(channel, _COUNT)
            got = len(reading.result(DEADLINE_S)["got"])
            require(got >= _COUNT - depth, f"reader 1 got {got} of {_COUNT} messages, while reader 0, which may hold "
                    f"{depth}, did nothing")  # fmt: skip
            rest = channel.readers[0].play("read_all", timeout_s=_LITTLE_S)["got"]
            held = (
                f"{channel.readers[0].label}, which did nothing, held {len(rest)} messages of a queue of depth {depth}"
            )
            require(len(rest) <= depth, held)


def writers_keep_their_order(fixture: Fixture) -> None:
    """C28: the reader of a fan-in gets the messages of each writer once and in order, and the end after all."""
    _need(fixture, "fan_in")
    with _opened(fixture, pattern="fan_in", writers=3, depth=4) as channel:
        reading = channel.readers[0].start("read_all", timeout_s=PATIENCE_S)
        stream = {"first": 0, "count": _COUNT, "sizes": [_BYTES], "kinds": ["bytes"], "timeout_s": PATIENCE_S}
        writes = [writer.start("write_stream", seed=seed, **stream) for seed, writer in enumerate(channel.writers)]
        for writer, call in zip(channel.writers, writes, strict=True):
            call.result(DEADLINE_S)
            writer.start("close")
        outcome = reading.result(DEADLINE_S)
        for seed in range(len(channel.writers)):
            got = [sequence for sequence, its_seed in outcome["got"] if its_seed == seed]
            what = f"of {_COUNT} messages of writer {seed} the reader got {len(got)}: {got}"
            require(got == list(range(_COUNT)), what)
        require(outcome["ended"] == "EndOfStream", f"after all writers closed: {outcome['ended']}, not EndOfStream")


def each_goes_to_one_worker(fixture: Fixture) -> None:
    """C29: each message of a queue goes to exactly one worker, in the end all do, and then the stream ends."""
    _need(fixture, "queue")
    for readers in fixture.readers:
        with _opened(fixture, pattern="queue", readers=readers, depth=4) as channel:
            reads = [reader.start("read_all", timeout_s=PATIENCE_S) for reader in channel.readers]
            _write(channel, _COUNT)
            channel.writer.play("drain", timeout_s=PATIENCE_S)
            closing = channel.writer.start("close")
            _once_each(channel, [call.result(DEADLINE_S) for call in reads])
            closing.result(DEADLINE_S)


def others_get_what_is_unfinished(fixture: Fixture) -> None:
    """C30: with `redelivers`, what a worker has not finished when it leaves or dies is given to others."""
    _need(fixture, "queue")
    if not fixture.can.redelivers:
        raise LawSkipped("capabilities.redelivers is false")
    for way in ("close",) if fixture.inline else ("close", "kill"):
        with _opened(fixture, pattern="queue", readers=2, depth=4) as channel:
            leaving, staying = channel.readers
            for worker in channel.readers:
                worker.play("read", timeout_s=_LITTLE_S)  # from then on the writer knows that it is there
            _write(channel, 8)  # each has four
            if way == "kill":
                leaving.kill()
            else:
                leaving.close()
            reading = staying.start("read_all", timeout_s=PATIENCE_S)
            channel.writer.play("drain", timeout_s=PATIENCE_S)
            closing = channel.writer.start("close")
            _once_each(channel, [reading.result(DEADLINE_S)], count=8)
            closing.result(DEADLINE_S)


def _need(fixture: Fixture, pattern: Pattern) -> None:
    if pattern not in fixture.can.patterns:
        raise LawSkipped(f"capabilities.patterns has no {pattern}")


def _opened(fixture: Fixture, **wanted: Any) -> Any:
    return fixture.channel(settled=False, delivery="every_message", max_message_bytes=_BYTES, **wanted)


def _write(channel: ChannelUnderTest, count: int) -> None:
    stream = {"seed": channel.seed, "first": 0, "count": count, "sizes": [_BYTES], "kinds": ["bytes"]}
    channel.writer.play("write_stream", **stream, timeout_s=PATIENCE_S)


def _once_each(channel: ChannelUnderTest, outcomes: list[dict[str, Any]], count: int = _COUNT) -> None:
    got = sorted(sequence for outcome in outcomes for sequence, _ in outcome["got"])
    require(got == list(range(count)), f"of {count} messages of a queue its workers got {len(got)}: {got}")
    for outcome in outcomes:
        require(outcome["ended"] == "EndOfStream", f"a worker got {outcome['ended']}, not EndOfStream")
