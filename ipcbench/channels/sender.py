"""Sending objects over a writer: their arrays are copied once, or not at all if they were made in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipcbench.backend import Writer
from ipcbench.workload.objects import Packed, Slot, pack, slot_bytes

_JOINED_BYTES = 4096


class Sender:
    """Sends objects."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._slot: Slot | None = None

    def empty(self, shape: Any, dtype: Any, timeout_s: float | None = None) -> Any:
        """Return an array in the transport's memory, with undefined contents; the next object sent may hold it, and is
        then not copied. It must not be used after that. There is one until then: a further one is an ordinary array.

        Raises:
            as `Writer.reserve`; ConfigError: there is no such array.
        """
        size_bytes = slot_bytes(shape, dtype)
        if self._slot is not None:
            return np.empty(shape, dtype)
        self._slot = Slot(self._writer.reserve(size_bytes, timeout_s), shape, dtype)
        return self._slot.array

    def send(self, obj: Any, prefix: bytes = b"", timeout_s: float | None = None, what: str = "the object") -> int:
        """Send an object; return the size of the message. After an error nothing was sent.

        Raises:
            EncodeError: something in it cannot travel.
            TransportTimeout, MessageTooLarge, PeerLost, EndpointClosed: as `Writer.write`.
        """
        packed = self.pack(obj, prefix, what)
        self.write(packed, timeout_s)
        return packed.size_bytes

    def pack(self, obj: Any, prefix: bytes = b"", what: str = "the object") -> Packed:
        """Pack an object, which must stay as it is until it is written.

        Raises:
            EncodeError: something in it cannot travel.
        """
        return pack(obj, prefix, self._slot, what)

    def write(self, packed: Packed, timeout_s: float | None = None) -> None:
        """Write what was packed last.

        Raises:
            as `Writer.write`; after a time-out it may be called again.
        """
        if packed.is_in_slot:
            self._writer.commit(packed.size_bytes, timeout_s)
        elif packed.size_bytes < _JOINED_BYTES:  # a short message is joined faster than its parts are looked at
            self._writer.write(b"".join(packed.buffers), timeout_s)
        else:
            self._writer.write_parts(packed.buffers, timeout_s)
        self._slot = None
