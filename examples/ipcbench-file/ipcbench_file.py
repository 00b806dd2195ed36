"""Transport `file`: a message is a file, and all readers read the same one. The cursors lie in shared memory."""

from contextlib import contextmanager
from mmap import mmap

from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer, bytes_of
from ipcbench.errors import EndOfStream, MessageTooLarge, TransportError
from ipcbench.sync import (
    MAX_READERS,
    PUBLISHED,
    ReaderCursors,
    WriterCursors,
    channel_directory,
    cursors_bytes,
    make_directory,
    make_doorbells,
    remove_directory,
)


@contextmanager
def our_errors():
    try:
        yield
    except OSError as error:
        raise TransportError(str(error)) from error


class End:
    """What both ends have: cursors, and as many files as the channel is deep, used in turn."""

    @our_errors()
    def __init__(self, kind, address, *index):
        folder, self.count = channel_directory(address.channel.name), 0
        with (folder / "cursors").open("r+b") as file:
            words = memoryview(mmap(file.fileno(), 0)).cast("Q")
        self.cursors = kind(words, address.channel, folder, *index)
        self.files = [folder / f"{number}.message" for number in range(address.channel.depth)]

    def file(self):
        return self.files[self.count % len(self.files)]

    def close(self):
        self.cursors.close()
        self.cursors.words.release()


class FileWriter(End, Writer):
    @our_errors()
    def write(self, message, timeout_s=None):
        self.cursors.require_open()
        message = bytes_of(message)
        if len(message) > self.cursors.channel.max_message_bytes:
            raise MessageTooLarge(len(message), self.cursors.channel.max_message_bytes)
        self.cursors.wait_until_consumed(self.count + 1 - len(self.files), timeout_s)
        self.file().write_bytes(message)
        self.count += 1
        self.cursors.store_published(PUBLISHED, self.count)
        self.cursors.ring_sleepers()


class FileReader(End, Reader):
    @our_errors()
    def read(self, timeout_s=None):
        self.cursors.require_open()
        if not self.cursors.wait_until(lambda: self.cursors.words[PUBLISHED] > self.count, timeout_s):
            raise EndOfStream("the writer has closed")
        message = self.file().read_bytes()
        self.count += 1
        self.cursors.done_with(self.count)
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

    @our_errors()
    def create(self, channel):
        self.require(channel)
        folder = make_directory(channel.name)
        make_doorbells(folder, channel.readers)
        (folder / "cursors").write_bytes(bytes(cursors_bytes(channel.readers)))
        return Address(self.name, channel, "")

    def open_writer(self, address):
        return FileWriter(WriterCursors, address)

    def open_reader(self, address, index):
        return FileReader(ReaderCursors, address, index)

    def destroy(self, address):
        remove_directory(address.channel.name)
