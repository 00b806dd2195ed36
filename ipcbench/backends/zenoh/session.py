"""Sessions of zenoh, which look for nobody (no scouting) and talk only where they are told to."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Sequence
from typing import Any

from ipcbench.spec import ChannelSpec
from ipcbench.sync.descriptors import close_sockets
from ipcbench.sync.ownership import own

__all__ = ["ERRORS", "Session", "absence", "zenoh"]

absence: ModuleNotFoundError | None = None
try:
    import zenoh
except ModuleNotFoundError as error:
    zenoh, absence = None, error  # type: ignore[assignment]

_RETRY_MS = 10
"""Until a session tries again to connect."""
_YEAR_MS = 365 * 24 * 3600 * 1000
"""Stands for ever: -1, which zenoh documents, makes a put panic as soon as it has to wait."""
_HEADER_BYTES = 2**16
"""More than zenoh adds to a message."""

ERRORS: tuple[type[Exception], ...] = (zenoh.ZError,) if zenoh else ()


class Session:
    """A session with its publishers, or with its subscriber.

    Args:
        channel: whose messages it carries.
        listen: where it listens, in zenoh's words.
        connect: where it connects to, and goes on to try that.
        login: settings of `transport/auth/usrpwd`.

    Attributes:
        session: zenoh's.
        parts: what it has declared, which ends when nobody refers to it any more.
    """

    def __init__(
        self,
        channel: ChannelSpec,
        *,
        listen: Sequence[str] = (),
        connect: Sequence[str] = (),
        login: dict[str, str] | None = None,
    ) -> None:
        """Open it.

        Raises:
            zenoh.ZError: it cannot listen.
        """
        retry = {"period_init_ms": _RETRY_MS, "period_max_ms": _RETRY_MS, "period_increase_factor": 1}
        tries = {"timeout_ms": -1, "exit_on_failure": False, "retry": retry}
        block = {"block": {"wait_before_close": 1000 * _YEAR_MS}}
        sender = {"lease": _YEAR_MS, "queue": {"size": {"data": 16}, "congestion_control": block}}
        settings = {
            "mode": "peer",
            "listen": {"endpoints": list(listen)},
            "connect": {"endpoints": list(connect), **tries},
            "open": {"return_conditions": {"connect_scouted": False, "declares": False}},
            "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
            "transport": {
                "shared_memory": {"enabled": False},
                "link": {"tx": sender, "rx": {"max_message_size": channel.max_message_bytes + _HEADER_BYTES}},
                **({"auth": {"usrpwd": login}} if login else {}),
            },
        }
        self.session: Any = zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
        self.parts: list[Any] = []
        self._places = {place.partition("/")[2] for place in (*listen, *connect)}
        self._pid = os.getpid()
        own(self)
        atexit.register(self.close)  # zenoh may wait 10 s for a session that only the interpreter's end drops

    def close(self) -> None:
        """Close it; in a forked child do nothing."""
        atexit.unregister(self.close)
        if os.getpid() == self._pid:
            self.session.close()

    def let_go(self) -> None:
        """Close in a forked child the connections that it has inherited: a put waits as long as anybody has them."""
        close_sockets(self._places)
