"""The segment of a channel, as an endpoint sees it."""

from __future__ import annotations

from ipcbench.backend import Address
from ipcbench.backends.shm.segment import SharedSegment
from ipcbench.errors import TransportError
from ipcbench.sync.directory import no_channel, open_directory
from ipcbench.sync.ring_memory import Layout, RingMemory


class Mapping(RingMemory):
    """A channel's segment in this process."""

    def __init__(self, address: Address) -> None:
        """Attach the segment.

        Raises:
            TransportError: there is none, it is somebody else's, or too short.
        """
        open_directory(address)
        self.layout = layout = Layout(channel := address.channel)
        try:
            self._segment = SharedSegment(channel.name)
        except ValueError as error:  # it is empty, since whoever made it was killed
            raise TransportError(f"there is no channel {channel.name!r}: {error}") from error
        except OSError as error:
            raise no_channel(f"segment {channel.name}", error) from error
        self._segment.require_ours()
        buffer: memoryview = self._segment.buf  # type: ignore[assignment] # typeshed has None for a closed one
        if (size_bytes := buffer.nbytes) < layout.total_bytes:
            buffer.release()
            self._segment.close()
            raise TransportError(
                f"the segment of channel {channel.name!r} has {size_bytes:,} bytes, and needs {layout.total_bytes:,}: "
                "it was cut short; destroy the channel and create it anew"
            )
        self._lay_out(buffer)

    def close(self) -> None:
        """Unmap; see `SharedSegment.close`."""
        self._let_go()
        self._segment.close()
