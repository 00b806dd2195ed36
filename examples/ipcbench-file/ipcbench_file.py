"""Transport `file`: a message is a file, and all readers read the same one. The cursors lie in shared memory."""

from mmap import mmap

from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer, bytes_of
from ipcbench.errors import EndOfStream, MessageTooLarge
from ipcbench.sync import (
    MAX_READERS,
    PUBLISHED,
    CursorsEndpoint,
    ReaderCursors,
    WriterCursors,
    as_transport_errors,
    channel_file,
    cursors_bytes,
    make_doorbells,
    new_directory,
    open_directory,
    remove_directory,
)


class End(CursorsEndpoint):
    """What both ends have: cursors, and as many files as the channel is deep, used in turn."""

    @as_transport_errors("cannot open an endpoint of file")
    def __init__(self, kind, address, *index):
        folder, self.count = open_directory(address), 0
        with (folder / "cursors").open("r+b") as file:
            words = memoryview(mmap(file.fileno(), 0)).cast("Q")
        self._cursors = kind(words, address, *index)
        self.files = [channel_file(address, f"message-{number}") for number in range(address.channel.depth)]
        self.opened()

    def file(self):
        return self.files[self.count % len(self.files)]

    def _drop(self):
        self._cursors.words.release()


class FileWriter(End, Writer):
    @as_transport_errors("cannot write")
    def write(self, message, timeout_s=None):
        self._cursors.require_open()
        message = bytes_of(message)
        if len(message) > self._cursors.channel.max_message_bytes:
            raise MessageTooLarge(len(message), self._cursors.channel.max_message_bytes)
        self._cursors.wait_until_consumed(self.count + 1 - len(self.files), timeout_s)
        self.file().write_bytes(message)
        self.count += 1
        self._cursors.store_published(PUBLISHED, self.count)
        self._cursors.ring_sleepers()


class FileReader(End, Reader):
    @as_transport_errors("cannot read")
    def read(self, timeout_s=None):
        self._cursors.require_open()
        if not self._cursors.wait_until(lambda: self._cursors.words[PUBLISHED] > self.count, timeout_s):
            raise EndOfStream("the writer has closed")
        message = self.file().read_bytes()
        self.count += 1
        self._cursors.done_with(self.count)
        return memoryview(message)


class File(Backend):
    name = "file"
    summary = "one file a message, the same for all readers"
    capabilities = Capabilities(
        deliveries=frozenset({"every_message"}),
        when_full="block",
        max_message_bytes=2**30,
        max_readers=MAX_READERS,
        zero_copy_read=False,
        waits=frozenset({"spin", "yield", "block"}),
        launcher="spawn",
        remote=False,
        persistent=True,
        detects_peer_exit=True,
    )

    @classmethod
    def probe(cls):
        """Files are everywhere."""

    @as_transport_errors("no channel of file")
    def create(self, channel):
        self.require(channel)
        with new_directory(channel.name) as (folder, location, _):
            make_doorbells(folder, channel.readers)
            (folder / "cursors").write_bytes(bytes(cursors_bytes(channel.readers)))
        return Address(self.name, channel, location)

    def open_writer(self, address):
        return FileWriter(WriterCursors, address)

    def open_reader(self, address, index):
        return FileReader(ReaderCursors, address, index)

    def destroy(self, address):
        remove_directory(address)
