"""What a client of a soak does, in a process of its own: `python -m tests.rpc.soaking NAME SEED CALLS`."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from ipcbench import rpc

LARGEST_BYTES = 2**20
_IN_FLIGHT = 8
_LONG_S = 60.0


def call_all(name: str, seed: int, count: int) -> None:
    """Make calls with 1 B to 1 MiB, log-uniform, some one at a time and some as futures; check each reply.

    A request is a part of random bytes that no other client has, from a random place: a reply of another call differs.
    """
    generator = np.random.default_rng(seed)
    pool = generator.integers(0, 256, 2 * LARGEST_BYTES, dtype=np.uint8)
    sizes = np.exp(generator.uniform(0, np.log(LARGEST_BYTES), count)).astype(int)
    starts = generator.integers(0, LARGEST_BYTES, count)
    flying: deque[tuple[int, np.ndarray, Future[Any]]] = deque()
    with rpc.connect(name, timeout_s=_LONG_S) as client:
        for number, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            sent = pool[start : start + size]
            if number % 2:
                check(seed, number, sent, client.echo(seed, number, sent))
                continue
            flying.append((number, sent, client.submit("echo", seed, number, sent)))
            if len(flying) > _IN_FLIGHT:
                check_first(seed, flying)
        while flying:
            check_first(seed, flying)


def check_first(seed: int, flying: deque[tuple[int, np.ndarray, Future[Any]]]) -> None:
    number, sent, future = flying.popleft()
    check(seed, number, sent, future.result(_LONG_S))


def check(seed: int, number: int, sent: np.ndarray, reply: Any) -> None:
    (of_client, of_call, received), _ = reply
    assert (of_client, of_call) == (seed, number)
    assert np.array_equal(received, sent), f"call {number} of client {seed}: {len(received)} bytes for {len(sent)}"


def call_until(stopping: Callable[[], bool], call: Callable[[int], Future[Any]], lost: type[Exception]) -> list[int]:
    """Have 8 calls in flight until it is to stop; return how many came back right, and how many were lost with a word.

    A reply that is lost without one is a time-out here.
    """
    counts, flying, number = [0, 0], deque[tuple[int, Future[Any]]](), 0
    while not stopping() or flying:
        if not stopping() and len(flying) < _IN_FLIGHT:
            number += 1
            try:
                flying.append((number, call(number)))
            except lost:
                counts[1] += 1
            continue
        asked, future = flying.popleft()
        try:
            (received, _), _ = future.result(_LONG_S)
        except lost:
            counts[1] += 1
            continue
        assert received == asked
        counts[0] += 1
    assert sum(counts) == number
    return counts


if __name__ == "__main__":
    call_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
