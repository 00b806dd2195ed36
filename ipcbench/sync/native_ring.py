"""The endpoints of `ipcbench.sync.ring`, in C where that was built."""

from __future__ import annotations

from typing import Any, NoReturn

from ipcbench.backend import Address, Waits
from ipcbench.errors import EndOfStream, MessageTooLarge, PeerLost, TransportError
from ipcbench.sync.cursors import READER_SLEEPS, Cursors
from ipcbench.sync.futex import HAS_FUTEX
from ipcbench.sync.native import NATIVE
from ipcbench.sync.ring import PureRingReader, PureRingWriter, RingMemoryReader, RingMemoryWriter
from ipcbench.sync.ring_memory import RingMemory

_DOZES = 64
"""How many waits sleep on a word before Python has a say again."""
_WRITER_FENCES = 4
"""Word of the writer's line: set by a writer that orders each message before its look for sleepers."""


if NATIVE is None:
    RingWriter: Any = PureRingWriter
    RingReader: Any = PureRingReader
else:

    class NativeRingWriter(NATIVE.RingWriter, RingMemoryWriter):  # type: ignore[misc]
        """The same with `write` in C, which calls these methods when it cannot go on by itself."""

        def __init__(self, address: Address, mapping: RingMemory) -> None:
            super().__init__(address, mapping)
            self._prepare(*_place_of(mapping, self._cursors), self._fenced, self._limit_bytes, self._cursors.bells())
            self._cursors.words[_WRITER_FENCES] = 1

        def _await_room(self, count: int, timeout_s: float | None) -> None:
            try:
                self._cursors.require_open()
                self._cursors.wait_until_consumed(count, timeout_s)
            except PeerLost:
                self._release()  # every later call comes here
                raise

        def _too_large(self, size_bytes: int) -> NoReturn:
            raise MessageTooLarge(size_bytes, self._limit_bytes)

        def _close(self) -> None:
            self._forget_bells()
            super()._close()

        def let_go(self) -> None:
            self._forget_bells()
            super().let_go()

        def _drop(self) -> None:
            self._release()
            super()._drop()

    class NativeRingReader(NATIVE.RingReader, RingMemoryReader):  # type: ignore[misc]
        """The same with `read` in C, which calls these methods when it cannot go on by itself."""

        def __init__(self, address: Address, mapping: RingMemory, index: int) -> None:
            super().__init__(address, mapping, index)
            self._prepare(
                *_place_of(mapping, self._cursors), self._fenced, 8 * self._consumed_word, 8 * READER_SLEEPS + index
            )
            self._dozes = HAS_FUTEX and address.channel.wait == "block"

        def fileno(self) -> int:
            self._dozes, self._dozes_left = False, 0  # a word cannot be waited on together with others
            self._bell = super().fileno()
            return self._bell

        def _may_look(self) -> int:
            """Count a wait, and return how it should begin: by polling (1), sleeping on a word (2, or more: then
            so many later waits do so, too, and are not told here), or else (0).
            """
            waiter = self._waiter
            waiter.begun_count += 1
            if waiter.looks:
                return 1
            if not HAS_FUTEX or self._cursors.is_watched:
                return 0
            skips_count = waiter.take_skips(_DOZES)
            return 1 + skips_count if skips_count else 0

        def _require_no_call(self) -> None:
            if self._waits_in_c:
                raise TransportError("a signal handler cannot close an endpoint whose `read` it interrupts")
            super()._require_no_call()

        @property
        def waits(self) -> Waits:
            waits = super().waits
            spun_count = waits.spun_count - self._known_dozes_count
            return Waits(spun_count, waits.yielded_count, waits.slept_count + self._dozes_count)

        def _await(self, wanted: int, timeout_s: float | None) -> None:
            self._cursors.require_open()
            heads, (_, head) = self._heads, self._entries[(wanted - 1) % self._count]
            if not self._cursors.wait_until(lambda: bool(heads[head] == wanted), timeout_s, counted=True):
                raise EndOfStream(f"channel ended after {wanted - 1} messages")

        def _ring_writer(self) -> None:
            self._cursors.ring_writer()

        def _close(self) -> None:
            self._bell = -1  # first: the descriptor may then be another file's
            super()._close()

        def let_go(self) -> None:
            self._bell = -1
            super().let_go()

        def _drop(self) -> None:
            self._release()
            super()._drop()

    def _place_of(mapping: RingMemory, cursors: Cursors) -> tuple[memoryview, memoryview, int, int, int, int, int, int]:
        """Return the memory of the ring, that of its cursors, and where everything is in the former."""
        layout = mapping.layout
        arena_start = layout.total_bytes - layout.arena_bytes
        words = memoryview(cursors.words)  # so that those can be released while a copy is under way
        return (mapping.memory, words, layout.count, layout.entry_bytes, layout.inline_bytes, layout.start_bytes,
                arena_start, layout.arena_bytes)  # fmt: skip

    RingWriter, RingReader = NativeRingWriter, NativeRingReader
