"""A channel's folder on two hosts: files, notes and locks; here both are folders of one host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ipcbench.backend import Address
from ipcbench.backends.stream.backend import Tcp
from ipcbench.errors import EndOfStream, TransportError
from ipcbench.hosts.mirror import Mirror, contents, join, leave
from ipcbench.spec import ChannelSpec
from ipcbench.sync.liveness import Liveness
from ipcbench.sync.locks import is_held
from ipcbench.testing.agents.client import until

_SOON_S = 30.0


@pytest.fixture
def pair(channel_name, tmp_path, monkeypatch) -> Iterator[tuple[Address, Address]]:
    """A channel's address on the host that made it, and on another one."""
    here = Tcp().create(ChannelSpec(channel_name, readers=2, host="127.0.0.1"))
    mirrors: list[Mirror] = []
    for other in (1, 0):
        mirrors.append(Mirror(lambda word, other=other: mirrors[other].hear(word)))
    with monkeypatch.context() as other_host:
        other_host.setenv("TMPDIR", str(tmp_path))
        there = join(here, host="127.0.0.1", **contents(here))
    mirrors[0].add(here)
    mirrors[1].add(there)
    yield here, there
    for mirror in mirrors:
        mirror.remove(channel_name)
    leave(there)
    Tcp().destroy(here)
    assert not list(tmp_path.iterdir())


def test_messages_go_from_one_host_to_the_other_and_a_reader_may_close(pair) -> None:
    here, there = pair
    with Tcp().open_reader(there, 0) as far, Tcp().open_reader(here, 1) as near, Tcp().open_writer(here) as writer:
        writer.write(b"first", 20)
        assert [bytes(reader.read(20)) for reader in (far, near)] == [b"first"] * 2
        far.close()
        for number in range(10):  # the note that it has closed may still be on its way
            writer.write(b"%d" % number, 20)
        assert [bytes(near.read(20)) for _ in range(10)] == [b"%d" % number for number in range(10)]
        writer.close()
        with pytest.raises(EndOfStream):
            near.read(20)


def test_a_note_comes_before_the_end_of_its_lock_and_a_death_has_none(pair) -> None:
    here, there = pair
    writer, closes, dies = Liveness(here, "writer"), Liveness(there, "reader-0"), Liveness(there, "reader-1")
    assert until(lambda: all(is_held(writer.directory, role) for role in ("reader-0", "reader-1")), _SOON_S), (
        "the locks are held here"
    )
    closes.leave_note("in order")
    closes.release()
    dies.release()
    assert writer.note_at_end("reader-0") == "in order"
    assert writer.note_at_end("reader-1") is None
    assert until(lambda: writer.is_gone("reader-1"), _SOON_S), "the death is seen here"
    writer.release()


def test_a_channel_of_another_host_opens_only_with_its_token(pair) -> None:
    here, there = pair
    another = Address(there.backend, there.channel, there.location.replace(here.location.split("\n")[1], "0" * 8))
    with pytest.raises(TransportError, match="destroyed, and made anew"):
        Liveness(another, "reader-0")
