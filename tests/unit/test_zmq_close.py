"""`close` of a zmq reader while another thread reads: an error in that thread, where it once ended the process."""

from __future__ import annotations

import os
import threading

import pytest

from ipcbench.errors import EndpointClosed
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
from ipcbench.testing.agents.client import until


@pytest.mark.parametrize("number", range(3))
def test_closing_while_another_thread_reads(number):
    backend = get_backend("zmq")()
    address = backend.create(ChannelSpec(name=f"ipcb-test-{os.getpid()}-close-{number}", readers=1))
    errors: list[BaseException] = []

    def read_on() -> None:
        try:
            while True:
                reader.read(30.0)
        except EndpointClosed as error:
            errors.append(error)

    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        writer.write(b"x", 30.0)
        thread = threading.Thread(target=read_on)
        thread.start()
        assert until(lambda: reader._reads, 30.0)
        reader.close()
        thread.join()
    backend.destroy(address)
    assert [type(error) for error in errors] == [EndpointClosed]


def test_a_forked_child_can_close_what_a_thread_of_its_parent_reads(channel_name):
    backend = get_backend("zmq")()
    address = backend.create(ChannelSpec(channel_name, readers=1))
    with backend.open_writer(address) as writer, backend.open_reader(address, 0) as reader:
        writer.write(b"x", 30.0)
        reader.read(30.0)
        reader._reads = True  # as in the thread
        child = os.fork()
        if not child:
            try:
                reader.close()
                reader.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        reader._reads = False
        writer.write(b"y", 30.0)
        assert reader.read(30.0) == b"y"
    backend.destroy(address)
