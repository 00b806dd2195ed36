"""Variables of the environment that name an endpoint."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from ipcbench.diagnose.endpoints.look import Finding
from ipcbench.diagnose.endpoints.process import Unreadable, environment_of
from ipcbench.diagnose.endpoints.url import Endpoint, parse_endpoint
from ipcbench.errors import ConfigError

_OTHERS: Final = re.compile(
    r"(DOCKER|CONTAINER|PODMAN|DBUS|SSH|XDG|BUILDKIT|KUBERNETES)_.*|.*_PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?|.*_SERVICE_.*"
)
"""Those of desktops and containers, and those that containers set for every service that there is."""
_ADDRESS: Final = re.compile(r"ADDR|ENDPOINT|URL|HOST", re.IGNORECASE)


def variables(endpoint: Endpoint, pid: int | None) -> Iterator[Finding]:
    """Yield a finding for each variable that names an endpoint, of a process, or of this one."""
    try:
        every: Mapping[str, str] = os.environ if pid is None else environment_of(pid)
    except Unreadable as reason:
        yield Finding("unknown", f"environment: {reason}")
        return
    whose = "this process" if pid is None else f"process {pid}"
    for name, value in sorted(every.items()):
        named = None if _OTHERS.fullmatch(name) else _endpoint(name, value.strip(), endpoint)
        if named is None:
            continue
        if named.is_same(endpoint):
            yield Finding("ok", f"{name} of {whose} names it")
        else:
            remedy = f"if the program reads {name}, set it to {shlex.quote(endpoint.url)} on both sides"
            yield Finding("note", f"{name} of {whose} names another address, {value}", remedy)


def _endpoint(name: str, value: str, wanted: Endpoint) -> Endpoint | None:
    """Return what a variable names; host and port without a scheme only if TCP is asked for."""
    if "://" not in value:
        if wanted.kind != "tcp" or not _ADDRESS.search(name):
            return None
        value = f"tcp://{value}"
    try:
        return parse_endpoint(value, name)
    except ConfigError:
        return None  # a proxy, a page
