"""When an endpoint of an MPI channel may enter the MPI call, so that the call is certain to return.

A blocking collective has no time-out. So the endpoints first agree, in shared words that carry no data, that all
will take part; waiting for that has a deadline. Besides the words of ipcbench/sync/cursors.py there are, for message k
(from 0):

- *announced* = k + 1: the writer means to send message k, unless it takes that back. Then *published* = k + 1: it
  does, and who reads may enter the call. Only a few instructions lie between the two.
- a reader's *asked* = k + 1 (the board's `consumed`): it waits for message k or has got it. Taken back on a time-out.
- a reader's *entered* = k + 1: nothing keeps it from the call for message k. A collective may reach a reader by way of
  another one, so a reader enters only after those before it.
- *runs*: from which message on which length and which readers hold; so most messages need no word of their own.

MPI keeps a few small messages for readers that have not called yet: the *window*. Outside of it, and for every
message too large for that, all readers must have asked before the writer announces. Taking back is safe because who
takes back makes all processes pass a memory barrier and then looks at what the other side has said (Dekker's
handshake; the hot side pays nothing).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ipcbench.backend import Message
from ipcbench.sync.cursors import MAX_READERS, ReaderCursors, WriterCursors, cursors_bytes
from ipcbench.util.clock import now_ns

MOST_AHEAD = 64
"""No window is larger, in messages."""

ANNOUNCED, RUNS = 2, 3  # words of the writer's line that the board leaves to its users
STATE, LEFT, ENTERED = 1, 2, 3  # words of a reader's line, relative to its `consumed`
LEAVING, HAS_LEFT = 1, 2  # `LEFT`: 0, then LEAVING, then HAS_LEFT + number of messages it takes part in
RUN_WORDS = 4
START, LENGTH, ABSENT, ALL_ASKED = range(RUN_WORDS)

MOST_LOOKS = 100
"""How often a waiting endpoint looks before anything else."""

_OFFERING_NS = 40_000
"""How long it then offers its core to others after each look, before it waits as `ipcbench.sync.wait` does: much as
MPI itself waits, so that processes on one core pass it on at once. Going on for as long as the copy of a large message
takes would halve the rate of four processes on two cores: who only yields keeps being scheduled beside who copies."""

_LOOKS_PER_CLOCK = 16
NOWHERE = memoryview(bytearray(cursors_bytes(MAX_READERS))).cast("Q")
"""What a closed endpoint looks at."""


class Link(ABC):
    """The MPI side of one endpoint: the named call, on the channel's own communicator; the writer is its rank 0."""

    window: int
    """How many small messages MPI keeps for a reader that has not called; at most `MOST_AHEAD`."""
    small_bytes: int
    """What counts as small."""
    relays: bool
    """True if a message may reach a reader by way of other readers."""
    makes_objects: bool
    """True if `receive` returns the message; False if it fills the buffer that it is given."""
    errors: type[Exception]
    """What the calls raise."""
    send: Callable[[Message], Any]
    """Send a message."""
    receive: Callable[..., Any]
    """Receive into a buffer, or an object if the first argument is None; the second argument is 0."""

    @abstractmethod
    def leave_out(self, absent: int) -> None:
        """Go on without the readers whose bits are set in `absent`; all others do the same now."""

    @abstractmethod
    def close(self, *, drained: bool) -> None:
        """Release the communicator, if all that was sent over it has been received here."""


def offer_core(cursors: WriterCursors | ReaderCursors, ready: Callable[[], bool], deadline: int | None) -> bool:
    """Look again and again, but let others run in between, for a short time; return whether it became true."""
    if cursors.channel.wait != "auto":
        return False
    stop = now_ns() + _OFFERING_NS
    stop = stop if deadline is None else min(stop, deadline)
    while now_ns() < stop:
        for _ in range(_LOOKS_PER_CLOCK):
            os.sched_yield()
            if ready():
                return True
    return False
