"""What the keeper of a host finds there: the machine, its floor, its address, and which backends it can run."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ipcbench.errors import BackendUnavailable, ConfigError
from ipcbench.harness.floor import measure_floor
from ipcbench.harness.placement import allowed_cores
from ipcbench.harness.prepare import usable_backends
from ipcbench.machine.describe import describe_machine, describe_versions
from ipcbench.spec import ChannelSpec
from ipcbench.sync.directory import as_transport_errors
from ipcbench.util.files import require_space, temporary_folder


def describe_host(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this host is and can run, as plain values.

    Args:
        question: `backends`; `channel` as they must be able to make it; `sizes`, payload sizes in bytes; `name` and
            `address` of this host, as the inventory has them.

    Raises:
        ConfigError: other hosts cannot reach this one by that address.
        TransportError: there is no room for channels.
    """
    with as_transport_errors("there can be no channels"):
        require_space(temporary_folder())
    address = own_address(question["name"], question["address"])
    channel = ChannelSpec.from_dict({**question["channel"], "host": address})
    try:
        usable, skipped = usable_backends(question["backends"], channel)
    except BackendUnavailable as error:
        usable, skipped = {}, dict.fromkeys(question["backends"], error.reason)
    return {
        "address": address,
        "name": socket.gethostname(),  # as MPI says it, whatever the inventory calls this host
        "machine": describe_machine(),
        "versions": describe_versions(),
        "cores": sorted(allowed_cores()),
        "floor": asdict(measure_floor(question["sizes"])),
        "usable": [*usable],
        "skipped": skipped,
    }


def own_address(name: str, given: str) -> str:
    """Return the IP address of this host by which others reach it: what the inventory says, else where this user's ssh
    came in, else what the host's name means here.

    Raises:
        ConfigError: no interface of this host has it.
    """
    came_in = os.environ.get("SSH_CONNECTION", "").split()
    where = given or (came_in[2] if len(came_in) == 4 else name)
    try:
        family, _, _, _, (address, *_) = socket.getaddrinfo(where, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError as error:
        allowed = (
            f"an address of one of its interfaces ({where}: {error.strerror}); name it in the inventory: `address`"
        )
        raise ConfigError(f"host {name}", where, allowed) from error
    return str(address)
