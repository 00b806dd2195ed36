"""Transport `nng`: for each reader a pair of nng sockets. They carry the bytes; the cursors count and keep places."""

import os
from contextlib import suppress
from mmap import mmap

from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer, bytes_of, unavailable
from ipcbench.errors import EndOfStream, MessageTooLarge, TransportError, TransportTimeout
from ipcbench.sync import (
    MAX_READERS,
    CursorsEndpoint,
    ReaderCursors,
    WriterCursors,
    as_transport_errors,
    channel_file,
    cursors_bytes,
    make_doorbells,
    new_directory,
    open_directory,
    reader_role,
    reader_roles,
    remove_directory,
)
from ipcbench.util.clock import deadline_ns, remaining_s

try:
    import pynng

    absence = None
except ImportError as error:
    absence = error

MESSAGE, END = b"\0", b"\1"  # the first byte of a frame
MOST_MESSAGES = 1024  # that nng is asked to hold for a reader
RETRY_MS = 5  # until a writer tries again to reach a reader that has not opened yet
SLICE_MS = 100  # until a reader looks whether the writer still lives
LINGER_S = 2.0  # how long `close` waits for readers; nng drops what it has not sent when its sockets close


class End(CursorsEndpoint):
    def __init__(self, kind, address, *index):
        folder = open_directory(address)
        with as_transport_errors("cannot open an endpoint of nng"), (folder / "cursors").open("r+b") as file:
            words = memoryview(mmap(file.fileno(), 0)).cast("Q")
        self._cursors = kind(words, address, *index)
        self.pid, self.count, self.depth = os.getpid(), 0, min(address.channel.depth, MOST_MESSAGES)
        roles = [reader_role(address.channel, *index)] if index else reader_roles(address.channel)
        self.urls = [f"ipc://{channel_file(address, role)}" for role in roles]
        self.pairs = [
            pynng.Pair0(
                send_buffer_size=self.depth + 1,  # one more for the frame that ends the stream
                recv_buffer_size=self.depth + 1,
                reconnect_time_min=RETRY_MS,
                reconnect_time_max=RETRY_MS,
            )
            for _ in roles
        ]
        self.opened()

    def _drop(self):
        if os.getpid() == self.pid:  # not in a forked child, which has none of nng's threads
            for pair in self.pairs:
                pair.close()
        self._cursors.words.release()


class NngWriter(End, Writer):
    def __init__(self, address):
        super().__init__(WriterCursors, address)
        for pair, url in zip(self.pairs, self.urls, strict=True):
            pair.dial(url, block=False)  # and again until the reader listens

    def write(self, message, timeout_s=None):
        self._cursors.require_open()
        message = bytes_of(message)
        if len(message) > self._cursors.channel.max_message_bytes:
            raise MessageTooLarge(len(message), self._cursors.channel.max_message_bytes)
        self._cursors.wait_until_consumed(self.count + 1 - self.depth, timeout_s)
        self.send(MESSAGE + message)

    def send(self, frame):
        self.count += 1
        for pair in self.pairs:
            with suppress(pynng.TryAgain):  # only a reader that has closed has no room: the cursors wait for the others
                pair.send(frame, block=False)

    def close(self):
        if not self.closed:
            self.send(END)
            with suppress(TransportError):
                self._cursors.wait_until_consumed(self.count, LINGER_S)
            super().close()


class NngReader(End, Reader):
    frame = b""

    def __init__(self, address, index):
        super().__init__(ReaderCursors, address, index)
        self.pairs[0].listen(self.urls[0])

    def read(self, timeout_s=None):
        self._cursors.require_open()
        if self.frame != END:
            self.frame = self.receive(deadline_ns(timeout_s))
            self.count += 1
            self._cursors.done_with(self.count)
        if self.frame == END:
            raise EndOfStream("the writer has closed")
        return memoryview(self.frame)[1:]

    def receive(self, deadline):
        while True:
            left_s = remaining_s(deadline)
            self.pairs[0].recv_timeout = SLICE_MS if left_s is None else min(SLICE_MS, int(1e3 * left_s) + 1)
            try:
                return self.pairs[0].recv(block=left_s != 0)
            except (pynng.Timeout, pynng.TryAgain) as error:
                self._cursors.check_peers()
                if left_s == 0:
                    raise TransportTimeout("no message") from error


class Nng(Backend):
    name = "nng"
    summary = "nng, by pynng: a pair of sockets for each reader, with credit"
    capabilities = Capabilities(
        deliveries=frozenset({"every_message"}),
        when_full="block",
        max_message_bytes=2**30,
        max_readers=MAX_READERS,
        zero_copy_read=False,
        waits=frozenset({"block"}),
        launcher="spawn",
        remote=False,
        persistent=False,
        detects_peer_exit=True,
    )

    @classmethod
    def probe(cls):
        if absence is not None:
            raise unavailable(cls.name, absence, "pynng", "pip install pynng") from absence

    @as_transport_errors("no channel of nng")
    def create(self, channel):
        self.probe()
        self.require(channel)
        with new_directory(channel.name) as (folder, location, _):
            make_doorbells(folder, channel.readers)
            (folder / "cursors").write_bytes(bytes(cursors_bytes(channel.readers)))
        return Address(self.name, channel, location)

    def open_writer(self, address):
        return NngWriter(address)

    def open_reader(self, address, index):
        return NngReader(address, index)

    def destroy(self, address):
        remove_directory(address)
