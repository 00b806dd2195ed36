"""An opening that is refused may be tried again, and a channel that is destroyed while it is made leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec

_WITHOUT_MEMORY = """
import os, resource, sys
from ipcbench import get_backend
from ipcbench.errors import TransportError
from ipcbench.spec import ChannelSpec

backend = get_backend(sys.argv[1])()
channel = ChannelSpec(f"ipcb-refused-{os.getpid()}", readers=1, delivery="latest_value")
address = backend.create(channel)
held = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
no_limit = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (held + int(sys.argv[2]), no_limit[1]))  # no stack of a thread fits in
try:
    backend.open_reader(address, 0)
except TransportError:
    print("refused")
resource.setrlimit(resource.RLIMIT_AS, no_limit)
reader = backend.open_reader(address, 0)
reader.close()
backend.destroy(address)
"""


@pytest.mark.parametrize("name", ["pipe", "zmq"])
@pytest.mark.parametrize("room_bytes", [0, 2**22])
def test_a_reader_of_latest_values_refused_for_want_of_memory_may_be_opened_later(name: str, room_bytes: int) -> None:
    command = [sys.executable, "-c", _WITHOUT_MEMORY, name, str(room_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


_DESTROYS = """
import json, sys
from contextlib import suppress
from ipcbench import get_backend
from ipcbench.backend import Address
from ipcbench.errors import TransportError

address = Address.from_dict(json.loads(sys.argv[1]))
backend = get_backend(address.backend)()
for _ in range(2000):
    with suppress(TransportError):
        backend.destroy(address)
"""


@pytest.mark.parametrize("name", ["shm", "lmdb", "pipe", "zmq"])
def test_a_channel_that_is_destroyed_while_it_is_made_leaves_nothing(name: str) -> None:
    backend: Any = get_backend(name)()
    channel = ChannelSpec(f"ipcb-raced-{os.getpid()}", max_message_bytes=100)
    address = backend.create(channel)
    made_count = 0
    with subprocess.Popen([sys.executable, "-c", _DESTROYS, json.dumps(address.as_dict())]) as other:
        while other.poll() is None:
            with suppress(TransportError):  # of `create` only: what it made can always be destroyed
                backend.create(channel)
                made_count += 1
            backend.destroy(address)
    assert other.returncode == 0
    backend.destroy(address)
    assert made_count
    assert not os.path.lexists(address.location.partition("\n")[0])
    assert not os.path.lexists(f"/dev/shm/{channel.name}")
    backend.destroy(backend.create(channel))
