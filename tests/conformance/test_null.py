"""Backend `null` against the contract."""

from ipcbench.backends.null import Null
from ipcbench.spec import ChannelSpec
from ipcbench.testing import ConformanceSuite


class TestNull(ConformanceSuite):
    backend = "null"


def test_a_reader_opens_after_another_has_closed() -> None:
    backend = Null()
    address = backend.create(ChannelSpec("null-late-reader", readers=2))
    try:
        with backend.open_writer(address) as writer:
            backend.open_reader(address, 0).close()
            writer.write(b"a")
            with backend.open_reader(address, 1) as reader:
                assert bytes(reader.read(1.0)) == b"a"
    finally:
        backend.destroy(address)
