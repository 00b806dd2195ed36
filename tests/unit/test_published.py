"""What is said of hosts, without their names."""

from __future__ import annotations

import pytest

from ipcbench.hosts.published import Unnamed

_SHORT = (("a", "10.77.0.1"), ("b", "10.77.0.2"))
_LONG = (("me@gpu-1.lab", "192.168.1.1"), ("192.168.1.10", "", "fd00::1", "gpu-12"))


@pytest.mark.parametrize(
    ("hosts", "said", "published"),
    [
        (
            _SHORT,
            '[proxy:1@b] HYDU_sock_connect (lib/sock.c:1): unable to connect from "b" to "10.77.0.1" (refused)',
            '[proxy:1@host 2] HYDU_sock_connect (lib/sock.c:1): unable to connect from "host 2" to "host 1" (refused)',
        ),
        (_SHORT, "host b: a reader of b:4000 has died", "host 2: a reader of host 2:4000 has died"),
        (_SHORT, "10.77.0.10 and 110.77.0.1, not 10.77.0.1.", "10.77.0.10 and 110.77.0.1, not host 1."),
        (_LONG, "192.168.1.10: 192.168.1.1:80", "host 2: host 1:80"),
        (_LONG, "[fd00::1]:80 fd00::1:6379 fd00::12 fd00::1:2:3", "[host 2]:80 host 2:6379 fd00::12 fd00::1:2:3"),
        (_LONG, "host me@gpu-1.lab, gpu-1, gpu-12.lab.org; gpu-13", "host 1, host 1, host 2; gpu-13"),
        ((("reader",), ("node7",)), "reader-0: reader: node7/x /node7/x", "reader-0: reader: host 2/x /node7/x"),
        ((("one", "box"), ("two", "box")), "one two box", "host 1 host 2 a host"),
        ((), "a", "a"),
    ],
)
def test_numbers_stand_in_place_of_whole_names_and_addresses(hosts, said, published) -> None:
    assert Unnamed(hosts)(said) == published
