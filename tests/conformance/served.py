"""What tests of transports with a server of the channel's own share."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ipcbench import Address, Reader, Writer
from ipcbench.sync.directory import channel_directory

WAIT_S = 60.0


def server_of(address: Address) -> int:
    """Return the number of the process that is the channel's server."""
    folder = str(channel_directory(address))
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if folder in path.read_text():
                return int(path.parent.name)
    raise AssertionError("there is no server")


def write_for_ever(writer: Writer) -> None:
    """Write until that raises."""
    while True:
        writer.write(b"y", timeout_s=WAIT_S)


def read_for_ever(reader: Reader) -> None:
    """Read until that raises."""
    while True:
        reader.read(timeout_s=WAIT_S)
